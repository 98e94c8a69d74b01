"""Several models' distributions as one distribution over the next symbol: an ensemble.

    geometric (AND): p(y) = prod_m p_m(y) ** w_m / sum over y' of the same        all members must find y likely
    arithmetic (OR): p(y) = sum_m w_m p_m(y)                                      one member that does is enough

The weights w_m sum to one. Over a candidate list both are of the list's symbols.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.ops import rows
from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import PartialScorer, Scorer, Sources, Step, map_hidden_states

# Several scorers as one: a weighted sum of what they say (an ensemble, shallow fusion), which is not normalised.
#
# Full scorers are summed over all columns. Partial ones (after ESPnet) score the best of these columns alone: the first
# cut, after which no other column is left.


class Weighted(NamedTuple):
    """A full scorer and the factor of its log-probabilities."""

    scorer: Scorer
    weight: float = 1.0


class WeightedPartial(NamedTuple):
    """A partial scorer and the factor of its scores."""

    scorer: PartialScorer
    weight: float = 1.0


class _Memories(NamedTuple):
    full: tuple[Any, ...]
    partial: tuple[Any, ...]
    columns: Columns


class _States(NamedTuple):
    full: tuple[Any, ...]
    partial: tuple[Any, ...]


class Combined:
    """The Scorer whose scores are sum_m weight_m log p_m(y), and whose attention is the mean of its full members'.

    survivors: M, the columns a row that partial members score. A symbol that a search forces must be among them.
    Errors: RnnsearchError without a full member, or for members over different vocabularies.
    """

    def __init__(self, full: Sequence[Weighted], partial: Sequence[WeightedPartial] = (), survivors: int = 50) -> None:
        sizes = sorted({member.scorer.vocabulary for member in full})
        if len(sizes) != 1:
            raise RnnsearchError(f"scorers that are combined must share one vocabulary; got sizes {sizes}")
        self._full, self._partial = tuple(full), tuple(partial)
        self._survivors = survivors
        self.vocabulary = sizes[0]
        # A sum is no log-distribution, but that of one member.
        self.normalised = len(full) == 1 and not partial and full[0].weight == 1.0 and full[0].scorer.normalised

    @property
    def device(self) -> torch.device:
        """The first member's; the others must be there, too."""
        return self._full[0].scorer.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        full = [member.scorer.start(sources, columns) for member in self._full]
        partial = [member.scorer.start(sources) for member in self._partial]
        (memories, states), (more, more_states) = ([[p[n] for p in pairs] for n in (0, 1)] for pairs in (full, partial))
        memory = _Memories(tuple(memories), tuple(more), Columns(columns, self.vocabulary))
        return memory, _States(tuple(states), tuple(more_states))

    def step(self, memory: _Memories, state: _States, y: Tensor) -> Step:
        """The sum over all columns, then, where there are partial members, over the survivors alone."""
        members = zip(self._full, memory.full, state.full, strict=True)
        steps = [member.scorer.step(m, s, y) for member, m, s in members]
        weights = [member.weight for member in self._full]
        scores = reduce(torch.add, [w * step.scores.float() for w, step in zip(weights, steps, strict=True)])
        norms = [w * step.norm for w, step in zip(weights, steps, strict=True) if step.norm is not None]
        states, partial = tuple(step.state for step in steps), state.partial
        if self._partial:
            kept = scores.topk(min(self._survivors, scores.shape[1]), dim=1).indices
            best, partial = self._rescored(memory, state, y, kept, scores.gather(1, kept))
            scores = torch.full_like(scores, -torch.inf).scatter_(1, kept, best)
        attention = mean_attention([step.attention for step in steps])
        return Step(scores, _States(states, partial), attention, reduce(torch.add, norms) if norms else None)

    def map_hidden(self, state: _States, by: Callable[[Tensor], Tensor]) -> _States:
        each = zip(self._full, state.full, strict=True)
        return state._replace(full=tuple(map_hidden_states(member.scorer, own, by) for member, own in each))

    def _rescored(
        self, memory: _Memories, state: _States, y: Tensor, kept: Tensor, scores: Tensor
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """`scores` of the columns `kept` [N, M] with what partial members say of them, and these members' states."""
        symbols, states = memory.columns.tokens(kept), []
        for member, m, s in zip(self._partial, memory.partial, state.partial, strict=True):
            step = member.scorer.step(m, s, y, symbols)
            scores = scores + member.weight * step.scores.float()
            states.append(step.state)
        return scores, tuple(states)


def mean_attention(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """By source name, the mean of those that attend to it."""
    names = sorted({name for attention in each for name in attention})
    found = {name: [attention[name] for attention in each if name in attention] for name in names}
    return {name: torch.stack(some).mean(0) if len(some) > 1 else some[0] for name, some in found.items()}


MEANS = ("geometric", "arithmetic")


@dataclass(frozen=True)
class Member:
    """One model of an ensemble."""

    scorer: Scorer
    weight: float
    names: Mapping[str, str]
    """What the batch calls each source that it reads -> what the model calls it."""
    attends: bool = True
    """Whether its attention counts."""

    def named(self, attention: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its attention as the batch calls the sources, if it counts."""
        return {name: attention[own] for name, own in self.names.items() if self.attends and own in attention}


class _Parts(NamedTuple):
    members: tuple[Any, ...]


class Ensemble:
    """The Scorer of the mean of its members' distributions; its attention is the mean of theirs.

    Errors: RnnsearchError without members, for members over different vocabularies or on different devices, for
    weights that are not above 0, and for another mean.
    """

    normalised = True

    def __init__(self, members: Sequence[Member], mean: str = "geometric") -> None:
        if mean not in MEANS:
            raise RnnsearchError(f"mean {must_be_one_of(MEANS, mean)}")
        sizes = sorted({member.scorer.vocabulary for member in members})
        if len(sizes) != 1:
            raise RnnsearchError(f"an ensemble's members must share one target vocabulary; got sizes {sizes}")
        if len({member.scorer.device for member in members}) != 1:
            raise RnnsearchError("an ensemble's members must be on one device")
        total = sum(member.weight for member in members)
        if any(not member.weight > 0 for member in members) or not math.isfinite(total):
            raise RnnsearchError(f"an ensemble's weights must be above 0; got {[m.weight for m in members]}")
        self._members, self._weights = tuple(members), [member.weight / total for member in members]
        self._mean = mean
        self.vocabulary = sizes[0]

    @property
    def device(self) -> torch.device:
        """That of all members."""
        return self._members[0].scorer.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        each = [
            member.scorer.start({own: sources[name] for name, own in member.names.items()}, columns)
            for member in self._members
        ]
        return _Parts(tuple(memory for memory, _ in each)), _Parts(tuple(state for _, state in each))

    def step(self, memory: _Parts, state: _Parts, y: Tensor) -> Step:
        each = zip(self._members, memory.members, state.members, strict=True)
        steps = [member.scorer.step(m, s, y) for member, m, s in each]
        attention = mean_attention([m.named(step.attention) for m, step in zip(self._members, steps, strict=True)])
        scores, norm = (self._geometric if self._mean == "geometric" else self._arithmetic)(steps)
        return Step(scores, _Parts(tuple(step.state for step in steps)), attention, norm)

    def map_hidden(self, state: _Parts, by: Callable[[Tensor], Tensor]) -> _Parts:
        each = zip(self._members, state.members, strict=True)
        return _Parts(tuple(map_hidden_states(member.scorer, own, by) for member, own in each))

    def _geometric(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
        """Members' norms are the same in every column: the sum's own holds them, too."""
        scores = steps[0].scores.float() * self._weights[0]
        for weight, step in zip(self._weights[1:], steps[1:], strict=True):
            scores.add_(step.scores, alpha=weight)
        return scores, rows.norms(scores)

    def _arithmetic(self, steps: Sequence[Step]) -> tuple[Tensor, None]:
        each = zip(self._weights, steps, strict=True)
        return reduce(torch.logaddexp, (step.log_probs() + math.log(weight) for weight, step in each)), None
