"""Searches in which a sentence stands in the batch several times, and something tells its copies apart.

A copy is a beam search of its own, with a `Choose` that knows which copy of which sentence each row is: sampling draws
a symbol where a beam of one takes the best; diverse groups avoid what the groups before them have just taken.
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

# Random numbers that hang on nothing but what they are for: a source, the number of its copy, a seed and a place.
#
# Each is a hash of its place in a stream of its own (SplitMix64: Steele, Lea & Flood 2014, "Fast splittable pseudorandom
# number generators"), so that those of all rows of a batch are made by the same few operations, in whatever company.

StreamKeys = NDArray[np.uint64]
"""[N], one a stream."""
GAMMA = 0x9E3779B97F4A7C15
"""2^64 by the golden ratio, odd: the steps of a counter."""


def stream_keys(sources: Sources, copies: int, seed: int) -> StreamKeys:
    """The streams of each copy of each source, copy by copy, by the source's symbols."""
    symbols = [[side.ids[row][side.mask[row]].tolist() for row in range(len(side.ids))] for side in sources.values()]
    each = [chain.from_iterable(ids) for ids in zip(*symbols, strict=True)]
    own = [np.random.SeedSequence([seed, *ids]).generate_state(1, np.uint64) for ids in each]
    return random_bits(np.concatenate(own), copies).reshape(-1)


def random_bits(keys: StreamKeys, count: int, *at: int) -> NDArray[np.uint64]:
    """[N, count], 64 random bits each, of the streams' substreams `at` (a position, a part of it)."""
    for number in at:
        keys = _mixed(keys + np.uint64(GAMMA * (number + 1) % 2**64))
    return _mixed(keys[:, None] + np.uint64(GAMMA) * np.arange(1, count + 1, dtype=np.uint64))


