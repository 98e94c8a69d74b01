"""Beam search over a batch of sentences, all hypotheses of all sentences in the same tensor operations.

A sentence keeps `beam` live hypotheses. At each step the 2 * beam best continuations are looked at: those
that end with EOS among the `beam` best are finished and leave the beam; the best others fill all its
places. A sentence stops

- when `beam` hypotheses have finished, or
- when `n_best` have finished and no live one can still beat the worst of the n best: a live hypothesis's
  log-probability can only fall (where the Scorer is normalised), so its score is at most
  log_prob / (maximal length, with EOS) ** length_penalty (of the length's norm, and coverage costs at least
  nothing); or
- at its maximal length. Hypotheses cut there are returned, unfinished, only where fewer than `n_best`
  finished.

With `stop = "top"` it is OpenNMT-py's search: a step looks at the `beam` best continuations alone, so that those
that end leave empty places until the next; a sentence stops when the best of a step ends and `n_best` have finished;
and what has come to its maximal length has finished, too. Not of a beam of one, and not where a Judge chooses.

Where a `selection.Judge` chooses, hypotheses are compared by its worth alone, and a sentence stops when none that is
live can be among the n best.

A step takes a fixed number of tensor operations and one small transfer to the host; hypotheses are traced
back, and their attention gathered, once the winners are known. A Scorer that searches whole batches by itself does so
where nothing asks for more than that.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.backtrace import BeamStep, Finals, KeptSteps, hypotheses
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
from rnnsearch.search.native_beam import Asked
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import PhraseScorer, by_banks
from rnnsearch.search.ranking import ENGINE_NORMS, MIN_COVERAGE, Ranking, require_attention
from rnnsearch.search.results import NOT_A_NUMBER, Scored, make_hypotheses, refuse, source_lengths
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.search.topk import Choose, Judge, ScoredRows, best
from rnnsearch.text.vocabulary import BOS, EOS
from rnnsearch.utils.tensors import select

# What a beam's live hypotheses have not covered, as `ranking` scores it. Of each source, in the sources' order: the
# words to cover, one row a sentence, and the sums of attention, one row a hypothesis.


def to_cover(sources: Sources) -> tuple[Tensor, ...]:
    """[A, J] of each source, True on the symbols to cover (not EOS)."""
    return tuple(source.mask & (source.ids != EOS) for source in sources.values())


def attended(sums: Sequence[Tensor], attention: Mapping[str, Tensor], sources: Sources) -> tuple[Tensor, ...]:
    """The sums [N, J] of each source after a step's weights [N, J]. Errors: RnnsearchError without attention."""
    require_attention(attention)
    if blind := sources.keys() - attention.keys():
        raise RnnsearchError(
            f"coverage_penalty must be 0 where nothing attends to a source ({', '.join(sorted(blind))})"
        )
    return tuple(s + attention[name].float() for s, name in zip(sums, sources, strict=True))


def penalty(words: Sequence[Tensor], sums: Sequence[Tensor], ranking: Ranking) -> Tensor:
    """beta * sum_j log(min(sum, 1)) over the words [A, J] of each source, of each hypothesis, [A, K]."""
    each = zip(words, (received.clamp(MIN_COVERAGE, 1.0).log() for received in sums), strict=True)
    parts = [(logs.unflatten(0, (len(own), -1)) * own[:, None, :]).sum(-1) for own, logs in each]
    total: Tensor = reduce(torch.add, parts)
    return ranking.coverage_penalty * total


ATTENDED = 1 << 26
"""Weights of attention that one call may keep: with more it goes step by step, which keeps those of the steps taken."""


@runtime_checkable
class SearchesWhole(Scorer, Protocol):
    """A Scorer of one source with a beam search of its own, the twin of `BeamSearch`."""

    def beam(
        self, sources: Sources, columns: Tensor | None, most: Array, banned: Sequence[int], asked: Asked
    ) -> NBest | None:
        """The n best translations of each sentence, each of at most `most` [B] symbols and without a `banned` one; None
        where a score was no number. columns: as for `Scorer.start`."""


