"""The engine for RNNsearch (Bahdanau et al. 2015), in NumPy and native code.

It supports the system of the presets: a bidirectional GRU encoder, a decoder with a GRU, additive global attention with
a softmax, and maxout or a tanh layer before the output layer. Used by `runtime`, `export` and, through
`accel/rnnsearch_search.py`, by search with PyTorch. Weights are in fp32, bf16 or int8; states and scores are in fp32.
Sizes are rounded up to whole vectors; the additional units have weights of zero and stay zero. This module must not
import torch.

Structures mirror `rnnsearch.h`, `greedy_search.h` and `beam_search.h` of `ops/native`, with the same fields in the
same order; names of arrays are stored in engine files. `export/web/module/rnnsearch.js` is the same engine in
JavaScript. Tests: tests/properties/test_engine.py, tests/runtime/test_runtime.py.

Axes: B sentences, K hypotheses per sentence, N = B * K rows, J source positions, D state, H annotation, A alignment
hidden, E embedding, V vocabulary, S summary (the backward h_1), C output columns (V, or the selected tokens).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rnnsearch.engine.structs import MAX_UNITS, UNIT_MULTIPLE, Array, CMatrix, DType, PackedMatrix, pointer, round_up
from rnnsearch.text.vocabulary import UNK

DIRECTIONS = ("forward", "backward")
"""Directions of the encoder; parts of array names, which are stored in engine files."""
GRU_WEIGHTS = ("input", "gates", "candidate")
"""Weights of a GRU; parts of array names, which are stored in engine files."""
MATRICES = (
    *(f"encoder.{direction}.{weight}" for direction in DIRECTIONS for weight in GRU_WEIGHTS),
    *("key", "initial", "from_state", "from_context", "candidate", "from_word", "output"),
)
"""Names of the weights [outputs, inputs] that are multiplied by; the bias of a weight, if any, is called NAME.bias."""
SOURCE_TABLE = "source_embedding"
TARGET_TABLE = "target_embedding"
TABLES = (SOURCE_TABLE, TARGET_TABLE)
"""Names of the embedding tables [V, E]."""


class _CGRU(Structure):
    """`GRUWeights` of rnnsearch.h."""

    _fields_ = (("input", CMatrix), ("gates", CMatrix), ("candidate", CMatrix))


class _CEncoder(Structure):
    """`EncoderWeights` of rnnsearch.h."""

    _fields_ = (("directions", _CGRU * 2), ("size", c_int64))


class _CDecoder(Structure):
    """`DecoderWeights` of rnnsearch.h."""

    _fields_ = (
        ("from_state", CMatrix),
        ("from_context", CMatrix),
        ("candidate", CMatrix),
        ("score_vector", c_void_p),
        ("from_word", CMatrix),
        ("word_table", c_void_p),
        ("embeddings", c_void_p),
        ("int8_embeddings", c_void_p),
        ("embedding_scales", c_void_p),
        ("state_size", c_int64),
        ("key_size", c_int64),
        ("context_size", c_int64),
        ("readout_size", c_int64),
        ("pool", c_int64),
    )


class _CSourceMemory(Structure):
    """`SourceMemory` of rnnsearch.h."""

    _fields_ = (
        ("annotations", c_void_p),
        ("keys", c_void_p),
        ("key_exponentials", c_void_p),
        ("max_key", c_void_p),
        ("lengths", c_void_p),
        ("length", c_int64),
    )


class CSearchOptions(Structure):
    """`SearchOptions` of greedy_search.h."""

    _fields_ = (
        ("token_ids", c_void_p),
        ("banned", c_void_p),
        ("num_banned", c_int64),
        ("bos", c_int64),
        ("eos", c_int64),
        ("max_length", c_void_p),
    )


class CGreedyResult(Structure):
    """`GreedyResult` of greedy_search.h."""

    _fields_ = (
        ("T", c_int64),
        *((name, c_void_p) for name in ("tokens", "scores", "alphas", "length")),
    )


class CBeamOptions(Structure):
    """`BeamOptions` of beam_search.h."""

    _fields_ = (
        *((name, c_int64) for name in ("width", "n_best", "gnmt_norm")),
        ("length_penalty", c_double),
        ("coverage_penalty", c_float),
        *((name, c_void_p) for name in ("coverage_mask", "forced")),
        ("num_forced", c_int64),
        *((name, c_void_p) for name in ("byte_offsets", "allowed_offsets", "allowed", "token_bytes")),
    )


class CHypotheses(Structure):
    """`Hypotheses` of beam_search.h."""

    _fields_ = (
        ("T", c_int64),
        *((name, c_void_p) for name in ("tokens", "scores", "alphas", "length", "finished")),
    )


@dataclass(frozen=True)
class Sizes:
    """Sizes that the shapes of the arrays do not show; the field names are stored in engine files."""

    encoder: int
    """Hidden size of one direction, not rounded."""
    state: int
    """Size of the decoder's state, not rounded."""
    pool: int
    """2 if the readout is the maximum of pairs, 1 if it is a tanh layer."""


