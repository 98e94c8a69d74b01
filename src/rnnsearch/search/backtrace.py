"""Bookkeeping of a beam search: stored steps, finished hypotheses, and tracing hypotheses back through the steps.

`BeamSearch` (`beam.py`) stores a `BeamStep` per step. `BeamProgress` decides on the host, from a few values per step,
which hypotheses have finished and which sentences go on. `trace_hypotheses` follows the best ones back through the
stored steps at the end.

`forced.py` uses `StepStorage`, too. `BeamProgress` decides when a sentence stops, like `ops/native/beam_search.h`.

Axes: A sentences still in the batch, B sentences of the call, K live hypotheses per sentence (K' before the step), M
continuations considered, R hypotheses to return, T steps, J source positions.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import SUM_LOG_PROB
from rnnsearch.search.results import NAN_MESSAGE, HypothesisArrays, gather_attention, make_hypotheses
from rnnsearch.search.scorer import Sources
from rnnsearch.utils.tensors import map_tree

Tree = TypeVar("Tree")

BLOCK_BYTES = 1 << 24
"""Size of a storage block. If smaller blocks are freed, glibc returns the end of the heap to the system at every step,
which slows a search down by 5% (mallopt(3): M_MMAP_THRESHOLD adapts to what was freed)."""
ALIGNMENT_BYTES = 64
"""Alignment of the start of each stored tensor."""


class StepStorage:
    """Storage of small CPU tensors of all steps in a few large blocks.

    A step allocates and frees large tensors, except for small ones that live until the end of the search. glibc before
    2.38 does not reuse the (aligned) memory between these, so that every step would take new memory: three sentences
    of 800 words took 9 to 15 GB with a beam of 5, and take 0.4 GB with blocks.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def store(self, tree: Tree) -> Tree:
        """Return a copy of a tree of tensors in the blocks; tensors on other devices are not copied."""
        return map_tree(self._copy, tree)

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        size = tensor.numel() * tensor.element_size()
        if self._used_bytes + size > len(self._block):
            self._block = torch.empty(max(BLOCK_BYTES, size), dtype=torch.uint8)
            self._used_bytes = 0
        memory = self._block[self._used_bytes : self._used_bytes + size]
        self._used_bytes += size + -size % ALIGNMENT_BYTES  # the next tensor starts aligned
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor)


class BeamStep(NamedTuple):
    """One step of the beam for the A sentences then in the batch.

    M continuations are considered per sentence, best first, and K of them become the live hypotheses. Tensors stay on
    the device.
    """

    sentences: Array
    """[A], indices of the sentences in the call."""
    parent: Tensor
    """[A, M], live hypothesis that each continuation extends."""
    token: Tensor
    """[A, M], token of each continuation."""
    token_score: Tensor
    """[A, M], log-probability of the token."""
    total: Tensor
    """[A, M], log-probability of the whole hypothesis, or its score by a `topk.HypothesisScorer`."""
    is_eos: Tensor
    """[A, M], True if the token is EOS."""
    live_index: Tensor
    """[A, K], index of each live hypothesis among the M continuations."""
    live_total: Tensor
    """[A, K], total of each live hypothesis; -inf in an empty slot."""
    carry: Tensor | None
    """[A, K], values carried for a `HypothesisScorer`; None without one."""
    attention: dict[str, Tensor]
    """Source name -> [A * K', J], weights of the K' live hypotheses before this step."""
    penalty: Tensor | None
    """[A, M], coverage term of a hypothesis that ends with the continuation; None without coverage."""


class EndedHypotheses(NamedTuple):
    """Hypotheses that may be returned, one entry [R] per hypothesis."""

    sentence: Array
    """Index of its sentence."""
    step: Array
    """Index of the step with the hypothesis's last token."""
    continuation: Array
    """Index of the last token among the M continuations of this step."""
    total: Array
    """Log-probability of the hypothesis, or its total with a `HypothesisScorer`."""
    finished: Array
    """True if it ended with EOS."""
    penalty: Array
    """Coverage term of its score."""