def beam(
    scorer: Scorer,
    sources: Sources,
    options: SearchOptions,
    columns: ColumnChooser | None = None,
    choose: Choose | Judge = best,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, distinct; finished ones first, each kind by falling score.

    `columns` says which symbols they are made of, all without it. `choose` picks the continuations looked at, by
    default those of highest log-probability. A sentence has `BLOCKED` alone where no continuation was allowed before
    anything had finished.
    Errors: SentenceError where a score is NaN.
    """
    if choose is best and isinstance(scorer, SearchesWhole):
        found = _in_one_call(scorer, sources, options, columns)
        if found is not None:
            return found
    search = BeamSearch(scorer, sources, options, columns, choose)
    for _ in search.steps():
        pass
    return search.found()


@torch.inference_mode()
def _in_one_call(
    scorer: SearchesWhole, sources: Sources, options: SearchOptions, columns: ColumnChooser | None
) -> list[list[Hypothesis]] | None:
    """None where that is not for these options, or a score was no number: the steps tell where."""
    ranking, most = options.ranking, max_lengths(sources, options)
    [(source, symbols)] = source_lengths(sources).items()
    attended = options.beam * len(most) * int(most.max() + 1) * max(symbols)
    top = options.stop == "top" and options.beam > 1
    if (
        not options.unconstrained
        or top
        or ranking.uses_coverage
        or ranking.length_norm not in ENGINE_NORMS
        or attended > ATTENDED
    ):
        return None
    over, begun = score_columns(scorer, sources, options, columns), options.forced_bytes
    asked = Asked(
        *(options.beam, options.n_best, ranking),
        forced=None if options.prefix is None else prefix_columns(options.prefix, over, scorer.device).numpy(),
        rests=() if begun is None else begun.allowed_tokens,
        sizes=None if begun is None else begun.token_bytes.numpy(),
    )
    found = scorer.beam(sources, over.ids, most, sorted(options.banned | NEVER_PRODUCED), asked)
    return None if found is None else n_best_hypotheses(found, symbols, ranking, source)


class _Live(NamedTuple):
    """The sentences still in the batch, A of them, and their K live hypotheses each."""

    memory: Any
    """A rows."""
    state: Any
    """A * K rows."""
    tokens: Tensor
    """[A * K], the last symbol of each hypothesis."""
    worth: Tensor
    """[A, K], their log-probabilities, or what a Judge compares them by: best first; -inf in an empty place."""
    known: Tensor | None
    """[A, K], what the Judge is to be told of them; None without one."""
    sentences: Tensor
    """[A], their numbers in the call."""
    words: tuple[Tensor, ...]
    """A rows, where the ranking asks for coverage: see `ranking`; else nothing."""
    sums: tuple[Tensor, ...]
    """A * K rows."""


class BeamSearch:
    """The search of one batch."""

    def __init__(
        self,
        scorer: Scorer,
        sources: Sources,
        options: SearchOptions,
        columns: ColumnChooser | None = None,
        choose: Choose | Judge = best,
    ) -> None:
        self.most = max_lengths(sources, options)
        """[B], the greatest length of each sentence's translation."""
        self._sources = sources
        self._options = options
        self._columns = score_columns(scorer, sources, options, columns)
        self._filters = constraints(options, self._columns, scorer.device)
        self._scorer = constrain(scorer, options, self.most)
        self._choose = choose
        self._shares = isinstance(self._scorer, PhraseScorer) and options.beam > 1
        """Whether the beam is shared out among hypotheses that have met as much of their phrases."""
        judged = isinstance(choose, Judge)
        self._to_top = options.stop == "top" and options.beam > 1 and not judged
        self._finals = Finals(self.most, options, scorer.normalised, judged, self._to_top)
        self._history: list[BeamStep] = []
        self._kept = KeptSteps()
        # A beam of one stops when its hypothesis ends, so it looks at one, and nothing is compared by coverage.
        self._alone = options.beam == 1
        self._covers = options.ranking.uses_coverage and not self._alone

    def found(self) -> list[list[Hypothesis]]:
        """What `beam` returns, after all `steps`."""
        return hypotheses(self._history, self._finals, self._sources, self._options)

    def steps(self) -> Iterator[BeamStep]:
        """The search, step by step; between them, the caller's gradients are on or off as he left them."""
        numbers = np.arange(len(self.most))
        with torch.inference_mode():
            live = self._start()
        for position in range(1, int(self.most.max()) + 2):
            with torch.inference_mode():
                live, made = self._step(live, position, numbers)
                made = self._kept.keep(made)
                going = self._finals.add(made)
                if going.any():
                    stay = None
                    if not going.all() and np.mean(~going) >= self._options.compact_at:
                        rows = np.flatnonzero(going)
                        numbers, stay = numbers[rows], torch.from_numpy(rows).to(self._scorer.device)
                    live = self._advance(live, made, stay)
            self._history.append(made)
            yield made
            if not going.any():
                return

    def _start(self) -> _Live:
        """One empty hypothesis a sentence: the first step has nothing to tell several apart by."""
        memory, state = self._scorer.start(self._sources, self._columns.ids)
        words = to_cover(self._sources) if self._covers else ()
        count, device = len(self.most), self._scorer.device
        return _Live(
            memory=memory,
            state=state,
            tokens=torch.full((count,), BOS, device=device),
            worth=torch.zeros(count, 1, device=device),
            known=torch.zeros(count, 1, device=device) if isinstance(self._choose, Judge) else None,
            sentences=torch.arange(count, device=device),
            words=words,
            sums=tuple(torch.zeros(w.shape, device=w.device) for w in words),
        )

    def _step(self, live: _Live, position: int, numbers: Array) -> tuple[_Live, BeamStep]:
        """Score all continuations and choose; the hypotheses return with their next states."""
        step = self._scorer.step(live.memory, live.state, live.tokens)
        live = live._replace(state=step.state)
        if self._covers:
            live = live._replace(sums=attended(live.sums, step.attention, self._sources))
        scores = step.scores.float()
        rows = ScoredRows(position, live.sentences, live.worth.shape[1])
        for constraint in self._filters:
            constraint(scores, rows)
        return live, self._chosen(live, scores, step, rows, numbers)

    def _chosen(self, live: _Live, scores: Tensor, step: Step, rows: ScoredRows, numbers: Array) -> BeamStep:
        """The best 2 * beam continuations, so that `beam` are left when as many end; or the best `beam`."""
        A, K = live.worth.shape
        norm = torch.zeros((), device=scores.device) if step.norm is None else step.norm.view(A, K)
        count = 1 if self._alone else self._options.beam * (1 if self._to_top else 2)
        judged = None
        if isinstance(self._choose, Judge):
            assert live.known is not None
            judged = self._choose.judge(scores.reshape(A, K, -1), live.worth, live.known, count, rows)
            index = judged.places
        elif self._alone and self._choose is best:
            index = scores.max(1, keepdim=True).indices  # the same, in one pass
        else:
            choose = partial(by_banks, state=live.state) if self._shares else self._choose
            index = choose(scores.reshape(A, K, -1), live.worth - norm, count, rows)
        score = scores.reshape(A, -1).gather(1, index)
        if K == 1:
            parent, column, so_far = torch.zeros_like(index), index, live.worth
        else:
            parent, column = index // self._columns.count, index % self._columns.count
            so_far, norm = live.worth.gather(1, parent), norm.expand(A, K).gather(1, parent)
        token, score = self._columns.tokens(column), score - norm
        worth = so_far + score if judged is None else judged.worth
        ends = token == EOS
        alive = worth.masked_fill(ends, -torch.inf)
        if self._alone:
            keep = parent  # 0: the one
        else:
            # The first that do not end, in order; where they are too few, ended ones with log-probability -inf.
            keep = ends.byte().sort(dim=1, stable=True).indices[:, : self._options.beam]
            alive = alive.gather(1, keep)
        cost = None
        if self._covers and judged is None:
            cost = penalty(live.words, live.sums, self._options.ranking).gather(1, parent)
        known = None if judged is None else judged.known.gather(1, keep)
        return BeamStep(numbers, parent, token, score, worth, ends, keep, alive, known, step.attention, cost)

    def _advance(self, live: _Live, made: BeamStep, stay: Tensor | None) -> _Live:
        """The beam after a step, of the sentences `stay` alone where these are given."""
        token, alive, known = made.token, made.alive, made.known
        memory, state, numbers, words, sums = live.memory, live.state, live.sentences, live.words, live.sums
        if self._alone:
            row = stay
        else:
            token = token.gather(1, made.keep)
            A, K = live.worth.shape
            row = made.parent.gather(1, made.keep) + K * torch.arange(A, device=token.device)[:, None]
            row = (row if stay is None else row[stay]).flatten()
        if stay is not None:
            whole = (token, alive, known, memory, numbers, words)
            token, alive, known, memory, numbers, words = select(whole, stay)
        if row is not None:
            state, sums = select((state, sums), row)
        return _Live(memory, state, token.flatten(), alive, known, numbers, words, sums)


# Greedy search: the best symbol at every step, which is a beam of one.


@runtime_checkable
class SearchesGreedily(Protocol):
    """A Scorer with a loop of its own, the twin of a beam of one."""

    def greedy(self, sources: Sources, columns: Tensor | None, most: Array, banned: Sequence[int]) -> Scored:
        """Each sentence's symbols until EOS, or one more than its `most` [B] where none came; never a banned one.
        columns: as for `Scorer.start`."""


@torch.inference_mode()
def greedy(
    scorer: Scorer, sources: Sources, options: SearchOptions, columns: ColumnChooser | None = None
) -> list[list[Hypothesis]]:
    """For each sentence a list of the one hypothesis that takes the best symbol at every step, the lowest
    column among equals; `BLOCKED` where no symbol is allowed. `beam` and `n_best` of the options have no part in it.

    Errors: SentenceError where a score taken is NaN.
    """
    if not isinstance(scorer, SearchesGreedily) or not options.unconstrained or options.has_prefix:
        return beam(scorer, sources, replace(options, beam=1, n_best=1), columns)
    ids = score_columns(scorer, sources, options, columns).ids
    found = scorer.greedy(sources, ids, max_lengths(sources, options), sorted(options.banned | NEVER_PRODUCED))
    refuse(np.isnan, found.scores, found.length + ~found.finished, NOT_A_NUMBER)
    taken = np.arange(len(found.scores))[:, None] < found.length
    blocked = np.where(taken, found.scores, 0.0).min(0, initial=0.0) == -np.inf
    made = make_hypotheses(found, sources, options.ranking)
    return [[BLOCKED if none else hypothesis] for hypothesis, none in zip(made, blocked.tolist(), strict=True)]


def stream(
    scorer: Scorer, sources: Sources, options: SearchOptions, columns: ColumnChooser | None = None
) -> Generator[tuple[int, ...], None, Hypothesis]:
    """Greedy search of one sentence: the symbols so far after every step and, returned, what `greedy` finds."""
    search = BeamSearch(scorer, sources, replace(options, beam=1, n_best=1), columns)
    ids: tuple[int, ...] = ()
    for step in search.steps():
        token, allowed = int(step.token[0, 0]), float(step.worth[0, 0]) > -np.inf
        if allowed and token != EOS and len(ids) < search.most[0]:
            ids = (*ids, token)
            yield ids
    return search.found()[0][0]
