"""Source words made of their characters: each different word of a batch once, one class an equation.

A word is its characters' numbers, NOTHING after them; its leading space is the first. Every word's vector is its own:
neither the others in the batch nor the padding has a part in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config import encoders
from rnnsearch.config.encoders import BiLSTMOptions, CNNOptions, LSTMOptions, NGramsOptions, SourceCharactersConfig
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import Symbols
from rnnsearch.data.characters import NOTHING
from rnnsearch.models.cells import LSTM
from rnnsearch.models.layers import Embedding, Linear, parameter
from rnnsearch.text.vocabulary import SPECIALS, UNK

# What character models are made of: filters over windows of positions, and highway layers.


class Filters(nn.Module):
    """<X[j - before : j - before + w], H_f> + b_f of every position j and each of some widths w, side by side; beyond
    the ends are zeros. A window begins at its position, or is `centred` on it: before = (w - 1) / 2, rounded down."""

    def __init__(self, inputs: int, filters: dict[int, int], centred: bool) -> None:
        """filters: how many are of each width."""
        super().__init__()
        self.widths, self.centred = list(filters), centred
        self.layers = nn.ModuleList(Linear(w * inputs, count) for w, count in filters.items())
        """H and b of each width."""
        self.size = sum(filters.values())

    def forward(self, x: Float[Tensor, "B J E"]) -> Float[Tensor, "B J F"]:
        """What each filter finds at each position."""
        found = []
        for w, layer in zip(self.widths, self.layers, strict=True):
            before = (w - 1) // 2 if self.centred else 0
            windows = functional.pad(x, (0, 0, before, w - 1 - before)).unfold(1, w, 1)  # [B, J, E, w]
            found.append(layer(windows.transpose(2, 3).flatten(2)))
        return torch.cat(found, dim=-1)


class Highway(nn.Module):
    """z = t * g(W_H y + b_H) + (1 - t) * y,  t = sigmoid(W_T y + b_T), g = ReLU (Srivastava et al. 2015; Kim et al.
    2016, eq. 8); b_T begins at -2, so that a layer first passes y on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = Linear(size, size)
        """W_H and b_H."""
        self.gate = Linear(size, size, bias=False)
        """W_T."""
        self.gate_bias = parameter(-2.0, size)

    def forward(self, y: Float[Tensor, "*rows F"]) -> Float[Tensor, "*rows F"]:
        """One layer."""
        t = torch.sigmoid(self.gate(y) + self.gate_bias)
        return t * torch.relu(self.change(y)) + (1 - t) * y


def highways(size: int, layers: int) -> nn.Sequential:
    """Several layers, one after the other."""
    return nn.Sequential(*(Highway(size) for _ in range(layers)))


Words = Int[Tensor, "S L"]
Vectors = Float[Tensor, "S E"]


