"""Word embeddings composed of characters, one class per formulation.

Each distinct word of a batch is composed once. A word is a row of character ids, padded with CHARACTER_PAD; its leading
space is the first character. The vector of a word depends neither on the other words of the batch nor on the padding.
`Filters` and `Highway` are also used by the convolutional encoder.

`TranslationModel` creates a `ComposedEmbedding` of the source, which `systems/translation.py` replaces by a
`PrecomputedEmbedding` for search. `LanguageModel` creates one of the words before each word; search and fusion, which
do not know the characters of unknown words, read its `table` instead. `NGrams.HASH_FACTOR` and the order of character
ids must not change: stored models depend on them.

Axes: S distinct words, L characters per word, F filters, B sentences, J source positions, E embedding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config import encoders
from rnnsearch.config.encoders import (
    BiLSTMOptions,
    CNNOptions,
    LSTMCompositionOptions,
    NGramsOptions,
    SourceCharactersConfig,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.data.characters import CHARACTER_PAD
from rnnsearch.models.cells import LSTM
from rnnsearch.models.layers import Embedding, Linear, parameter
from rnnsearch.text.vocabulary import SPECIALS, UNK

Words = Int[Tensor, "S L"]
"""Character ids of S words."""
Vectors = Float[Tensor, "S E"]

PRECOMPUTED_BATCH_SIZE = 4096
"""Number of known words that are composed at once for a table."""


class Filters(nn.Module):
    """Convolutions of several widths w: <X[j - before : j - before + w], H_f> + b_f at every position j, concatenated.

    A window starts at its position, or is `centred` on it with before = (w - 1) / 2, rounded down. There are zeros
    beyond both ends.
    """

    def __init__(self, inputs: int, filters: dict[int, int], centred: bool) -> None:
        """Create the filters; `filters` is the number of filters by width."""
        super().__init__()
        self.widths = list(filters)
        self.centred = centred
        self.layers = nn.ModuleList(Linear(w * inputs, count) for w, count in filters.items())  # H and b by width
        self.size = sum(filters.values())

    def forward(self, x: Float[Tensor, "B J E"]) -> Float[Tensor, "B J F"]:
        """Return the output of each filter at each position."""
        outputs = []
        for w, layer in zip(self.widths, self.layers, strict=True):
            before = (w - 1) // 2 if self.centred else 0
            windows = functional.pad(x, (0, 0, before, w - 1 - before)).unfold(1, w, 1)  # [B, J, E, w]
            outputs.append(layer(windows.transpose(2, 3).flatten(2)))  # [B, J, filters of width w]
        return torch.cat(outputs, dim=-1)


class Highway(nn.Module):
    """z = t * g(W_H y + b_H) + (1 - t) * y,  t = sigmoid(W_T y + b_T), g = ReLU (Srivastava et al. 2015).

    Kim et al. 2016, eq. 8. b_T is initialised to -2, so that a layer first passes y through.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.change = Linear(size, size)  # W_H and b_H
        self.gate = Linear(size, size, bias=False)  # W_T
        self.gate_bias = parameter(-2.0, size)  # b_T

    def forward(self, y: Float[Tensor, "*rows F"]) -> Float[Tensor, "*rows F"]:
        t = torch.sigmoid(self.gate(y) + self.gate_bias)
        return t * torch.relu(self.change(y)) + (1 - t) * y


def highways(size: int, layers: int) -> nn.Sequential:
    """Create a sequence of highway layers."""
    return nn.Sequential(*(Highway(size) for _ in range(layers)))


