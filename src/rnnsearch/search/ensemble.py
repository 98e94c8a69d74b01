"""Scorers that combine several scorers: ensembles, and weighted sums such as shallow fusion with a language model.

The distribution of an ensemble is the mean of its members' distributions, with weights w_m that sum to 1:

    geometric (AND): p(y) = prod_m p_m(y) ** w_m / sum_y' prod_m p_m(y') ** w_m     likely for all members
    arithmetic (OR): p(y) = sum_m w_m p_m(y)                                        likely for one member

With a candidate list all sums are over the tokens of the list. `systems/ensemble.py` creates these scorers.

All members must be on one device and have the same target vocabulary, which `systems/ensemble.py` checks. Tests:
tests/properties/test_combined.py.

Axes: N hypotheses, C score columns, M tokens that partial members score.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.ops import rows
from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import (
    OwnRecordings,
    PartialScorer,
    Scorer,
    Sources,
    Step,
    combined_weights,
    map_hidden_states,
)

Mean = Literal["geometric", "arithmetic"]
MEANS: tuple[Mean, ...] = get_args(Mean)
"""Names of the means; they are stored in model folders."""
MIN_WEIGHT = 1e-12
MAX_WEIGHT = 1e12
"""Range of an ensemble's weights: in fp32, their fractions of the sum are then neither 0 nor infinite."""


@dataclass(frozen=True)
class EnsembleMember:
    """One model of an ensemble."""

    scorer: Scorer
    """Scorer of the model."""
    weight: float
    """Weight of the model, above 0; `EnsembleScorer` divides it by the sum of all weights."""
    source_names: Mapping[str, str]
    """Name of each source in the batch -> its name in the model."""
    uses_attention: bool = True
    """True if its attention is part of the ensemble's."""

    def attention(self, step: Step) -> dict[str, Tensor]:
        """Return the member's attention by the names of the batch, or {} if it does not count."""
        if not self.uses_attention:
            return {}
        names = self.source_names.items()
        return {name: step.attention[model_name] for name, model_name in names if model_name in step.attention}


class _PerMember(NamedTuple):
    """Memories or states of all members."""

    members: tuple[Any, ...]


