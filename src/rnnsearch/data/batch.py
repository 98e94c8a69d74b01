"""Parts of a batch: streams of token ids with their masks, translation directions, characters and noise words.

`data/batches.py` makes batches of them; models read `Stream.embedding_input` and masks.

Axes: B rows, J positions (I in a target stream), K noise words, S distinct words, L characters per word, N real
tokens of a stream, V vocabulary, F features of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.text.vocabulary import BOS, PAD, UNK
from rnnsearch.utils.tensors import without_last

COPY_SUFFIX = "@copy"
"""End of the name of a stream that repeats the target, after the code of its language: the source of autoencoding."""


class Direction(NamedTuple):
    """The streams that a translation reads, and the one that it writes."""

    sources: tuple[str, ...]
    """Names of the streams to read; none for language modelling."""
    target: str
    """Name of the stream to write."""

    @property
    def name(self) -> str:
        """Name such as "de-en"; "en-en" of autoencoding, and "en" without sources."""
        return "-".join(["+".join(self.languages), self.target]) if self.sources else self.target

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the sources."""
        return tuple(name.removesuffix(COPY_SUFFIX) for name in self.sources)

    def reversed(self) -> Direction:
        """Return the opposite direction of a direction with one source."""
        (source,) = self.sources
        return Direction((self.target,), source)


DEFAULT_DIRECTION = Direction(("source",), "target")
"""Direction of sentence pairs whose languages have no names."""


def previous_ids(ids: Int[Tensor, "B I"]) -> Int[Tensor, "B I"]:
    """Return the token before each position: BOS, then the ids shifted right."""
    return torch.cat([torch.full_like(ids[:, :1], BOS), ids[:, :-1]], dim=1)


class NoiseWords(NamedTuple):
    """K noise words that all target positions of a batch share (see `objectives/contrast.py`)."""

    ids: Int[Tensor, "K"]
    """Id of each noise word."""
    log_q: Float[Tensor, "K"]
    """Log-probability of each noise word under the noise distribution."""
    target_log_q: Float[Tensor, "B I"]
    """Log-probability of each target token under the noise distribution."""

    def slice_rows(self, start: int, stop: int) -> NoiseWords:
        """Return the noise words of a range of rows of the batch."""
        return self._replace(target_log_q=self.target_log_q[start:stop])

    def map(self, function: Callable[[Tensor], Tensor]) -> NoiseWords:
        """Return a copy with a function applied to each tensor."""
        return NoiseWords(function(self.ids), function(self.log_q), function(self.target_log_q))


