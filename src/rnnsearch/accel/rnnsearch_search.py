"""Native search of RNNsearch (Bahdanau et al. 2015), the system of the presets, without gradients.

It supports a bidirectional GRU encoder, the `bahdanau` or `bahdanau-tanh` decoder with a GRU, and additive global
attention with a softmax. Weights are packed once, in fp32, bf16 or int8; states and scores are in fp32. The engine for
the same system without PyTorch, `engine/rnnsearch.py`, does the work. Search uses `NativeRNNsearch`
(`search/model_scorer.py`); engine files are written with `export_arrays` (`export/engine_file.py`) and read with
`import_arrays` (`systems/engine_file.py`).

Before changing it: the order and padding of `export_arrays` are the layout of engine files and of the C structs in
`engine/rnnsearch.py` and `ops/native/rnnsearch.h`; older files must still load. Tests:
tests/properties/test_native_search.py, tests/properties/test_engine.py, tests/runtime/test_runtime.py.

Axes: B sentences, J source positions, C score columns, D decoder state, T steps of a search, N rows (hypotheses) of a
step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.accel.fast_forwards import is_rnnsearch
from rnnsearch.data.batch import Stream
from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.rnnsearch import (
    DIRECTIONS,
    GRU_WEIGHTS,
    TABLES,
    CBeamOptions,
    CGreedyResult,
    CSearchOptions,
    RNNsearchEngine,
    RNNsearchMemory,
    RNNsearchModel,
    Sizes,
    Weight,
)
from rnnsearch.engine.structs import Array, DType, PackedMatrix, round_up
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.readouts import DeepOutput, Readout, TanhOutput
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.linear import PackedWeight
from rnnsearch.ops.native.library import library
from rnnsearch.ops.step import pad_to_vectors
from rnnsearch.text.vocabulary import BOS

WORD_TABLE_BYTES = 64 << 20  # up to this size, the gate inputs of all target words are computed once


class NativeRNNsearch:
    """Native search of an RNNsearch model: its `encode`, `start` and `step` with readout and output layer.

    Made by `create`. The weights are copied, so that later changes of the model have no effect.
    """

    searches_in_one_call: ClassVar[bool] = True
    source_names: ClassVar[None] = None

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, dtype: DType) -> None:
        assert isinstance(model.decoder, Bahdanau) and isinstance(model.output, Output)
        self._native = native
        self._dtype = dtype
        self._engine = RNNsearchEngine(native, export_arrays(model), dtype, torch.get_num_threads, WORD_TABLE_BYTES)
        self._source_embedding = model.source_embedding
        self._output_layer = model.output
        self.output = self._engine.output
        """Output layer over the whole vocabulary."""
        self.hidden = [slice(0, model.decoder.cell.size)]
        """Columns of hidden vectors in a state: all but the padding."""

    @staticmethod
    def supports(model: TranslationModel) -> bool:
        """Return True if a model is such a system."""
        encoder = model.encoder
        decoder = model.decoder
        if type(encoder) is not Bidirectional or not encoder.reads_end:
            return False
        if type(encoder.forward_cell) is not GRU or type(encoder.backward_cell) is not GRU:
            return False
        if not is_rnnsearch(decoder) or type(decoder.readout_layer) not in (DeepOutput, TanhOutput):
            return False
        has_only_decoder = model.lexical is None and model.language_model is None and model.actor is None
        return type(model.output) is Output and has_only_decoder

    @staticmethod
    @torch.no_grad()
    def create(model: TranslationModel, dtype: DType) -> NativeRNNsearch | None:
        """Return the native search of a model, or None if the model is not supported or there is no native code."""
        if not NativeRNNsearch.supports(model):
            return None
        native = library() if model.device.type == "cpu" else None
        return None if native is None else NativeRNNsearch(native, model, dtype)

    def rows(self, ids: Tensor) -> PackedMatrix:
        """Return the output layer over the tokens `ids` [C]."""
        return PackedWeight(self._native, self._output_layer.weight[ids], self._output_layer.bias[ids], self._dtype)

    def encode(self, sources: Mapping[str, Stream]) -> NativeRNNsearchMemory:
        """Return the memory of B sentences [B, J] of the only source, whose real tokens come first."""
        (source,) = sources.values()
        words: Tensor = self._source_embedding(source.embedding_input)
        memory = self._engine.encode(words.detach().float().numpy(), source.mask.sum(1).numpy())
        return NativeRNNsearchMemory(*map(torch.from_numpy, memory))

    def start(self, memory: NativeRNNsearchMemory) -> Tensor:
        """Return s_0 [B, D]."""
        return torch.from_numpy(self._engine.start(memory.arrays))

    def step(
        self, memory: NativeRNNsearchMemory, state: Tensor, y: Tensor, output: PackedMatrix
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute one target position of N hypotheses.

        Returns:
            Logits [N, C], the logarithm of the sum of their exponentials [N], the next state [N, D], and alpha [N, J].
        """
        results = self._engine.step(memory.arrays, state.numpy(), y.numpy(), output)
        logits, norm, next_state, alpha = map(torch.from_numpy, results)
        return logits, norm, next_state, alpha

    def greedy(
        self, memory: NativeRNNsearchMemory, output: PackedMatrix, constraints: SearchConstraints
    ) -> GreedyOutput:
        """Search a batch greedily."""
        buffers = GreedyBuffers(memory.keys.shape[1], constraints)
        return buffers.output(self._engine.greedy(memory.arrays, output, constraints.struct, buffers.struct))

    def beam(
        self,
        memory: NativeRNNsearchMemory,
        output: PackedMatrix,
        constraints: SearchConstraints,
        options: CBeamOptions,
    ) -> NBestArrays | None:
        """Search a batch with a beam; return None if a score is NaN."""
        result = constraints.allocate(options.n_best, memory.keys.shape[1])
        is_finite = self._engine.beam(memory.arrays, output, constraints.struct, options, result.struct)
        return result if is_finite and not np.isnan(result.scores).any() else None