class Composition(nn.Module, ABC):
    """A vector of `size` numbers for each of S words, of an inventory of so many characters."""

    component: ClassVar[type[SourceCharactersConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any, characters: int, size: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, words: Words) -> Vectors:
        """The words' vectors."""


@implements(LSTMOptions)
class LastState(Composition):
    """e = h_L of h_k = LSTM(c_k, h_{k-1}), in layers, from zero (Luong & Manning 2016, section 3.1)."""

    def __init__(self, options: LSTMOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        below = [options.embedding, *[size] * (options.layers - 1)]
        self.layers = nn.ModuleList(LSTM(inputs, size) for inputs in below)

    def forward(self, words: Words) -> Vectors:
        x, mask = functional.embedding(words, self.characters), words != NOTHING
        last = x
        for layer in self.layers:
            assert isinstance(layer, LSTM)
            x, state = layer.sequence(x, mask)
            last = state.h
        return last


@implements(BiLSTMOptions)
class BothStates(Composition):
    """e = D_f s_f + D_b s_b + b of the last states of a forward and a backward LSTM (Ling et al. 2015, eq. 1)."""

    def __init__(self, options: BiLSTMOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        self.forward_cell = LSTM(options.embedding, options.size)
        self.backward_cell = LSTM(options.embedding, options.size)
        self.join = Linear(2 * options.size, size)
        """[D_f D_b] and b."""

    def forward(self, words: Words) -> Vectors:
        x, mask = functional.embedding(words, self.characters), words != NOTHING
        _, last = self.forward_cell.sequence(x, mask)
        _, first = self.backward_cell.sequence(x, mask, backward=True)
        joined: Tensor = self.join(torch.cat([last.h, first.h], dim=-1))
        return joined


@implements(CNNOptions)
class Convolution(Composition):
    """y_f = max_k tanh(<C[k : k + w], H_f> + b_f) over windows of w = 1, 2, ... characters (Kim et al. 2016, eq. 5 and
    6), then highway layers, then a linear layer to the size of a word's vector.

    A window begins at each character of the word; beyond its end are zeros.
    """

    def __init__(self, options: CNNOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        counts = {w: w * options.filters for w in range(1, options.widths + 1)}
        self.filters = Filters(options.embedding, counts, centred=False)
        self.highway = highways(self.filters.size, options.highway)
        self.join = Linear(self.filters.size, size)

    def forward(self, words: Words) -> Vectors:
        beyond = (words == NOTHING).unsqueeze(-1)
        x = functional.embedding(words, self.characters).masked_fill(beyond, 0.0)
        y = torch.tanh(self.filters(x)).masked_fill(beyond, -1.0).amax(1)
        joined: Tensor = self.join(self.highway(y))
        return joined


@implements(NGramsOptions)
class NGrams(Composition):
    """The sum of the vectors of a word's n-grams of characters, each hashed to one of `buckets` rows."""

    HASH_FACTOR = 1_000_003
    """Of the hash h(c_1..c_n) = (h(c_1..c_{n-1}) * FACTOR + c_n) mod buckets."""

    def __init__(self, options: NGramsOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.lengths = range(options.shortest, options.longest + 1)
        self.vectors = parameter("embedding", options.buckets, size)

    def forward(self, words: Words) -> Vectors:
        hashed, total = torch.zeros_like(words), self.vectors.new_zeros(len(words), self.vectors.shape[1])
        for n in range(1, self.lengths[-1] + 1):
            ends = functional.pad(words, (0, n - 1), value=NOTHING)[:, n - 1 :]  # the n-th character of each n-gram
            hashed = (hashed * self.HASH_FACTOR + ends) % len(self.vectors)
            if n in self.lengths:
                there = (ends != NOTHING).unsqueeze(-1)
                total = total + (functional.embedding(hashed, self.vectors) * there).sum(1)
        return total


COMPOSITIONS: Implementations[type[Composition]] = Implementations(encoders.SOURCE_CHARACTERS)


WORDS_PER_BATCH = 4096
"""Known words that are composed together."""


class ComposedEmbedding(Embedding):
    """The vectors of words by their characters; of other symbols (EOS, and known words where unknown ones alone are
    composed) from a table."""

    def __init__(self, options: SourceCharactersConfig, vocabulary: int, characters: int, size: int) -> None:
        super().__init__(len(SPECIALS) if options.words == "all" else vocabulary, size)
        self.composition = COMPOSITIONS[options.type](options, characters, size)

    def forward(self, symbols: Symbols) -> Float[Tensor, "*rows E"]:
        spelling = symbols.spelling
        assert spelling is not None, "words are composed of characters, which must be given"
        spelled = spelling.which > 0
        listed = super().forward(Symbols(symbols.ids.masked_fill(spelled, 0)))
        composed = functional.embedding(spelling.which, self.composition(spelling.characters).to(listed.dtype))
        return torch.where(spelled.unsqueeze(-1), composed, listed)

    def precompute(self, known: Words) -> PrecomputedEmbedding:
        """What search reads instead, where the weights no longer change; `known`: the characters of the known words."""
        return PrecomputedEmbedding(self, known)


class PrecomputedEmbedding(ComposedEmbedding):
    """The twin of an embedding that composes all words, without gradients: known ones are composed once and for all."""

    def __init__(self, whole: ComposedEmbedding, known: Words) -> None:
        nn.Module.__init__(self)
        self.composition, self.zero_bos = whole.composition, whole.zero_bos
        with torch.no_grad():
            vectors = [self.composition(words) for words in known.to(whole.weight.device).split(WORDS_PER_BATCH)]
            self.weight = nn.Parameter(torch.cat([whole.weight, *vectors]), requires_grad=False)

    def forward(self, symbols: Symbols) -> Float[Tensor, "*rows E"]:
        spelling = symbols.spelling
        assert spelling is not None, "words are composed of characters, which must be given"
        x = functional.embedding(symbols.ids, self.weight)
        places = ((symbols.ids == UNK) & (spelling.which > 0)).nonzero(as_tuple=True)
        words, which = spelling.which[places].unique(return_inverse=True)
        composed = self.composition(spelling.characters[words])
        return x.index_put(places, composed[which].to(x.dtype))