def uniform(keys: StreamKeys, count: int, *at: int) -> NDArray[np.float64]:
    """[N, count] numbers above 0 and below 1."""
    numbers = (random_bits(keys, count, *at) >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= 2.0**-52
    return numbers


def gumbel(keys: StreamKeys, count: int, *at: int) -> NDArray[np.float64]:
    """[N, count] numbers of the standard Gumbel distribution: -log(-log u)."""
    numbers = uniform(keys, count, *at)
    for _ in range(2):
        np.negative(np.log(numbers, out=numbers), out=numbers)
    return numbers


def normal(keys: StreamKeys, count: int, *at: int) -> NDArray[np.float32]:
    """[N, count] numbers of the standard normal distribution, two from 64 bits (Box & Muller 1958)."""
    pairs = -(-count // 2)
    halves = random_bits(keys, pairs, *at).view(np.uint32).reshape(len(keys), pairs, 2).astype(np.float32)
    radius, angle = np.ascontiguousarray(halves[:, :, 0]), np.ascontiguousarray(halves[:, :, 1])
    radius += np.float32(1)  # of 32 bits: no logarithm of 0
    radius *= np.float32(2.0**-32)
    np.sqrt(np.float32(-2) * np.log(radius, out=radius), out=radius)
    angle *= np.float32(2 * np.pi * 2.0**-32)
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)[:, :count]


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Of each its hash, in its place: SplitMix64's finaliser."""
    shifted = np.empty_like(numbers)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.bitwise_xor(numbers, np.right_shift(numbers, np.uint64(shift), out=shifted), out=numbers)
        if factor is not None:
            numbers *= np.uint64(factor)
    return numbers


FIRST_NUCLEUS_COLUMNS = 64
"""Symbols among which a nucleus is looked for first."""


class Variant(ABC):
    """How the hypotheses of a sentence differ from those of one beam. A bare beam chooses as this class does."""

    name: ClassVar[str]
    """Its name in messages."""
    distinct: ClassVar[bool] = True
    """Whether copies that come to one translation count once."""
    rescored: ClassVar[bool] = False
    """Whether what it finds is to be scored anew, by the Scorer itself."""

    def default_beam(self, model_beam: int, n_best: int) -> int:
        """The beam where none is given; own: the model's."""
        return max(model_beam, n_best)

    @abstractmethod
    def copies(self, beam: int) -> int:
        """How many searches share the hypotheses of a beam evenly. Errors: RnnsearchError where they cannot."""

    def wrap_scorer(self, scorer: Scorer, sources: Sources, copies: int) -> Scorer:
        """What scores in a batch of so many copies of each source. Copy c of sentence b is sentence b * copies + c."""
        return scorer

    def selector(self, sources: Sources, copies: int, most: Array) -> ContinuationSelector | HypothesisScorer:
        """What chooses in such a batch. sources: each once; most: the greatest length of each copy's translation."""
        return best_continuations


def require_divisible(beam: int, parts: int, what: str) -> int:
    """`parts`, that share a beam. Errors: RnnsearchError where they cannot do so evenly."""
    if beam % parts:
        raise RnnsearchError(f"a beam must be shared evenly by the {parts} {what}; got {beam}")
    return parts


def require_all(rules: Sequence[tuple[str, bool, str, float | int]]) -> None:
    """Errors: RnnsearchError for the first (option, whether it holds, rule, value) that does not hold."""
    for name, holds, rule, value in rules:
        if not holds:
            raise RnnsearchError(f"{name} must be {rule}; got {value}")


@dataclass(frozen=True)
class Sampling(Variant):
    """Ancestral sampling: each symbol is drawn from p(y | what stands before it, x) ** (1 / temperature), renormalised;
    a beam of N is N independent chains. What is drawn hangs on the source, the chain and the seed alone: not on the
    batch, its order, or what was drawn before.

    Top-k sampling draws from the k likeliest symbols (Fan et al. 2018); nucleus sampling from the fewest whose
    probabilities sum to `top_p` (Holtzman et al. 2020).
    """

    temperature: float = 1.0
    top_k: int = 0
    """0: all."""
    top_p: float = 1.0
    seed: int = 1
    name: ClassVar[str] = "samples"
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

    def selector(self, sources: Sources, copies: int, most: Array) -> ContinuationSelector:
        drawn = torch.from_numpy(uniform(stream_keys(sources, copies, self.seed), int(most.max()) + 2))

        def choose(scores: Tensor, _log_probs: Tensor, _count: int, rows: ScoredRows) -> Tensor:
            numbers = drawn[rows.sentences.cpu(), rows.position - 1].to(scores.device)
            return self.draw(scores.flatten(1), numbers)[:, None]

        return choose

    def draw(self, scores: Float[Tensor, "A C"], numbers: Float64[Tensor, "A"]) -> Int[Tensor, "A"]:
        """For each row of log-probabilities (up to a constant) the column at which their sum, as cut and renormalised,
        first exceeds a number in [0, 1). NaN counts as the highest score, and is drawn."""
        if 0 < self.top_k < scores.shape[1]:
            some, order = scores.topk(self.top_k, dim=1)
            each = some.double() / self.temperature
            return order.gather(1, _held(each, _cut(each.softmax(1), self.top_p), numbers)[0])[:, 0]
        if self.top_p < 1:
            return self._of_nucleus(scores.double() / self.temperature, numbers, FIRST_NUCLEUS_COLUMNS)
        # A block first, and then in it where the number stands within the block's share.
        each = scores[:, None] if self.temperature == 1 else scores[:, None] / self.temperature
        sums = topk.block_logsumexp(each)[:, 0].double()
        block, numbers = _held(sums, sums.softmax(1), numbers)
        order, within = topk.block_columns(each, torch.zeros_like(block), block)
        own = within[:, 0].double()
        return order[:, 0].gather(1, _held(own, own.softmax(1), numbers)[0])[:, 0]

    def _of_nucleus(self, scores: Float64[Tensor, "A C"], numbers: Float64[Tensor, "A"], most: int) -> Int[Tensor, "A"]:
        """The same, of nuclei that are looked for among the `most` likeliest columns; where one is greater, among more:
        to sort a vocabulary costs more than the model's step."""
        some, order = scores.topk(min(most, scores.shape[1]), dim=1)
        p = (some - scores.logsumexp(1, keepdim=True)).exp()
        column = order.gather(1, _held(some, _cut(p, self.top_p), numbers)[0])[:, 0]
        greater = (p.sum(1) < self.top_p).nonzero()[:, 0]
        if most < scores.shape[1] and len(greater):
            column[greater] = self._of_nucleus(scores[greater], numbers[greater], 8 * most)
        return column


def _cut(p: Float64[Tensor, "A C"], top_p: float) -> Float64[Tensor, "A C"]:
    """Probabilities in falling order, without those behind the fewest that sum to `top_p`."""
    return p.where(p.cumsum(1) - p < top_p, 0.0) if top_p < 1 else p


def _held(
    scores: Float64[Tensor, "A C"], p: Float64[Tensor, "A C"], numbers: Float64[Tensor, "A"]
) -> tuple[Int[Tensor, "A 1"], Float64[Tensor, "A"]]:
    """The column whose share of each row's p, probabilities up to a factor, holds a number in [0, 1), and where within
    its share the number stands; the first whose score is NaN in a row with one."""
    sums = p.cumsum(1)
    total = sums[:, -1:].contiguous()
    at = numbers[:, None] * total
    # The last column that adds anything at all, for rounding may lift a number to the total.
    last = torch.searchsorted(sums, total)
    column = torch.searchsorted(sums, at, right=True).minimum(last).clamp(max=p.shape[1] - 1)
    wrong = scores.isnan()
    column = wrong.int().argmax(1, keepdim=True).where(wrong.any(1, keepdim=True), column)
    own = p.gather(1, column)
    within = (at - (sums.gather(1, column) - own)) / own
    return column, within[:, 0].clamp(0.0, 1.0 - 2.0**-53)


@dataclass(frozen=True)
class Diverse(Variant):
    """Diverse beam search (Vijayakumar et al. 2018, eq. 5): the beam is shared among `groups`, one after another at
    each step; a symbol costs `strength` for every hypothesis of a group before it that has taken it at this step
    (Hamming diversity). The cost counts in the choice alone: scores are those of the model."""

    groups: int
    strength: float = 0.5
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

    def selector(self, sources: Sources, copies: int, most: Array) -> ContinuationSelector:
        return self._choose

    def _choose(self, scores: Tensor, log_probs: Tensor, count: int, rows: ScoredRows) -> Tensor:
        A, K, C = scores.shape
        sentence, group = rows.sentences // self.groups, rows.sentences % self.groups
        _, sentence = sentence.unique(return_inverse=True)
        taken = scores.new_zeros(int(sentence.max()) + 1, C)
        found = scores.new_empty(A, min(count, K * C), dtype=torch.int64)
        for turn in range(self.groups):
            mine = (group == turn).nonzero()[:, 0]
            if len(mine):
                of = sentence[mine]
                less = scores[mine] - self.strength * taken[of][:, None]
                found[mine] = index = best_continuations(less, log_probs[mine], count, rows)
                # Half of what is looked at lives on, or as much as does not end.
                column = index[:, : (count + 1) // 2] % C
                taken.index_put_((of[:, None], column), taken.new_ones(()), accumulate=True)
        return found
