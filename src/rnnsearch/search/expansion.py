"""The tensor operations of a beam search: the first hypotheses, a step, and the order of the next hypotheses.

Nothing here waits for the device or reads values of tensors, so that `recorded.py` can record a step as a CUDA graph;
decisions that need values are in `BeamProgress` (`backtrace.py`). Every search step by step uses it (`beam.py`).

Before changing it: everything that decides which kernels run must be part of `BeamExpansion.key`, or recordings of
other options would be replayed. Tests: `tests/search/test_beam.py`, `tests/properties/test_recorded_search.py`. Set
`RNNSEARCH_FAST=0` to debug `BeamExpansion.step`.

Axes: A sentences in the batch, K live hypotheses per sentence, N = A * K, M continuations considered, J source
positions, C score columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search import topk
from rnnsearch.search.backtrace import BeamStep
from rnnsearch.search.candidates import Columns
from rnnsearch.search.constraints import Constraint, constrain, constraints
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import PhraseScorer, select_by_banks
from rnnsearch.search.ranking import MIN_COVERAGE, Ranking, require_attention
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS, EOS
from rnnsearch.utils.tensors import select

Selector = topk.ContinuationSelector | topk.HypothesisScorer
"""Selects the continuations to consider."""


class LiveHypotheses(NamedTuple):
    """The A sentences still in the batch, with K live hypotheses each."""

    memory: Any
    """Scorer's memory, A rows."""
    state: Any
    """Scorer's state, A * K rows."""
    tokens: Tensor
    """[A * K], last token of each hypothesis."""
    total: Tensor
    """[A, K], log-probability or score by a HypothesisScorer, in descending order; -inf in an empty slot."""
    carry: Tensor | None
    """[A, K], values carried for a HypothesisScorer; None without one."""
    sentences: Tensor
    """[A], indices of the sentences in the call."""
    to_cover: tuple[Tensor, ...]
    """[A, J] per source, tokens to cover; empty without a coverage penalty."""
    coverage: tuple[Tensor, ...]
    """[A * K, J] per source, sum of attention so far; empty without a coverage penalty."""

    def select_sentences(self, rows: Tensor) -> LiveHypotheses:
        """Return the hypotheses of the sentences at the indices `rows`."""
        K = self.total.shape[1]
        hypotheses = (K * rows[:, None] + torch.arange(K, device=rows.device)).flatten()
        per_sentence = (self.memory, self.total, self.carry, self.sentences, self.to_cover)
        memory, total, carry, sentences, to_cover = select(per_sentence, rows)
        state, tokens, coverage = select((self.state, self.tokens, self.coverage), hypotheses)
        return LiveHypotheses(memory, state, tokens, total, carry, sentences, to_cover, coverage)