class Weight(NamedTuple):
    """A weight [outputs, inputs] in fp32, or in int8 with a scale per row."""

    values: Array  # values [outputs, inputs]
    scale: Array | None = None  # [outputs]

    @property
    def fp32(self) -> Array:
        """The whole weight in fp32."""
        return self.fp32_rows(np.arange(len(self.values)))

    def fp32_rows(self, ids: Array) -> Array:
        """Return some rows in fp32."""
        rows = self.values[ids]
        with np.errstate(over="ignore", invalid="ignore"):  # search reports scores that are NaN
            return rows.astype(np.float32) if self.scale is None else rows * self.scale[ids][..., None]


class PackedOutputLayer:
    """A packed output layer over the whole vocabulary or, if `restricts_output`, over some tokens."""

    def __init__(
        self, native: ctypes.CDLL, weight: Weight, bias: Array | None, dtype: DType, restricts_output: bool = False
    ) -> None:
        self.full = PackedMatrix(native, weight.values, bias, dtype, weight.scale)
        self._native = native
        self._dtype = dtype
        self._unpacked = (weight, bias) if restricts_output else None

    def rows(self, ids: Array) -> PackedMatrix:
        """Return the output layer over the tokens `ids` [C]."""
        assert self._unpacked is not None
        (values, scale), bias = self._unpacked
        bias = None if bias is None else bias[ids]
        scale = None if scale is None else scale[ids]
        return PackedMatrix(self._native, values[ids], bias, self._dtype, scale)


@dataclass(frozen=True)
class RNNsearchModel:
    """The arrays of an RNNsearch model."""

    weights: Mapping[str, Weight]
    """Arrays by name (MATRICES and TABLES); no `source_embedding` if source words are composed from characters."""
    biases: Mapping[str, Array]
    """[outputs], for the names in MATRICES that have one."""
    score_vector: Array
    """v_a [A]."""
    sizes: Sizes
    """Sizes of the layers."""
    system: ClassVar[str] = "rnnsearch"
    """Name of the system in engine files."""

    @property
    def vectors(self) -> dict[str, Array]:
        """Arrays with one axis, by name."""
        return {f"{name}.bias": bias for name, bias in self.biases.items()} | {"vector": self.score_vector}

    @property
    def header_fields(self) -> dict[str, Any]:
        """Fields of an engine file's header, in addition to the arrays."""
        return {"sizes": vars(self.sizes)}

    @staticmethod
    def from_header(
        header: Mapping[str, Any], weights: Mapping[str, Weight], vectors: Mapping[str, Array]
    ) -> RNNsearchModel:
        """Return the model of an engine file.

        Raises:
            KeyError, ValueError, TypeError: The header or the arrays are not those of such a model.
        """
        biases = {name: vectors[f"{name}.bias"] for name in MATRICES if f"{name}.bias" in vectors}
        sizes = Sizes(**{name: int(size) for name, size in header["sizes"].items()})
        return RNNsearchModel({name: weights[name] for name in (*MATRICES, *TABLES)}, biases, vectors["vector"], sizes)

    def check(self) -> None:
        """Raise ValueError if an array's shape or type is not as the sizes say, which native code relies on."""
        H = round_up(self.sizes.encoder)
        D = round_up(self.sizes.state)
        A = len(self.score_vector)
        V = len(self.weights["target_embedding"].values)
        readout = len(self.weights["from_word"].values) - 3 * D  # before pooling
        output_inputs = readout // self.sizes.pool if self.sizes.pool in (1, 2) else 0
        if min(self.sizes.encoder, self.sizes.state, readout, output_inputs) < 1:
            raise ValueError("sizes")
        # Vector instructions read keys without a remainder.
        if readout % self.sizes.pool or A % UNIT_MULTIPLE:
            raise ValueError("sizes")
        source_size, target_size = (self.weights[name].values.shape[-1] for name in TABLES)
        # Native code keeps one row of each on its stack.
        if max(2 * H, D, A, readout, source_size, target_size) > MAX_UNITS:
            raise ValueError("sizes")
        gru_shapes = {"input": (3 * H, source_size), "gates": (2 * H, H), "candidate": (H, H)}
        shapes = {
            "key": (A, 2 * H),
            "initial": (D, H),
            "from_state": (A + 2 * D + readout, D),
            "from_context": (3 * D + readout, 2 * H),
            "candidate": (D, D),
            "from_word": (3 * D + readout, target_size),
            "output": (V, output_inputs),
            "source_embedding": (len(self.weights["source_embedding"].values), source_size),
            "target_embedding": (V, target_size),
        }
        for direction in DIRECTIONS:
            shapes |= {f"encoder.{direction}.{weight}": shape for weight, shape in gru_shapes.items()}
        for name, shape in shapes.items():
            # Every product's shape follows from the sizes; native code would read beyond a smaller array.
            values, scale = self.weights[name]
            if values.shape != shape or values.dtype != (np.float32 if scale is None else np.int8):
                raise ValueError(name)
        vectors = [(bias, shapes[name][:1]) for name, bias in self.biases.items()] + [(self.score_vector, (A,))]
        for name, (_, scale) in self.weights.items():
            if scale is not None:
                vectors.append((scale, shapes[name][:1]))
        if any(vector.shape != shape or vector.dtype != np.float32 for vector, shape in vectors):
            raise ValueError("biases, scales")