class Composition(nn.Module, ABC):
    """A function from S words to vectors of `size`, for an inventory of `characters` characters."""

    component: ClassVar[type[SourceCharactersConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any, characters: int, size: int) -> None:
        super().__init__()

    @abstractmethod
    def forward(self, words: Words) -> Vectors:
        """Return the vector of each word."""


@implements(LSTMCompositionOptions)
class LastState(Composition):
    """e = h_L of h_k = LSTM(c_k, h_{k-1}), in several layers, from zero (Luong & Manning 2016, section 3.1)."""

    def __init__(self, options: LSTMCompositionOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        input_sizes = [options.embedding, *[size] * (options.layers - 1)]
        self.layers = nn.ModuleList(LSTM(input_size, size) for input_size in input_sizes)

    def forward(self, words: Words) -> Vectors:
        x = functional.embedding(words, self.characters)  # [S, L, E of a character]
        mask = words != CHARACTER_PAD
        last = x
        for layer in self.layers:
            assert isinstance(layer, LSTM)
            x, state = layer.sequence(x, mask)
            last = state.h  # [S, E]
        return last


@implements(BiLSTMOptions)
class BothStates(Composition):
    """e = D_f s_f + D_b s_b + b, with the last states of a forward and a backward LSTM (Ling et al. 2015, eq. 1)."""

    def __init__(self, options: BiLSTMOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        self.forward_cell = LSTM(options.embedding, options.size)
        self.backward_cell = LSTM(options.embedding, options.size)
        self.join = Linear(2 * options.size, size)  # [D_f D_b] and b

    def forward(self, words: Words) -> Vectors:
        x = functional.embedding(words, self.characters)
        mask = words != CHARACTER_PAD
        _, last = self.forward_cell.sequence(x, mask)
        _, first = self.backward_cell.sequence(x, mask, backward=True)
        joined: Tensor = self.join(torch.cat([last.h, first.h], dim=-1))
        return joined


@implements(CNNOptions)
class Convolution(Composition):
    """y_f = max_k tanh(<C[k : k + w], H_f> + b_f) over windows of w = 1, 2, ... characters (Kim et al. 2016, eq. 5-6).

    Highway layers and, with `projection`, a linear layer to the size of a word's vector follow. A window starts at each
    character of the word, with zeros beyond its end.
    """

    def __init__(self, options: CNNOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.characters = parameter("embedding", characters, options.embedding)
        self.filters = Filters(options.embedding, options.filters_by_width, centred=False)
        self.highway = highways(self.filters.size, options.highway)
        self.join = Linear(self.filters.size, size) if options.projection else nn.Identity()

    def forward(self, words: Words) -> Vectors:
        is_padding = (words == CHARACTER_PAD).unsqueeze(-1)
        # Zeros beyond the end of a word, so that its vector does not depend on the longest word of the batch.
        x = functional.embedding(words, self.characters).masked_fill(is_padding, 0.0)
        # tanh is monotonic, so that it is computed once per filter, after the maximum. [S, F]
        y = torch.tanh(self.filters(x).masked_fill(is_padding, -torch.inf).amax(1))
        joined: Tensor = self.join(self.highway(y))
        return joined


@implements(NGramsOptions)
class NGrams(Composition):
    """The sum of the vectors of a word's character n-grams, each hashed to one of `buckets` rows."""

    HASH_FACTOR = 1_000_003
    """Factor of the hash h(c_1..c_n) = (h(c_1..c_{n-1}) * HASH_FACTOR + c_n) mod buckets."""

    def __init__(self, options: NGramsOptions, characters: int, size: int) -> None:
        super().__init__(options, characters, size)
        self.lengths = range(options.shortest, options.longest + 1)
        self.vectors = parameter("embedding", options.buckets, size)

    def forward(self, words: Words) -> Vectors:
        hashes = torch.zeros_like(words)  # of the n-gram that starts at each character
        total = self.vectors.new_zeros(len(words), self.vectors.shape[1])
        for n in range(1, self.lengths[-1] + 1):
            # The n-th character of each n-gram
            ends = functional.pad(words, (0, n - 1), value=CHARACTER_PAD)[:, n - 1 :]
            # The modulus at every step keeps the products far below 2^63.
            hashes = (hashes * self.HASH_FACTOR + ends) % len(self.vectors)
            if n in self.lengths:
                is_inside = (ends != CHARACTER_PAD).unsqueeze(-1)
                # N-grams that reach into the padding do not count.
                total = total + (functional.embedding(hashes, self.vectors) * is_inside).sum(1)
        return total


COMPOSITIONS: Implementations[type[Composition]] = Implementations(encoders.SOURCE_CHARACTERS)
"""Class by `type` of `[model.source_characters]`; names are stored in model folders."""


class ComposedEmbedding(Embedding):
    """Embeddings composed of characters; tokens without characters (EOS) have a table.

    If only unknown words are composed (`words` is not "all"), known words are in the table, too.
    """

    def __init__(self, options: SourceCharactersConfig, vocabulary: int, characters: int, size: int) -> None:
        super().__init__(len(SPECIALS) if options.words == "all" else vocabulary, size)
        self.composition = COMPOSITIONS[options.type](options, characters, size)

    def forward(self, inputs: EmbeddingInput) -> Float[Tensor, "*rows E"]:
        table = inputs.characters
        assert table is not None, "composed embeddings need the characters of the words"
        is_composed = table.indices > 0
        # Composed words look up row 0 here: with words = "all", the table has no rows for them.
        listed = super().forward(EmbeddingInput(inputs.ids.masked_fill(is_composed, 0)))
        # [S, E] -> [*rows, E]: each distinct word is composed once.
        composed = functional.embedding(table.indices, self.composition(table.characters).to(listed.dtype))
        return torch.where(is_composed.unsqueeze(-1), composed, listed)

    def precompute(self, known: Words) -> PrecomputedEmbedding:
        """Return a faster embedding for search, given the characters of the known words."""
        return PrecomputedEmbedding(self, known)

    def table(self, known: Words | None) -> Embedding:
        """Return the vectors of all tokens as a table without gradients, in which all unknown words have one row.

        Args:
            known: Characters of the known words; None if the known words have a table already.
        """
        vectors = self.weight.detach() if known is None else self.compose_all(known)
        table = Embedding(*vectors.shape)
        table.weight = nn.Parameter(vectors, requires_grad=False)
        return table

    @torch.no_grad()
    def compose_all(self, known: Words) -> Float[Tensor, "V E"]:
        """Return the vectors of the special tokens, then those of the known words in the order of their ids."""
        batches = known.to(self.weight.device).split(PRECOMPUTED_BATCH_SIZE)
        return torch.cat([self.weight, *(self.composition(words) for words in batches)])


class PrecomputedEmbedding(ComposedEmbedding):
    """A `ComposedEmbedding` of all words that composes the known words once, at creation; it has no gradients."""

    def __init__(self, embedding: ComposedEmbedding, known: Words) -> None:
        # Not that of ComposedEmbedding, which would create new parameters.
        nn.Module.__init__(self)
        self.composition = embedding.composition
        self.zero_bos = embedding.zero_bos
        self.weight = nn.Parameter(embedding.compose_all(known), requires_grad=False)

    def forward(self, inputs: EmbeddingInput) -> Float[Tensor, "*rows E"]:
        table = inputs.characters
        assert table is not None, "composed embeddings need the characters of the words"
        x = functional.embedding(inputs.ids, self.weight)
        positions = ((inputs.ids == UNK) & (table.indices > 0)).nonzero(as_tuple=True)
        words, inverse = table.indices[positions].unique(return_inverse=True)  # each distinct unknown word once
        composed = self.composition(table.characters[words])
        return x.index_put(positions, composed[inverse].to(x.dtype))
