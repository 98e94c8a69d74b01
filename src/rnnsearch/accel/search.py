"""Search in native code with every decoder whose step is written in `steps.py`: weights laid out once, in fp32, bf16 or
int8, one position or a batch's whole search a call. RNNsearch has a twin of its own, which shares more (`decoding.py`).
"""

from __future__ import annotations

import copy
import ctypes
from ctypes import byref, c_int64
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.accel.decoder_steps import STEPS, Read, lacks
from rnnsearch.accel.readout_steps import deep_part, lexical, lexical_lacks, readout, readout_lacks
from rnnsearch.accel.rnnsearch_search import TABLE_BYTES, Among, Greedy, GreedySearch
from rnnsearch.data.batch import Side, Spelling, Symbols
from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.rnnsearch import CBeam
from rnnsearch.engine.structs import CBatch, CDecoder, Kind, Laid, What
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Memory, Origin
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.linear import Packed, at, threads
from rnnsearch.ops.native.library import library
from rnnsearch.ops.recurrence import features_of, laid_out, prepared_of
from rnnsearch.ops.step import Reads, Source, Step
from rnnsearch.text.vocabulary import EOS, PAD, UNK

# Any model with its matrix products in native code: what search runs on a CPU where a family has no whole native twin
# of its own.

Model = TypeVar("Model", TranslationModel, LanguageModel)


class PackedLinear(nn.Linear):
    """The twin of a linear layer, without gradients; it has the same parameters."""

    def __init__(self, native: ctypes.CDLL, layer: nn.Linear, kind: Kind) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.packed = Packed(native, layer.weight, layer.bias, kind)

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.packed(input)


class PackedOutput(Output):
    """The twin of an output layer, W_l beside W_o where there is one."""

    def __init__(self, native: ctypes.CDLL, layer: Output, kind: Kind) -> None:
        nn.Module.__init__(self)
        self.vocabulary, self.lexical = layer.vocabulary, layer.lexical
        self.weight, self.bias = layer.weight, layer.bias
        self._native, self._kind = native, kind
        self._packed = self._of(layer.weight, layer.lexical, layer.bias)

    def _of(self, weight: Tensor, lexical: Tensor | None, bias: Tensor) -> Packed:
        both = weight if lexical is None else torch.cat([weight, lexical], dim=1)
        return Packed(self._native, both, bias, self._kind)

    def logits_function(self, rows: Int[Tensor, "C"] | None) -> Packed:
        if rows is None:
            return self._packed
        return self._of(self.weight[rows], None if self.lexical is None else self.lexical[rows], self.bias[rows])


def packed(model: Model, kind: Kind) -> Model | None:
    """A model of the same parameters whose linear layers are `PackedLinear`; None where nothing can be built here.

    The weights are laid out now: what becomes of the parameters later is not seen.
    """
    native = library() if model.device.type == "cpu" else None
    if native is None:
        return None
    twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    for module in list(twin.modules()):
        for name, child in module.named_children():
            if type(child) is Linear:
                setattr(module, name, PackedLinear(native, child, kind))
            elif type(child) is Output:
                setattr(module, name, PackedOutput(native, child, kind))
    return twin


NOTHING = Side.of(torch.full((1, 1), EOS), Spelling(torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), PAD)))
"""An empty sentence, for models that read characters, too."""


class NativeBatch(NamedTuple):
    """keys: [B, J, A]; annotations: [B, J, H]; mask: [B, J]; centres: [B, C] of a window that knows them, else empty;
    prepared: [B, J, P], what features have computed of the source. first: what features remember of it before the first
    position, the decoder's first states and t = 0, side by side [B, S]. origin: as in `Memory`."""

    keys: Tensor
    annotations: Tensor
    mask: Tensor
    centres: Tensor
    prepared: Tensor
    first: Tensor
    origin: Origin | None


def search_lacks(model: TranslationModel) -> str | None:
    """Why a model has no native search; None where it has one."""
    decoder, output = type(model.decoder), type(model.output)
    if model.language_model is not None:
        return "a language model is inside"
    if decoder not in STEPS:
        return f"the decoder is {decoder.__name__}"
    if output is not Output:
        return f"the output layer is {output.__name__}"
    return lacks(model.decoder) or readout_lacks(model.decoder) or lexical_lacks(model)


def with_words(model: TranslationModel, memory: Memory, words: Tensor) -> Memory:
    """What a step attends to: the embedded words [B, J, E], too, where there is a lexical model."""
    if model.lexical is None:
        return memory
    return memory._replace(values=torch.cat([memory.context_values, words], dim=2))