class BeamExpansion:
    """The tensor operations of a search with certain options; it keeps no hypotheses between calls."""

    def __init__(
        self,
        scorer: Scorer,
        max_length: Array,
        columns: Columns,
        options: SearchOptions,
        selector: Selector = topk.best_continuations,
    ) -> None:
        """Prepare the search of B sentences.

        Args:
            scorer: Scorer without the restrictions of the options.
            max_length: [B], maximum length of each translation.
            columns: Score columns.
            options: Options of the search.
            selector: Selects the continuations to consider.
        """
        self._columns = columns
        self._options = options
        self._selector = selector
        self._scorer = constrain(scorer, options, max_length)
        self._greedy = options.beam == 1
        self._has_custom_totals = isinstance(selector, topk.HypothesisScorer)
        self._uses_banks = isinstance(self._scorer, PhraseScorer) and not self._greedy
        self.stop_at_top = options.stop == "top" and not self._greedy and not self._has_custom_totals
        """True if sentences stop by the criterion `stop = "top"`."""
        # A beam of 1 stops when its hypothesis ends, so that no scores are compared and coverage does not matter.
        self._uses_coverage = options.ranking.uses_coverage and not self._greedy

    @cached_property
    def constraints(self) -> list[Constraint]:
        """Restrictions that depend only on the position. They are made on first use: replayed steps have them."""
        return constraints(self._options, self._columns, self._scorer.device)

    @property
    def key(self) -> object:
        """Everything that the kernels of a step depend on, apart from the scorer, for searches that can be recorded.

        These have no candidates, no constraints except banned tokens, and the default selector.
        """
        options = self._options
        coverage_penalty = options.coverage_penalty if self._uses_coverage else 0.0
        return options.beam, self.stop_at_top, coverage_penalty, options.banned

    def start(self, sources: Sources) -> LiveHypotheses:
        """Return one empty hypothesis per sentence (K = 1): the first step has no others to tell apart."""
        memory, state = self._scorer.start(sources, self._columns.ids)
        to_cover = tokens_to_cover(sources) if self._uses_coverage else ()
        count = len(next(iter(sources.values())).ids)
        device = self._scorer.device
        return LiveHypotheses(
            memory=memory,
            state=state,
            tokens=torch.full((count,), BOS, device=device),
            total=torch.zeros(count, 1, device=device),
            carry=torch.zeros(count, 1, device=device) if self._has_custom_totals else None,
            sentences=torch.arange(count, device=device),
            to_cover=to_cover,
            coverage=tuple(torch.zeros(mask.shape, device=mask.device) for mask in to_cover),
        )

    def step(
        self, live: LiveHypotheses, position: int, sentences: Array, names: Sequence[str]
    ) -> tuple[LiveHypotheses, BeamStep]:
        """Score all continuations, and select the best ones and the next live hypotheses.

        Args:
            live: The hypotheses so far.
            position: Target position of the continuations' last token, from 1.
            sentences: [A], indices of the sentences in the call, for the `BeamStep`.
            names: Names of the sources.

        Returns:
            The live hypotheses with the scorer's next state and updated coverage (not yet reordered), and the step.
        """
        A, K = live.total.shape
        beam = self._options.beam

        # Score the continuations: C tokens of each of the K hypotheses.
        scored = self._scorer.step(live.memory, live.state, live.tokens)
        live = live._replace(state=scored.state)
        if self._uses_coverage:
            # Before the selection: hypotheses that end at this step are scored with its attention.
            live = live._replace(coverage=add_attention(live.coverage, scored.attention, names))
        scores = scored.scores.float()  # [A * K, C], up to the norm
        rows = topk.ScoredRows(position, live.sentences, K)
        for constraint in self.constraints:
            constraint(scores, rows)
        scores = scores.reshape(A, K, -1)  # [A, K, C]
        norm = torch.zeros((), device=scores.device) if scored.norm is None else scored.norm.view(A, K)

        # Select M continuations, best first.
        index, custom = self._select(live, scores, norm, rows)  # [A, M]
        token_score = scores.flatten(1).gather(1, index)  # [A, M]
        # In the first step and in greedy search, all continuations extend hypothesis 0.
        if K == 1:
            parent = torch.zeros_like(index)  # [A, M]
            column = index
            parent_total = live.total  # [A, 1]
        else:
            parent = index // self._columns.count  # [A, M]
            column = index % self._columns.count
            parent_total = live.total.gather(1, parent)  # [A, M]
            norm = norm.expand(A, K).gather(1, parent)  # [A, M]
        token = self._columns.tokens(column)  # [A, M]
        # Only the M selected scores are normalised, not all K * C.
        token_score = token_score - norm  # [A, M]
        total = parent_total + token_score if custom is None else custom.total  # [A, M]

        # The first K = beam of them that do not end become the live hypotheses.
        is_eos = token == EOS  # [A, M]
        live_total = total.masked_fill(is_eos, -torch.inf)
        if self._greedy:
            live_index = parent  # [A, 1], all 0
        else:
            # Stable: EOS last, otherwise in order. If too few do not end, slots with total -inf stay empty.
            live_index = is_eos.view(torch.uint8).sort(dim=1, stable=True).indices[:, :beam]  # [A, K]
            live_total = live_total.gather(1, live_index)  # [A, K]
        penalty = None
        if self._uses_coverage and custom is None:
            penalty = coverage_term(live.to_cover, live.coverage, self._options.ranking).gather(1, parent)  # [A, M]
        return live, BeamStep(
            sentences=sentences,
            parent=parent,
            token=token,
            token_score=token_score,
            total=total,
            is_eos=is_eos,
            live_index=live_index,
            live_total=live_total,
            carry=None if custom is None else custom.carry.gather(1, live_index),
            attention=scored.attention,
            penalty=penalty,
        )

    def _select(
        self, live: LiveHypotheses, scores: Tensor, norm: Tensor, rows: topk.ScoredRows
    ) -> tuple[Tensor, topk.ScoredContinuations | None]:
        """Return the flat indices [A, M] of the continuations to consider, and their scores by a HypothesisScorer.

        M is 2 * beam, so that `beam` continuations are left if as many end; a beam of 1 and `stop = "top"` need fewer.
        """
        count = self._options.beam  # M
        if not self._greedy and not self.stop_at_top:
            count *= 2
        if isinstance(self._selector, topk.HypothesisScorer):
            assert live.carry is not None
            custom = self._selector.select(scores, live.total, live.carry, count, rows)
            return custom.indices, custom
        if self._greedy and self._selector is topk.best_continuations:
            return scores.flatten(1).max(1, keepdim=True).indices, None  # the same result in a single pass
        selector = partial(select_by_banks, state=live.state) if self._uses_banks else self._selector
        return selector(scores, live.total - norm, count, rows), None

    def advance(self, live: LiveHypotheses, step: BeamStep) -> LiveHypotheses:
        """Return the live hypotheses after a step."""
        token = step.token
        state = live.state
        coverage = live.coverage
        if not self._greedy:  # in greedy search, all rows stay in place
            A, K = live.total.shape
            token = token.gather(1, step.live_index)  # [A, K]
            parent = step.parent.gather(1, step.live_index)  # [A, K]
            row = parent + torch.arange(0, A * K, K, device=token.device)[:, None]  # [A, K], rows of the state [A * K]
            state, coverage = select((state, coverage), row.flatten())
        return live._replace(
            state=state, tokens=token.flatten(), total=step.live_total, carry=step.carry, coverage=coverage
        )


