"""RNNsearch without gradients in native code: what translation runs on a CPU where there is a compiler.

It serves the system of Bahdanau et al. (2015) as the presets have it: a bidirectional GRU encoder, the `bahdanau` or
`bahdanau-tanh` decoder with a GRU, additive global attention with a softmax. Weights are laid out once, in fp32, bf16
or int8; states and scores are fp32 in each. Sizes are rounded up to the processor's vectors: units that are added
have weights of zero, stay zero and change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from rnnsearch.backend.engine_arrays import arrays_of
from rnnsearch.backend.twins import is_rnnsearch
from rnnsearch.data.sides import Side
from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.packed import Kind, Laid
from rnnsearch.engine.rnnsearch import CBeam, CChoice, CGreedy, Memory, RNNsearch
from rnnsearch.kernels.native.library import library
from rnnsearch.kernels.native.packed import Packed
from rnnsearch.models.cells import GRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.readouts import DeepOutput, TanhOutput
from rnnsearch.models.encoders import Bidirectional
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel

TABLE_BYTES = 64 << 20
"""Up to this size the words' share of the gates is computed once for the whole vocabulary."""


class NativeMemory(NamedTuple):
    """The engine's `Memory` in tensors, which search selects from."""

    annotations: Tensor
    keys: Tensor
    exponentials: Tensor
    reach: Tensor
    lengths: Tensor
    summary: Tensor

    @property
    def arrays(self) -> Memory:
        """As the engine reads it."""
        return Memory(*(part.numpy() for part in self))


class Greedy(NamedTuple):
    """tokens, scores: [T, B], 0 past the end; attention: [B, T, J], undefined there, None without; length: [B], scored
    symbols."""

    tokens: Tensor
    scores: Tensor
    attention: Tensor | None
    length: Tensor


class Among(NamedTuple):
    """What symbols translations are made of: `ids` of the output's columns (None: all), the columns `banned`, which are
    never taken, and at most `most` [B] symbols a sentence."""

    ids: Tensor | None
    banned: Tensor
    most: Tensor
    bos: int
    eos: int

    @property
    def choice(self) -> CChoice:
        """As native code reads it."""
        columns = None if self.ids is None else self.ids.data_ptr()
        return CChoice(columns, self.banned.data_ptr(), len(self.banned), self.bos, self.eos, self.most.data_ptr())

    def room(self, n: int, J: int) -> NBest:
        """Room for the n best of each sentence over J source positions."""
        return NBest.room(len(self.most), n, int(self.most.max()) + 1, J)


class GreedySearch:
    """What greedy search in native code fills, over J source positions."""

    def __init__(self, J: int, among: Among) -> None:
        B, T = len(among.most), int(among.most.max()) + 1
        self._tokens, self._scores = torch.zeros(T, B, dtype=torch.int64), torch.zeros(T, B)
        self._alphas, self._length = torch.empty(B, T, J), torch.empty(B, dtype=torch.int64)
        made = (self._tokens, self._scores, self._alphas, self._length)
        self.made = CGreedy(T, *(part.data_ptr() for part in made))

    def found(self, steps: int, attention: Callable[[Tensor], Tensor | None] = lambda alphas: alphas) -> Greedy:
        """What stands there after so many steps; `attention`: what becomes of the weights."""
        alphas = attention(self._alphas[:, :steps])
        return Greedy(self._tokens[:steps], self._scores[:steps], alphas, self._length)


class NativeRNNsearch:
    """The twin of a model's `encode`, `start` and `step` (its readout and output product among it).

    Make it with `of`; the model's weights are copied and may change afterwards.
    """

    searches_whole: ClassVar[bool] = True

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, kind: Kind) -> None:
        assert isinstance(model.decoder, Bahdanau)
        assert isinstance(model.output, Output)
        self._native, self._kind = native, kind
        self._engine = RNNsearch(native, arrays_of(model), kind, torch.get_num_threads, TABLE_BYTES)
        self._embed, self._layer = model.source_embedding, model.output
        self.output = self._engine.output
        """The output layer, over the whole vocabulary."""
        self.hidden = [slice(0, model.decoder.cell.size)]
        """Where in a state s_i is, which is all of it but what rounds it up."""

    @staticmethod
    def takes(model: TranslationModel) -> bool:
        """Whether a model is such a system."""
        encoder, decoder = model.encoder, model.decoder
        if type(encoder) is not Bidirectional or not encoder.reads_end:
            return False
        if type(encoder.forward_cell) is not GRU or type(encoder.backward_cell) is not GRU:
            return False
        if not is_rnnsearch(decoder) or type(decoder.readout_layer) not in (DeepOutput, TanhOutput):
            return False
        return type(model.output) is Output and model.lexical is None and model.language_model is None

    @staticmethod
    @torch.no_grad()
    def of(model: TranslationModel, kind: Kind) -> NativeRNNsearch | None:
        """The twin of a model on the CPU; None where it has no twin or nothing can be built here."""
        if not NativeRNNsearch.takes(model):
            return None
        native = library() if model.device.type == "cpu" else None
        return None if native is None else NativeRNNsearch(native, model, kind)

    def rows(self, ids: Tensor) -> Laid:
        """The output layer over the symbols `ids` [C] alone."""
        return Packed(self._native, self._layer.weight[ids], self._layer.bias[ids], self._kind)

    def encode(self, source: Side) -> NativeMemory:
        """The memory of B sentences [B, J], whose real symbols come first."""
        words: Tensor = self._embed(source.symbols)
        found = self._engine.encode(words.detach().float().numpy(), source.mask.sum(1).numpy())
        return NativeMemory(*map(torch.from_numpy, found))

    def start(self, memory: NativeMemory) -> Tensor:
        """s_0 [B, D]."""
        return torch.from_numpy(self._engine.start(memory.arrays))

    def step(
        self, memory: NativeMemory, state: Tensor, y: Tensor, output: Laid
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, D] and alpha [N, J]."""
        made = self._engine.step(memory.arrays, state.numpy(), y.numpy(), output)
        logits, norm, after, alpha = map(torch.from_numpy, made)
        return logits, norm, after, alpha

    def greedy(self, memory: NativeMemory, output: Laid, among: Among) -> Greedy:
        """Greedy search of B sentences."""
        search = GreedySearch(memory.keys.shape[1], among)
        return search.found(self._engine.greedy(memory.arrays, output, among.choice, search.made))

    def beam(self, memory: NativeMemory, output: Laid, among: Among, asked: CBeam) -> NBest | None:
        """Beam search of B sentences; None where a score was no number."""
        found = among.room(asked.n_best, memory.keys.shape[1])
        fine = self._engine.beam(memory.arrays, output, among.choice, asked, found.made)
        return found if fine else None