class BeamProgress:
    """Finished hypotheses of a beam search, and the sentences that are still active."""

    def __init__(
        self,
        max_length: Array,
        options: SearchOptions,
        normalised: bool,
        custom_totals: bool = False,
        stop_at_top: bool = False,
    ) -> None:
        """Start with all sentences active.

        Args:
            max_length: [B], maximum length of each translation.
            options: Options of the search.
            normalised: True if a hypothesis's total never increases.
            custom_totals: True if totals come from a `HypothesisScorer`; they never increase, and rank hypotheses.
            stop_at_top: True if sentences stop by the criterion `stop = "top"`.
        """
        self._options = options
        self._max_length = max_length
        self._custom_totals = custom_totals
        self._stop_at_top = stop_at_top
        self._ranking = SUM_LOG_PROB if custom_totals else options.ranking
        # A beam of 1 stops at its first finished hypothesis, so it needs no bound on the scores of live ones.
        self._uses_bound = (normalised or custom_totals) and options.beam > 1 and not stop_at_top
        self._best_scores = np.full((len(max_length), options.n_best), -np.inf)  # ascending
        self._num_finished = np.zeros(len(max_length), dtype=np.int64)
        self._active = np.ones(len(max_length), dtype=bool)
        self._num_steps = 0
        self._last_step: BeamStep | None = None
        self._ended: list[EndedHypotheses] = []

    def add(self, step: BeamStep) -> Array:
        """Record a step and return a mask [A] of its sentences that are still active."""
        sentences = step.sentences
        total, is_eos, penalty = _scores_on_host(step)  # [A, M]
        active = self._active[sentences]
        self._num_steps += 1
        # -inf is legal (a token that is not allowed); only NaN in an active sentence is an error.
        if not np.isfinite(total).all():
            for row in np.flatnonzero(np.isnan(total).any(1) & active)[:1].tolist():
                raise SentenceError(int(sentences[row]), NAN_MESSAGE, self._num_steps)

        # Only the `beam` best continuations can finish.
        best = slice(self._options.beam)
        # With `stop = "top"` hypotheses are cut at their maximum length; otherwise one more step may add EOS.
        at_limit = self._num_steps > self._max_length[sentences] - int(self._stop_at_top)  # [A]
        ends = is_eos[:, best] | (at_limit[:, None] & self._stop_at_top)
        finishes = ends & (total[:, best] > -np.inf) & active[:, None]  # [A, beam]
        if finishes.any():
            self._record_finished(sentences, total[:, best], finishes, penalty[:, best], is_eos[:, best])

        best_live = np.where(is_eos, -np.inf, total).max(1)  # [A]
        num_finished = self._num_finished[sentences]
        stops = at_limit | (best_live == -np.inf)
        if self._stop_at_top:
            stops |= is_eos[:, 0] & (num_finished >= self._options.n_best)
        elif not self._custom_totals:
            stops |= num_finished >= self._options.beam
        if self._uses_bound:
            # The score of a live hypothesis is highest if it reaches its maximum length (with EOS) at no further cost.
            bound = self._ranking.score(best_live, self._max_length[sentences] + 1.0)
            stops |= bound <= self._best_scores[sentences, 0]
        cut = active & at_limit & (not self._stop_at_top)
        # Cut hypotheses only fill up the n best, but with custom totals they compete with finished ones.
        cut &= (num_finished < self._options.n_best) | self._custom_totals
        if cut.any():
            self._record_cut(step, cut, finishes)
        # The step before a cut, for `_record_cut`.
        self._last_step = step
        self._active[sentences[stops]] = False
        still_active: Array = active & ~stops
        return still_active

    def _record_finished(self, sentences: Array, total: Array, finishes: Array, penalty: Array, is_eos: Array) -> None:
        """Record the continuations of the beam where `finishes` [A, beam] is True."""
        row, index = np.nonzero(finishes)
        step = np.full(len(row), self._num_steps - 1)
        self._ended.append(
            EndedHypotheses(sentences[row], step, index, total[row, index], is_eos[row, index], penalty[row, index])
        )
        self._num_finished[sentences] += finishes.sum(1)
        if self._uses_bound:
            score = self._ranking.score(np.where(finishes, total, -np.inf), self._num_steps, penalty)
            # The n best scores so far, ascending: index 0 is the score that a live hypothesis must still beat.
            scores = np.concatenate((self._best_scores[sentences], score), axis=1)
            self._best_scores[sentences] = np.sort(scores, axis=1)[:, -self._options.n_best :]

    def _record_cut(self, step: BeamStep, cut: Array, finishes: Array) -> None:
        """Record the live hypotheses of the sentences `cut` [A] as they were at their maximum length, one step ago.

        Those that this step finishes ([A, beam]) are left out.
        """
        last = self._last_step
        assert last is not None
        rows = np.isin(last.sentences, step.sentences[cut])  # this step may have fewer sentences than the last one
        live_index = last.live_index.cpu().numpy()[rows]
        live_total = last.live_total.cpu().numpy()[rows]  # a copy, because it is modified below
        # A hypothesis that this step finishes is not cut in addition.
        row, index = np.nonzero(finishes[cut])
        live_total[row, step.parent.cpu().numpy()[cut][row, index]] = -np.inf
        row, slot = np.nonzero(live_total > -np.inf)
        index = live_index[row, slot]
        penalty = np.zeros(len(row))
        if last.penalty is not None:
            penalty = last.penalty.cpu().numpy()[rows][row, index]
        self._ended.append(
            EndedHypotheses(
                sentence=step.sentences[cut][row],
                step=np.full(len(row), self._num_steps - 2),
                continuation=index,
                total=live_total[row, slot],
                finished=np.zeros(len(row), dtype=bool),
                penalty=penalty,
            )
        )

    def best(self) -> EndedHypotheses:
        """Return the n best hypotheses of each sentence, ordered by sentence.

        Finished hypotheses come before unfinished ones, and each group is in descending order of the score; with
        custom totals or `stop = "top"` all are in one descending order. A sentence has none if its live hypotheses had
        no allowed continuation before any had finished.
        """
        if not self._ended:
            empty = np.zeros(0, dtype=np.int64)
            return EndedHypotheses(empty, empty, empty, np.zeros(0), np.zeros(0, dtype=bool), np.zeros(0))
        ended = EndedHypotheses(*(np.concatenate(arrays) for arrays in zip(*self._ended, strict=True)))
        unfinished_last = ~ended.finished & (not (self._custom_totals or self._stop_at_top))
        score = self._ranking.score(ended.total, ended.step + 1, ended.penalty)
        # The last key of lexsort is the first criterion: by sentence, then finished first, then by score.
        order = np.lexsort((-score, unfinished_last, ended.sentence))
        # Index of the sentence's best hypothesis; ranks within the sentence are counted from it.
        first = np.searchsorted(ended.sentence[order], ended.sentence[order])
        order = order[np.arange(len(order)) - first < self._options.n_best]
        return EndedHypotheses(*(array[order] for array in ended))