class NoiseDistribution:
    """The unigram distribution of the training text raised to a power; unseen words count as seen once."""

    def __init__(self, counts: NDArray[np.int64], power: float, samples: int) -> None:
        weights = np.maximum(counts, 1).astype(np.float64) ** power  # [V]
        self._cumulative = np.cumsum(weights)
        self._log_q = np.log(weights / self._cumulative[-1]).astype(np.float32)
        self._samples = samples

    def sample(self, targets: Int[Tensor, "B I"], *seed: int) -> NoiseWords:
        """Return the noise words of a batch; they depend only on the seed."""
        ids = self._sample_ids(seed)
        return NoiseWords(
            ids=torch.from_numpy(ids),
            log_q=torch.from_numpy(self._log_q[ids]),
            target_log_q=torch.from_numpy(self._log_q[targets.numpy()]),
        )

    def shortlist(self, targets: NDArray[np.int64], *seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return sorted ids that include some targets, and the logarithm of each id's importance weight.

        Targets have a weight of 1. Of K samples, those of another token y have a weight of 1 / (K q(y)), so that a
        weighted sum over the result is on average the sum over the vocabulary.
        """
        sampled, counts = np.unique(self._sample_ids(seed), return_counts=True)
        log_weights = np.log(counts / self._samples).astype(np.float32) - self._log_q[sampled]
        others = ~np.isin(sampled, targets)
        ids = np.concatenate([targets, sampled[others]])
        log_weights = np.concatenate([np.zeros(len(targets), np.float32), log_weights[others]])
        order = np.argsort(ids)
        return ids[order], log_weights[order]

    def _sample_ids(self, seed: tuple[int, ...]) -> NDArray[np.int64]:
        """Sample token ids with replacement, by inverse transform sampling."""
        points = np.random.default_rng(seed).random(self._samples) * self._cumulative[-1]
        # Rounding may move a point to the total, beyond the last interval.
        ids: NDArray[np.int64] = np.searchsorted(self._cumulative, points, side="right")
        return np.minimum(ids, len(self._cumulative) - 1)


@dataclass(frozen=True)
class CharacterTable:
    """Characters of a batch's tokens, each distinct token once.

    Row 0 of `characters` belongs to tokens without characters (padding, EOS): all 0, which also pads shorter tokens.
    A dataclass, not a named tuple, so that `tensors.select` leaves it as it is.
    """

    indices: Int[Tensor, "B J"]
    """Row of `characters` of each token."""
    characters: Int[Tensor, "S L"]
    """Character ids of each distinct token."""

    def map(self, function: Callable[[Tensor], Tensor]) -> CharacterTable:
        """Return a copy with a function applied to both tensors."""
        return CharacterTable(function(self.indices), function(self.characters))

    def slice_rows(self, start: int, stop: int) -> CharacterTable:
        """Return a range of rows of the batch; the table of characters stays complete."""
        return CharacterTable(self.indices[start:stop], self.characters)


class EmbeddingInput(NamedTuple):
    """Token ids and, if embeddings are composed from characters, their characters."""

    ids: Int[Tensor, "*rows"]
    """Token ids."""
    characters: CharacterTable | None = None
    """Characters of the tokens; None if embeddings are not composed from characters."""
    values: Float[Tensor, "*rows F"] | None = None
    """Values of the rows of arrays; None for text."""


@dataclass(frozen=True)
class Stream:
    """One language (or other stream) of a batch: padded ids, each sentence ended by EOS, or padded arrays.

    A row without this stream consists of padding only.
    """

    ids: Int[Tensor, "B J"]
    """Token ids."""
    mask: Bool[Tensor, "B J"]
    """True on real tokens, including EOS."""
    token_positions: Int[Tensor, "N"]
    """Indices of the real tokens in `ids.flatten()`, ascending. Selecting by them, unlike by a mask, does not make
    the host wait for a GPU."""
    characters: CharacterTable | None = None
    """Characters of the tokens; None if the model does not read them."""
    values: Float[Tensor, "B J F"] | None = None
    """Values of a stream of arrays, whose ids are UNK and which has no EOS; None for text."""

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[np.float32]], width: int = 0) -> Stream:
        """Return the stream of arrays [J, F], padded with zeros to at least `width` rows."""
        width = max(width, *map(len, arrays))
        values = np.zeros((len(arrays), width, arrays[0].shape[1]), np.float32)
        for row, array in zip(values, arrays, strict=True):
            row[: len(array)] = array
        lengths = torch.tensor([len(array) for array in arrays])
        mask = torch.arange(width) < lengths[:, None]
        ids = torch.where(mask, UNK, PAD)
        return cls(ids, mask, mask.flatten().nonzero()[:, 0], values=torch.from_numpy(values))

    @classmethod
    def from_ids(cls, ids: Int[Tensor, "B J"], characters: CharacterTable | None = None) -> Stream:
        """Return the stream of rows padded with PAD."""
        mask = ids != PAD
        return cls(ids, mask, mask.flatten().nonzero()[:, 0], characters)

    @classmethod
    def without_positions(cls, ids: Int[Tensor, "B J"], mask: Bool[Tensor, "B J"]) -> Stream:
        """Return a stream whose `token_positions` are empty, for callers that do not need them."""
        return cls(ids, mask, ids.new_empty(0))

    @property
    def embedding_input(self) -> EmbeddingInput:
        """The input of an embedding layer."""
        return EmbeddingInput(self.ids, self.characters, self.values)

    @property
    def is_ids_only(self) -> bool:
        """True if the model reads only ids and mask, which have the same shapes in many batches."""
        return self.characters is None and self.values is None

    @property
    def word_mask(self) -> Bool[Tensor, "B J"]:
        """True on real positions except EOS."""
        return without_last(self.mask) if self.values is None else self.mask

    @property
    def num_words(self) -> Int[Tensor, "B"]:
        """Number of real positions of each row except EOS."""
        return self.mask.sum(1) - int(self.values is None)

    @property
    def num_tokens(self) -> int:
        """Number of real tokens, including EOS."""
        return len(self.token_positions)

    @property
    def present(self) -> Bool[Tensor, "B"]:
        """True for rows that have this stream."""
        return self.mask.any(1)

    def previous(self) -> Int[Tensor, "B J"]:
        """Return y_{i-1} for each position i."""
        return previous_ids(self.ids)

    def previous_characters(self) -> CharacterTable | None:
        """Return the characters of y_{i-1} for each position i, or None if the model does not read them."""
        if self.characters is None:
            return None
        indices = self.characters.indices
        first = torch.zeros_like(indices[:, :1])  # BOS has no characters
        return CharacterTable(torch.cat([first, indices[:, :-1]], dim=1), self.characters.characters)

    def to(self, device: torch.device | str) -> Stream:
        """Return a copy on a device, without waiting if memory is pinned."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def slice_rows(self, start: int, stop: int) -> Stream:
        """Return a range of rows, as wide as the whole stream."""
        characters = None if self.characters is None else self.characters.slice_rows(start, stop)
        values = None if self.values is None else self.values[start:stop]
        # Positions in the flattened ids differ from those of the whole batch, so they are computed again.
        return replace(Stream.from_ids(self.ids[start:stop], characters), values=values)

    def map(self, function: Callable[[Tensor], Tensor]) -> Stream:
        """Return a copy with a function applied to each tensor."""
        characters = None if self.characters is None else self.characters.map(function)
        values = None if self.values is None else function(self.values)
        return Stream(function(self.ids), function(self.mask), function(self.token_positions), characters, values)
