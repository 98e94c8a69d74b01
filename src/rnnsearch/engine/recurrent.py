"""The engine for any recurrent model that is stored as a program (`program.py`), in NumPy and native code.

It serves engine files of all systems except RNNsearch, which has its own engine (`rnnsearch.py`). Matrix products are
in the requested type, but the recurrences of encoder cells are in fp32, as in search with PyTorch. This module must
not import torch.

`accel/program_writer.py` creates `RecurrentModel`, and `engine/file.py` stores it.

Axes: B sentences, J source positions, K hypotheses per sentence, N = B * K rows, E embedding, H attention values, A
attention keys, D outputs of a cell, P values that features compute once per sentence, S values of a state, V target
vocabulary, C columns of the output layer (V, or fewer for some tokens).

`export/web/module/recurrent.js` is the same engine in JavaScript. Tests: tests/properties/test_written_models.py,
tests/runtime/test_other_families.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_int32, c_int64
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rnnsearch.engine.layout import PackedLayout
from rnnsearch.engine.program import (
    Affine,
    FeatureProgram,
    InitialState,
    Program,
    ProgramChecker,
    StepProgram,
    parse_program,
)
from rnnsearch.engine.rnnsearch import (
    SOURCE_TABLE,
    TABLES,
    CBeamOptions,
    CGreedyResult,
    CHypotheses,
    CSearchOptions,
    PackedOutputLayer,
    RNNsearchEngine,
    Weight,
)
from rnnsearch.engine.structs import Array, CDecoder, CSourceBatch, DType, OpType, PackedMatrix, pointer, round_up

ONE_THREAD = c_int32(1)
"""Number of threads of a call of native code; the runtime uses only one."""


@dataclass(frozen=True)
class RecurrentModel:
    """A program and the arrays that it names."""

    program: Program
    """The computation."""
    weights: Mapping[str, Weight]
    """[outputs, inputs] each; the embedding tables are named in TABLES, the output layer is `output`."""
    vectors: Mapping[str, Array]
    """Arrays with one axis, in fp32."""
    system: ClassVar[str] = "recurrent"
    """Name of the system in engine files."""

    @property
    def header_fields(self) -> dict[str, Any]:
        """Fields of an engine file's header, in addition to the arrays."""
        return {"program": self.program}

    @staticmethod
    def from_header(
        header: Mapping[str, Any], weights: Mapping[str, Weight], vectors: Mapping[str, Array]
    ) -> RecurrentModel:
        """Return the model of an engine file.

        Raises:
            KeyError, ValueError, TypeError: The header does not contain a program.
        """
        return RecurrentModel(parse_program(header["program"]), weights, vectors)

    @property
    def attention_sizes(self) -> tuple[int, int]:
        """Sizes of keys and values, if the model has attention."""
        attention = self.program.attention
        assert attention is not None
        # A step has exactly one score, whose size is that of the keys (`ProgramChecker` verifies it).
        (operation,) = (op for op in self.program.step.operations if op.type in (OpType.ADDITIVE, OpType.DOT))
        # Annotations are the outputs of both directions; a projection or a value layer replaces their size.
        value_size = sum(cell.states[0].size for cell in self.program.encoder.layers[-1].cells)
        for layer in (attention.projection, attention.values):
            value_size = value_size if layer is None else layer.weight.rows
        if attention.with_words:
            value_size += self.weights[SOURCE_TABLE].values.shape[1]
        return operation.size, value_size

    def check(self) -> None:
        """Raise ValueError or KeyError if the arrays are not those of the program."""
        shapes = {name: weight.values.shape for name, weight in self.weights.items()}
        shapes |= {name: vector.shape for name, vector in self.vectors.items()}
        for name, (values, scale) in self.weights.items():
            dtype = np.dtype(np.float32 if scale is None else np.int8)
            if values.ndim != 2 or values.dtype != dtype:
                raise ValueError(f"{name} must be [outputs, inputs] in {dtype}; got {values.shape} in {values.dtype}")
            if scale is not None and (scale.shape != values.shape[:1] or scale.dtype != np.float32):
                must = f"the scales of {name} must be [{len(values)}] in float32"
                raise ValueError(f"{must}; got {scale.shape} in {scale.dtype}")
        for name, vector in self.vectors.items():
            if vector.ndim != 1 or vector.dtype != np.float32:
                raise ValueError(f"{name} must have one axis, in float32; got {vector.shape} in {vector.dtype}")
        ProgramChecker(self.program, shapes).check()
        steps = [cell for layer in self.program.encoder.layers for cell in layer.cells]
        for step in (*steps, self.program.step):  # whose inputs are packed as one matrix, of one type
            names = [layer.weight.array for layer in step.inputs]
            if len({self.weights[name].scale is None for name in names}) != 1:
                raise ValueError(f"{', '.join(names)} must all be in fp32, or all in int8")


