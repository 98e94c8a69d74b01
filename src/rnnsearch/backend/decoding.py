"""RNNsearch without gradients in native code: what translation runs on a CPU where there is a compiler.

It serves the system of Bahdanau et al. (2015) as the presets have it: a bidirectional GRU encoder, the `bahdanau` or
`bahdanau-tanh` decoder with a GRU, additive global attention with a softmax. Weights are laid out once, in fp32, bf16
or int8; states and scores are fp32 in each. Sizes are rounded up to the processor's vectors: units that are added
have weights of zero, stay zero and change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, byref, c_int64, c_void_p
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rnnsearch.backend.twins import is_rnnsearch
from rnnsearch.data.sides import Side
from rnnsearch.kernels.native.packed import Kind, Matrix, Packed, at, decoding, rounded_up, threads
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.readouts import DeepOutput, Readout
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.symbols import Symbols
from rnnsearch.text.vocabulary import UNK

TABLE_BYTES = 64 << 20
"""Up to this size the words' share of the gates is computed once for the whole vocabulary."""


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


class NativeMemory(NamedTuple):
    """annotations: [B, J, H]; keys, exponentials: [B, J, A], U_a h_j and e^(2 U_a h_j); reach: [B], the greatest
    |key|; lengths: [B], real source positions, which are the first ones; summary: [B, S]."""

    annotations: Tensor
    keys: Tensor
    exponentials: Tensor
    reach: Tensor
    lengths: Tensor
    summary: Tensor


class Greedy(NamedTuple):
    """tokens, scores: [T, B], 0 past the end; attention: [B, T, J], undefined there, None without; length: [B], scored
    symbols."""

    tokens: Tensor
    scores: Tensor
    attention: Tensor | None
    length: Tensor


class _CChoice(Structure):
    _fields_ = (
        *(("ids", c_void_p), ("banned", c_void_p), ("bans", c_int64), ("bos", c_int64), ("eos", c_int64)),
        ("most", c_void_p),
    )


class _CGreedy(Structure):
    _fields_ = (
        ("T", c_int64),
        *((name, c_void_p) for name in ("tokens", "scores", "alphas", "length")),
    )


class GreedySearch:
    """What greedy search in native code is given besides a decoder, and what it fills: at most `most` [B] symbols a
    sentence over J source positions; `ids`: the symbols of the output's columns; `banned`: columns never taken."""

    def __init__(self, J: int, ids: Tensor | None, banned: Tensor, most: Tensor, bos: int, eos: int) -> None:
        B, T = len(most), int(most.max()) + 1
        self._tokens, self._scores = torch.zeros(T, B, dtype=torch.int64), torch.zeros(T, B)
        self._alphas, self._length = torch.empty(B, T, J), torch.empty(B, dtype=torch.int64)
        self._given = (ids, banned, most)
        columns = None if ids is None else ids.data_ptr()
        self.choice = _CChoice(columns, banned.data_ptr(), len(banned), bos, eos, most.data_ptr())
        made = (self._tokens, self._scores, self._alphas, self._length)
        self.made = _CGreedy(T, *(part.data_ptr() for part in made))

    def found(self, steps: int, attention: Callable[[Tensor], Tensor | None] = lambda alphas: alphas) -> Greedy:
        """What stands there after so many steps; `attention`: what becomes of the weights."""
        alphas = attention(self._alphas[:, :steps])
        return Greedy(self._tokens[:steps], self._scores[:steps], alphas, self._length)


