"""Greedy search: the best symbol at every step, in a loop of its own. `beam` with one hypothesis agrees."""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.search.constraints import NEVER, Place, SearchOptions, constraints, limits, spelled
from rnnsearch.search.hypothesis import (
    Hypothesis,
    Numbers,
    Scored,
    gather_attention,
    make_hypotheses,
    not_a_number,
    nothing_allowed,
    to_host,
)
from rnnsearch.search.scorer import Columns, Scorer, Sources, columns_of
from rnnsearch.tensors import select
from rnnsearch.text.vocabulary import BOS, EOS


class Whole(NamedTuple):
    """A whole greedy search of B sentences in T steps; what is past a sentence's end means nothing.

    tokens, scores: [T, B]. end: [B], steps taken. finished: [B], whether the last was EOS. attention: source name ->
    [B, T, J].
    """

    tokens: Numbers
    scores: Numbers
    end: Numbers
    finished: Numbers
    attention: dict[str, Numbers]


@runtime_checkable
class SearchesGreedily(Protocol):
    """A Scorer with a loop of its own, the twin of the one here."""

    def greedy(self, sources: Sources, most: Numbers, banned: Sequence[int]) -> Whole:
        """Each sentence's symbols until EOS, or one more than its `most` [B] where none came; never a banned one."""


class _Taken:
    """What was taken at each step for the sentences then in the batch. Tokens come to the host at once, for
    they say which sentences have ended; scores and attention stay on the device until the end."""

    def __init__(self, most: Numbers) -> None:
        self.most = most
        self.end = np.zeros(len(most), dtype=np.int64)
        """Step at which a sentence ended or was cut; 0 while it goes on."""
        self.finished = np.zeros(len(most), dtype=bool)
        self.sentences: list[Numbers] = []
        self.tokens: list[Numbers] = []
        self.scores: list[Tensor] = []
        self.attention: list[dict[str, Tensor]] = []

    def add(self, sentences: Numbers, tokens: Tensor, scores: Tensor, attention: dict[str, Tensor]) -> Numbers:
        """Record a step; returns which of its sentences are done."""
        self.sentences.append(sentences)
        self.tokens.append(tokens.cpu().numpy())
        self.scores.append(scores)
        self.attention.append(attention)
        step = len(self.tokens)
        ended = self.tokens[-1] == EOS
        open_ = self.end[sentences] == 0
        stops = open_ & (ended | (step > self.most[sentences]))
        self.end[sentences[stops]] = step
        self.finished[sentences[stops]] = ended[stops]
        done: Numbers = ~open_ | stops
        return done


@torch.inference_mode()
def greedy(scorer: Scorer, sources: Sources, options: SearchOptions) -> list[list[Hypothesis]]:
    """For each sentence a list of the one hypothesis that takes the best symbol at every step, the lowest
    column among equals. `beam` and `n_best` of the options have no part in it.

    Errors: SentenceError where a score taken is NaN, or where no symbol is allowed.
    """
    most = limits(sources, options)
    scorer = spelled(scorer, options)
    free = options.prefix is None and options.spelling is None and options.min_length == 0
    if isinstance(scorer, SearchesGreedily) and free:
        found = scorer.greedy(sources, most, sorted(options.banned | NEVER))
        return _checked(found, sources, options)
    taken = _Taken(most)
    for _ in _steps(scorer, sources, options, taken):
        pass
    return _hypotheses(taken, sources, options)


def stream(scorer: Scorer, sources: Sources, options: SearchOptions) -> Generator[tuple[int, ...], None, Hypothesis]:
    """Greedy search of one sentence: the symbols so far after every step and, returned, what `greedy` finds."""
    taken = _Taken(limits(sources, options))
    steps = _steps(spelled(scorer, options), sources, options, taken)
    ids: tuple[int, ...] = ()
    while True:
        with torch.inference_mode():  # not around the yield: what runs there is not ours
            if next(steps, 0) == 0:
                return _hypotheses(taken, sources, options)[0][0]
        token = int(taken.tokens[-1][0])
        if token != EOS and len(ids) < taken.most[0]:
            ids = (*ids, token)
            yield ids


def _steps(scorer: Scorer, sources: Sources, options: SearchOptions, taken: _Taken) -> Iterator[int]:
    """The search, its steps recorded in `taken` one by one; yields how many."""
    device = scorer.device
    filters = constraints(options, device)
    memory, state = scorer.start(sources)
    sentences = np.arange(len(taken.most))
    place_of = torch.from_numpy(sentences).to(device)
    tokens = torch.full((len(sentences),), BOS, device=device)
    columns: Columns | None = None
    for position in range(1, int(taken.most.max()) + 2):
        step = scorer.step(memory, state, tokens)
        columns = columns_of(step, columns)
        scores, state = step.scores.float(), step.state
        for constraint in filters:
            constraint(scores, Place(position, place_of, 1, columns))
        best, column = scores.max(1)
        if step.norm is not None:
            best = best - step.norm
        tokens = columns.tokens(column)
        done = taken.add(sentences, tokens, best, step.attention)
        yield position
        if done.all():
            break
        if done.any() and done.mean() >= options.compact_at:
            stay = np.flatnonzero(~done)
            sentences = sentences[stay]
            memory, state, tokens, place_of = select(
                (memory, state, tokens, place_of), torch.from_numpy(stay).to(device)
            )


def _hypotheses(taken: _Taken, sources: Sources, options: SearchOptions) -> list[list[Hypothesis]]:
    steps, count = len(taken.tokens), len(taken.end)
    rows = np.full((steps, count), -1)
    tokens = np.zeros((steps, count), dtype=np.int64)
    scores = np.zeros((steps, count), dtype=np.float32)
    fetched = to_host(taken.scores)
    length = taken.end - ~taken.finished
    for t, sentences in enumerate(taken.sentences):
        tokens[t, sentences] = taken.tokens[t]
        scores[t, sentences] = fetched[t]
        rows[t, sentences] = np.where(t < length[sentences], np.arange(len(sentences)), -1)
    whole = Whole(tokens, scores, taken.end, taken.finished, gather_attention(taken.attention, rows))
    return _checked(whole, sources, options)


def _checked(whole: Whole, sources: Sources, options: SearchOptions) -> list[list[Hypothesis]]:
    length = whole.end - ~whole.finished
    _check(whole.scores, whole.end, length)
    numbers = np.arange(len(length))
    scored = Scored(numbers, whole.tokens, whole.scores, length, whole.finished, whole.attention)
    return [[hypothesis] for hypothesis in make_hypotheses(scored, sources, options.ranking)]


def _check(scores: Numbers, end: Sequence[int] | Numbers, length: Numbers) -> None:
    """Raise for the first sentence whose scores [T, B] have NaN up to its end, or -inf up to its length."""
    step = np.arange(len(scores))[:, None]
    for sentence, t in np.argwhere((np.isnan(scores) & (step < end)).T)[:1].tolist():
        raise not_a_number(sentence, t + 1)
    for sentence, t in np.argwhere((np.isneginf(scores) & (step < length)).T)[:1].tolist():
        raise nothing_allowed(sentence, t + 1)
