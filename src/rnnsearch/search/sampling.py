"""Searches other than one beam per sentence: the `Variant` protocol, ancestral sampling and diverse beam search.

A variant puts several copies of each sentence into the batch. Each copy is a separate beam search, whose
`ContinuationSelector` knows which copy of which sentence a row belongs to: `Sampling` takes a random token where a
beam of 1 takes the best; diverse groups avoid the tokens that earlier groups have just taken. `decode.search_variant`
runs them.

All random numbers are hashes of a position in a stream (SplitMix64: Steele, Lea & Flood 2014, "Fast splittable
pseudorandom number generators"). A stream depends only on the source, the copy and the seed, so that results do not
depend on the batch, and the numbers of all rows take the same few array operations.

`cli/options.py` creates `Sampling` and `Diverse`. Another hash or order of random numbers changes the samples of a
seed, which users and `tests/search/test_random.py` rely on.

Axes: B sentences, A rows or sentences still in the batch, A' those of the current group, K hypotheses per copy, C
score columns, W columns per block, N streams of random numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search import topk
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.search.topk import ContinuationSelector, HypothesisScorer, ScoredRows, best_continuations

FIRST_NUCLEUS_COLUMNS = 64
"""Number of most probable columns among which a nucleus is first looked for."""


class Variant(ABC):
    """A search other than one beam per sentence. The methods have the defaults of an ordinary beam search."""

    name: ClassVar[str]
    """Name in messages."""
    distinct: ClassVar[bool] = True
    """True if equal translations of several copies count once."""
    rescored: ClassVar[bool] = False
    """True if the translations are scored again by the original scorer."""
    needs_probabilities: ClassVar[bool] = False
    """True if translations are sampled, so that scores must be log-probabilities."""

    def default_beam(self, model_beam: int, n_best: int) -> int:
        """Return the beam if the user does not set one; `model_beam` is the model's default."""
        return max(model_beam, n_best)

    @abstractmethod
    def copies(self, beam: int) -> int:
        """Return the number of copies per sentence, among which the beam is divided evenly.

        Raises:
            RnnsearchError: The beam cannot be divided.
        """

    def wrap_scorer(self, scorer: Scorer, sources: Sources, copies: int) -> Scorer:
        """Return the scorer of the batch of copies; copy c of sentence b is sentence b * copies + c."""
        return scorer

    def selector(self, sources: Sources, copies: int, max_length: Array) -> ContinuationSelector | HypothesisScorer:
        """Return the selector for the batch of copies.

        Args:
            sources: The original batch, each sentence once.
            copies: Number of copies per sentence.
            max_length: [B * copies], maximum length of each translation.
        """
        return best_continuations


def require_divisible(beam: int, parts: int, name: str) -> int:
    """Return `parts`, or raise RnnsearchError if the beam cannot be divided evenly among so many."""
    if beam % parts:
        raise RnnsearchError(f"beam must be divisible by the number of {name} ({parts}); got {beam}")
    return parts


def require_all(rules: Sequence[tuple[str, bool, str, float | int]]) -> None:
    """Raise RnnsearchError for the first (option, is valid, requirement, value) that is not valid."""
    for name, is_valid, requirement, value in rules:
        if not is_valid:
            raise RnnsearchError(f"{name} must be {requirement}; got {value}")


