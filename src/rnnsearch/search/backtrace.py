"""The beam's books: which hypotheses have ended and which sentences go on, kept on the host from a few
numbers a step, and the tracing back of the winners through the steps that made them."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import SUM_LOG_PROB
from rnnsearch.search.results import NOT_A_NUMBER, Scored, gather_attention, make_hypotheses
from rnnsearch.search.scorer import Sources
from rnnsearch.utils.tensors import map_tree

# What a search keeps of its steps, side by side in few blocks.
#
# A step takes a lot and gives it back, but for a few small tensors that stay until the end. Between those glibc before
# 2.38 does not use the freed room again (it is aligned), so that every step would take new memory: three sentences of 800
# words took 9 to 15 GB with a beam of 5, and 0.4 with blocks.

Step = TypeVar("Step")

BLOCK = 1 << 24
"""Bytes. Where smaller ones have been freed, glibc gives the heap's end back to the system step by step, which makes a
search slower by a twentieth (mallopt(3): M_MMAP_THRESHOLD follows what was freed)."""
ALIGNED = 64


class KeptSteps:
    """Copies of tensors on the processor; elsewhere they stay as they are."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._begin = 0

    def keep(self, step: Step) -> Step:
        """The same tree, its tensors in the blocks: to be kept in its place."""
        return map_tree(self._copy, step)

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        size = tensor.numel() * tensor.element_size()
        if self._begin + size > len(self._block):
            self._block, self._begin = torch.empty(max(BLOCK, size), dtype=torch.uint8), 0
        room = self._block[self._begin : self._begin + size]
        self._begin += size + -size % ALIGNED
        return room.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class BeamStep(NamedTuple):
    """What one step of the beam did to the A sentences then in the batch: the M continuations looked at, in the order
    of choice, and the K of them that live on. Tensors stay on the device."""

    sentences: Array
    """[A], their numbers in the call."""
    parent: Tensor
    """[A, M], the live hypothesis that each continuation comes from."""
    token: Tensor
    score: Tensor
    """[A, M], of the token alone."""
    worth: Tensor
    """[A, M], of the whole hypothesis: its log-probability, or what a `selection.Judge` compares it by."""
    ends: Tensor
    """[A, M], whether the token is EOS."""
    keep: Tensor
    """[A, K], which of the M became the live hypotheses."""
    alive: Tensor
    """[A, K], their worth."""
    known: Tensor | None
    """[A, K], what the Judge has said of them; None without one."""
    attention: dict[str, Tensor]
    """Name -> [A * K', J], of the K' live hypotheses before this step."""
    penalty: Tensor | None
    """[A, M], what coverage adds to the score of a hypothesis that ends with a continuation; None for nothing."""


class Ends(NamedTuple):
    """Hypotheses that may be returned, one entry each."""

    sentence: Array
    step: Array
    """Index of the step that made its last symbol."""
    place: Array
    """Which of that step's M continuations it is."""
    worth: Array
    finished: Array
    penalty: Array
    """What coverage adds to its score."""


