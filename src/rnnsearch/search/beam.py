"""Beam search and greedy search of a batch, with all hypotheses of all sentences in the same tensor operations.

A sentence has `beam` live hypotheses. Each step considers their 2 * beam best continuations: those among the best
`beam` that end with EOS are finished and leave the beam; the best others become the live hypotheses. A sentence stops

- when `beam` hypotheses have finished, or
- when `n_best` have finished and no live hypothesis can beat the worst of the n best any more. Log-probabilities only
  decrease (if the Scorer is normalised), so the score of a live hypothesis is at most its log-probability divided by
  the norm of the maximum length with EOS, and the coverage term is at most 0; or
- at its maximum length. Hypotheses cut there are returned, unfinished, only if fewer than `n_best` have finished.

`stop = "top"` is OpenNMT-py's search instead: a step considers only the `beam` best continuations, so that finished
ones leave empty slots until the next step; a sentence stops when the best continuation of a step ends and `n_best` have
finished; and hypotheses of maximum length count as finished. It does not apply to a beam of 1.

With a `HypothesisScorer`, hypotheses are compared only by its scores, and a sentence stops when no live hypothesis can
be among the n best.

A step needs a fixed number of tensor operations and one small transfer to the host. Hypotheses are traced back, and
their attention is gathered, when the search has ended (`backtrace.py`). Native scorers search a whole batch in one call
if the options allow it.

`decode.py` runs it and, for greedy translations token by token, `Translator.stream` (`translator/translator.py`).
Before changing it: native searches must give the same hypotheses (`ops/native/beam_search.h`,
`ops/native/greedy_search.h`). Tests: `tests/search/test_beam.py`, `tests/search/test_plain_beam.py` (against a simple
search), `tests/properties/test_native_search.py`. Set `RNNSEARCH_FAST=0` to debug `BeamSearch._step`.

Axes: A sentences still in the batch, B sentences of the call, K live hypotheses per sentence, N = A * K, M
continuations considered, T steps, J source positions.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search import topk
from rnnsearch.search.backtrace import BeamProgress, BeamStep, StepStorage, trace_hypotheses
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.constraints import (
    NEVER_PRODUCED,
    constrain,
    constraints,
    max_lengths,
    prefix_columns,
    score_columns,
)
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, n_best_hypotheses
from rnnsearch.search.native_beam import NativeBeamRequest
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import PhraseScorer, select_by_banks
from rnnsearch.search.ranking import ENGINE_NORMS, MIN_COVERAGE, Ranking, require_attention
from rnnsearch.search.results import HypothesisArrays, make_hypotheses, require_no_nan, source_lengths
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import BOS, EOS
from rnnsearch.utils.tensors import select

MAX_NATIVE_ATTENTION_WEIGHTS = 1 << 26
"""Attention weights that one native call may store; a larger search runs step by step, which stores only real steps."""


@runtime_checkable
class NativeBeamScorer(Scorer, Protocol):
    """A Scorer of one source with its own beam search of a whole batch, equivalent to `BeamSearch`."""

    def beam(
        self,
        sources: Sources,
        columns: Tensor | None,
        max_length: Array,
        banned: Sequence[int],
        request: NativeBeamRequest,
    ) -> NBestArrays | None:
        """Return the n best translations of each sentence, or None if a score was NaN.

        Args:
            sources: The batch.
            columns: Score columns, see `Scorer.start`.
            max_length: [B], maximum length of each translation.
            banned: Tokens that must not be produced.
            request: Further parameters.
        """


@runtime_checkable
class NativeGreedyScorer(Protocol):
    """A Scorer with its own greedy search of a whole batch, equivalent to a beam of 1."""

    def greedy(
        self, sources: Sources, columns: Tensor | None, max_length: Array, banned: Sequence[int]
    ) -> HypothesisArrays:
        """Return the tokens of each sentence until EOS, or `max_length` [B] + 1 tokens without EOS.

        Args:
            sources: The batch.
            columns: Score columns, see `Scorer.start`.
            max_length: [B], maximum length of each translation.
            banned: Tokens that must not be produced.
        """


def beam_search(
    scorer: Scorer,
    sources: Sources,
    options: SearchOptions,
    candidates: ColumnChooser | None = None,
    selector: topk.ContinuationSelector | topk.HypothesisScorer = topk.best_continuations,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence, all distinct.

    Finished ones come first, and each group is in descending order of the score. A sentence has only `BLOCKED` if no
    continuation was allowed before any hypothesis had finished.

    Args:
        scorer: Scorer to use.
        sources: The batch.
        options: Options of the search; `variant` is ignored (see `decode.search_variant`).
        candidates: Chooses the tokens that translations may consist of; by default the whole vocabulary.
        selector: Selects the continuations to consider; by default those with the highest log-probability.

    Raises:
        SentenceError: A score is NaN.
    """
    if selector is topk.best_continuations and isinstance(scorer, NativeBeamScorer):
        results = _native_beam_search(scorer, sources, options, candidates)
        if results is not None:
            return results
    search = BeamSearch(scorer, sources, options, candidates, selector)
    for _ in search.steps():
        pass
    return search.hypotheses()


