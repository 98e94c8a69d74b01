"""Which symbols a batch's score columns stand for: chosen once a batch by the search, the same for every Scorer."""

from collections.abc import Callable

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import EOS

ColumnChooser = Callable[[Sources], Tensor | None]
"""The symbols [C] that a batch's translations are made of, distinct, EOS among them (a candidate list); None: all."""


class Columns:
    """Symbols and score columns, each found by the other. ids: [C], the columns' symbols; None: all of V, in order.

    Errors: RnnsearchError where EOS is not among them.
    """

    def __init__(self, ids: Tensor | None, vocabulary: int) -> None:
        self.ids = ids
        self.count = vocabulary if ids is None else len(ids)
        self._column_of: Tensor | None = None
        if ids is not None:
            self._column_of = ids.new_full((max(int(ids.max()), EOS) + 1,), -1)
            self._column_of[ids] = torch.arange(self.count, device=ids.device)
            if int(self._column_of[EOS]) < 0:
                raise RnnsearchError(f"a scorer's candidate symbols must include EOS (id {EOS}); got none")

    def tokens(self, columns: Tensor) -> Tensor:
        """The symbols of score columns, in any shape."""
        return columns if self.ids is None else self.ids[columns]

    def find(self, tokens: Tensor) -> Tensor:
        """The score columns of symbols, in any shape; -1 for a symbol without one (and for a negative id)."""
        table = self._column_of
        size = self.count if table is None else table.shape[0]
        known = (tokens >= 0) & (tokens < size)
        found = tokens if table is None else table[tokens.clamp(0, size - 1)]
        return found.where(known, -1)
