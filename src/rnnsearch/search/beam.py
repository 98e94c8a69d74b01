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

A step needs a fixed number of tensor operations (`expansion.py`) and one small transfer to the host. Hypotheses are
traced back, and their attention is gathered, when the search has ended (`backtrace.py`). Native scorers search a whole
batch in one call if the options allow it, and on a GPU steps are replayed from recordings (`recorded.py`).

`decode.py` runs it and, for greedy translations token by token, `Translator.stream` (`translator/translator.py`).
Before changing it: native searches must give the same hypotheses (`ops/native/beam_search.h`,
`ops/native/greedy_search.h`). Tests: `tests/search/test_beam.py`, `tests/search/test_plain_beam.py` (against a simple
search), `tests/properties/test_native_search.py`.

Axes: A sentences still in the batch, B sentences of the call, K live hypotheses per sentence, N = A * K, M
continuations considered, T steps, J source positions.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.structs import Array
from rnnsearch.search import topk
from rnnsearch.search.backtrace import BeamProgress, BeamStep, StepStorage, trace_hypotheses
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.constraints import (
    NEVER_PRODUCED,
    max_lengths,
    prefix_columns,
    score_columns,
)
from rnnsearch.search.expansion import BeamExpansion
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, n_best_hypotheses
from rnnsearch.search.native_beam import NativeBeamRequest
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import ENGINE_NORMS
from rnnsearch.search.recorded import (
    RecordedCall,
    RecordedRun,
    SearchRecorder,
    beside_later_work,
    find_recorder,
    unsupported_reason,
)
from rnnsearch.search.results import HypothesisArrays, make_hypotheses, require_no_nan, source_lengths
from rnnsearch.search.scorer import RecordableScorer, Scorer, Sources
from rnnsearch.text.vocabulary import EOS

MAX_NATIVE_ATTENTION_WEIGHTS = 1 << 26
"""Attention weights that one native call may store; a larger search runs step by step, which stores only real steps."""


@runtime_checkable
class NativeBeamScorer(Scorer, Protocol):
    """A Scorer with its own beam search of a whole batch, equivalent to `BeamSearch`."""

    def beam(
        self,
        sources: Sources,
        columns: Tensor | None,
        max_length: Array,
        banned: Sequence[int],
        request: NativeBeamRequest,
    ) -> tuple[NBestArrays, dict[str, Array]] | None:
        """Return the n best translations of each sentence and their attention by source, or None if a score was NaN.

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
    search.run()
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
    lengths = source_lengths(sources)
    num_positions = sum(max(source) for source in lengths.values())
    attention_weights = options.beam * len(max_length) * int(max_length.max() + 1) * num_positions
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
    result = scorer.beam(sources, columns.ids, max_length, sorted(options.banned | NEVER_PRODUCED), request)
    return None if result is None else n_best_hypotheses(*result, lengths, ranking)


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
        self._scorer = scorer
        self._sources = sources
        self._options = options
        self._selector = selector
        self._columns = score_columns(scorer, sources, options, candidates)
        self._expansion = BeamExpansion(scorer, self.max_length, self._columns, options, selector)
        self._progress = self._new_progress()
        self._history: list[BeamStep] = []
        self._storage = StepStorage()
        self._recorded: tuple[SearchRecorder, RecordedRun] | None = None
        self._done: torch.cuda.Event | None = None  # the end of a recorded search on a GPU

    def _new_progress(self) -> BeamProgress:
        custom_totals = isinstance(self._selector, topk.HypothesisScorer)
        stop_at_top = self._expansion.stop_at_top
        return BeamProgress(self.max_length, self._options, self._scorer.normalised, custom_totals, stop_at_top)

    def run(self) -> None:
        """Run the search, from recordings on a GPU if the options allow it."""
        self.begin()
        self.complete()

    # Not in inference mode, whose tensors cannot be changed outside of it: graphs of training share some of them.
    @torch.inference_mode(False)
    @torch.no_grad()
    def begin(self) -> None:
        """Launch the first steps, if the search runs from recordings, to be followed by `complete` or `cancel`."""
        recorder = find_recorder(self._scorer)
        if recorder is None or unsupported_reason(
            self._scorer, self._sources, self._options, self._columns, self._selector
        ):
            return
        assert isinstance(self._scorer, RecordableScorer)
        call = RecordedCall(
            self._scorer, self._expansion, self._sources, self._progress, self._options, self.max_length
        )
        run = recorder.begin(call)
        if run is None:
            self._progress = self._new_progress()
        else:
            self._recorded = recorder, run

    @torch.inference_mode(False)
    @torch.no_grad()
    def complete(self) -> None:
        """Run the remaining steps."""
        if self._recorded is not None:
            recorder, run = self._recorded
            self._recorded = None
            history = recorder.finish(run)
            if history is not None:
                self._history = history
                if self._scorer.device.type == "cuda":
                    self._done = torch.cuda.Event()
                    self._done.record(torch.cuda.current_stream(self._scorer.device))
                return
            self._progress = self._new_progress()
        for _ in self.steps():
            pass

    def cancel(self) -> None:
        """End a search that has begun and is not complete."""
        if self._recorded is not None:
            self._recorded[0].cancel()
            self._recorded = None

    def steps(self) -> Iterator[BeamStep]:
        """Run the search and yield every step; between steps the caller's gradient mode applies."""
        expansion = self._expansion
        names = tuple(self._sources)
        sentences = np.arange(len(self.max_length))
        with torch.inference_mode():
            live = expansion.start(self._sources)
        # One step more than the longest translation, for its EOS.
        for position in range(1, int(self.max_length.max()) + 2):
            self._options.raise_if_cancelled()
            with torch.inference_mode():
                live, step = expansion.step(live, position, sentences, names)
                step = self._storage.store(step)
                active = self._progress.add(step)
                if active.any():
                    live = expansion.advance(live, step)
                    # Dropping sentences copies the rows of memory and state, so it waits until it pays off.
                    if not active.all() and np.mean(~active) >= self._options.compact_at:
                        rows = np.flatnonzero(active)
                        sentences = sentences[rows]
                        live = live.select_sentences(torch.from_numpy(rows).to(self._scorer.device))
            self._history.append(step)
            yield step
            if not active.any():
                return

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return the result of `beam_search`, after `run`, `complete` or all `steps`."""
        with beside_later_work(self._scorer.device, self._done):
            return trace_hypotheses(self._history, self._progress, self._sources, self._options)
