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

A step takes a fixed number of tensor operations and one small transfer to the host; hypotheses are traced
back, and their attention gathered, once the winners are known.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.search.constraints import Constraint, Place, SearchOptions, constraints, limits, spelled
from rnnsearch.search.coverage import Coverage
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.scorer import Columns, Scorer, Sources, columns_of
from rnnsearch.search.selection import Choose, best
from rnnsearch.search.trace import Finals, Taken, hypotheses
from rnnsearch.tensors import select
from rnnsearch.text.vocabulary import BOS, EOS


class _Setup(NamedTuple):
    """What stays the same through a search."""

    scorer: Scorer
    filters: list[Constraint]
    beam: int
    choose: Choose
    ranking: Ranking
    names: list[str]
    """Of the sources."""


class _Live(NamedTuple):
    """The sentences still in the batch, A of them, and their K live hypotheses each."""

    memory: Any
    """A rows."""
    state: Any
    """A * K rows."""
    tokens: Tensor
    """[A * K], the last symbol of each hypothesis."""
    log_probs: Tensor
    """[A, K], best first; -inf in an empty place."""
    sentences: Tensor
    """[A], their numbers in the call."""
    coverage: Coverage | None = None
    """What each hypothesis attended to, where the ranking asks for it."""


class _Candidates(NamedTuple):
    """The M continuations looked at for each of A sentences, in the order of choice."""

    parent: Tensor
    """[A, M], which of the K live hypotheses it continues."""
    token: Tensor
    score: Tensor
    """[A, M], of the token alone."""
    log_prob: Tensor
    """[A, M], of the whole hypothesis."""
    ends: Tensor
    """[A, M], whether the token is EOS."""
    state: Any
    """A * K rows, of the parents."""
    attention: dict[str, Tensor]
    coverage: Coverage | None
    """Of the parents, this step's attention among it."""
    penalty: Tensor | None
    """[A, M], what coverage adds to the score of a hypothesis that ends here."""


@torch.inference_mode()
def beam(scorer: Scorer, sources: Sources, options: SearchOptions, choose: Choose = best) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, distinct; finished ones first, each kind by falling score.

    `choose` picks the continuations looked at, by default those of highest log-probability.
    Errors: SentenceError where a score is NaN, or where nothing has finished and no continuation is allowed.
    """
    most = limits(sources, options)
    scorer = spelled(scorer, options)
    setup = _Setup(scorer, constraints(options, scorer.device), options.beam, choose, options.ranking, list(sources))
    finals = Finals(most, options, scorer.normalised)
    history: list[Taken] = []
    live = _start(scorer, sources, len(most))
    if setup.ranking.covers:
        live = live._replace(coverage=Coverage.start(sources))
    sentences = np.arange(len(most))
    columns: Columns | None = None
    for position in range(1, int(most.max()) + 2):
        found, columns = _extend(setup, live, position, columns)
        # The first that do not end, in order; where they are too few, ended ones with log-probability -inf.
        keep = found.ends.byte().sort(dim=1, stable=True).indices[:, : options.beam]
        alive = found.log_prob.masked_fill(found.ends, -torch.inf).gather(1, keep)
        parts = (found.parent, found.token, found.score, keep, alive, found.attention, found.penalty)
        history.append(Taken(sentences, *parts))
        going = finals.add(sentences, found.log_prob, found.ends, found.penalty)
        if not going.any():
            break
        stay = None
        if np.count_nonzero(~going) > 0 and np.mean(~going) >= options.compact_at:
            rows = np.flatnonzero(going)
            sentences = sentences[rows]
            stay = torch.from_numpy(rows).to(scorer.device)
        live = _advance(live, found, keep, alive, stay)
    return hypotheses(history, finals, sources, options)


def _start(scorer: Scorer, sources: Sources, count: int) -> _Live:
    """One empty hypothesis a sentence: the first step has nothing to tell several apart by."""
    memory, state = scorer.start(sources)
    return _Live(
        memory=memory,
        state=state,
        tokens=torch.full((count,), BOS, device=scorer.device),
        log_probs=torch.zeros(count, 1, device=scorer.device),
        sentences=torch.arange(count, device=scorer.device),
    )


def _extend(setup: _Setup, live: _Live, position: int, last: Columns | None) -> tuple[_Candidates, Columns]:
    """Score all continuations and choose 2 * beam, so that `beam` are left when as many end."""
    step = setup.scorer.step(live.memory, live.state, live.tokens)
    columns = columns_of(step, last)
    scores = step.scores.float()
    sentences, width = live.log_probs.shape
    place = Place(position, live.sentences, width, columns)
    for constraint in setup.filters:
        constraint(scores, place)
    # A beam of one stops when its hypothesis ends, so it looks at one.
    count = 2 * setup.beam if setup.beam > 1 else 1
    before = live.log_probs if step.norm is None else live.log_probs - step.norm.view(sentences, width)
    index = setup.choose(scores.reshape(sentences, width, -1), before, count)
    parent = index // columns.count
    token = columns.tokens(index % columns.count)
    score = scores.reshape(sentences, -1).gather(1, index)
    if step.norm is not None:
        score = score - step.norm.view(sentences, width).gather(1, parent)
    log_prob = live.log_probs.gather(1, parent) + score
    coverage, penalty = live.coverage, None
    if coverage is not None:
        coverage = coverage.attended(step.attention, setup.names)
        penalty = coverage.penalty(setup.ranking).gather(1, parent)
    parts = (step.state, step.attention, coverage, penalty)
    return _Candidates(parent, token, score, log_prob, token == EOS, *parts), columns


def _advance(live: _Live, found: _Candidates, keep: Tensor, alive: Tensor, stay: Tensor | None) -> _Live:
    """The beam after a step: the continuations `keep` [A, K] with log-probabilities `alive`; where `stay` is
    given, of those sentences alone."""
    token = found.token.gather(1, keep)
    parent = found.parent.gather(1, keep)
    sentences, width = live.log_probs.shape
    row = parent + width * torch.arange(sentences, device=parent.device)[:, None]
    memory, numbers = live.memory, live.sentences
    words, sums = found.coverage or ((), ())
    if stay is not None:
        row, token, alive, memory, numbers, words = select((row, token, alive, memory, numbers, words), stay)
    state, sums = select((found.state, sums), row.flatten())
    coverage = None if found.coverage is None else Coverage(words, sums)
    return _Live(memory, state, token.flatten(), alive, numbers, coverage)
