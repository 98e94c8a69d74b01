"""Beam search by the engine: ids in, hypotheses out, as `search.decode.decode_all` finds them. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.recurrent import Engine
from rnnsearch.engine.rnnsearch import CChoice, CGreedy
from rnnsearch.engine.structs import Array, Laid
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.batching import MOST_ROWS
from rnnsearch.search.candidate_lists import CandidateLists
from rnnsearch.search.native_beam import Asked
from rnnsearch.search.ranking import ENGINE_NORMS, MAX_LENGTH_PENALTY, Ranking
from rnnsearch.text.prefixes import Prefix
from rnnsearch.text.vocabulary import BOS, EOS, PAD

MOST_NUMBERS = 1 << 28
"""Of weights of attention in memory at a time, which a line's symbols, its steps and the beam multiply to: 1 GiB."""
NAN = "the scores of a sentence must be numbers; got NaN"


@dataclass(frozen=True)
class Search:
    """How to search. Lengths count target symbols without EOS; see `search.options.SearchOptions`."""

    beam: int = 5
    n_best: int = 1
    length_penalty: float = 1.0
    length_norm: str = "power"
    coverage_penalty: float = 0.0
    max_ratio: float = 2.0
    max_extra: int = 20
    banned: frozenset[int] = frozenset()

    def checked(self, path: Path) -> Search:
        """Itself. Errors: ModelError where a file says what no search can be."""
        numbers = (self.length_penalty, self.coverage_penalty, self.max_ratio, self.max_extra)
        fine = all(isinstance(n, int | float) and 0 <= n < 1e6 for n in numbers) and type(self.max_extra) is int
        fine = fine and self.length_penalty <= MAX_LENGTH_PENALTY
        fine = fine and str(self.length_norm) in ENGINE_NORMS and self.banned == frozenset()
        if not fine or not isinstance(self.beam, int) or not 1 <= self.beam <= MOST_ROWS:
            raise ModelError(f"{path}: its search settings are damaged: export the model again")
        return self


NO_PREFIX = Prefix("", (), (), {})


def beam(
    model: Engine,
    sentences: Sequence[Sequence[int]],
    search: Search,
    begins: Sequence[Prefix] | None = None,
    sizes: Array | None = None,
    lists: CandidateLists | None = None,
) -> NBest:
    """One batch of sentences (ids without EOS, none of them empty). `sizes`: [V] int64, the bytes of each symbol, where
    something is to be spelled; `lists`: what symbols translations are made of, all where they begin with something.

    Errors: RnnsearchError where scores are no numbers, and where a search would take more memory than any may.
    """
    begins = begins or [NO_PREFIX] * len(sentences)
    B, K, n = len(sentences), search.beam, search.n_best
    lengths = np.array([len(ids) + 1 for ids in sentences])
    J = int(lengths.max())
    padded = np.array([[*ids, EOS, *[PAD] * (J - 1 - len(ids))] for ids in sentences], np.int64)
    most = (np.floor(search.max_ratio * (lengths - 1)) + search.max_extra).astype(np.int64)
    most = np.maximum(most, [1 + len(begin.ids) + len(begin.rest) for begin in begins])
    T = int(most.max()) + 1
    if B * K * J * T > MOST_NUMBERS:
        raise RnnsearchError(
            f"a line of {J - 1:,} symbols whose translation may have {T - 1:,} is too much for a beam of {K}"
        )
    output, ids = model.output, None
    if lists is not None and sizes is None and not any(begin.ids for begin in begins):
        ids = lists(padded)
        output = model.rows(ids)
    columns = output.matrix.outputs
    never = sorted(search.banned | {PAD, BOS})
    banned = np.flatnonzero(np.isin(np.arange(columns) if ids is None else ids, never))
    choice = CChoice(
        None if ids is None else ids.ctypes.data, banned.ctypes.data, len(banned), BOS, EOS, most.ctypes.data
    )
    memory: Any = model.encode(model.embed(padded), lengths)
    if K == 1 and sizes is None and not any(begin.ids for begin in begins):
        return _greedy(model, memory, output, choice, (B, T, J if model.attends else 0))
    covered = np.arange(J) < (lengths - 1)[:, None]
    forced = _forced(begins, columns)
    ranking = Ranking(search.length_penalty, search.length_norm, search.coverage_penalty)
    asked = Asked(K, n, ranking, covered=covered, forced=forced, rests=[begin.rest for begin in begins], sizes=sizes)
    found = NBest.room(B, n, T, J if model.attends else 0)
    if not model.beam(memory, output, choice, asked.c, found.made):
        raise RnnsearchError(NAN)
    return found


def _greedy(model: Engine, memory: Any, output: Laid, choice: CChoice, sizes: tuple[int, int, int]) -> NBest:
    """The same with a beam of 1, faster; sizes: B, T and J of what is found."""
    B, T, _ = sizes
    tokens, scores = np.zeros((T, B), np.int64), np.zeros((T, B), np.float32)
    alphas, length = np.zeros(sizes, np.float32), np.zeros(B, np.int64)
    model.greedy(memory, output, choice, CGreedy(T, *(part.ctypes.data for part in (tokens, scores, alphas, length))))
    if np.isnan(scores).any():
        raise RnnsearchError(NAN)
    finished = tokens[length - 1, np.arange(B)] == EOS
    length -= ~finished  # what was cut has one more
    length[(scores == -np.inf).any(0)] = 0  # no symbol was allowed
    return NBest(*(part[:, None] for part in (tokens.T, scores.T, alphas, length, finished.astype(np.int64))))


def _forced(begins: Sequence[Prefix], columns: int) -> Array:
    """[B, P], -1 behind the last. Errors: RnnsearchError for a symbol that is not scored."""
    longest = max(len(begin.ids) for begin in begins)
    found = np.array([[*begin.ids, *[-1] * (longest - len(begin.ids))] for begin in begins], np.int64)
    if found.size and found.max() >= columns:
        raise RnnsearchError("a prefix must hold symbols that the model scores")
    return found.reshape(len(begins), longest)