class EnsembleScorer(OwnRecordings):
    """Scorer of the mean of its members' distributions; its attention is the mean of their attention."""

    normalised = True

    def __init__(self, members: Sequence[EnsembleMember], mean: str = "geometric") -> None:
        """Combine the members.

        Raises:
            RnnsearchError: There are no members, their vocabularies or devices differ, a weight is not above 0, or
                there is no such mean.
        """
        if mean not in MEANS:
            raise RnnsearchError(f"mean {must_be_one_of(MEANS, mean)}")
        sizes = sorted({member.scorer.vocabulary for member in members})
        if len(sizes) != 1:
            raise RnnsearchError(f"an ensemble's members must share one target vocabulary; got sizes {sizes}")
        if len({member.scorer.device for member in members}) != 1:
            raise RnnsearchError("an ensemble's members must be on one device")
        total = sum(member.weight for member in members)
        if not all(MIN_WEIGHT <= member.weight <= MAX_WEIGHT for member in members):
            weights = [member.weight for member in members]
            raise RnnsearchError(
                f"an ensemble's weights must be above 0, at least {MIN_WEIGHT} and at most {MAX_WEIGHT}; got {weights}"
            )
        self._members = tuple(members)
        self._weights = [member.weight / total for member in members]
        self._mean = mean
        self.vocabulary = sizes[0]

    @property
    def device(self) -> torch.device:
        """The device of all members."""
        return self._members[0].scorer.device

    def recorded_weights(self) -> Sequence[Tensor] | None:
        """Return the weights of all members, or None if one of them cannot be recorded."""
        return combined_weights(member.scorer for member in self._members)

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memories = []
        states = []
        for member in self._members:
            member_sources = {model_name: sources[name] for name, model_name in member.source_names.items()}
            memory, state = member.scorer.start(member_sources, columns)
            memories.append(memory)
            states.append(state)
        return _PerMember(tuple(memories)), _PerMember(tuple(states))

    def step(self, memory: _PerMember, state: _PerMember, y: Tensor) -> Step:
        steps = []
        attention = []
        for member, m, s in zip(self._members, memory.members, state.members, strict=True):
            step = member.scorer.step(m, s, y)
            steps.append(step)
            attention.append(member.attention(step))
        norm = None
        if self._mean == "geometric":
            scores, norm = self._geometric_mean(steps)
        else:
            scores = self._arithmetic_mean(steps)
        states = _PerMember(tuple(step.state for step in steps))
        return Step(scores, states, mean_attention(attention), norm)

    def map_hidden(self, state: _PerMember, function: Callable[[Tensor], Tensor]) -> _PerMember:
        members = zip(self._members, state.members, strict=True)
        return _PerMember(tuple(map_hidden_states(member.scorer, s, function) for member, s in members))

    def _geometric_mean(self, steps: Sequence[Step]) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of scores [N, C] and its norm [N].

        The members' own norms are the same in every column, so the norm of the sum contains them.
        """
        scores = steps[0].scores.float() * self._weights[0]  # a new tensor, summed in place below
        for weight, step in zip(self._weights[1:], steps[1:], strict=True):
            scores.add_(step.scores, alpha=weight)
        return scores, rows.log_sum_exp(scores)

    def _arithmetic_mean(self, steps: Sequence[Step]) -> Tensor:
        """Return log sum_m w_m p_m [N, C]."""
        # Unlike scores in a geometric mean, probabilities must be normalised before they are added.
        weighted = [step.log_probs() + math.log(weight) for weight, step in zip(self._weights, steps, strict=True)]
        return reduce(torch.logaddexp, weighted)


class WeightedScorer(NamedTuple):
    """A full scorer and the factor of its log-probabilities."""

    scorer: Scorer
    """Scorer of all tokens."""
    weight: float = 1.0
    """Factor of its log-probabilities."""


class WeightedPartialScorer(NamedTuple):
    """A partial scorer and the factor of its scores."""

    scorer: PartialScorer
    """Scorer of some tokens."""
    weight: float = 1.0
    """Factor of its scores."""


class _SumMemory(NamedTuple):
    full: tuple[Any, ...]
    partial: tuple[Any, ...]
    columns: Columns


class _SumState(NamedTuple):
    full: tuple[Any, ...]
    partial: tuple[Any, ...]


class WeightedSumScorer(OwnRecordings):
    """Scorer of sum_m weight_m log p_m(y), which is not normalised; its attention is the mean of its full members'.

    Full members are summed over all columns. Partial members (as in ESPnet) score only the best of these columns, and
    the others are dropped.
    """

    def __init__(
        self, full: Sequence[WeightedScorer], partial: Sequence[WeightedPartialScorer] = (), survivors: int = 50
    ) -> None:
        """Combine the members.

        Args:
            full: Full scorers with the same vocabulary, at least one.
            partial: Partial scorers.
            survivors: Number of columns per row that partial members score. Tokens that a search forces must be
                among them.

        Raises:
            RnnsearchError: There is no full member, or the vocabularies differ.
        """
        sizes = sorted({member.scorer.vocabulary for member in full})
        if len(sizes) != 1:
            raise RnnsearchError(f"scorers that are combined must share one vocabulary; got sizes {sizes}")
        self._full = tuple(full)
        self._partial = tuple(partial)
        self._survivors = survivors
        self.vocabulary = sizes[0]
        # A sum is a log-distribution only if it has a single term.
        self.normalised = len(full) == 1 and not partial and full[0].weight == 1.0 and full[0].scorer.normalised

    @property
    def device(self) -> torch.device:
        """The device of the first member; the others must be on the same one."""
        return self._full[0].scorer.device

    def recorded_weights(self) -> Sequence[Tensor] | None:
        """Return the weights of all members, or None if one of them cannot be recorded."""
        return None if self._partial else combined_weights(member.scorer for member in self._full)

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        full = [member.scorer.start(sources, columns) for member in self._full]
        partial = [member.scorer.start(sources) for member in self._partial]
        memory = _SumMemory(
            tuple(memory for memory, _ in full),
            tuple(memory for memory, _ in partial),
            Columns(columns, self.vocabulary),
        )
        return memory, _SumState(tuple(state for _, state in full), tuple(state for _, state in partial))

    def step(self, memory: _SumMemory, state: _SumState, y: Tensor) -> Step:
        members = zip(self._full, memory.full, state.full, strict=True)
        steps = [member.scorer.step(m, s, y) for member, m, s in members]
        scores = []
        norms = []
        for member, step in zip(self._full, steps, strict=True):
            scores.append(member.weight * step.scores.float())
            if step.norm is not None:
                # The weighted sum of normalised scores is the sum of scores minus that of the norms.
                norms.append(member.weight * step.norm)
        total = reduce(torch.add, scores)  # [N, C]
        partial_states = state.partial
        if self._partial:
            # Unnormalised scores have the same order within a row.
            columns = total.topk(min(self._survivors, total.shape[1]), dim=1).indices  # [N, M]
            rescored, partial_states = self._add_partial(memory, state, y, columns, total.gather(1, columns))
            total = torch.full_like(total, -torch.inf).scatter_(1, columns, rescored)
        next_state = _SumState(tuple(step.state for step in steps), partial_states)
        attention = mean_attention([step.attention for step in steps])
        return Step(total, next_state, attention, reduce(torch.add, norms) if norms else None)

    def map_hidden(self, state: _SumState, function: Callable[[Tensor], Tensor]) -> _SumState:
        members = zip(self._full, state.full, strict=True)
        return state._replace(full=tuple(map_hidden_states(member.scorer, s, function) for member, s in members))

    def _add_partial(
        self, memory: _SumMemory, state: _SumState, y: Tensor, columns: Tensor, scores: Tensor
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the scores of `columns` [N, M] with those of the partial members, and these members' states."""
        tokens = memory.columns.tokens(columns)
        states = []
        for member, m, s in zip(self._partial, memory.partial, state.partial, strict=True):
            step = member.scorer.step(m, s, y, tokens)
            scores = scores + member.weight * step.scores.float()
            states.append(step.state)
        return scores, tuple(states)


def mean_attention(attention: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return, by source name, the mean over the members that attend to this source."""
    means = {}
    for name in sorted({name for by_name in attention for name in by_name}):
        weights = [by_name[name] for by_name in attention if name in by_name]
        means[name] = torch.stack(weights).mean(0) if len(weights) > 1 else weights[0]
    return means