# The coverage penalty of live hypotheses (see `ranking.py`). All functions have one tensor per source.


def tokens_to_cover(sources: Sources) -> tuple[Tensor, ...]:
    """Return masks [A, J] of the tokens to cover: all but padding and EOS."""
    return tuple(source.mask & (source.ids != EOS) for source in sources.values())


def add_attention(
    coverage: Sequence[Tensor], attention: Mapping[str, Tensor], names: Sequence[str]
) -> tuple[Tensor, ...]:
    """Return the sums of attention [N, J] after a step with the weights `attention` [N, J] by source name.

    Args:
        coverage: [N, J] per source, sums before the step.
        attention: Weights of the step.
        names: Names of the sources.

    Raises:
        RnnsearchError: There is no attention to a source.
    """
    require_attention(attention)
    if missing := set(names) - attention.keys():
        raise RnnsearchError(f"coverage_penalty must be 0 without attention to a source ({', '.join(sorted(missing))})")
    return tuple(sums + attention[name].float() for sums, name in zip(coverage, names, strict=True))


def coverage_term(to_cover: Sequence[Tensor], coverage: Sequence[Tensor], ranking: Ranking) -> Tensor:
    """Return beta * sum_j log(min(coverage_j, 1)) [A, K] over the tokens to cover [A, J]."""
    terms = []
    for mask, sums in zip(to_cover, coverage, strict=True):
        logs = sums.clamp(MIN_COVERAGE, 1.0).log().unflatten(0, (len(mask), -1))  # [A, K, J]
        terms.append((logs * mask[:, None, :]).sum(-1))  # [A, K]
    total: Tensor = reduce(torch.add, terms)
    return ranking.coverage_penalty * total