class RNNsearchMemory(NamedTuple):
    """Everything that is computed once per sentence, for B sentences with J source positions."""

    annotations: Array  # [B, J, H]
    keys: Array  # [B, J, A], U_a h_j
    key_exponentials: Array  # [B, J, A], e^(2 U_a h_j)
    max_key: Array  # [B], largest magnitude of a key
    lengths: Array  # [B], numbers of real source positions, which come first
    summary: Array  # [B, S]

    @property
    def struct(self) -> _CSourceMemory:
        """The structure that native code reads."""
        parts = (self.annotations, self.keys, self.key_exponentials, self.max_key, self.lengths)
        return _CSourceMemory(*(part.ctypes.data for part in parts), self.keys.shape[1])


class RNNsearchEngine:
    """A model with packed weights, which encodes and searches."""

    attends: ClassVar[bool] = True

    def __init__(
        self,
        native: ctypes.CDLL,
        model: RNNsearchModel,
        dtype: DType,
        threads: Callable[[], int] = lambda: 1,
        table_bytes: int = 0,
        restricts_output: bool = False,
    ) -> None:
        """Pack the weights.

        Args:
            threads: Returns the number of threads of a call.
            table_bytes: Maximum size of a table with the projected inputs of all target words, which is faster than to
                project them at every step and gives the same results.
            restricts_output: True if `rows` will be called.
        """
        self._native = native
        self.threads = threads
        # The largest matrix comes first: the memory that it was read into can then be used for the others.
        self._output = PackedOutputLayer(
            native, model.weights["output"], model.biases.get("output"), dtype, restricts_output
        )
        self.output = self._output.full
        """Output layer over the whole vocabulary."""
        self.rows = self._output.rows
        """Function that returns the output layer over some tokens."""
        self._matrices: dict[str, PackedMatrix] = {}
        for name in MATRICES:
            if name != "output":
                values, scale = model.weights[name]
                self._matrices[name] = PackedMatrix(native, values, model.biases.get(name), dtype, scale)
        self.sources = model.weights.get("source_embedding")
        self.targets = model.weights["target_embedding"]
        structs = {name: matrix.struct for name, matrix in self._matrices.items()}
        directions = []
        for direction in DIRECTIONS:
            directions.append(_CGRU(*(structs[f"encoder.{direction}.{weight}"] for weight in GRU_WEIGHTS)))
        self._encoder = _CEncoder((_CGRU * 2)(*directions), round_up(model.sizes.encoder))
        self._decoder = self._decoder_struct(model, structs, table_bytes)

    def _decoder_struct(self, model: RNNsearchModel, structs: Mapping[str, CMatrix], table_bytes: int) -> _CDecoder:
        D = round_up(model.sizes.state)
        from_word = structs["from_word"]
        # Kept as attributes, because the structure contains only their addresses.
        self._score_vector = np.ascontiguousarray(model.score_vector, np.float32)
        self._embeddings = np.ascontiguousarray(self.targets.values)
        self._word_table: Array | None = None
        # 4 bytes per fp32 value. Without a table, native code projects the words of each step.
        if len(self._embeddings) * from_word.outputs * 4 <= table_bytes:
            self._word_table = self._matrices["from_word"].multiply(self.targets.fp32, self.threads())
        decoder = _CDecoder(*(structs[name] for name in ("from_state", "from_context", "candidate")))
        decoder.score_vector = self._score_vector.ctypes.data
        decoder.from_word = from_word
        decoder.word_table = None if self._word_table is None else self._word_table.ctypes.data
        if self.targets.scale is None:
            decoder.embeddings = self._embeddings.ctypes.data
        else:
            decoder.int8_embeddings = self._embeddings.ctypes.data
            decoder.embedding_scales = self.targets.scale.ctypes.data
        decoder.state_size = D
        decoder.key_size = len(self._score_vector)
        decoder.context_size = 2 * round_up(model.sizes.encoder)
        decoder.readout_size = from_word.outputs - 3 * D
        decoder.pool = model.sizes.pool
        return decoder

    def embed(self, ids: Array) -> Array:
        """Return source embeddings [B, J, E] of ids [B, J]."""
        assert self.sources is not None, "the model composes source words from characters"
        return self.sources.fp32_rows(ids)

    def encode(self, words: Array, lengths: Array) -> RNNsearchMemory:
        """Return the memory of B sentences.

        Args:
            words: Embedded source words [B, J, E].
            lengths: Numbers of real words [B], which come first in each row.
        """
        order = np.argsort(-lengths, kind="stable")  # native code takes the longest sentences first
        x = np.ascontiguousarray(words[order], np.float32)
        lengths = np.ascontiguousarray(lengths[order], np.int64)
        B, J = x.shape[:2]
        D = self._encoder.size
        # Both directions side by side; native code sets padding to 0.
        annotations = np.empty((B, J, 2 * D), np.float32)
        summary = np.empty((B, D), np.float32)
        self._native.rnnsearch_encode(
            *(byref(self._encoder), pointer(x), pointer(lengths), c_int64(B), c_int64(J)),
            *(pointer(annotations), pointer(summary), c_int32(self.threads())),
        )
        keys = self._matrices["key"].multiply(annotations, self.threads())
        with np.errstate(over="ignore"):  # native code does not read exponentials of keys that are too large
            # tanh(q + k) = 1 - 2 / (e^(2 q) e^(2 k) + 1): one exponential per query instead of one per position.
            exponentials = np.exp(2 * keys)
        memory = RNNsearchMemory(annotations, keys, exponentials, np.abs(keys).max((1, 2)), lengths, summary)
        if (order == np.arange(B)).all():
            return memory
        inverse = np.argsort(order, kind="stable")
        return RNNsearchMemory(*(part[inverse] for part in memory))

    def start(self, memory: RNNsearchMemory) -> Array:
        """Return s_0 [B, D]."""
        return np.tanh(self._matrices["initial"].multiply(memory.summary, self.threads()))

    def step(
        self, memory: RNNsearchMemory, state: Array, y: Array, output: PackedMatrix
    ) -> tuple[Array, Array, Array, Array]:
        """Compute one target position of N = B * K hypotheses.

        Returns:
            Logits [N, C], the logarithm of the sum of their exponentials [N], the next state [N, D], and the attention
            weights [N, J].
        """
        N = len(y)
        B, J = memory.keys.shape[:2]
        # Ids beyond the vocabulary, such as copied words, have no embedding.
        y = np.ascontiguousarray(np.where(y < len(self.targets.values), y, UNK), np.int64)
        state = np.ascontiguousarray(state)
        logits = np.empty((N, output.struct.outputs), np.float32)
        norm = np.empty(N, np.float32)
        alpha = np.empty((N, J), np.float32)
        next_state = np.empty_like(state)
        self._native.rnnsearch_step(
            *(*self._arguments(memory, output), pointer(y), c_int64(N), c_int64(N // B), pointer(state)),
            *(pointer(next_state), pointer(alpha), pointer(logits), pointer(norm), c_int32(self.threads())),
        )
        return logits, norm, next_state, alpha

    def greedy(
        self, memory: RNNsearchMemory, output: PackedMatrix, options: CSearchOptions, result: CGreedyResult
    ) -> int:
        """Fill the result of greedy search and return the number of steps."""
        # ctypes would truncate the result to an int.
        self._native.rnnsearch_greedy.restype = c_int64
        state = self.start(memory)
        arguments = (*self._arguments(memory, output), byref(options), c_int64(len(state)), pointer(state))
        return int(self._native.rnnsearch_greedy(*arguments, byref(result), c_int32(self.threads())))

    def beam(
        self,
        memory: RNNsearchMemory,
        output: PackedMatrix,
        options: CSearchOptions,
        beam_options: CBeamOptions,
        result: CHypotheses,
    ) -> bool:
        """Fill the result of beam search and return True unless a score is NaN."""
        self._native.rnnsearch_beam.restype = c_int64
        state = self.start(memory)
        sizes = (c_int64(len(state)), pointer(state))
        arguments = (*self._arguments(memory, output), byref(options), byref(beam_options), *sizes)
        return bool(self._native.rnnsearch_beam(*arguments, byref(result), c_int32(self.threads())))

    def _arguments(self, memory: RNNsearchMemory, output: PackedMatrix) -> tuple[Any, ...]:
        """Return the arguments that all functions of rnnsearch.cpp begin with."""
        return byref(self._decoder), byref(output.struct), byref(memory.struct)