def before_output(step: Step, model: TranslationModel, read: Read, word: int) -> Reads:
    """What stands side by side for the output layer; word: as `readout` has it."""
    values = readout(step, model.decoder, word, read)
    if model.lexical is not None:
        assert read.context is not None
        values += (lexical(step, model.lexical, read.context),)
    return step.read(*((value, None) for value in values))


class NativeDecoder:
    """The twin of a model's `encode`, `start` and `step` (its readout and output product among it).

    Make it with `of`; the model's weights are copied and may change afterwards.
    """

    def __init__(self, native: ctypes.CDLL, model: TranslationModel, kind: Kind) -> None:
        encoder = packed(model, kind)
        assert encoder is not None
        assert isinstance(encoder.output, PackedOutput)
        self._native, self._kind, self._model = native, kind, model
        self._encoder, self._layer = encoder, encoder.output
        self.output = encoder.output.logits_function(None)
        """The output layer, over the whole vocabulary."""
        layers = (layer for layer in encoder.modules() if isinstance(layer, PackedLinear))
        self._laid = {(id(layer.weight), 0, len(layer.weight)): layer.packed for layer in layers}
        """By weight, first row and rows; a bias of theirs is not read here."""
        self._deep = deep_part(encoder.decoder)
        embeddings = model.target_embedding(Symbols(torch.arange(model.target_embedding.weight.shape[0])))
        few = self._words(embeddings[:1])
        small = len(embeddings) * few.shape[1] * 4 <= TABLE_BYTES
        self._table = self._words(embeddings).float().contiguous() if small else None
        self.vocabulary = len(embeddings)
        self._layout(few)

    @staticmethod
    @torch.no_grad()
    def of(model: TranslationModel, kind: Kind) -> NativeDecoder | None:
        """The twin of a model on the CPU; None where its step is not written or nothing can be built here."""
        if search_lacks(model) is not None:
            return None
        native = library() if model.device.type == "cpu" else None
        return None if native is None else NativeDecoder(native, model, kind)

    def _words(self, embedded: Tensor) -> Tensor:
        """The words' share of the sums, the readout's behind the recurrence's."""
        share = self._encoder.decoder.inputs(embedded)
        if self._deep is None:
            return share
        return torch.cat([share, self._deep.word(embedded)], dim=1)

    def _layout(self, word: Tensor) -> None:
        """The step, written once for one symbol of one sentence; the sentences of a search take its place."""
        step, read, _ = self._write(NOTHING)
        deep = 0 if self._deep is None else self._deep.word.weight.shape[0]
        last = before_output(step, self._model, read, word.shape[1] - deep)
        self._parts = laid_out(step, self._matrix)
        self._bias = step.bias_row()
        places = [number for value, _ in step.states for number in (value.at, value.size)]
        self._places = (c_int64 * len(places))(*places)
        c = CDecoder(word.shape[1], step.sums_size, step.values_size, step.reads_size)
        c.heads, c.scale, c.reach = 1, 1.0, -1
        source = step.source
        if source is not None:
            c.key, c.annotation = source.keys.shape[2], source.annotations.shape[2]
            c.heads, c.scale, c.reach, c.spread = source.heads, source.scale, source.reach, source.spread
            self._vector = torch.zeros(0) if source.vector is None else source.vector.float().contiguous()
            c.vector = self._vector.data_ptr()
        c.parts, c.part, c.bias = len(self._parts), ctypes.addressof(self._parts), self._bias.data_ptr()
        c.states, c.state, c.state_size = len(places) // 2, ctypes.addressof(self._places), sum(places[1::2]) + 1
        number = next(n for n, part in enumerate(step.parts) if part.what is What.READ and part.at[0] == last.at)
        c.readout = ctypes.addressof(self._parts) + number * ctypes.sizeof(self._parts[0])
        c.table = None if self._table is None else self._table.data_ptr()
        c.features, self._features = features_of(step)
        self._c, self._step = c, step
        # Counted from the end, for how much features remember before the states hangs on the source's length.
        ends = (np.cumsum([0, *places[1::2]]) - c.state_size).tolist()
        self.hidden = [slice(ends[n], ends[n + 1]) for n in step.hidden]
        """Where in a state the hidden vectors of cells are."""

    def _matrix(self, weight: Tensor, begin: int, size: int) -> int:
        """The address of some rows of a weight, laid out."""
        key = (id(weight), begin, size)
        if key not in self._laid:
            self._laid[key] = Packed(self._native, weight[begin : begin + size], None, self._kind)
        return ctypes.addressof(self._laid[key].matrix)

    def _write(self, source: Side) -> tuple[Step, Read, Memory]:
        """The step over some sentences [B, J], with what they are remembered by and their first states; it is written
        with the model's own weights."""
        model, decoder = self._encoder, self._model.decoder
        words = model.source_embedding(source.symbols)
        memory = with_words(model, model.decoder.remember(model.encoder(words, source.mask, None)), words)
        step = Step(torch.empty(*source.ids.shape, 0))  # as many positions as a window's centre moves over
        return step, STEPS[type(decoder)](step, decoder, model.decoder.start(memory), memory), memory

    def rows(self, ids: Tensor) -> Packed:
        """The output layer over the symbols `ids` [C] alone."""
        return self._layer.logits_function(ids)

    def encode(self, sentences: Side) -> NativeBatch:
        """The memory of B sentences [B, J]."""
        step, _, memory = self._write(sentences)
        B = len(sentences.ids)
        nothing = torch.empty(B, 0)
        source = step.source or Source(nothing[:, :, None], nothing[:, :, None], nothing.bool())
        # Of each annotation, of which a merging encoder has fewer than symbols.
        remembered = torch.zeros(B, source.mask.shape[1] * self._c.features.memory)
        first = torch.cat([remembered, *(part.float() for _, part in step.states), torch.zeros(B, 1)], dim=1)
        centres = nothing if source.centres is None else source.centres.float().contiguous()
        keys, annotations = source.keys.float().contiguous(), source.annotations.float().contiguous()
        prepared = prepared_of(source).contiguous()
        return NativeBatch(keys, annotations, source.mask.contiguous(), centres, prepared, first, memory.origin)

    def start(self, memory: NativeBatch) -> Tensor:
        """The state before the first position [B, S]."""
        return memory.first

    def step(
        self, memory: NativeBatch, state: Tensor, y: Tensor, output: Laid
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, S] and the weights of the
        source positions [N, J], None of a decoder without attention."""
        N, B = y.shape[0], memory.first.shape[0]
        if int(y.max()) >= self.vocabulary:
            y = y.masked_fill(y >= self.vocabulary, UNK)
        state, x = state.contiguous(), None
        if self._table is None:
            x = self._words(self._model.target_embedding(Symbols(y))).float().contiguous()
        logits, norm = state.new_empty(N, output.matrix.outputs), state.new_empty(N)
        alpha, after = state.new_empty(N, memory.mask.shape[1]), torch.empty_like(state)
        weights = (byref(self._c), byref(output.matrix), byref(_batch(memory)))
        made = (at(state), at(after), at(alpha), at(logits), at(norm))
        read = None if x is None else at(x)
        self._native.decoder_step(*weights, at(y), read, c_int64(N), c_int64(N // B), *made, threads())
        return logits, norm, after, self._on_source(memory, alpha)

    def _on_source(self, memory: NativeBatch, alpha: Tensor) -> Tensor | None:
        if not self._model.decoder.attends:
            return None
        return alpha if memory.origin is None else memory.origin.to_source(alpha)

    @property
    def searches_whole(self) -> bool:
        """Whether it has the words' share of the sums for a whole search in one call."""
        return self._table is not None

    def greedy(self, memory: NativeBatch, output: Laid, among: Among) -> Greedy:
        """As `NativeRNNsearch.greedy`; attention is None of a decoder without."""
        state, search = memory.first.clone(), GreedySearch(memory.mask.shape[1], among)
        weights = (byref(self._c), byref(output.matrix), byref(_batch(memory)), byref(among.choice))
        self._native.decoder_greedy.restype = c_int64
        steps = self._native.decoder_greedy(*weights, c_int64(len(state)), at(state), byref(search.made), threads())
        return search.found(steps, lambda alphas: self._on_source(memory, alphas))

    def beam(self, memory: NativeBatch, output: Laid, among: Among, asked: CBeam) -> NBest | None:
        """As `NativeRNNsearch.beam`; without attention J is 0."""
        first, found = memory.first, among.room(asked.n_best, memory.mask.shape[1])
        weights = (byref(self._c), byref(output.matrix), byref(_batch(memory)), byref(among.choice), byref(asked))
        self._native.decoder_beam.restype = c_int64
        if not self._native.decoder_beam(*weights, c_int64(len(first)), at(first), byref(found.made), threads()):
            return None
        B, n, T, _ = found.attention.shape
        alphas = self._on_source(memory, torch.from_numpy(found.attention).view(B, n * T, -1))
        return found if alphas is None else found._replace(attention=alphas.view(B, n, T, -1).numpy())


def _batch(memory: NativeBatch) -> CBatch:
    parts = (memory.keys, memory.annotations, memory.mask, memory.centres, memory.prepared)
    return CBatch(*(part.data_ptr() for part in parts), memory.mask.shape[1], memory.centres.shape[1])
