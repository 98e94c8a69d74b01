"""The search of a `variants.Variant`: each sentence several times in one beam search, its copies encoded once."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rnnsearch.data.sides import Side
from rnnsearch.search.beam import beam
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.constraints import SearchOptions, batch_options, limits, search_columns
from rnnsearch.search.forced import forced
from rnnsearch.search.hypothesis import BLOCKED, Hypothesis, SentenceError
from rnnsearch.search.scorer import Scorer, Sources, disturbed
from rnnsearch.search.variants import Variant
from rnnsearch.tensors import select


def several(
    scorer: Scorer, sources: Sources, options: SearchOptions, variant: Variant, columns: ColumnChooser | None = None
) -> list[list[Hypothesis]]:
    """The n best hypotheses that a sentence's copies have found together; finished ones first, each kind by falling
    score; `BLOCKED` alone where no copy has found any. Errors: as in `beam`."""
    copies = variant.copies(options.beam)
    width, sentences = options.beam // copies, len(next(iter(sources.values())).ids)
    rows = torch.arange(sentences, device=scorer.device).repeat_interleave(copies)
    repeated = _rows(sources, rows)
    own = replace(batch_options(options, rows.tolist()), beam=width, n_best=width, variant=None)
    own = replace(own, compact_at=0.0)  # a copy that has ended has no say in what the others choose
    choose = variant.choose(sources, copies, limits(repeated, own))
    try:
        by = variant.scorer(_Copied(scorer, sources, rows), sources, copies)
        found = beam(by, repeated, own, columns, choose)
    except SentenceError as error:
        raise error.renumbered(error.sentence // copies) from None
    each = [list(chain.from_iterable(found[first : first + copies])) for first in range(0, len(found), copies)]
    each = [[h for h in hypotheses if not h.blocked] for hypotheses in each]
    if variant.distinct:
        each = [list({h.ids: h for h in hypotheses}.values()) for hypotheses in each]
    if variant.rescored:
        each = _rescored(scorer, sources, each, options, search_columns(scorer, repeated, own, columns).ids)
    best = [sorted(one, key=lambda h: (not h.finished, -h.score))[: options.n_best] for one in each]
    return [own or [BLOCKED] for own in best]


def _rows(sources: Sources, rows: Tensor) -> Sources:
    return {name: Side.of(side.ids[rows]) for name, side in sources.items()}


def _rescored(
    scorer: Scorer, sources: Sources, each: list[list[Hypothesis]], options: SearchOptions, columns: Tensor | None
) -> list[list[Hypothesis]]:
    """Each sentence's hypotheses as `scorer` scores them."""
    flat = list(chain.from_iterable(each))
    if not flat:
        return each
    rows = torch.tensor([n for n, own in enumerate(each) for _ in own], device=scorer.device)
    copied, ended = _Copied(scorer, sources, rows), [h.finished for h in flat]
    again = forced(copied, _rows(sources, rows), [h.ids for h in flat], options.ranking, ended, columns)
    made = iter(again)
    return [[next(made) for _ in own] for own in each]


class _Copied:
    """A Scorer of `rows`, numbers of the rows of `sources`, which are encoded once each."""

    def __init__(self, scorer: Scorer, sources: Sources, rows: Tensor) -> None:
        self._scorer, self._sources, self._rows = scorer, sources, rows
        self.vocabulary, self.normalised, self.device = scorer.vocabulary, scorer.normalised, scorer.device
        self.step = scorer.step

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[object, object]:
        found: tuple[object, object] = select(self._scorer.start(self._sources, columns), self._rows)
        return found

    def disturbed(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        return disturbed(self._scorer, state, by)