def trace_hypotheses(
    history: list[BeamStep], progress: BeamProgress, sources: Sources, options: SearchOptions
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each sentence; [BLOCKED] if there is none."""
    ended = progress.best()
    tokens, scores, rows = _trace(history, ended)
    attention = gather_attention([step.attention for step in history], rows)
    arrays = HypothesisArrays(ended.sentence, tokens, scores, ended.step + 1, ended.finished, attention)
    by_sentence: list[list[Hypothesis]] = [[] for _ in history[0].sentences]
    for sentence, hypothesis in zip(
        ended.sentence.tolist(), make_hypotheses(arrays, sources, options.ranking), strict=True
    ):
        by_sentence[sentence].append(hypothesis)
    return [hypotheses or [BLOCKED] for hypotheses in by_sentence]


def _trace(history: list[BeamStep], ended: EndedHypotheses) -> tuple[Array, Array, Array]:
    """Return tokens, scores and attention rows [T, R] of R hypotheses, all traced back together."""
    shape = (len(history), len(ended.sentence))
    tokens = np.zeros(shape, np.int64)
    scores = np.zeros(shape, np.float32)
    rows = np.full(shape, -1)
    index = ended.continuation.copy()
    parents = _to_host([step.parent for step in history])
    live_indices = _to_host([step.live_index for step in history])
    step_tokens = _to_host([step.token for step in history])
    step_scores = _to_host([step.token_score for step in history])
    for t in range(len(history) - 1, -1, -1):
        r = np.flatnonzero(ended.step >= t)  # hypotheses with a token at step t
        # Sentences are ascending in every step, because they are only ever removed.
        row = np.searchsorted(history[t].sentences, ended.sentence[r])
        continues = ended.step[r] > t
        # `index` is a slot among the live hypotheses for those that continue, else already a continuation.
        live = live_indices[t][row, np.where(continues, index[r], 0)]
        continuation = np.where(continues, live, index[r])
        tokens[t, r] = step_tokens[t][row, continuation]
        scores[t, r] = step_scores[t][row, continuation]
        index[r] = parents[t][row, continuation]
        # Attention [A * K', J] is that of the hypotheses before the step: one per sentence at first, then those of
        # the last step.
        width = 1 if t == 0 else live_indices[t - 1].shape[1]
        rows[t, r] = row * width + index[r]
    return tokens, scores, rows


def _scores_on_host(step: BeamStep) -> tuple[Array, Array, Array]:
    """Return total, is_eos and penalty [A, M] of a step as arrays, in one transfer from a device."""
    if step.total.device.type == "cpu":
        total = step.total.numpy()
        return total, step.is_eos.numpy(), np.zeros_like(total) if step.penalty is None else step.penalty.numpy()
    penalty = torch.zeros_like(step.total) if step.penalty is None else step.penalty
    fetched = torch.stack([step.total, step.is_eos.to(step.total), penalty]).cpu().numpy()
    return fetched[0], fetched[1] > 0, fetched[2]


def _to_host(tensors: Sequence[Tensor]) -> list[Array]:
    """Return the tensors as arrays, copied from the device in one transfer."""
    if not tensors:
        return []
    flat = torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()
    boundaries = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    pieces = np.split(flat, boundaries)
    return [piece.reshape(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]
