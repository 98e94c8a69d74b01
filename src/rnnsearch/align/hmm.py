"""The hidden Markov model of word alignment (Vogel, Ney & Tillmann 1996), for many sentence pairs at once.

Source symbol a_i is the state in which target symbol t_i is emitted. Of J source symbols

    p(a_i = j | a_{i-1} = j') = (1 - p_0) c(j - j') / sum_l c(l - j'),   p(t_i | a_i = j) = p(t_i | s_j),

with one weight c a distance. With probability p_0 the symbol comes of no source symbol, by p(t_i | none), and the next
jump is from where the last was (Och & Ney 2003, section 2.3). Before the first symbol the place is -1; where that one
comes of none, its place is drawn all the same, so that the next has one to jump from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

NULL = 0.2
"""p_0, the probability that a symbol is aligned to none."""
FARTHEST = 60
"""Jumps that are farther have the weight of this one."""
JUMPS = 2 * FARTHEST + 1
"""The number of weights c, of jumps by -`FARTHEST` to `FARTHEST`."""
_TINY = np.float32(1e-30)


class Posterior(NamedTuple):
    """What is known of the states of B pairs: p(a_i = j), p(a_i is none), and how often each jump is expected."""

    real: Float[np.ndarray, "B I J"]
    none: Float[np.ndarray, "B I"]
    jumps: Float[np.ndarray, "jumps"]


def model1(
    emission: Float[np.ndarray, "B I J"], none: Float[np.ndarray, "B I"], _sizes: object, _weights: object
) -> Posterior:
    """As `posterior`, of IBM model 1 (Brown et al. 1993): all source symbols and none are as likely beforehand."""
    total = emission.sum(axis=2) + none + _TINY
    return Posterior(emission / total[:, :, None], none / total, np.zeros(JUMPS))


def posterior(
    emission: Float[np.ndarray, "B I J"],
    none: Float[np.ndarray, "B I"],
    sizes: tuple[Int[np.ndarray, "B"], Int[np.ndarray, "B"]],
    weights: Float[np.ndarray, "jumps"],
) -> Posterior:
    """By the forward-backward algorithm, scaled at each position.

    emission: p(t_i | s_j), zero beyond either sentence; none: p(t_i | none); sizes: I and J of each pair; weights: c.
    All sentences share one matrix c(j - j'), whose rows each divides by its own sum.
    """
    (_, I, J), (heights, widths) = emission.shape, sizes
    c = weights.astype(np.float32)
    jump = c[_places(np.arange(J)[None, :] - np.arange(J)[:, None])]
    share = 1 / np.maximum(jump.cumsum(axis=1)[:, widths - 1].T, _TINY)  # [B, J]: 1 / sum_l c(l - j')
    first = c[_places(np.arange(J) + 1)] * (np.arange(J) < widths[:, None])
    first /= np.maximum(first.sum(axis=1, keepdims=True), _TINY)
    emission = np.float32(1 - NULL) * emission
    none = np.where(np.arange(I) < heights[:, None], np.float32(NULL) * none, 1)  # beyond its end nothing moves
    moved, stayed = np.empty_like(emission), np.empty_like(emission)
    before = after = first
    for i in range(I):
        np.multiply(before, emission[:, i], out=moved[:, i])
        np.multiply(after, none[:, i, None], out=stayed[:, i])
        scale = moved[:, i].sum(axis=1) + stayed[:, i].sum(axis=1) + _TINY
        emission[:, i] /= scale[:, None]
        none[:, i] /= scale
        moved[:, i] /= scale[:, None]
        stayed[:, i] /= scale[:, None]
        after = moved[:, i] + stayed[:, i]
        before = _product(after * share, jump)
    left = (moved + stayed) * share[:, None, :]
    later = np.ones_like(first)
    for i in range(I - 1, -1, -1):
        moved[:, i] *= later
        stayed[:, i] *= later
        emission[:, i] *= later
        later = _product(emission[:, i], jump.T) * share + none[:, i, None] * later
    pairs = _product(left[:, :-1].reshape(-1, J).T, emission[:, 1:].reshape(-1, J))
    return Posterior(moved, stayed.sum(axis=2), _expected(pairs * jump, moved[:, 0].sum(axis=0)))


def _product(a: Float[np.ndarray, "n k"], b: Float[np.ndarray, "k m"]) -> Float[np.ndarray, "n m"]:
    """a @ b by torch, which keeps to the threads that its caller has."""
    found: Float[np.ndarray, "n m"] = torch.from_numpy(a).matmul(torch.from_numpy(b)).numpy()
    return found


def _expected(pairs: Float[np.ndarray, "J J"], first: Float[np.ndarray, "J"]) -> Float[np.ndarray, "jumps"]:
    """How often each jump is expected, from how often each two places follow one another."""
    J = len(first)
    places = np.arange(-1, J)
    table = np.vstack([first[None], pairs]).ravel().astype(np.float64)
    distances = _places(np.arange(J)[None, :] - places[:, None]).ravel()
    return np.bincount(distances, table, JUMPS)


def _places(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where in c the weight of a jump is."""
    return np.clip(distances, -FARTHEST, FARTHEST) + FARTHEST


# What an aligner has learned of symbols: p(t | s), p(s | t), and how far alignments jump.
#
# Both directions learn together: in each round the expectation of a link is taken to be the geometric mean of what the
# two models think of it (after Liang, Taskar & Klein 2006, who take the product, and Ganchev, Graca & Taskar 2008). The
# new tables are those of variational Bayes under a Dirichlet prior, which keeps rare symbols from collecting links (Riley
# & Gildea 2012).

PRIOR = 0.1
"""The Dirichlet prior's weight of each pair of symbols."""
MODEL1_ROUNDS = 5
HMM_ROUNDS = 5
AT_ONCE = 1 << 18
"""Pairs of positions that are worked on together."""
LONGEST = 1500
"""Symbols that a side of a sentence pair may have; a longer pair is left without links."""
LEAST = 0.01
"""Links expected of a pair of symbols that is kept: of fewer it is as good as never seen."""

Ids = NDArray[np.int64]
Weights = Float[np.ndarray, "I J"]


class Direction(NamedTuple):
    """One model: p(emitted | state) of each pair of symbols, of a pair never seen by its state, and without a state."""

    seen: Float[np.ndarray, "pairs"]
    unseen: Float[np.ndarray, "states"]
    none: Float[np.ndarray, "emitted"]
    jumps: Float[np.ndarray, "jumps"]


class Lexicon(NamedTuple):
    """Both models over the pairs of symbols, each s * target vocabulary + t, in rising order."""

    pairs: Int[np.ndarray, "pairs"]
    forward: Direction
    """p(t | s)."""
    backward: Direction
    """p(s | t)."""

    @property
    def vocabularies(self) -> tuple[int, int]:
        """How many symbols source and target have."""
        return len(self.backward.none), len(self.forward.none)

    def turned(self) -> Lexicon:
        """Of the other direction: source as target."""
        sources, targets = self.vocabularies
        s, t = np.divmod(self.pairs, targets)
        order = np.argsort(t * sources + s)
        there, back = (model._replace(seen=model.seen[order]) for model in (self.forward, self.backward))
        return Lexicon((t * sources + s)[order], back, there)

    def links(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Iterator[tuple[int, Weights, Weights]]:
        """Of each sentence pair its number, p(t_i comes of s_j) and p(s_j comes of t_i), [I, J] both; in any order.
        Pairs that do not `fit` are left out."""
        models = _padded_tables(self.forward), _padded_tables(self.backward)
        for batch in _batches(self.pairs, self.vocabularies, sources, targets):
            there, back = _expect(*models, batch, posterior)
            for row, (n, height, width) in enumerate(zip(batch.numbers, *batch.sizes, strict=True)):
                yield n, there.real[row, :height, :width], back.real[row, :width, :height].T


def lengths(rows: Sequence[Ids]) -> Ids:
    """How many symbols each has."""
    return np.array([len(row) for row in rows], dtype=np.int64)


def fit(widths: Ids, heights: Ids) -> NDArray[np.bool_]:
    """Whether pairs of these lengths can be aligned: neither empty nor longer than `LONGEST`."""
    return (np.minimum(widths, heights) > 0) & (np.maximum(widths, heights) <= LONGEST)


class _Batch(NamedTuple):
    """Sentence pairs: targets [B, I] and sources [B, J], padded by the vocabularies' sizes, and which pair of symbols
    each [I, J] is: the number of pairs for one never seen, one more for padding."""

    numbers: list[int]
    targets: Ids
    sources: Ids
    pairs: Int[np.ndarray, "B I J"]
    sizes: tuple[Ids, Ids]
    """I and J of each."""


def _batches(
    pairs: Ids, vocabularies: tuple[int, int], sources: Sequence[Ids], targets: Sequence[Ids]
) -> Iterator[_Batch]:
    """Pairs of about the same lengths together."""
    widths, heights = (lengths(side) for side in (sources, targets))
    fitting = np.flatnonzero(fit(widths, heights))
    rows, widest = list[int](), 0
    for n in fitting[np.lexsort((widths[fitting], heights[fitting]))].tolist():
        widest = max(widest, int(widths[n]))
        if rows and (len(rows) + 1) * int(heights[n]) * widest > AT_ONCE:
            yield _batch(rows, pairs, vocabularies, sources, targets)
            rows, widest = [], int(widths[n])
        rows.append(n)
    if rows:
        yield _batch(rows, pairs, vocabularies, sources, targets)


def _batch(
    rows: list[int], pairs: Ids, vocabularies: tuple[int, int], sources: Sequence[Ids], targets: Sequence[Ids]
) -> _Batch:
    s, widths = _padded([sources[n] for n in rows], vocabularies[0])
    t, heights = _padded([targets[n] for n in rows], vocabularies[1])
    wanted = s[:, None, :] * vocabularies[1] + t[:, :, None]
    found = np.searchsorted(pairs, wanted)
    known = found < len(pairs)
    known[known] = pairs[found[known]] == wanted[known]
    padding = (s == vocabularies[0])[:, None, :] | (t == vocabularies[1])[:, :, None]
    places = np.where(padding, len(pairs) + 1, np.where(known, found, len(pairs))).astype(np.int32)
    return _Batch(rows, t, s, places, (heights, widths))


def _padded(rows: Sequence[Ids], pad: int) -> tuple[Ids, Ids]:
    sizes = lengths(rows)
    ids = np.full((len(rows), int(sizes.max())), pad, dtype=np.int64)
    ids[np.arange(ids.shape[1]) < sizes[:, None]] = np.concatenate(rows)
    return ids, sizes


def _expect(
    forward: Direction, backward: Direction, batch: _Batch, hmm: Callable[..., Posterior]
) -> tuple[Posterior, Posterior]:
    """What each model, with `_padded_tables`, expects of a batch by itself; the backward one's states are target
    symbols: real [B, J, I]."""
    there = hmm(*_emissions(forward, batch.pairs, batch.sources, batch.targets), batch.sizes, forward.jumps)
    turned = batch.pairs.transpose(0, 2, 1)
    emissions = _emissions(backward, turned, batch.targets, batch.sources)
    return there, hmm(*emissions, batch.sizes[::-1], backward.jumps)


def _padded_tables(model: Direction) -> Direction:
    """With a place for padding in each table, and one for a pair never seen."""
    zero = np.zeros(1, np.float32)
    tables = {"seen": np.append(model.seen, [zero, zero]), "unseen": np.append(model.unseen, zero)}
    return model._replace(**tables, none=np.append(model.none, zero))


def _emissions(
    model: Direction, pairs: Int[np.ndarray, "B I J"], states: Ids, emitted: Ids
) -> tuple[Float[np.ndarray, "B I J"], Float[np.ndarray, "B I"]]:
    """p(emitted | state) of all pairs of positions, zero on padding, and p(emitted | none)."""
    unseen = pairs == len(model.seen) - 2
    emission = model.seen[pairs]
    if unseen.any():
        emission = np.where(unseen, model.unseen[states][:, None, :], emission)
    return emission, model.none[emitted]


def learn(
    sources: Sequence[Ids], targets: Sequence[Ids], vocabularies: tuple[int, int], hmm_rounds: int = HMM_ROUNDS
) -> Lexicon:
    """A lexicon from sentence pairs, by `MODEL1_ROUNDS` of IBM model 1 and some of the HMM. What `Lexicon.links` would
    leave out teaches nothing."""
    occurring = [np.zeros(0, np.int64)]
    for batch in _batches(occurring[0], vocabularies, sources, targets):
        wanted = batch.sources[:, None, :] * vocabularies[1] + batch.targets[:, :, None]
        occurring.append(np.unique(wanted[batch.pairs == 0]))
    pairs = np.unique(np.concatenate(occurring))
    ones = np.ones(max(len(pairs), *vocabularies), np.float32)
    level = np.ones(JUMPS, np.float32)
    forward = Direction(ones[: len(pairs)], ones[: vocabularies[0]], ones[: vocabularies[1]], level)
    backward = Direction(ones[: len(pairs)], ones[: vocabularies[1]], ones[: vocabularies[0]], level)
    batches = list(_batches(pairs, vocabularies, sources, targets))
    counts = np.zeros(len(pairs))
    for hmm in (*[model1] * MODEL1_ROUNDS, *[posterior] * hmm_rounds):
        counts, forward, backward = _round(pairs, vocabularies, batches, forward, backward, hmm)
    kept = counts >= LEAST
    there, back = (model._replace(seen=model.seen[kept]) for model in (forward, backward))
    return Lexicon(pairs[kept], there, back)


def _round(
    pairs: Ids,
    vocabularies: tuple[int, int],
    batches: Sequence[_Batch],
    forward: Direction,
    backward: Direction,
    hmm: Callable[..., Posterior],
) -> tuple[NDArray[np.float64], Direction, Direction]:
    """How many links are expected of each pair of symbols, and both models as they are then."""
    counts = np.zeros(len(pairs) + 2)
    none = [np.zeros(size + 1) for size in vocabularies]
    jumps, models = np.zeros((2, JUMPS)), (_padded_tables(forward), _padded_tables(backward))
    for batch in batches:
        there, back = _expect(*models, batch, hmm)
        agreed = np.sqrt(there.real * back.real.transpose(0, 2, 1))
        counts += np.bincount(batch.pairs.ravel(), agreed.ravel(), len(counts))
        none[1] += np.bincount(batch.targets.ravel(), there.none.ravel(), len(none[1]))
        none[0] += np.bincount(batch.sources.ravel(), back.none.ravel(), len(none[0]))
        jumps += there.jumps, back.jumps
    s, t = np.divmod(pairs, vocabularies[1])
    counts = counts[: len(pairs)]
    learned = _learned(counts, s, none[0][:-1], none[1][:-1], jumps[0])
    return counts, learned, _learned(counts, t, none[1][:-1], none[0][:-1], jumps[1])


def _learned(
    counts: NDArray[np.float64],
    states: Ids,
    of_state: NDArray[np.float64],
    emitted: NDArray[np.float64],
    jumps: NDArray[np.float64],
) -> Direction:
    """A model from what was expected: exp(digamma(count + prior) - digamma(the sum over what a state emits))."""
    totals: NDArray[np.float64] = np.bincount(states, counts + PRIOR, len(of_state)).astype(np.float64)
    usual = totals[totals > 0].mean() if totals.any() else 1.0  # what a state is taken for that was never seen
    never = _weight(np.zeros_like(totals), np.where(totals > 0, totals, usual))
    alone = _weight(emitted, (emitted + PRIOR).sum())
    weights = (jumps + 0.5) / (jumps + 0.5).sum()
    return Direction(
        *(x.astype(np.float32) for x in (_weight(counts, totals[states]), never, alone, weights)),
    )


def _weight(count: NDArray[np.float64], total: NDArray[np.float64] | float) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.exp(_digamma(count + PRIOR) - _digamma(np.asarray(total)))
    return found


def _digamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = torch.from_numpy(np.asarray(x)).digamma().numpy()
    return found