@torch.inference_mode()
def greedy_search(
    scorer: Scorer, sources: Sources, options: SearchOptions, candidates: ColumnChooser | None = None
) -> list[list[Hypothesis]]:
    """Return, per sentence, a list of the hypothesis that takes the best token at every step.

    Of equal tokens the lowest column is taken; the list is [BLOCKED] if no token is allowed. `beam` and `n_best` of
    the options are ignored.

    Raises:
        SentenceError: The score of a taken token is NaN.
    """
    if not isinstance(scorer, NativeGreedyScorer) or not options.unconstrained or options.has_prefix:
        return beam_search(scorer, sources, replace(options, beam=1, n_best=1), candidates)
    ids = score_columns(scorer, sources, options, candidates).ids
    banned = sorted(options.banned | NEVER_PRODUCED)
    arrays = scorer.greedy(sources, ids, max_lengths(sources, options), banned)
    # An unfinished translation has one more score than tokens, which may be the NaN.
    require_no_nan(arrays.scores, arrays.length + ~arrays.finished)
    in_length = np.arange(len(arrays.scores))[:, None] < arrays.length  # [T, B]
    # The best token has the score -inf only if no token was allowed.
    blocked = np.where(in_length, arrays.scores, 0.0).min(0, initial=0.0) == -np.inf  # [B]
    results = []
    for hypothesis, is_blocked in zip(make_hypotheses(arrays, sources, options.ranking), blocked.tolist(), strict=True):
        results.append([BLOCKED if is_blocked else hypothesis])
    return results


def greedy_stream(
    scorer: Scorer, sources: Sources, options: SearchOptions, candidates: ColumnChooser | None = None
) -> Generator[tuple[int, ...], None, Hypothesis]:
    """Search one sentence greedily: yield the tokens so far after every step, and return the hypothesis."""
    search = BeamSearch(scorer, sources, replace(options, beam=1, n_best=1), candidates)
    ids: tuple[int, ...] = ()
    for step in search.steps():
        token = int(step.token[0, 0])
        is_allowed = float(step.total[0, 0]) > -np.inf
        if is_allowed and token != EOS and len(ids) < search.max_length[0]:
            ids = (*ids, token)
            yield ids
    return search.hypotheses()[0][0]


@torch.inference_mode()
def _native_beam_search(
    scorer: NativeBeamScorer, sources: Sources, options: SearchOptions, candidates: ColumnChooser | None
) -> list[list[Hypothesis]] | None:
    """Search in one native call, or return None if it does not support the options or a score is NaN.

    In the latter case the search step by step finds out where the NaN is.
    """
    ranking = options.ranking
    max_length = max_lengths(sources, options)
    [(source, lengths)] = source_lengths(sources).items()  # native models have one source
    attention_weights = options.beam * len(max_length) * int(max_length.max() + 1) * max(lengths)
    if (
        not options.unconstrained
        or (options.stop == "top" and options.beam > 1)
        or ranking.uses_coverage
        or ranking.length_norm not in ENGINE_NORMS
        or attention_weights > MAX_NATIVE_ATTENTION_WEIGHTS
    ):
        return None
    columns = score_columns(scorer, sources, options, candidates)
    forced_bytes = options.forced_bytes
    request = NativeBeamRequest(
        options.beam,
        options.n_best,
        ranking,
        forced=None if options.prefix is None else prefix_columns(options.prefix, columns, scorer.device).numpy(),
        allowed_tokens=() if forced_bytes is None else forced_bytes.allowed_tokens,
        token_bytes=None if forced_bytes is None else forced_bytes.token_bytes.numpy(),
    )
    n_best = scorer.beam(sources, columns.ids, max_length, sorted(options.banned | NEVER_PRODUCED), request)
    return None if n_best is None else n_best_hypotheses(n_best, lengths, ranking, source)