class NativeRNNsearchMemory(NamedTuple):
    """The engine's memory as tensors, which search can select rows from; shapes: see `RNNsearchMemory`."""

    annotations: Tensor
    keys: Tensor
    key_exponentials: Tensor
    max_key: Tensor
    lengths: Tensor
    summary: Tensor

    @property
    def arrays(self) -> RNNsearchMemory:
        """The engine's memory."""
        return RNNsearchMemory(*(part.numpy() for part in self))


class SearchConstraints(NamedTuple):
    """Limits of a search, shared by all native searches."""

    token_ids: Tensor | None  # [C], token of each column of the output layer; None: the whole vocabulary
    banned: Tensor  # columns that are never chosen
    max_lengths: Tensor  # [B], tokens per translation
    bos: int  # id of BOS
    eos: int  # id of EOS

    @property
    def struct(self) -> CSearchOptions:
        """The structure that native code reads."""
        ids = None if self.token_ids is None else self.token_ids.data_ptr()
        return CSearchOptions(
            ids, self.banned.data_ptr(), len(self.banned), self.bos, self.eos, self.max_lengths.data_ptr()
        )

    def allocate(self, n: int, J: int) -> NBestArrays:
        """Return arrays for the n best hypotheses of each sentence with J source positions."""
        # One position more than the limit, for EOS.
        return NBestArrays.allocate(len(self.max_lengths), n, int(self.max_lengths.max()) + 1, J)


class GreedyOutput(NamedTuple):
    """The result of a native greedy search over T steps."""

    tokens: Tensor  # [T, B], 0 behind the end
    scores: Tensor  # [T, B], 0 behind the end
    attention: Tensor | None  # [B, T, J], undefined behind the end; None without attention
    length: Tensor  # [B], number of scored tokens


