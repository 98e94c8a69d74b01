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
from rnnsearch.kernels.native import rows
from rnnsearch.search.combined import mean_attention
from rnnsearch.search.scorer import Scorer, Sources, Step, disturbed

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

    def disturbed(self, state: _Parts, by: Callable[[Tensor], Tensor]) -> _Parts:
        each = zip(self._members, state.members, strict=True)
        return _Parts(tuple(disturbed(member.scorer, own, by) for member, own in each))

    def _geometric(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
        """Members' norms are the same in every column: the sum's own holds them, too."""
        scores = steps[0].scores.float() * self._weights[0]
        for weight, step in zip(self._weights[1:], steps[1:], strict=True):
            scores.add_(step.scores, alpha=weight)
        return scores, rows.norms(scores)

    def _arithmetic(self, steps: Sequence[Step]) -> tuple[Tensor, None]:
        each = zip(self._weights, steps, strict=True)
        return reduce(torch.logaddexp, (step.log_probs() + math.log(weight) for weight, step in each)), None