class _LiveHypotheses(NamedTuple):
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


class BeamSearch:
    """Beam search of one batch, step by step."""

    def __init__(
        self,
        scorer: Scorer,
        sources: Sources,
        options: SearchOptions,
        candidates: ColumnChooser | None = None,
        selector: topk.ContinuationSelector | topk.HypothesisScorer = topk.best_continuations,
    ) -> None:
        """Prepare the search; the arguments are those of `beam_search`."""
        self.max_length = max_lengths(sources, options)
        """[B], maximum length of each translation."""
        self._sources = sources
        self._options = options
        self._columns = score_columns(scorer, sources, options, candidates)
        self._constraints = constraints(options, self._columns, scorer.device)
        # Wrappers do not change `normalised`, which is read from the original scorer below.
        self._scorer = constrain(scorer, options, self.max_length)
        self._selector = selector
        custom_totals = isinstance(selector, topk.HypothesisScorer)
        self._greedy = options.beam == 1
        self._uses_banks = isinstance(self._scorer, PhraseScorer) and not self._greedy
        self._stop_at_top = options.stop == "top" and not self._greedy and not custom_totals
        # A beam of 1 stops when its hypothesis ends, so that no scores are compared and coverage does not matter.
        self._uses_coverage = options.ranking.uses_coverage and not self._greedy
        self._progress = BeamProgress(self.max_length, options, scorer.normalised, custom_totals, self._stop_at_top)
        self._history: list[BeamStep] = []
        self._storage = StepStorage()

    def steps(self) -> Iterator[BeamStep]:
        """Run the search and yield every step; between steps the caller's gradient mode applies."""
        sentences = np.arange(len(self.max_length))
        with torch.inference_mode():
            live = self._start()
        # One step more than the longest translation, for its EOS.
        for position in range(1, int(self.max_length.max()) + 2):
            self._options.raise_if_cancelled()
            with torch.inference_mode():
                live, step = self._step(live, position, sentences)
                step = self._storage.store(step)
                active = self._progress.add(step)
                if active.any():
                    remaining = None
                    # Dropping sentences copies the rows of memory and state, so it waits until it pays off.
                    if not active.all() and np.mean(~active) >= self._options.compact_at:
                        rows = np.flatnonzero(active)
                        sentences = sentences[rows]
                        remaining = torch.from_numpy(rows).to(self._scorer.device)
                    live = self._advance(live, step, remaining)
            self._history.append(step)
            yield step
            if not active.any():
                return

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the result of `beam_search`, after all `steps`."""
        return trace_hypotheses(self._history, self._progress, self._sources, self._options)

    def _start(self) -> _LiveHypotheses:
        """Return one empty hypothesis per sentence (K = 1): the first step has no others to tell apart."""
        memory, state = self._scorer.start(self._sources, self._columns.ids)
        to_cover = tokens_to_cover(self._sources) if self._uses_coverage else ()
        count = len(self.max_length)
        device = self._scorer.device
        return _LiveHypotheses(
            memory=memory,
            state=state,
            tokens=torch.full((count,), BOS, device=device),
            total=torch.zeros(count, 1, device=device),
            carry=torch.zeros(count, 1, device=device) if isinstance(self._selector, topk.HypothesisScorer) else None,
            sentences=torch.arange(count, device=device),
            to_cover=to_cover,
            coverage=tuple(torch.zeros(mask.shape, device=mask.device) for mask in to_cover),
        )

    def _step(self, live: _LiveHypotheses, position: int, sentences: Array) -> tuple[_LiveHypotheses, BeamStep]:
        """Score all continuations, and select the best ones and the next live hypotheses.

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
            live = live._replace(coverage=add_attention(live.coverage, scored.attention, self._sources))
        scores = scored.scores.float()  # [A * K, C], up to the norm
        rows = topk.ScoredRows(position, live.sentences, K)
        for constraint in self._constraints:
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
            live_index = is_eos.byte().sort(dim=1, stable=True).indices[:, :beam]  # [A, K]
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
        self, live: _LiveHypotheses, scores: Tensor, norm: Tensor, rows: topk.ScoredRows
    ) -> tuple[Tensor, topk.ScoredContinuations | None]:
        """Return the flat indices [A, M] of the continuations to consider, and their scores by a HypothesisScorer.

        M is 2 * beam, so that `beam` continuations are left if as many end; a beam of 1 and `stop = "top"` need fewer.
        """
        count = self._options.beam  # M
        if not self._greedy and not self._stop_at_top:
            count *= 2
        if isinstance(self._selector, topk.HypothesisScorer):
            assert live.carry is not None
            custom = self._selector.select(scores, live.total, live.carry, count, rows)
            return custom.indices, custom
        if self._greedy and self._selector is topk.best_continuations:
            return scores.flatten(1).max(1, keepdim=True).indices, None  # the same result in a single pass
        selector = partial(select_by_banks, state=live.state) if self._uses_banks else self._selector
        return selector(scores, live.total - norm, count, rows), None

    def _advance(self, live: _LiveHypotheses, step: BeamStep, remaining: Tensor | None) -> _LiveHypotheses:
        """Return the live hypotheses after a step, of all sentences or of those at the indices `remaining`."""
        token = step.token
        row = remaining  # of the state that each live hypothesis continues; None if all rows stay in place
        if not self._greedy:
            A, K = live.total.shape
            token = token.gather(1, step.live_index)  # [A, K]
            parent = step.parent.gather(1, step.live_index)  # [A, K]
            row = parent + K * torch.arange(A, device=token.device)[:, None]  # [A, K], rows of the state [A * K]
            row = (row if remaining is None else row[remaining]).flatten()
        per_sentence = (token, step.live_total, step.carry, live.memory, live.sentences, live.to_cover)
        per_hypothesis = (live.state, live.coverage)
        if remaining is not None:
            per_sentence = select(per_sentence, remaining)
        if row is not None:
            per_hypothesis = select(per_hypothesis, row)
        token, live_total, carry, memory, sentences, to_cover = per_sentence
        state, coverage = per_hypothesis
        return _LiveHypotheses(memory, state, token.flatten(), live_total, carry, sentences, to_cover, coverage)