class GreedyBuffers:
    """Tensors that a native greedy search over J source positions writes to."""

    def __init__(self, J: int, constraints: SearchConstraints) -> None:
        B = len(constraints.max_lengths)
        # With EOS.
        T = int(constraints.max_lengths.max()) + 1
        # Zeros, because tokens and scores are 0 behind the end of a translation.
        self._tokens = torch.zeros(T, B, dtype=torch.int64)
        self._scores = torch.zeros(T, B)
        self._alphas = torch.empty(B, T, J)
        self._length = torch.empty(B, dtype=torch.int64)
        parts = (self._tokens, self._scores, self._alphas, self._length)
        self.struct = CGreedyResult(T, *(part.data_ptr() for part in parts))

    def output(self, steps: int, convert: Callable[[Tensor], Tensor | None] = lambda alphas: alphas) -> GreedyOutput:
        """Return the result after some steps.

        Args:
            convert: Applied to the attention weights [B, T, J].
        """
        alphas = convert(self._alphas[:, :steps])
        return GreedyOutput(self._tokens[:steps], self._scores[:steps], alphas, self._length)


# Weights of RNNsearch as arrays of the engine, and back.


class _Components(NamedTuple):
    """The components of an RNNsearch model, by their types."""

    directions: tuple[GRU, GRU]
    decoder: Bahdanau
    cell: GRU
    score: Additive
    readout: Readout
    initial: Linear
    output: Output

    @staticmethod
    def of(model: TranslationModel) -> _Components:
        """Return the components of a model that `NativeRNNsearch` supports."""
        encoder, decoder, output = model.encoder, model.decoder, model.output
        assert isinstance(encoder, Bidirectional)
        assert isinstance(decoder, Bahdanau)
        assert isinstance(output, Output)
        forward, backward = encoder.forward_cell, encoder.backward_cell
        cell, score, readout, initial = decoder.cell, decoder.attention.score, decoder.deep_output, decoder.initial
        assert isinstance(forward, GRU)
        assert isinstance(backward, GRU)
        assert isinstance(cell, GRU)
        assert isinstance(score, Additive)
        assert isinstance(readout, Readout)
        assert initial is not None
        return _Components((forward, backward), decoder, cell, score, readout, initial, output)

    @property
    def sizes(self) -> Sizes:
        """Sizes that the arrays do not show."""
        return Sizes(self.directions[0].size, self.cell.size, 2 if isinstance(self.readout, DeepOutput) else 1)


class _Block(NamedTuple):
    """A parameter as part of an array of the engine, padded to whole vectors."""

    weight: Tensor
    units: int = 0  # blocks of this many rows are padded; 0: none
    input_units: int = 0  # blocks of this many columns are padded; 0: none
    bias: Tensor | None = None  # of the rows

    @property
    def padded_rows(self) -> int:
        """Number of rows with padding."""
        rows = len(self.weight)
        return rows // self.units * round_up(self.units) if self.units else rows


def export_arrays(model: TranslationModel) -> RNNsearchModel:
    """Return the weights of a model in fp32 as the engine stores them."""
    weights: dict[str, Weight] = {}
    biases: dict[str, Array] = {}
    for name, blocks in _blocks(model).items():
        padded = [_pad(block.weight, block.units, block.input_units) for block in blocks]
        weights[name] = Weight(to_array(torch.cat(padded)))
        if any(block.bias is not None for block in blocks):
            block_biases = []
            for block, weight in zip(blocks, padded, strict=True):
                bias = weight.new_zeros(len(weight)) if block.bias is None else _pad(block.bias, block.units)
                block_biases.append(bias)
            biases[name] = to_array(torch.cat(block_biases))
    for name, table in zip(TABLES, (model.source_embedding, model.target_embedding), strict=True):
        if isinstance(table, Embedding) and table.zero_bos:
            # The engine looks up BOS like any other token.
            weights[name].values[BOS] = 0
    components = _Components.of(model)
    vector = components.score.vector
    return RNNsearchModel(weights, biases, to_array(_pad(vector, len(vector))), components.sizes)