class RecurrentMemory(NamedTuple):
    """Everything that is computed once per sentence, for B sentences with J source positions."""

    keys: Array  # [B, J, A]
    annotations: Array  # [B, J, H], values of the attention
    mask: Array  # [B, J], True on positions that can be attended to
    centres: Array  # [B, J] for a window that follows the target position, otherwise [B, 0]
    prepared: Array  # [B, J, P], values that features compute once per sentence
    state: Array  # [B, S]: feature states, the decoder's initial states, and the position t = 0


class _PackedCell(NamedTuple):
    """An encoder's cell."""

    inputs: PackedMatrix  # W and b of the inputs
    step: CDecoder
    sizes: list[int]  # of its states, the first of which is its output


class RecurrentEngine:
    """A model with packed weights, which encodes and searches."""

    def __init__(
        self, native: ctypes.CDLL, model: RecurrentModel, dtype: DType, restricts_output: bool = False
    ) -> None:
        """Pack the weights.

        Args:
            restricts_output: True if `rows` will be called.
        """
        self._native = native
        self._dtype = dtype
        program = self._program = model.program
        # The largest matrix comes first: the memory that it was read into can then be used for the others.
        self._output = PackedOutputLayer(
            native, model.weights["output"], model.vectors["output.bias"], dtype, restricts_output
        )
        self.output = self._output.full
        """Output layer over the whole vocabulary."""
        self.rows = self._output.rows
        """Function that returns the output layer over some tokens."""
        self.sources, self.targets = (model.weights[name] for name in TABLES)
        layout = self._layout = PackedLayout(native, model.weights, model.vectors)
        self._encoder: list[list[_PackedCell]] = []  # cells of each layer
        for layer in program.encoder.layers:
            input_dtype = DType.FP32 if layer.fp32_inputs else dtype
            self._encoder.append([self._packed_cell(cell, input_dtype) for cell in layer.cells])
        self._decoder = layout.step(program.step, dtype)
        layout.add_words(self._decoder, program.step, self.targets, dtype)
        layout.add_readout(self._decoder, program.readout_offset)
        self._position_keys: Array | None = None
        self._feature_state_size = 0  # values of attention features per source position
        if program.attention is not None:
            attention = layout.add_attention(self._decoder, program.attention, *model.attention_sizes)
            self._feature_state_size = int(attention.features.state_size)
            if program.attention.position_keys is not None:
                self._position_keys = model.weights[program.attention.position_keys].fp32
        self._layers = {layer: layout.matrix((layer,), dtype) for layer in program.layers}
        layout.release_weights()

    @property
    def attends(self) -> bool:
        """True if the model has attention."""
        return self._program.attention is not None

    def embed(self, ids: Array) -> Array:
        """Return source embeddings [B, J, E] of ids [B, J]."""
        return self.sources.fp32_rows(ids)

    def encode(self, words: Array, lengths: Array) -> RecurrentMemory:
        """Return the memory of B sentences.

        Args:
            words: Embedded source words [B, J, E].
            lengths: Numbers of real words [B], which come first in each row.
        """
        program = self._program
        order = np.argsort(-lengths, kind="stable")  # native code takes the longest sentences first
        words = np.ascontiguousarray(words[order], np.float32)  # [B, J, E]
        lengths = np.asarray(lengths[order], np.int64)
        if not program.encoder.reads_end:
            # Leave out the end token, but keep one position per sentence.
            lengths = np.maximum(lengths - 1, 1)
        annotations, summary, finals = self._run_encoder(words, lengths)
        if program.attention is not None:
            annotations = self._apply(program.attention.projection, annotations)
        B, J = words.shape[:2]
        mask = np.arange(J) < lengths[:, None]  # [B, J]
        total = (annotations * mask[:, :, None]).sum(1, dtype=np.float32)  # [B, H]
        vectors = {
            "summary": summary,
            "mean": total / lengths[:, None].astype(np.float32),
            "last": annotations[np.arange(B), lengths - 1],
        }
        states = [self._initial_state(state, vectors, finals, B) for state in program.initial_states]
        feature_states = np.zeros((B, J * self._feature_state_size), np.float32)
        state = np.concatenate([feature_states, *states, np.zeros((B, 1), np.float32)], 1)
        if self._position_keys is not None:
            # Positions beyond the table of keys cannot be attended to.
            mask = mask & (np.arange(J) < len(self._position_keys))
        keys, values, centres, prepared = self._attention_inputs(annotations, words, lengths)
        # Results are returned in the order of the caller's sentences.
        inverse = np.argsort(order, kind="stable")
        parts = (keys, values, mask, centres, prepared, state)
        return RecurrentMemory(*(np.ascontiguousarray(part[inverse]) for part in parts))

    def _attention_inputs(self, annotations: Array, words: Array, lengths: Array) -> tuple[Array, Array, Array, Array]:
        """Return keys, values, window centres and prepared values of features; empty without attention."""
        attention = self._program.attention
        B, J, _ = annotations.shape
        empty = np.empty((B, J, 0), np.float32)
        if attention is None:
            return empty, empty, empty[:, 0], empty
        keys = self._apply(attention.keys, annotations)
        values = self._apply(attention.values, annotations)
        if attention.with_words:
            values = np.concatenate([values, words], 2)
        if self._position_keys is not None:
            keys = np.zeros((B, J, self._position_keys.shape[1]), np.float32)
            known = min(J, len(self._position_keys))
            keys[:, :known] = self._position_keys[:known]
        if attention.position_layer is not None:
            positions = np.broadcast_arrays(np.arange(1, J + 1)[None], lengths[:, None])  # j and J
            keys = keys + self._apply(attention.position_layer, np.log1p(np.stack(positions, 2).astype(np.float32)))
        centres = empty[:, 0]
        if attention.follows_target:
            # The window follows the target position t and stays at the last source position.
            centres = np.minimum(np.arange(J), lengths[:, None] - 1).astype(np.float32)
        prepared = [self._prepare(feature, annotations) for feature in attention.features]
        return keys, values, centres, np.concatenate([empty, *prepared], 2)

    def _prepare(self, feature: FeatureProgram, annotations: Array) -> Array:
        """Return what a feature computes once per sentence: [B, J, 1], or [B, J, 3 units] in whole vectors."""
        if feature.layer is None:
            return np.ones((*annotations.shape[:2], 1), np.float32)
        projected = self._apply(feature.layer, annotations)
        if not feature.units:
            # exp may overflow to inf, which corresponds to a fertility of 0.
            with np.errstate(over="ignore"):
                return (1 + np.exp(-projected)) / np.float32(feature.max_fertility)  # 1 / (max_fertility sigma(x))
        gates = projected.reshape(*projected.shape[:2], 3, feature.units)
        # Each of the 3 blocks is padded, as in `pad_to_vectors` of ops/step.py.
        padding = round_up(feature.units) - feature.units
        return np.pad(gates, ((0, 0), (0, 0), (0, 0), (0, padding))).reshape(*projected.shape[:2], -1)

    def _run_encoder(self, x: Array, lengths: Array) -> tuple[Array, Array, list[list[Array]]]:
        """Return annotations [B, J, H], the summary [B, D], and the last states [B, size] of each layer."""
        encoder = self._program.encoder
        finals: list[list[Array]] = []
        words = lengths - encoder.reads_end
        hidden = _reverse_words(x, words) if encoder.reverse else x
        summary = x[:, 0]
        for layer, cells in zip(encoder.layers, self._encoder, strict=True):
            results = [self._run_cell(cell, hidden, lengths, backward=n == 1) for n, cell in enumerate(cells)]
            outputs = np.concatenate([outputs for outputs, _ in results], 2)
            # For each part of the state (h, and c of an LSTM), both directions side by side.
            states = zip(*(states for _, states in results), strict=True)
            finals.append([np.concatenate(directions, 1) for directions in states])
            # The last h of the top layer; of the backward cell if there is one, which has read the whole sentence.
            summary = results[-1][1][0]
            hidden = outputs + hidden if layer.residual else outputs
        return _reverse_words(hidden, words) if encoder.reverse else hidden, summary, finals

    def _packed_cell(self, program: StepProgram, input_dtype: DType) -> _PackedCell:
        inputs = self._layout.matrix(program.inputs, input_dtype)
        return _PackedCell(inputs, self._layout.step(program, DType.FP32), [values.size for values in program.states])

    def _run_cell(self, cell: _PackedCell, x: Array, lengths: Array, backward: bool) -> tuple[Array, list[Array]]:
        """Return a cell's outputs [B, J, D], 0 on padding, and its last states."""
        B, J = x.shape[:2]
        projected = cell.inputs.multiply(x)  # [B, J, x_size]
        state = np.zeros((B, cell.step.state_size), np.float32)
        outputs = np.zeros((B, J, cell.sizes[0]), np.float32)
        self._native.cell_sequence(
            *(byref(cell.step), pointer(np.ascontiguousarray(lengths)), c_int64(B), c_int64(J), c_int64(backward)),
            *(pointer(projected), pointer(state), pointer(outputs), ONE_THREAD),
        )
        ends = np.cumsum(cell.sizes)
        return outputs, np.split(state[:, : ends[-1]], ends[:-1], 1)

    def _initial_state(
        self, state: InitialState, vectors: Mapping[str, Array], finals: list[list[Array]], B: int
    ) -> Array:
        """Return one of the decoder's initial states [B, size].

        Args:
            state: How it is computed.
            vectors: Vectors of the sentences by the name of an `InitialState.source`.
            finals: Last states of each layer of the encoder.
            B: Number of sentences.
        """
        if state.source == "zeros":
            return np.zeros((B, state.size), np.float32)
        if state.source == "finals":
            values = np.concatenate([finals[layer][part] for layer, part in state.finals], 1)
        else:
            values = vectors[state.source]
        values = self._apply(state.layer, values)
        if state.activation:
            values = np.tanh(values) if state.activation == "tanh" else np.maximum(values, 0)
        return values[:, state.offset : state.offset + state.size]

    def step(
        self, memory: RecurrentMemory, state: Array, y: Array, output: PackedMatrix
    ) -> tuple[Array, Array, Array, Array]:
        """Compute one target position of N = B * K hypotheses, for `export/engine_file.py`, which verifies the engine.

        Search in native code (`greedy`, `beam`) does not return to Python at each position.

        Args:
            memory: Memory of B sentences.
            state: States of the hypotheses [N, S], K consecutive rows per sentence.
            y: Previous tokens [N].
            output: The output layer, over all tokens or some.

        Returns:
            Logits [N, C], the logarithm of the sum of their exponentials [N], the next state [N, S], and the attention
            weights [N, J].
        """
        N = len(y)
        B, J = memory.mask.shape
        y = np.ascontiguousarray(y, np.int64)
        state = np.ascontiguousarray(state)
        logits = np.zeros((N, output.struct.outputs), np.float32)
        norm = np.zeros(N, np.float32)
        # Without attention, native code writes no weights.
        alpha = np.zeros((N, J if self.attends else 0), np.float32)
        next_state = np.empty_like(state)
        self._native.decoder_step(
            *(*self._arguments(memory, output), pointer(y), None, c_int64(N), c_int64(N // B)),  # None: embed y
            *(pointer(state), pointer(next_state), pointer(alpha), pointer(logits), pointer(norm), ONE_THREAD),
        )
        return logits, norm, next_state, alpha

    def greedy(
        self, memory: RecurrentMemory, output: PackedMatrix, options: CSearchOptions, result: CGreedyResult
    ) -> int:
        """Fill the result of greedy search and return the number of steps."""
        self._native.decoder_greedy.restype = c_int64
        # Native code overwrites the state.
        state = memory.state.copy()
        arguments = (*self._arguments(memory, output), byref(options), c_int64(len(state)), pointer(state))
        return int(self._native.decoder_greedy(*arguments, byref(result), ONE_THREAD))

    def beam(
        self,
        memory: RecurrentMemory,
        output: PackedMatrix,
        options: CSearchOptions,
        beam_options: CBeamOptions,
        result: CHypotheses,
    ) -> bool:
        """Fill the result of beam search and return True unless a score is NaN."""
        self._native.decoder_beam.restype = c_int64
        sizes = (c_int64(len(memory.state)), pointer(memory.state))
        arguments = (*self._arguments(memory, output), byref(options), byref(beam_options), *sizes)
        return bool(self._native.decoder_beam(*arguments, byref(result), ONE_THREAD))

    def _arguments(self, memory: RecurrentMemory, output: PackedMatrix) -> tuple[Any, ...]:
        """Return the arguments that all functions of search.cpp begin with."""
        parts = (memory.keys, memory.annotations, memory.mask, memory.centres, memory.prepared)
        # Without attention, native code has no source positions.
        length = memory.mask.shape[1] if self.attends else 0
        batch = CSourceBatch(*(part.ctypes.data for part in parts), length, memory.centres.shape[1])
        return byref(self._decoder), byref(output.struct), byref(batch)

    def _apply(self, layer: Affine | None, x: Array) -> Array:
        """Return the output of a layer of the program; x if there is none."""
        return x if layer is None else self._layers[layer].multiply(x)


AnyEngine = RNNsearchEngine | RecurrentEngine
"""Both engines must offer the methods that `runtime/search.py`, `runtime/translator.py` and `export/engine_file.py`
use."""


def _reverse_words(x: Array, words: Array) -> Array:
    """Return the first `words` positions of each sentence from last to first (Sutskever et al. 2014, section 3.3)."""
    words = words[:, None]
    positions = np.arange(x.shape[1])[None]
    order = np.where(positions < words, words - 1 - positions, positions)
    return np.ascontiguousarray(np.take_along_axis(x, order[:, :, None], 1))
