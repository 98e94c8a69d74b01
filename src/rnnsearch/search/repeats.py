"""Search that says nothing twice: no n symbols in a row stand in a hypothesis a second time (n-gram blocking)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.search.columns import Columns
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.tensors import each
from rnnsearch.text.vocabulary import EOS


class _Memory(NamedTuple):
    inner: Any
    begun: Tensor
    """[B], so many symbols at the beginning may repeat what they like."""
    free: Tensor
    """[B, F], symbols that may always come; padded by EOS, which may, too."""
    columns: Columns


class _State(NamedTuple):
    inner: Any
    symbols: Tensor
    """[N, t], those so far, BOS first."""


class RepeatScorer:
    """`scorer`, with -inf for a symbol that would make `size` symbols stand in a hypothesis again."""

    def __init__(self, scorer: Scorer, size: int, begun: Sequence[int], free: Sequence[Sequence[int]]) -> None:
        """`begun`: how many symbols each sentence's translation is forced to begin with, which are not looked at;
        `free`: symbols of each that are never forbidden."""
        self._scorer, self._size = scorer, size
        self._begun, self._free = torch.tensor(begun), _padded(free)
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised  # taking symbols away leaves a hypothesis's sum falling

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        begun, free = self._begun.to(self.device), self._free.to(self.device)
        nothing = torch.zeros(len(begun), 0, dtype=torch.int64, device=self.device)
        return _Memory(memory, begun, free, Columns(columns, self.vocabulary)), _State(state, nothing)

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        symbols = torch.cat((state.symbols, y[:, None]), dim=1)
        length, before = symbols.shape[1], self._size - 1
        if length > self._size:  # BOS and `size` symbols more are the first that can be repeated
            said = symbols.unfold(1, self._size, 1)
            last = symbols[:, length - before :]
            next_ = said[:, :, -1]
            again = (said[:, :, :-1] == last[:, None]).all(2)
            again &= (length > each(memory.begun, len(y)))[:, None]
            again &= (next_[:, :, None] != each(memory.free, len(y))[:, None, :]).all(2)
            column = memory.columns.find(next_)
            row, place = (again & (column >= 0)).nonzero(as_tuple=True)
            step.scores[row, column[row, place]] = -torch.inf
        return step._replace(state=_State(step.state, symbols))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[EOS] * (longest - len(row))] for row in rows]).long().view(len(rows), longest)
