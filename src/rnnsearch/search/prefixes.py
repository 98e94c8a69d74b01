"""What a translation must spell after its forced symbols, in whatever symbols: a Scorer of a Scorer.

A prefix that ends inside a word is symbols for its whole words, and for the rest bytes, which several symbols may
spell or go beyond (`Hun` is begun by `Hund`, `Hu`, `H`). Every hypothesis counts the bytes that it has spelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.prefixes import Rest
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.tensors import each

# Search that says nothing twice: no n symbols in a row stand in a hypothesis a second time (n-gram blocking).


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


@dataclass(frozen=True, eq=False)
class ForcedBytes:
    """What the sentences of a call must spell after their prefixes."""

    allowed_tokens: tuple[Rest, ...]
    """One a sentence."""
    token_bytes: Tensor
    """[V] int64, bytes of each symbol."""

    def select(self, sentences: Sequence[int]) -> "ForcedBytes":
        """That of some sentences of the call."""
        return ForcedBytes(tuple(self.allowed_tokens[i] for i in sentences), self.token_bytes)


class _SpellingMemory(NamedTuple):
    inner: Any
    sentences: Tensor
    """[B], their numbers in the call."""


class _SpellingState(NamedTuple):
    inner: Any
    spelled: Tensor
    """[N], bytes of the rest that are spelled; negative in the forced prefix, where symbols count."""


class ForcedBytesScorer:
    """`scorer`, with -inf for symbols that do not spell what must be spelled. It scores all symbols."""

    def __init__(self, scorer: Scorer, spelling: ForcedBytes, forced: Sequence[int]) -> None:
        """`forced`: the symbols that each sentence is forced to begin with, how many."""
        self._scorer = scorer
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised  # taking symbols away leaves a hypothesis's sum falling
        self._allowed = [
            [torch.tensor(ids, dtype=torch.int64, device=scorer.device) for ids in rest]
            for rest in spelling.allowed_tokens
        ]
        self._sizes = spelling.token_bytes.to(scorer.device)
        self._ends = torch.tensor([len(rest) for rest in spelling.allowed_tokens], device=scorer.device)
        # Before the first symbol (BOS, which counts as one) nothing of the prefix is there.
        self._starts = torch.tensor([-1 - count for count in forced], device=scorer.device)

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        assert columns is None
        memory, state = self._scorer.start(sources, None)
        sentences = torch.arange(len(self._ends), device=self.device)
        return _SpellingMemory(memory, sentences), _SpellingState(state, self._starts.clone())

    def step(self, memory: _SpellingMemory, state: _SpellingState, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        sentences = each(memory.sentences, len(y))
        more = torch.where(state.spelled < 0, 1, self._sizes[y.clamp(max=len(self._sizes) - 1)])
        ends = self._ends[sentences]
        spelled = torch.minimum(state.spelled + more, ends)
        open_ = ((spelled >= 0) & (spelled < ends)).nonzero()[:, 0]
        places = (open_.tolist(), sentences[open_].tolist(), spelled[open_].tolist())
        for row, sentence, byte in zip(*places, strict=True):
            allowed = self._allowed[sentence][byte]
            kept = step.scores[row, allowed]
            step.scores[row] = -torch.inf
            step.scores[row, allowed] = kept
        return step._replace(state=_SpellingState(step.state, spelled))
