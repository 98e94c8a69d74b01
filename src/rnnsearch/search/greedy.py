"""Greedy search: the best symbol at every step, which is a beam of one."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.search.beam import BeamSearch, beam
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.constraints import NEVER, SearchOptions, limits, search_columns
from rnnsearch.search.gathered import NOT_A_NUMBER, Scored, make_hypotheses, refuse
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, Numbers
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.text.vocabulary import EOS


@runtime_checkable
class SearchesGreedily(Protocol):
    """A Scorer with a loop of its own, the twin of a beam of one."""

    def greedy(self, sources: Sources, columns: Tensor | None, most: Numbers, banned: Sequence[int]) -> Scored:
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
    if not isinstance(scorer, SearchesGreedily) or not options.free or options.begins:
        return beam(scorer, sources, replace(options, beam=1, n_best=1), columns)
    ids = search_columns(scorer, sources, options, columns).ids
    found = scorer.greedy(sources, ids, limits(sources, options), sorted(options.banned | NEVER))
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
