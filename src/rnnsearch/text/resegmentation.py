"""Subword regularisation: training sentences are segmented differently in each epoch.

BPE-dropout (Provilkov et al., 2020) omits merges at random; unigram sampling (Kudo, 2018) samples
from the segmentations of a unigram model. Both start from the ids of the stored segmentation.

`training/run.py` creates one per language, and `data/batches.py` calls it while a batch is made. A change of the order
of random numbers changes resumed runs.
"""

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from math import exp, fsum, log
from random import Random
from typing import Generic, TypeVar

from rnnsearch.text.tokenizer import BYTE_TOKENS, UNUSED_LOG_PROB, Tokenizer
from rnnsearch.text.vocabulary import CONTEXT_END
from rnnsearch.text.words import pieces

MAX_PIECE_LENGTH = 64
"""Maximum number of characters of a piece that is resegmented."""
_MAX_CACHED_CHUNKS = 1 << 17
Prepared = TypeVar("Prepared")


class Resegmentation(ABC, Generic[Prepared]):
    """Base of the random segmentations; `Prepared` is what is cached per piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes()
        self._starts_with_space = [text.startswith(b" ") for text in self._token_bytes]
        self._ids = {name: id for id, name in enumerate(tokenizer.names())}
        self._byte_ids = {byte[0]: self._ids[name] for name, byte in BYTE_TOKENS.items() if name in self._ids}
        self._cache: dict[tuple[int, ...], list[Prepared] | None] = {}

    @abstractmethod
    def _prepare(self, characters: list[tuple[str, int]]) -> Prepared:
        """Return what to cache for a piece, given the name and id of each character or byte token."""

    @abstractmethod
    def _sample(self, prepared: Prepared, random: Random) -> list[int]:
        """Return the ids of a random segmentation of a piece."""

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return other ids of the same text.

        A chunk between two spaces keeps its ids if it has a piece of more than `MAX_PIECE_LENGTH` characters.
        """
        if not ids:
            return []
        chunk_starts = [n for n, id in enumerate(ids) if n > 0 and self._starts_with_space[id]]
        sampled: list[int] = []
        for start, end in pairwise([0, *chunk_starts, len(ids)]):
            chunk = tuple(ids[start:end])
            pieces_of_chunk = self._prepared_pieces(chunk)
            if pieces_of_chunk is None:
                sampled += chunk
            else:
                for piece in pieces_of_chunk:
                    sampled += self._sample(piece, random)
        return sampled

    def _prepared_pieces(self, chunk: tuple[int, ...]) -> list[Prepared] | None:
        """Return the prepared pieces of a chunk, or None if one of them is too long."""
        if chunk not in self._cache:
            if len(self._cache) >= _MAX_CACHED_CHUNKS:
                # Cheaper than tracking which chunks are used most; frequent ones soon return.
                self._cache.clear()
            text = b"".join([self._token_bytes[id] for id in chunk]).decode()
            split = [list(chain.from_iterable(map(self._character_tokens, piece))) for piece in pieces(text)]
            is_short = max(map(len, split)) <= MAX_PIECE_LENGTH
            self._cache[chunk] = [*map(self._prepare, split)] if is_short else None
        return self._cache[chunk]

    def _character_tokens(self, character: str) -> list[tuple[str, int]]:
        """Return the name and id of a character's token, or of its byte tokens."""
        id = self._ids.get(character)
        if id is not None:
            return [(character, id)]
        return [(f"<0x{byte:02X}>", self._byte_ids[byte]) for byte in character.encode()]