class NativeRNNsearch:
    """The twin of a model's `encode`, `start` and `step` (its readout and output product among it).

    Make it with `of`; the model's weights are copied and may change afterwards.
    """

    searches_greedily: ClassVar[bool] = True

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, kind: Kind) -> None:
        encoder, decoder = model.encoder, model.decoder
        assert isinstance(encoder, Bidirectional)
        assert isinstance(decoder, Bahdanau)
        cell, score, deep = decoder.cell, decoder.attention.score, decoder.deep_output
        assert isinstance(cell, GRU)
        assert isinstance(score, Additive)
        assert isinstance(deep, Readout)
        self._native = native
        self._kind = kind
        self._embed = model.source_embedding
        assert isinstance(model.output, Output)
        self._output_layer = model.output
        assert decoder.initial is not None
        D, R = cell.size, deep.word.weight.shape[0]
        self.hidden = [slice(0, D)]
        """Where in a state s_i is, which is all of it but what rounds it up."""
        H = encoder.forward_cell.size
        self._encoder = [self._direction(c) for c in (encoder.forward_cell, encoder.backward_cell)]
        directions = (_GRU * 2)(*(_GRU(*(part.matrix for part in parts)) for parts in self._encoder))
        self._encode = _Encoder(directions, rounded_up(H))
        self._key = self._packed(_wide(_tall(score.key.weight), H, 2))
        self._initial = self._packed(_wide(_tall(decoder.initial.weight), H), _tall(decoder.initial.bias))
        gates = _tall(cell.recurrent_gates.weight, D)
        from_state = torch.cat([_wide(w, D) for w in (_tall(score.query.weight), gates, deep.state.weight)])
        bias = torch.cat([from_state.new_zeros(len(from_state) - R), deep.state.bias])
        from_context = torch.cat([_tall(decoder.context.weight, D), deep.context.weight])
        from_word = torch.cat([_tall(cell.input.weight, D), deep.word.weight])
        word_bias = torch.cat([_tall(cell.input.bias, D), from_word.new_zeros(R)])
        self._parts = (
            self._packed(from_state, bias),
            self._packed(_wide(from_context, H, 2)),
            self._packed(_wide(_tall(cell.recurrent.weight), D)),
            self._packed(from_word, word_bias),
        )
        self._vector = _tall(score.vector).float().contiguous()
        table = model.target_embedding
        self._embeddings = table(Symbols(torch.arange(table.weight.shape[0]))).float().contiguous()
        small = len(self._embeddings) * from_word.shape[0] * 4 <= TABLE_BYTES
        self._words = self._parts[3](self._embeddings) if small else None
        state, context, candidate, word = (part.matrix for part in self._parts)
        words = None if self._words is None else self._words.data_ptr()
        tables = (self._vector.data_ptr(), word, words, self._embeddings.data_ptr())
        sizes = (rounded_up(D), len(self._vector), 2 * rounded_up(H), R, 2 if isinstance(deep, DeepOutput) else 1)
        self._decoder = _Decoder(state, context, candidate, *tables, *sizes)
        self.output = self._packed(model.output.weight, model.output.bias)
        """The output layer, over the whole vocabulary."""

    @staticmethod
    @torch.no_grad()
    def of(model: TranslationModel, kind: Kind) -> NativeRNNsearch | None:
        """The twin of a model on the CPU; None where it has no twin or nothing can be built here."""
        encoder, decoder = model.encoder, model.decoder
        if type(encoder) is not Bidirectional or type(encoder.forward_cell) is not GRU:
            return None
        if not is_rnnsearch(decoder) or model.lexical is not None or type(model.output) is not Output:
            return None
        if model.language_model is not None:
            return None
        native = decoding() if model.device.type == "cpu" else None
        return None if native is None else NativeRNNsearch(native, model, kind)

    def rows(self, ids: Tensor) -> Packed:
        """The output layer over the symbols `ids` [C] alone."""
        return self._packed(self._output_layer.weight[ids], self._output_layer.bias[ids])

    def encode(self, source: Side) -> NativeMemory:
        """The memory of B sentences [B, J], whose real symbols come first."""
        lengths = source.mask.sum(1)
        x = self._embed(source.symbols).float().contiguous()
        order = None
        if bool((lengths[1:] > lengths[:-1]).any()):
            order = lengths.argsort(descending=True, stable=True)
            x, lengths = x[order], lengths[order]
        B, J = source.ids.shape
        D = self._encode.size
        annotations, summary = x.new_empty(B, J, 2 * D), x.new_empty(B, D)
        where = (at(x), at(lengths), c_int64(B), c_int64(J), at(annotations), at(summary))
        self._native.encode(byref(self._encode), *where, threads())
        keys = self._key(annotations)
        exponentials = (2.0 * keys).exp_()
        memory = NativeMemory(annotations, keys, exponentials, keys.abs().amax((1, 2)), lengths, summary)
        if order is None:
            return memory
        back = order.argsort()
        return NativeMemory(*(part[back] for part in memory))

    def start(self, memory: NativeMemory) -> Tensor:
        """s_0 [B, D]."""
        state: Tensor = torch.tanh(self._initial(memory.summary))
        return state

    def step(
        self, memory: NativeMemory, state: Tensor, y: Tensor, output: Packed
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, D] and alpha [N, J]."""
        N, B, V = y.shape[0], memory.lengths.shape[0], len(self._embeddings)
        if int(y.max()) >= V:
            y = y.masked_fill(y >= V, UNK)
        state = state.contiguous()
        logits, norm = state.new_empty(N, output.matrix.outputs), state.new_empty(N)
        alpha, after = state.new_empty(N, memory.keys.shape[1]), torch.empty_like(state)
        weights = (byref(self._decoder), byref(output.matrix), byref(_sources(memory)))
        made = (at(state), at(after), at(alpha), at(logits), at(norm))
        self._native.step(*weights, at(y), c_int64(N), c_int64(N // B), *made, threads())
        return logits, norm, after, alpha

    def greedy(
        self, memory: NativeMemory, output: Packed, ids: Tensor | None, banned: Tensor, most: Tensor, bos: int, eos: int
    ) -> Greedy:
        """Greedy search of B sentences of at most `most` [B] symbols; `ids`: the symbols of the output's columns;
        `banned`: columns never taken."""
        state, search = self.start(memory), GreedySearch(memory.keys.shape[1], ids, banned, most, bos, eos)
        weights = (byref(self._decoder), byref(output.matrix), byref(_sources(memory)), byref(search.choice))
        self._native.greedy.restype = c_int64
        return search.found(self._native.greedy(*weights, c_int64(len(most)), at(state), byref(search.made), threads()))

    def _packed(self, weight: Tensor, bias: Tensor | None = None) -> Packed:
        return Packed(self._native, weight, bias, self._kind)

    def _direction(self, cell: torch.nn.Module) -> tuple[Packed, Packed, Packed]:
        assert isinstance(cell, GRU)
        D = cell.size
        return (
            self._packed(_tall(cell.input.weight, D), _tall(cell.input.bias, D)),
            self._packed(_wide(_tall(cell.recurrent_gates.weight, D), D)),
            self._packed(_wide(_tall(cell.recurrent.weight), D)),
        )


def _sources(memory: NativeMemory) -> _Sources:
    parts = (memory.annotations, memory.keys, memory.exponentials, memory.reach, memory.lengths)
    return _Sources(*(part.data_ptr() for part in parts), memory.keys.shape[1])


def _tall(weight: Tensor, size: int | None = None) -> Tensor:
    """A weight or bias whose blocks of `size` rows (all of them, without it) are rounded up with zeros."""
    blocks: Tensor = weight.unflatten(0, (-1, size or weight.shape[0]))
    rounded = blocks.new_zeros(blocks.shape[0], rounded_up(blocks.shape[1]), *blocks.shape[2:])
    rounded[:, : blocks.shape[1]] = blocks
    return rounded.flatten(0, 1)


def _wide(weight: Tensor, size: int, blocks: int = 1) -> Tensor:
    """A weight whose `blocks` blocks of `size` columns are rounded up with zeros."""
    assert weight.shape[1] == size * blocks
    return _tall(weight.t(), size).t()