@dataclass(frozen=True)
class Sampling(Variant):
    """Ancestral sampling: each token is drawn from p(y | prefix, x) ** (1 / temperature), renormalised.

    A beam of N is N independent chains. Top-k sampling draws from the k most probable tokens (Fan et al. 2018);
    nucleus sampling from the fewest tokens whose probabilities sum to `top_p` (Holtzman et al. 2020). Samples depend
    only on the source, the number of the chain and the seed, not on the batch or its order.
    """

    temperature: float = 1.0
    """Sampling temperature; below 1 favours likely tokens."""
    top_k: int = 0
    """Number of most probable tokens to draw from; 0 is all."""
    top_p: float = 1.0
    """Sample from the most probable tokens whose probabilities sum to this; 1 is all."""
    seed: int = 1
    """Seed of the random numbers."""
    name: ClassVar[str] = "samples"
    needs_probabilities: ClassVar[bool] = True
    distinct: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_all(
            (
                ("temperature", 0 < self.temperature < float("inf"), "above 0 and finite", self.temperature),
                ("top_k", self.top_k >= 0, "at least 0", self.top_k),
                ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1", self.top_p),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def default_beam(self, model_beam: int, n_best: int) -> int:
        return n_best

    def copies(self, beam: int) -> int:
        return beam

    def selector(self, sources: Sources, copies: int, max_length: Array) -> ContinuationSelector:
        streams = stream_keys(sources, copies, self.seed)
        random_numbers = torch.from_numpy(uniform(streams, int(max_length.max()) + 2))  # [B * copies, positions]

        def select(scores: Tensor, _log_probs: Tensor, _count: int, rows: ScoredRows) -> Tensor:
            u = random_numbers[rows.sentences.cpu(), rows.position - 1].to(scores.device)  # [A]
            return self.draw(scores.flatten(1), u)[:, None]

        return select

    def draw(self, scores: Float[Tensor, "A C"], u: Float64[Tensor, "A"]) -> Int[Tensor, "A"]:
        """Return a column per row of log-probabilities (up to a constant), drawn by inverse transform sampling.

        This is the first column at which the sum of the truncated and renormalised probabilities exceeds the row's
        u in [0, 1). NaN counts as the highest score, and is drawn.
        """
        if 0 < self.top_k < scores.shape[1]:
            top_scores, order = scores.topk(self.top_k, dim=1)
            logits = top_scores.double() / self.temperature
            column, _ = _invert(logits, _truncate(logits.softmax(1), self.top_p), u)
            return order.gather(1, column)[:, 0]
        if self.top_p < 1:
            return self._draw_from_nucleus(scores.double() / self.temperature, u, FIRST_NUCLEUS_COLUMNS)
        # Draw a block, then a column in it with the position of u within the block's probability.
        logits = scores[:, None] if self.temperature == 1 else scores[:, None] / self.temperature  # [A, 1, C]
        block_logits = topk.block_logsumexp(logits)[:, 0].double()  # [A, blocks]
        block, u = _invert(block_logits, block_logits.softmax(1), u)
        columns, column_logits = topk.block_columns(logits, torch.zeros_like(block), block)  # [A, 1, W]
        within_block = column_logits[:, 0].double()
        column, _ = _invert(within_block, within_block.softmax(1), u)
        return columns[:, 0].gather(1, column)[:, 0]

    def _draw_from_nucleus(
        self, logits: Float64[Tensor, "A C"], u: Float64[Tensor, "A"], count: int
    ) -> Int[Tensor, "A"]:
        """Return columns drawn from nuclei within the `count` most probable columns.

        Rows with a larger nucleus are tried again with more: sorting the vocabulary costs more than the model's step.
        """
        top_logits, order = logits.topk(min(count, logits.shape[1]), dim=1)
        # Normalised over all columns: the sum over the top ones shows whether the nucleus is among them.
        p = (top_logits - logits.logsumexp(1, keepdim=True)).exp()
        index, _ = _invert(top_logits, _truncate(p, self.top_p), u)
        column = order.gather(1, index)[:, 0]
        larger = (p.sum(1) < self.top_p).nonzero()[:, 0]
        if count < logits.shape[1] and len(larger):
            column[larger] = self._draw_from_nucleus(logits[larger], u[larger], 8 * count)
        return column


def _truncate(p: Float64[Tensor, "A C"], top_p: float) -> Float64[Tensor, "A C"]:
    """Return probabilities in descending order, with 0 after the first ones that sum to `top_p`."""
    return p.where(p.cumsum(1) - p < top_p, 0.0) if top_p < 1 else p


def _invert(
    logits: Float64[Tensor, "A C"], p: Float64[Tensor, "A C"], u: Float64[Tensor, "A"]
) -> tuple[Int[Tensor, "A 1"], Float64[Tensor, "A"]]:
    """Return the column of each row whose interval of probability contains u, and the position in the interval.

    Args:
        logits: The first column that is NaN is taken in a row with one.
        p: Probabilities up to a factor.
        u: In [0, 1), like the returned positions.
    """
    cumulative = p.cumsum(1)
    total = cumulative[:, -1:].contiguous()  # searchsorted copies others, with a warning
    point = u[:, None] * total
    # Rounding may raise the point to the total: the last column that adds anything is the limit.
    last = torch.searchsorted(cumulative, total)
    column = torch.searchsorted(cumulative, point, right=True).minimum(last).clamp(max=p.shape[1] - 1)
    is_nan = logits.isnan()
    # The argmax of zeros and ones is the first one.
    column = is_nan.int().argmax(1, keepdim=True).where(is_nan.any(1, keepdim=True), column)
    p_column = p.gather(1, column)
    position = (point - (cumulative.gather(1, column) - p_column)) / p_column
    return column, position[:, 0].clamp(0.0, 1.0 - 2.0**-53)


@dataclass(frozen=True)
class Diverse(Variant):
    """Diverse beam search (Vijayakumar et al. 2018, eq. 5): groups of the beam that avoid each other's tokens.

    At each step the groups choose one after another. A token costs `strength` for every hypothesis of an earlier group
    that has taken it at this step (Hamming diversity). The penalty affects only the choice: scores are the model's.
    """

    groups: int
    """Number of groups that the beam is divided into."""
    strength: float = 0.5
    """Penalty of a token per hypothesis of an earlier group that has taken it."""
    name: ClassVar[str] = "diverse groups"

    def __post_init__(self) -> None:
        require_all(
            (
                ("groups", self.groups >= 1, "at least 1", self.groups),
                ("strength", 0 <= self.strength < float("inf"), "at least 0 and finite", self.strength),
            )
        )

    def default_beam(self, model_beam: int, n_best: int) -> int:
        return self.groups * -(-max(model_beam, n_best) // self.groups)

    def copies(self, beam: int) -> int:
        return require_divisible(beam, self.groups, "groups")

    def selector(self, sources: Sources, copies: int, max_length: Array) -> ContinuationSelector:
        return self._select

    def _select(self, scores: Tensor, log_probs: Tensor, count: int, rows: ScoredRows) -> Tensor:
        A, K, C = scores.shape
        group = rows.sentences % self.groups  # [A]
        _, sentence = (rows.sentences // self.groups).unique(return_inverse=True)  # [A], row of `taken`
        taken = scores.new_zeros(int(sentence.max()) + 1, C)  # hypotheses of earlier groups per token
        selected = scores.new_empty(A, min(count, K * C), dtype=torch.int64)
        for current in range(self.groups):
            members = (group == current).nonzero()[:, 0]
            if len(members):
                sentences = sentence[members]
                penalised = scores[members] - self.strength * taken[sentences][:, None]  # [A', K, C]
                index = best_continuations(penalised, log_probs[members], count, rows)
                selected[members] = index
                # Half of the continuations become live hypotheses, unless too many of them end.
                column = index[:, : (count + 1) // 2] % C
                taken.index_put_((sentences[:, None], column), taken.new_ones(()), accumulate=True)
        return selected


StreamKeys = NDArray[np.uint64]
"""[N], one key per stream of random numbers."""
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, rounded to odd: the increment of SplitMix64."""


def stream_keys(sources: Sources, copies: int, seed: int) -> StreamKeys:
    """Return the keys [B * copies] of the streams of all copies, which depend on the tokens of the source."""
    tokens_by_source = []
    for stream in sources.values():
        tokens_by_source.append([stream.ids[row][stream.mask[row]].tolist() for row in range(len(stream.ids))])
    keys = []
    for tokens in zip(*tokens_by_source, strict=True):
        entropy = [seed, *chain.from_iterable(tokens)]
        keys.append(np.random.SeedSequence(entropy).generate_state(1, np.uint64))
    return random_bits(np.concatenate(keys), copies).reshape(-1)  # ordered like the copies in a batch


def random_bits(keys: StreamKeys, count: int, *substream: int) -> NDArray[np.uint64]:
    """Return [N, count] random 64-bit integers of a substream, such as (position, component), of each stream."""
    for number in substream:
        # number + 1, so that substream 0 is not the stream itself.
        keys = _splitmix(keys + np.uint64(GOLDEN_GAMMA * (number + 1) % 2**64))
    # Unsigned arithmetic of arrays wraps around at 2^64, as SplitMix64 requires.
    return _splitmix(keys[:, None] + np.uint64(GOLDEN_GAMMA) * np.arange(1, count + 1, dtype=np.uint64))


def _splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash the values in place with SplitMix64's finaliser, and return them."""
    shifted = np.empty_like(values)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.bitwise_xor(values, np.right_shift(values, np.uint64(shift), out=shifted), out=values)
        if factor is not None:
            values *= np.uint64(factor)
    return values


def uniform(keys: StreamKeys, count: int, *substream: int) -> NDArray[np.float64]:
    """Return [N, count] random numbers, uniform in the open interval (0, 1)."""
    # 52 bits plus a half are exact in fp64, and neither 0 nor 1 can occur.
    values = (random_bits(keys, count, *substream) >> np.uint64(12)).astype(np.float64)
    values += 0.5
    values *= 2.0**-52
    return values


def gumbel(keys: StreamKeys, count: int, *substream: int) -> NDArray[np.float64]:
    """Return [N, count] random numbers of the standard Gumbel distribution, -log(-log u)."""
    values = uniform(keys, count, *substream)
    for _ in range(2):
        np.negative(np.log(values, out=values), out=values)
    return values


def normal(keys: StreamKeys, count: int, *substream: int) -> NDArray[np.float32]:
    """Return [N, count] random numbers of the standard normal distribution, two per 64 bits (Box & Muller 1958)."""
    pairs = -(-count // 2)
    # Each 64-bit integer gives two of 32 bits: one for the radius, one for the angle.
    halves = random_bits(keys, pairs, *substream).view(np.uint32).reshape(len(keys), pairs, 2).astype(np.float32)
    radius = np.ascontiguousarray(halves[:, :, 0])
    angle = np.ascontiguousarray(halves[:, :, 1])
    radius += np.float32(1)  # no logarithm of 0
    radius *= np.float32(2.0**-32)
    np.sqrt(np.float32(-2) * np.log(radius, out=radius), out=radius)
    angle *= np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)[:, :count]