class SentenceBySentence:
    """A random segmentation of each sentence of a row with its context (`data.context`); separators stay."""

    def __init__(self, resegment: Callable[[Sequence[int], Random], list[int]]) -> None:
        self._resegment = resegment

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return other ids of the same sentences."""
        sampled: list[int] = []
        start = 0
        for position, id in enumerate(ids):
            if id == CONTEXT_END:
                sampled += [*self._resegment(ids[start:position], random), CONTEXT_END]
                start = position + 1
        return [*sampled, *self._resegment(ids[start:], random)]


Merges = dict[tuple[int, int], tuple[int, int]]
"""Maps a pair of token ids to the rank of its merge (the lowest goes first) and the merged id."""


class MergeDropout(Resegmentation[list[int]]):
    """BPE-dropout for a `bpe` tokenizer. The time per piece is quadratic in its length."""

    def __init__(self, tokenizer: Tokenizer, dropout: float) -> None:
        """Omit each merge with probability `dropout` at each step."""
        super().__init__(tokenizer)
        self._dropout = dropout
        self._split_rare = tokenizer.split_rare
        vocabulary, merges = tokenizer.merges()
        self._merges: Merges = {}
        for rank, (left, right) in enumerate(merges):
            self._merges[vocabulary[left], vocabulary[right]] = (rank, vocabulary[left + right])

    def _prepare(self, characters: list[tuple[str, int]]) -> list[int]:
        return [id for _, id in characters]

    def _sample(self, prepared: list[int], random: Random) -> list[int]:
        return self._split_rare(apply_merges(prepared, self._merges, self._dropout, random))


def apply_merges(ids: Sequence[int], merges: Merges, dropout: float, random: Random) -> list[int]:
    """Apply BPE merges with dropout (Provilkov et al. 2020, algorithm 1).

    In each step, every possible merge is dropped with probability `dropout`, and the remaining one of lowest
    rank is applied, until none remains.
    """
    merged = list(ids)
    while True:
        candidates = []
        for position, pair in enumerate(pairwise(merged)):
            merge = merges.get(pair)
            if merge is not None and random.random() >= dropout:
                candidates.append((*merge, position))
        if not candidates:
            return merged
        # Lowest rank first, then from left to right.
        _, id, position = min(candidates)
        merged[position : position + 2] = [id]


@dataclass(frozen=True)
class LatticeColumn:
    """The tokens that may end at one position of a piece."""

    starts: list[int]
    """Position in the piece at which each token starts."""
    ids: list[int]
    """Id of each token."""
    cumulative: list[float]
    """Cumulative probabilities of the tokens, given that one of them ends at this position."""


class UnigramSampling(Resegmentation[list[LatticeColumn]]):
    """Subword regularisation for a `unigram` tokenizer.

    P(x | X) ∝ prod_i p(x_i)^alpha over all segmentations x of a piece X (Kudo 2018, section 3.3, l
    = infinity). Sampled by forward filtering over the lattice of tokens and backward sampling.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float) -> None:
        """Sample with an exponent.

        Args:
            tokenizer: A `unigram` tokenizer.
            alpha: The exponent: near 0 all segmentations are equally likely, 1 is the model's
                distribution.
        """
        super().__init__(tokenizer)
        self._alpha = alpha
        scores = tokenizer.scores()
        self._scores = {name: score for name, score in scores.items() if score > UNUSED_LOG_PROB}
        self._max_length = max(map(len, self._scores))

    def _prepare(self, characters: list[tuple[str, int]]) -> list[LatticeColumn]:
        # forward[j]: log of the sum over the segmentations of the first j characters of their p^alpha
        forward = [0.0]
        columns = []
        for end in range(1, len(characters) + 1):
            starts = []
            ids = []
            weights = []
            for start in range(max(0, end - self._max_length), end):
                name = "".join([name for name, _ in characters[start:end]])
                if name in self._scores:
                    starts.append(start)
                    ids.append(self._ids[name])
                    weights.append(self._alpha * self._scores[name] + forward[start])
            # Log-sum-exp: weights are log-probabilities, whose exponentials may underflow.
            max_weight = max(weights)
            scaled = [exp(weight - max_weight) for weight in weights]
            total = fsum(scaled)
            forward.append(max_weight + log(total))
            columns.append(LatticeColumn(starts, ids, [*accumulate(value / total for value in scaled)]))
        return columns

    def _sample(self, prepared: list[LatticeColumn], random: Random) -> list[int]:
        sampled = []
        end = len(prepared)
        while end > 0:
            column = prepared[end - 1]
            # Cumulative sums may fall short of 1 by an ulp.
            choice = min(bisect(column.cumulative, random.random()), len(column.ids) - 1)
            sampled.append(column.ids[choice])
            end = column.starts[choice]
        return sampled[::-1]
