"""Phrases that a translation must hold: a Scorer of a Scorer that follows them, and a beam with room for them.

Every hypothesis counts, of each phrase, the symbols that it ends with (as Knuth, Morris & Pratt find a word in a text).
It may not end before all are whole; and where no more symbols are left than they take, only they may come. So that this
is seldom needed, the beam is shared out among hypotheses that have met as many symbols (dynamic beam allocation:
Post & Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation").

A phrase that must end where a word does (`WordPhrase`) is met by its symbols until one follows that goes on with the
word, and for good when another does. Until then it is pending: the translation may end; and where there would be no
room for the phrase once more, the word may not go on.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.candidates import Columns
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.search.topk import ScoredRows, best
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.tensors import each

Phrase = tuple[int, ...]
NOTHING = -1
"""What pads phrases: no symbol."""


class WordPhrase(Phrase):
    """A phrase that ends where a word does. Where that does not matter, its symbols alone may take its place."""

    goes_on: NDArray[np.bool_]
    """[V], whether each symbol goes on with a word before it; the same array in all phrases of a search."""

    def __new__(cls, ids: Iterable[int], goes_on: NDArray[np.bool_]) -> "WordPhrase":
        phrase = super().__new__(cls, ids)
        phrase.goes_on = goes_on
        return phrase


class Table:
    """The phrases of a batch's B sentences: P at most of a sentence, of L symbols at most."""

    def __init__(self, phrases: Sequence[Sequence[Phrase]], most: Array, columns: Columns) -> None:
        count = max(map(len, phrases), default=0)
        self.longest = max((len(phrase) for own in phrases for phrase in own), default=0)
        padded = [[*own, *[()] * (count - len(own))] for own in phrases]
        rows = [[[*phrase, *[NOTHING] * (self.longest - len(phrase))] for phrase in own] for own in padded]
        shape = len(padded), count, self.longest
        self.symbols = torch.tensor(rows, dtype=torch.int64).reshape(shape)
        """[B, P, L]."""
        self.sizes = torch.tensor([[len(phrase) for phrase in own] for own in padded], dtype=torch.int64)
        """[B, P]."""
        fallback = [[_fallback(phrase, self.longest) for phrase in own] for own in padded]
        self.fallback = torch.tensor(fallback, dtype=torch.int64).reshape(*shape[:2], self.longest + 2)
        """[B, P, L + 2], how much of a phrase still stands where the next symbol is another."""
        self.bounded = torch.tensor([[isinstance(phrase, WordPhrase) for phrase in own] for own in padded]).view(
            *shape[:2]
        )
        """[B, P], whether it must end where a word does."""
        known = [phrase.goes_on for own in phrases for phrase in own if isinstance(phrase, WordPhrase)]
        self._goes_on = torch.from_numpy(known[0] if known else np.zeros(1, np.bool_))
        self.most = torch.from_numpy(most)
        """[B], the greatest length of each translation."""
        self.columns = columns

    def to(self, device: torch.device) -> "Table":
        """On a device."""
        for name in ("symbols", "sizes", "fallback", "bounded", "_goes_on", "most"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    @cached_property
    def goes_on(self) -> Tensor:
        """[C], whether each column's symbol goes on with a word before it."""
        return self.after_word(self.columns.tokens(torch.arange(self.columns.count, device=self._goes_on.device)))

    def after_word(self, tokens: Tensor) -> Tensor:
        """Whether symbols, in any shape, go on with a word before them; one beyond the vocabulary is a word itself."""
        known = (tokens >= 0) & (tokens < len(self._goes_on))
        return self._goes_on[tokens.clamp(0, len(self._goes_on) - 1)] & known

    def pending(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """[N, P], which phrases are met if the word does not go on."""
        return (progress == self.sizes[sentences]) & self.bounded[sentences]

    def advanced(self, progress: Tensor, y: Tensor, sentences: Tensor) -> Tensor:
        """[N, P], symbols met of each phrase after `y` [N]; a phrase that is whole stays so: if it must end where a
        word does, it has one more than its symbols."""
        pending, goes_on = self.pending(progress, sentences), self.after_word(y)[:, None]
        undone = pending & goes_on
        sought, y = (progress < self.sizes[sentences]) | undone, y[:, None]
        missed = undone | (sought & (self._following(progress, sentences) != y) & (progress > 0))
        while missed.any():
            progress = torch.where(missed, self._at(self.fallback, progress, sentences), progress)
            missed = sought & (self._following(progress, sentences) != y) & (progress > 0)
        met = sought & (self._following(progress, sentences) == y)
        return progress + (met | (pending & ~goes_on))

    def wanted(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """[N, P], the symbol that goes on with each phrase; NOTHING for one that is whole."""
        return self._following(progress, sentences).masked_fill(progress >= self.sizes[sentences], NOTHING)

    def fitting(self, progress: Tensor, sentences: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
        """Score columns [N, P * L] of the phrases' symbols, and whether after each there is room [N] for what is
        left."""
        symbols = self.symbols[sentences].flatten(1)
        count = symbols.shape[1]
        of = sentences.repeat_interleave(count)
        after = self.advanced(progress.repeat_interleave(count, 0), symbols.flatten(), of)
        fits = (self._left(after, of).view_as(symbols) <= room[:, None]) & (symbols != NOTHING)
        return self.columns.find(symbols).clamp(min=0), fits

    def _left(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """[N], symbols that are enough: all phrases that are not met, but for what is met of one of them, and once more
        those that are pending where that one goes on with their word."""
        sizes = self.sizes[sentences]
        unmet, again = progress < sizes, (sizes * self.pending(progress, sentences)).sum(1)
        whole, begun = (sizes * unmet).sum(1), progress * unmet
        apart = begun.masked_fill(self.after_word(self.wanted(progress, sentences)), 0)
        return torch.minimum(whole - apart.amax(1), whole + again - begun.amax(1))

    def _following(self, progress: Tensor, sentences: Tensor) -> Tensor:
        return self._at(self.symbols, progress.clamp(max=self.longest - 1), sentences)

    def _at(self, table: Tensor, progress: Tensor, sentences: Tensor) -> Tensor:
        """Entries [N, P] of a table [B, P, ...]: those of each row's sentence, at its progress."""
        return table[sentences[:, None], torch.arange(progress.shape[1], device=progress.device), progress]


def _fallback(phrase: Phrase, longest: int) -> list[int]:
    """Of each number of symbols met, the longest smaller one whose symbols the met ones end with."""
    found = [0] * (longest + 2)
    for met in range(2, len(phrase) + 1):
        found[met] = max(size for size in range(met) if phrase[:size] == phrase[met - size : met])
    return found


class _Memory(NamedTuple):
    inner: Any
    sentences: Tensor
    """[B], their numbers in the call."""
    table: Table


class PhraseState(NamedTuple):
    """What is known of N hypotheses."""

    inner: Any
    progress: Tensor
    """[N, P], symbols met of each phrase."""
    sentences: Tensor
    """[N]."""
    length: Tensor
    """[N], symbols so far, BOS too."""
    table: Table


class PhraseScorer:
    """`scorer`, with -inf for what keeps a hypothesis from holding its phrases."""

    def __init__(self, scorer: Scorer, phrases: Sequence[Sequence[Phrase]], most: Array) -> None:
        """`phrases`: those of each sentence; `most`: [B], the greatest length of each translation."""
        self._scorer, self._phrases, self._most = scorer, phrases, most
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised  # taking symbols away leaves a hypothesis's sum falling

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        table = Table(self._phrases, self._most, Columns(columns, self.vocabulary)).to(self.device)
        lacking = (table.columns.find(table.symbols) < 0) & (table.symbols != NOTHING)
        for sentence, *place in lacking.nonzero().tolist()[:1]:
            got = int(table.symbols[sentence, *place])
            raise SentenceError(
                sentence, f"the phrases of {{sentence}} must consist of tokens that are scored; got {got}"
            )
        sentences = torch.arange(len(self._most), device=self.device)
        zero = torch.zeros_like(sentences)
        return _Memory(memory, sentences, table), PhraseState(
            state, torch.zeros_like(table.sizes), sentences, zero, table
        )

    def step(self, memory: _Memory, state: PhraseState, y: Tensor) -> Step:
        step, table = self._scorer.step(memory.inner, state.inner, y), memory.table
        sentences = each(memory.sentences, len(y))
        progress, length = table.advanced(state.progress, y, sentences), state.length + 1
        sizes = table.sizes[sentences]
        unmet = progress < sizes
        more = unmet.any(1)
        step.scores[:, table.columns.find(torch.tensor([EOS], device=y.device))] += _minus_infinity(more)
        # While there is room for all phrases, any symbol may come; then those after which there still is.
        room = table.most[sentences] - length
        pending = table.pending(progress, sentences)
        tight = more & ((sizes * unmet).sum(1) > room)
        brittle = pending.any(1) & ((sizes * (unmet | pending)).sum(1) > room)
        some = (tight | brittle).nonzero()[:, 0]
        if len(some):
            columns, fits = table.fitting(progress[some], sentences[some], room[some])
            kept = step.scores[some[:, None], columns].masked_fill(~fits, -torch.inf)
            free = step.scores[some].masked_fill(tight[some][:, None] | table.goes_on, -torch.inf)
            step.scores[some] = free.scatter_reduce(1, columns, kept, "amax")
        return step._replace(state=PhraseState(step.state, progress, sentences, length, table))


def _minus_infinity(rows: Tensor) -> Tensor:
    return torch.zeros(len(rows), 1, device=rows.device).masked_fill(rows[:, None], -torch.inf)


def by_banks(scores: Tensor, log_probs: Tensor, count: int, rows: ScoredRows, state: PhraseState) -> Tensor:
    """A `selection.Choose` for a PhraseScorer in a state.

    Looked at are the best continuations, the best of each hypothesis, and those that go on with a phrase. Half of
    `count`, the beam, is shared out among the numbers of symbols met, from the highest down, in turns; the other half
    is the best of the rest.
    """
    A, K, C = scores.shape
    table, begins = state.table, C * torch.arange(K, device=scores.device)
    top = best(scores, log_probs, count, rows)
    wanted = table.columns.find(table.wanted(state.progress, state.sentences)).view(A, K, -1)
    each = scores.argmax(2) + begins
    index = torch.cat((top, each, (wanted.clamp(min=0) + begins[:, None]).flatten(1)), 1)
    known = torch.cat((torch.ones_like(top), torch.ones_like(each), (wanted >= 0).flatten(1)), 1).bool()
    known &= ~_repeated(index.masked_fill(~known, -1))
    parent = index // C
    ahead = log_probs - log_probs.amax(1, keepdim=True)
    total = scores.flatten(1).gather(1, index) + ahead.gather(1, parent)
    total = total.masked_fill(~known, -torch.inf)
    of = (parent + K * torch.arange(A, device=index.device)[:, None]).flatten()
    tokens = table.columns.tokens(index % C).flatten()
    sentences = state.sentences[of]
    met = table.advanced(state.progress[of], tokens, sentences).minimum(table.sizes[sentences]).sum(1).view(A, -1)
    place = _places(-total)
    better = (met[:, :, None] == met[:, None, :]) & (place[:, :, None] > place[:, None, :])
    turn = better.sum(2) * (met.amax() + 1) + met.amax() - met
    worth = total > -torch.inf
    kept = worth & (_places(turn.double().masked_fill(~worth, torch.inf)) < count // 2)
    # `top` holds as many as are asked for, and comes first among equals: what is not known is never reached.
    return index.gather(1, (place + place.shape[1] * ~kept).argsort(1)[:, : top.shape[1]])


def _places(values: Tensor) -> Tensor:
    """Of each value of a row its place in rising order, of equals the first first."""
    return values.argsort(dim=1, stable=True).argsort(1)


def _repeated(index: Tensor) -> Tensor:
    """Whether a row has had a number before."""
    ordered, order = index.sort(dim=1, stable=True)
    again = torch.zeros_like(index, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)