# The coverage penalty of live hypotheses (see `ranking.py`). All functions have one tensor per source.


def tokens_to_cover(sources: Sources) -> tuple[Tensor, ...]:
    """Return masks [A, J] of the tokens to cover: all but padding and EOS."""
    return tuple(source.mask & (source.ids != EOS) for source in sources.values())


def add_attention(coverage: Sequence[Tensor], attention: Mapping[str, Tensor], sources: Sources) -> tuple[Tensor, ...]:
    """Return the sums of attention [N, J] after a step with the weights `attention` [N, J] by source name.

    Raises:
        RnnsearchError: There is no attention to a source.
    """
    require_attention(attention)
    if missing := sources.keys() - attention.keys():
        raise RnnsearchError(f"coverage_penalty must be 0 without attention to a source ({', '.join(sorted(missing))})")
    return tuple(sums + attention[name].float() for sums, name in zip(coverage, sources, strict=True))


def coverage_term(to_cover: Sequence[Tensor], coverage: Sequence[Tensor], ranking: Ranking) -> Tensor:
    """Return beta * sum_j log(min(coverage_j, 1)) [A, K] over the tokens to cover [A, J]."""
    terms = []
    for mask, sums in zip(to_cover, coverage, strict=True):
        logs = sums.clamp(MIN_COVERAGE, 1.0).log().unflatten(0, (len(mask), -1))  # [A, K, J]
        terms.append((logs * mask[:, None, :]).sum(-1))  # [A, K]
    total: Tensor = reduce(torch.add, terms)
    return ranking.coverage_penalty * total