class Finals:
    """Which hypotheses have finished, and which sentences go on."""

    def __init__(
        self, most: Array, options: SearchOptions, normalised: bool, judged: bool = False, to_top: bool = False
    ) -> None:
        """`judged`: whether hypotheses are compared by a worth that only falls, not by the options' ranking; `to_top`:
        whether a sentence stops as `stop = "top"` says."""
        self._options = options
        self._most = most
        self._judged = judged
        self._to_top = to_top
        self._ranking = SUM_LOG_PROB if judged else options.ranking
        # A sentence stops at its first ended hypothesis in a beam of one, and nowhere early without a bound.
        self._bounded = (normalised or judged) and options.beam > 1 and not to_top
        self._best = np.full((len(most), options.n_best), -np.inf)
        self._count = np.zeros(len(most), dtype=np.int64)
        self._going = np.ones(len(most), dtype=bool)
        self._steps = 0
        self._last: BeamStep | None = None
        self._ends: list[Ends] = []

    def add(self, made: BeamStep) -> Array:
        """Take in the continuations of a step; returns which of its sentences go on."""
        sentences = made.sentences
        parts = [made.worth, made.ends.to(made.worth), *([] if made.penalty is None else [made.penalty])]
        fetched = torch.stack(parts).cpu().numpy()
        total, ended = fetched[0], fetched[1] > 0
        cost = np.zeros_like(total) if made.penalty is None else fetched[2]
        going = self._going[sentences]
        self._steps += 1
        if not np.isfinite(total).all():
            for row in np.flatnonzero(np.isnan(total).any(1) & going)[:1].tolist():
                raise SentenceError(int(sentences[row]), NOT_A_NUMBER, self._steps)
        first = slice(self._options.beam)
        long = self._steps > self._most[sentences] - self._to_top
        ending = ended[:, first] | (long[:, None] & self._to_top)
        done = ending & (total[:, first] > -np.inf) & going[:, None]
        if done.any():
            self._finish(sentences, total[:, first], done, cost[:, first], ended[:, first])
        top = np.where(ended, -np.inf, total).max(1)
        count = self._count[sentences]
        dead = top == -np.inf
        stops = long | dead
        if self._to_top:
            stops |= ended[:, 0] & (count >= self._options.n_best)
        elif not self._judged:
            stops |= count >= self._options.beam
        if self._bounded:
            # A live hypothesis's score is highest under the norm of its greatest length, EOS counted.
            stops |= self._ranking.score(top, self._most[sentences] + 1.0) <= self._best[sentences, 0]
        cut = going & long & (not self._to_top) & ((count < self._options.n_best) | self._judged)
        if cut.any():
            self._cut(made, cut, done)
        self._last = made
        self._going[sentences[stops]] = False
        still: Array = going & ~stops
        return still

    def _finish(self, sentences: Array, total: Array, done: Array, cost: Array, ended: Array) -> None:
        """Record the continuations that are `done` [A, beam], which `ended` says of whether by EOS."""
        row, place = np.nonzero(done)
        step = np.full(len(row), self._steps - 1)
        found = Ends(sentences[row], step, place, total[row, place], ended[row, place], cost[row, place])
        self._ends.append(found)
        self._count[sentences] += done.sum(1)
        if not self._bounded:
            return
        score = self._ranking.score(np.where(done, total, -np.inf), self._steps, cost)
        both = np.concatenate((self._best[sentences], score), axis=1)
        self._best[sentences] = np.sort(both, axis=1)[:, -self._options.n_best :]

    def _cut(self, made: BeamStep, rows: Array, done: Array) -> None:
        """Record the live hypotheses of `rows` [A] as they were at their maximal length, a step ago: those that
        are not `done` [A, beam] after it."""
        last = self._last
        assert last is not None
        parts = [last.keep, last.alive, *([] if last.penalty is None else [last.penalty])]
        keep, alive, *penalty = (part.cpu().numpy()[np.isin(last.sentences, made.sentences[rows])] for part in parts)
        row, place = np.nonzero(done[rows])
        alive[row, made.parent.cpu().numpy()[rows][row, place]] = -np.inf
        row, slot = np.nonzero(alive > -np.inf)
        place = keep[row, slot]
        cost = penalty[0][row, place] if penalty else np.zeros(len(row))
        step, finished = np.full(len(row), self._steps - 2), np.zeros(len(row), dtype=bool)
        self._ends.append(Ends(made.sentences[rows][row], step, place, alive[row, slot], finished, cost))

    def winners(self) -> Ends:
        """The hypotheses to return by sentence, finished before unfinished, each kind by falling score; judged ones all
        together by falling worth, and those of `stop = "top"` by falling score. None of a sentence whose live
        hypotheses had no allowed symbol left before any had finished."""
        if not self._ends:
            nothing = np.zeros(0, dtype=np.int64)
            return Ends(nothing, nothing, nothing, np.zeros(0), np.zeros(0, dtype=bool), np.zeros(0))
        every = Ends(*(np.concatenate(part) for part in zip(*self._ends, strict=True)))
        sentence, last = every.sentence, ~every.finished & (not (self._judged or self._to_top))
        score = self._ranking.score(every.worth, every.step + 1, every.penalty)
        order = np.lexsort((-score, last, sentence))
        first = np.searchsorted(sentence[order], sentence[order])
        order = order[np.arange(len(order)) - first < self._options.n_best]
        return Ends(*(part[order] for part in every))


def hypotheses(
    history: list[BeamStep], finals: Finals, sources: Sources, options: SearchOptions
) -> list[list[Hypothesis]]:
    """The winners of each sentence, traced back; `BLOCKED` alone where there are none."""
    ends = finals.winners()
    tokens, scores, rows = _trace(history, ends)
    attention = gather_attention([taken.attention for taken in history], rows)
    scored = Scored(ends.sentence, tokens, scores, ends.step + 1, ends.finished, attention)
    made = make_hypotheses(scored, sources, options.ranking)
    by_sentence: list[list[Hypothesis]] = [[] for _ in history[0].sentences]
    for sentence, hypothesis in zip(ends.sentence.tolist(), made, strict=True):
        by_sentence[sentence].append(hypothesis)
    return [own or [BLOCKED] for own in by_sentence]


def _to_host(tensors: Sequence[Tensor]) -> list[Array]:
    """The tensors as arrays, fetched from the device in one transfer."""
    if not tensors:
        return []
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
    cuts = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    return [part.reshape(tensor.shape) for part, tensor in zip(np.split(flat, cuts), tensors, strict=True)]


def _trace(history: list[BeamStep], ends: Ends) -> tuple[Array, Array, Array]:
    """Tokens, scores and attention's rows [T, R] of the R hypotheses `ends`, all walked back together."""
    shape = (len(history), len(ends.sentence))
    tokens, rows, scores = np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape, np.float32)
    place = ends.place.copy()
    parents, kept = _to_host([taken.parent for taken in history]), _to_host([taken.keep for taken in history])
    all_tokens = _to_host([taken.token for taken in history])
    all_scores = _to_host([taken.score for taken in history])
    for t in range(len(history) - 1, -1, -1):
        r = np.flatnonzero(ends.step >= t)
        row = np.searchsorted(history[t].sentences, ends.sentence[r])
        earlier = ends.step[r] > t
        # Until now `place` of a hypothesis that goes on was its slot among the live ones after this step.
        at = np.where(earlier, kept[t][row, np.where(earlier, place[r], 0)], place[r])
        tokens[t, r] = all_tokens[t][row, at]
        scores[t, r] = all_scores[t][row, at]
        place[r] = parents[t][row, at]
        width = 1 if t == 0 else kept[t - 1].shape[1]
        rows[t, r] = row * width + place[r]
    return tokens, scores, rows
