"""RNNsearch (Bahdanau et al. 2015) in native code, from arrays. Imports no torch.

It is what the presets have: a bidirectional GRU encoder, a decoder with a GRU, additive global attention with a
softmax, maxout or a tanh layer in front of the output. Weights are in fp32, bf16 or int8, states and scores fp32. Sizes
are rounded up to the processor's vectors: units that are added have weights of zero, stay zero and change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import Structure, byref, c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rnnsearch.engine.structs import MOST_UNITS, UNIT, Array, Kind, Laid, Matrix, at, rounded_up
from rnnsearch.text.vocabulary import UNK

WAYS = ("forward", "backward")
GRU_PARTS = ("input", "gates", "candidate")
MATRICES = (
    *(f"encoder.{way}.{part}" for way in WAYS for part in GRU_PARTS),
    *("key", "initial", "from_state", "from_context", "candidate", "from_word", "output"),
)
"""The weights that are multiplied by, each [outputs, inputs] with a bias [outputs] under NAME.bias where it has one."""
TABLES = ("source_embedding", "target_embedding")
"""[V, E]."""


class _GRU(Structure):
    _fields_ = (("input", Matrix), ("gates", Matrix), ("candidate", Matrix))


class _Encoder(Structure):
    _fields_ = (("direction", _GRU * 2), ("size", c_int64))


class _Decoder(Structure):
    _fields_ = (
        ("from_state", Matrix),
        ("from_context", Matrix),
        ("candidate", Matrix),
        ("vector", c_void_p),
        ("from_word", Matrix),
        ("words", c_void_p),
        ("embeddings", c_void_p),
        ("bytes", c_void_p),
        ("scales", c_void_p),
        ("size", c_int64),
        ("align", c_int64),
        ("context", c_int64),
        ("readout", c_int64),
        ("pool", c_int64),
    )


class _Sources(Structure):
    _fields_ = (
        ("annotations", c_void_p),
        ("keys", c_void_p),
        ("exponentials", c_void_p),
        ("reach", c_void_p),
        ("lengths", c_void_p),
        ("width", c_int64),
    )


class CChoice(Structure):
    """`SearchOptions` of greedy_search.h."""

    _fields_ = (
        *(("ids", c_void_p), ("banned", c_void_p), ("bans", c_int64), ("bos", c_int64), ("eos", c_int64)),
        ("most", c_void_p),
    )


class CGreedy(Structure):
    """`GreedyResult` of greedy_search.h."""

    _fields_ = (
        ("T", c_int64),
        *((name, c_void_p) for name in ("tokens", "scores", "alphas", "length")),
    )


class CBeam(Structure):
    """`BeamOptions` of beam_search.h."""

    _fields_ = (
        *((name, c_int64) for name in ("width", "n_best", "gnmt")),
        ("length_penalty", c_double),
        ("coverage_penalty", c_float),
        *((name, c_void_p) for name in ("covered", "forced")),
        ("forced_count", c_int64),
        *((name, c_void_p) for name in ("places", "ways", "way", "sizes")),
    )


class CHypotheses(Structure):
    """`Hypotheses` of beam_search.h."""

    _fields_ = (
        ("T", c_int64),
        *((name, c_void_p) for name in ("tokens", "scores", "alphas", "length", "finished")),
    )


@dataclass(frozen=True)
class Sizes:
    """What the arrays do not say of themselves."""

    encoder: int
    """Units of one direction, not rounded."""
    state: int
    pool: int
    """2: the readout is the maximum of pairs; 1: a tanh."""


class Weight(NamedTuple):
    """[outputs, inputs] in fp32, or in bytes with a scale [outputs] for each row."""

    values: Array
    scale: Array | None = None

    @property
    def all(self) -> Array:
        """All of them in fp32."""
        return self.rows(np.arange(len(self.values)))

    def rows(self, ids: Array) -> Array:
        """Some of them in fp32."""
        found = self.values[ids]
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are no numbers are told of
            return found.astype(np.float32) if self.scale is None else found * self.scale[ids][..., None]


class Output:
    """An output layer, laid out, over the whole vocabulary or, where it `selects`, over some of it."""

    def __init__(
        self, native: ctypes.CDLL, weight: Weight, bias: Array | None, kind: Kind, selects: bool = False
    ) -> None:
        self.whole = Laid(native, weight.values, bias, kind, weight.scale)
        self._native, self._kind, self._rows = native, kind, (weight, bias) if selects else None

    def over(self, ids: Array) -> Laid:
        """The layer of the symbols `ids` [C] alone."""
        assert self._rows is not None
        (values, scale), bias = self._rows
        bias, scale = (None if row is None else row[ids] for row in (bias, scale))
        return Laid(self._native, values[ids], bias, self._kind, scale)


@dataclass(frozen=True)
class Arrays:
    """A model."""

    weights: Mapping[str, Weight]
    """By the names of MATRICES and TABLES; without a table of source words where these are made of something else."""
    biases: Mapping[str, Array]
    """[outputs] of the matrices that have one."""
    vector: Array
    """v_a [A]."""
    sizes: Sizes
    system: ClassVar[str] = "rnnsearch"
    """What a file calls it."""

    @property
    def rows(self) -> dict[str, Array]:
        """Its arrays of one axis, by name."""
        return {f"{name}.bias": bias for name, bias in self.biases.items()} | {"vector": self.vector}

    @property
    def described(self) -> dict[str, Any]:
        """What a file says of it besides arrays."""
        return {"sizes": vars(self.sizes)}

    @staticmethod
    def of(header: Mapping[str, Any], weights: Mapping[str, Weight], rows: Mapping[str, Array]) -> Arrays:
        """That of a file. Errors: KeyError, ValueError, TypeError where it is none."""
        biases = {name: rows[f"{name}.bias"] for name in MATRICES if f"{name}.bias" in rows}
        sizes = Sizes(**{name: int(size) for name, size in header["sizes"].items()})
        return Arrays({name: weights[name] for name in (*MATRICES, *TABLES)}, biases, rows["vector"], sizes)

    def check(self) -> None:
        """Native code reads what sizes say. Errors: ValueError where arrays are not of these, or not of these types."""
        H, D = rounded_up(self.sizes.encoder), rounded_up(self.sizes.state)
        A, V = len(self.vector), len(self.weights["target_embedding"].values)
        R = len(self.weights["from_word"].values) - 3 * D
        read = R // self.sizes.pool if self.sizes.pool in (1, 2) else 0
        if min(self.sizes.encoder, self.sizes.state, R, read) < 1 or R % self.sizes.pool or A % UNIT:
            raise ValueError("sizes")
        E, F = (self.weights[name].values.shape[-1] for name in TABLES)
        if max(2 * H, D, A, R, E, F) > MOST_UNITS:
            raise ValueError("sizes")
        gru = {"input": (3 * H, E), "gates": (2 * H, H), "candidate": (H, H)}
        shapes = {f"encoder.{way}.{part}": shape for way in WAYS for part, shape in gru.items()} | {
            "key": (A, 2 * H),
            "initial": (D, H),
            "from_state": (A + 2 * D + R, D),
            "from_context": (3 * D + R, 2 * H),
            "candidate": (D, D),
            "from_word": (3 * D + R, F),
            "output": (V, read),
            "source_embedding": (len(self.weights["source_embedding"].values), E),
            "target_embedding": (V, F),
        }
        for name, shape in shapes.items():
            values, scale = self.weights[name]
            if values.shape != shape or values.dtype != (np.float32 if scale is None else np.int8):
                raise ValueError(name)
        rows = [(bias, shapes[name][:1]) for name, bias in self.biases.items()] + [(self.vector, (A,))]
        rows += [(one.scale, shapes[name][:1]) for name, one in self.weights.items() if one.scale is not None]
        if any(row.shape != shape or row.dtype != np.float32 for row, shape in rows):
            raise ValueError("biases, scales")


class Memory(NamedTuple):
    """annotations: [B, J, H]; keys, exponentials: [B, J, A], U_a h_j and e^(2 U_a h_j); reach: [B], the greatest
    |key|; lengths: [B], real source positions, which are the first ones; summary: [B, S]."""

    annotations: Array
    keys: Array
    exponentials: Array
    reach: Array
    lengths: Array
    summary: Array

    @property
    def sources(self) -> _Sources:
        """As native code reads it."""
        parts = (self.annotations, self.keys, self.exponentials, self.reach, self.lengths)
        return _Sources(*(part.ctypes.data for part in parts), self.keys.shape[1])


class RNNsearch:
    """The system's weights, laid out, and what is done with them."""

    attends: ClassVar[bool] = True

    def __init__(
        self,
        native: ctypes.CDLL,
        arrays: Arrays,
        kind: Kind,
        threads: Callable[[], int] = lambda: 1,
        table_bytes: int = 0,
        selects: bool = False,
    ) -> None:
        """`threads`: how many a call takes; `selects`: whether some of the output's rows will be asked for. Up to so
        many `table_bytes` the words' share of the gates is computed once for the whole vocabulary: the same, faster."""
        self._native, self.threads = native, threads
        # The largest first: room that it was read into is there for the others.
        self._output = Output(native, arrays.weights["output"], arrays.biases.get("output"), kind, selects)
        self.output = self._output.whole
        """The output layer, over the whole vocabulary."""
        self.rows = self._output.over
        """It over some symbols alone."""
        of_each = ((name, arrays.weights[name], arrays.biases.get(name)) for name in MATRICES if name != "output")
        self._laid = {name: Laid(native, w.values, bias, kind, w.scale) for name, w, bias in of_each}
        self.sources, self.targets = arrays.weights.get("source_embedding"), arrays.weights["target_embedding"]
        of = {name: one.matrix for name, one in self._laid.items()}
        gru = [_GRU(*(of[f"encoder.{way}.{part}"] for part in GRU_PARTS)) for way in WAYS]
        D, H = rounded_up(arrays.sizes.state), rounded_up(arrays.sizes.encoder)
        self._encoder = _Encoder((_GRU * 2)(*gru), H)
        self._vector = np.ascontiguousarray(arrays.vector, np.float32)
        word, V = of["from_word"], len(self.targets.values)
        few = V * word.outputs * 4 <= table_bytes
        self._words = self._laid["from_word"].times(self.targets.all, threads()) if few else None
        values, scale = np.ascontiguousarray(self.targets.values), self.targets.scale
        self._kept = (values, scale)
        fp32, scaled = (values, None) if scale is None else (None, values)
        self._decoder = _Decoder(
            *(of[name] for name in ("from_state", "from_context", "candidate")),
            self._vector.ctypes.data,
            word,
            *(None if part is None else part.ctypes.data for part in (self._words, fp32, scaled, scale)),
            *(D, len(self._vector), 2 * H, word.outputs - 3 * D, arrays.sizes.pool),
        )

    def embed(self, ids: Array) -> Array:
        """Source words [B, J, E] of ids [B, J]."""
        assert self.sources is not None, "a table of source words, which must be given"
        return self.sources.rows(ids)

    def encode(self, words: Array, lengths: Array) -> Memory:
        """The memory of B sentences of embedded words [B, J, E], of which the first `lengths` [B] are real."""
        order = np.argsort(-lengths, kind="stable")
        x = np.ascontiguousarray(words[order], np.float32)
        (B, J, _), D, lengths = x.shape, self._encoder.size, np.ascontiguousarray(lengths[order], np.int64)
        annotations, summary = np.empty((B, J, 2 * D), np.float32), np.empty((B, D), np.float32)
        where = (at(x), at(lengths), c_int64(B), c_int64(J), at(annotations), at(summary))
        self._native.rnnsearch_encode(byref(self._encoder), *where, c_int32(self.threads()))
        keys = self._laid["key"].times(annotations, self.threads())
        with np.errstate(over="ignore"):  # where `reach` says so they are not read
            exponentials = np.exp(2 * keys)
        memory = Memory(annotations, keys, exponentials, np.abs(keys).max((1, 2)), lengths, summary)
        if (order == np.arange(B)).all():
            return memory
        back = np.argsort(order, kind="stable")
        return Memory(*(part[back] for part in memory))

    def start(self, memory: Memory) -> Array:
        """s_0 [B, D]."""
        return np.tanh(self._laid["initial"].times(memory.summary, self.threads()))

    def step(self, memory: Memory, state: Array, y: Array, output: Laid) -> tuple[Array, Array, Array, Array]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, D] and alpha [N, J]."""
        N, B = len(y), len(memory.lengths)
        y = np.ascontiguousarray(np.where(y < len(self.targets.values), y, UNK), np.int64)
        state, C, J = np.ascontiguousarray(state), output.matrix.outputs, memory.keys.shape[1]
        logits, norm, alpha = (np.empty(shape, np.float32) for shape in ((N, C), N, (N, J)))
        after = np.empty_like(state)
        made = (at(state), at(after), at(alpha), at(logits), at(norm))
        sizes = (c_int64(N), c_int64(N // B))
        self._native.rnnsearch_step(*self._weights(memory, output), at(y), *sizes, *made, c_int32(self.threads()))
        return logits, norm, after, alpha

    def greedy(self, memory: Memory, output: Laid, choice: CChoice, made: CGreedy) -> int:
        """Greedy search; the steps taken."""
        state, weights = self.start(memory), self._weights(memory, output)
        self._native.rnnsearch_greedy.restype = c_int64
        sizes = (c_int64(len(state)), at(state))
        return int(self._native.rnnsearch_greedy(*weights, byref(choice), *sizes, byref(made), c_int32(self.threads())))

    def beam(self, memory: Memory, output: Laid, choice: CChoice, beam: CBeam, made: CHypotheses) -> bool:
        """Beam search; whether all scores were numbers."""
        state, weights = self.start(memory), self._weights(memory, output)
        self._native.rnnsearch_beam.restype = c_int64
        sizes = (c_int64(len(state)), at(state))
        asked = (byref(choice), byref(beam))
        return bool(self._native.rnnsearch_beam(*weights, *asked, *sizes, byref(made), c_int32(self.threads())))

    def _weights(self, memory: Memory, output: Laid) -> tuple[Any, ...]:
        return byref(self._decoder), byref(output.matrix), byref(memory.sources)