@torch.no_grad()
def import_arrays(model: TranslationModel, weights: Mapping[str, Array], stored: RNNsearchModel) -> None:
    """Copy the engine's arrays into the parameters of a model.

    Args:
        weights: The weights of `stored` in fp32.

    Raises:
        ValueError: The arrays are not those of such a model.
    """
    filled: set[int] = set()  # ids of parameters

    def fill(parameter: Tensor, array: Array, units: int = 0, input_units: int = 0) -> None:
        values = _unpad(torch.tensor(array), units, len(parameter))
        if values.dim() > 1:
            # Columns are unpadded as the rows of the transpose.
            values = _unpad(values.t(), input_units, parameter.shape[1]).t()
        parameter.copy_(values)
        filled.add(id(parameter))

    for name, blocks in _blocks(model).items():
        start = 0
        for block in blocks:
            end = start + block.padded_rows
            fill(block.weight, weights[name][start:end], block.units, block.input_units)
            if block.bias is not None:
                fill(block.bias, stored.biases[name][start:end], block.units)
            start = end
        # The arrays of a damaged engine file may have more rows than the model of its config.
        if start != len(weights[name]):
            raise ValueError(name)
    vector = _Components.of(model).score.vector
    fill(vector, stored.score_vector, len(vector))
    for name, parameter in model.named_parameters():
        if id(parameter) not in filled:
            raise ValueError(name)


def _blocks(model: TranslationModel) -> dict[str, list[_Block]]:
    """Return the parameters that each array of the engine is stacked from."""
    directions, decoder, cell, score, readout, initial, output = components = _Components.of(model)
    H = components.sizes.encoder
    D = components.sizes.state
    A = len(score.vector)
    blocks: dict[str, list[_Block]] = {}
    for direction, gru in zip(DIRECTIONS, directions, strict=True):
        parts = (
            _Block(gru.input.weight, H, 0, gru.input.bias),
            _Block(gru.recurrent_gates.weight, H, H),
            _Block(gru.recurrent.weight, H, H),
        )
        blocks |= {f"encoder.{direction}.{name}": [part] for name, part in zip(GRU_WEIGHTS, parts, strict=True)}
    blocks |= {
        "key": [_Block(score.key.weight, A, H)],
        "initial": [_Block(initial.weight, D, H, initial.bias)],
        # Everything that reads s_{i-1} in one product; rnnsearch.h has the same order of blocks.
        "from_state": [
            _Block(score.query.weight, A, D),
            _Block(cell.recurrent_gates.weight, D, D),
            _Block(readout.state.weight, 0, D, readout.state.bias),
        ],
        "from_context": [_Block(decoder.context.weight, D, H), _Block(readout.context.weight, 0, H)],
        "candidate": [_Block(cell.recurrent.weight, D, D)],
        "from_word": [_Block(cell.input.weight, D, 0, cell.input.bias), _Block(readout.word.weight)],
        "output": [_Block(output.weight, bias=output.bias)],
    }
    for name, table in zip(TABLES, (model.source_embedding, model.target_embedding), strict=True):
        if type(table) is Embedding:
            blocks[name] = [_Block(table.weight)]
    return blocks


def to_array(tensor: Tensor) -> Array:
    """Return a copy in fp32 as an array."""
    return tensor.detach().float().contiguous().numpy().copy()


def _pad(weight: Tensor, units: int, input_units: int = 0) -> Tensor:
    """Pad blocks of rows and columns to whole vectors; 0 units: no padding."""
    for axis, size in enumerate((units, input_units)):
        weight = pad_to_vectors(weight, size, axis) if size else weight
    return weight


def _unpad(padded: Tensor, units: int, rows: int) -> Tensor:
    """Remove the padding of blocks of rows.

    Raises:
        ValueError: The padded tensor has another number of rows.
    """
    if len(padded) != (rows // units * round_up(units) if units else rows):
        raise ValueError
    return padded.unflatten(0, (-1, round_up(units)))[:, :units].flatten(0, 1) if units else padded
