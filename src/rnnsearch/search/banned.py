"""Phrases that no translation may hold: a Scorer of a Scorer that follows them in what is spelled (`text.banned`)."""

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.banned import HELD, START, BannedPhrases, SpelledStates
from rnnsearch.text.vocabulary import EOS, UNK
from rnnsearch.utils.tensors import each

NEVER = 1 << 20
"""More symbols than any translation has."""


class BannedTokens:
    """Banned phrases over a vocabulary's symbols. Threads may share it."""

    def __init__(self, banned: BannedPhrases, spellings: Sequence[bytes]) -> None:
        """`spellings`: the UTF-8 that each symbol adds to a text."""
        self.banned = banned
        self.states = SpelledStates(banned, spellings)
        self.lock = Lock()
        self.all = Moves(self, None)
        """Over the whole vocabulary."""

    def contains_phrase(self, ids: Sequence[int], complete: bool = False) -> bool:
        """Whether the text of some symbols holds a phrase, if nothing follows (`whole`) or whatever does."""
        with self.lock:
            state = START
            for id in ids:
                state = int(self.states.row(state)[id if id < len(self.states) else UNK])
            return state == HELD or (complete and bool(self.states.pending(np.array([state]))[0]))


class Move(NamedTuple):
    """What may follow texts in one state."""

    after: Tensor
    """[C], the state after each column's symbol."""
    columns: Tensor
    """[M], those columns that need anything,"""
    needs: Tensor
    """[M], and how many symbols more there must be room for: after a phrase that a longer word may still begin with,
    as many as the shortest that does has; NEVER where a phrase is held."""

    def to(self, device: torch.device) -> "Move":
        return Move(*(part.to(device) for part in self))


class Moves:
    """The moves of a search over some score columns."""

    def __init__(self, text: BannedTokens, symbols: Tensor | None) -> None:
        """`symbols`: [C], those of the columns; None: all of the vocabulary."""
        self._text = text
        ids = np.arange(len(text.states)) if symbols is None else symbols.cpu().numpy()
        self._ids = np.where(ids < len(text.states), ids, UNK)
        self._ends = ids == EOS
        self._letters = [text.states.letters[id] for id in self._ids.tolist() if id in text.states.letters]
        self._made: dict[int, Move] = {}
        self._known: dict[int, int] = {}

    def of(self, state: int, device: torch.device) -> Move:
        """Those from a state."""
        if state not in self._made:
            with self._text.lock:
                self._made[state] = self._make(state).to(device)
        return self._made[state]

    def _make(self, state: int) -> Move:
        after = self._text.states.row(state)[self._ids]
        needs = self._needs(state, after)
        columns = np.flatnonzero(needs)
        return Move(*(torch.from_numpy(part) for part in (after, columns, needs[columns])))

    def _needs(self, state: int, after: Array) -> Array:
        """[C], the room that each column's symbol needs behind it."""
        states = self._text.states
        needs: Array = np.where(after == HELD, NEVER, 0)
        different, places = np.unique(after, return_inverse=True)
        pending = states.pending(different)
        least = np.array([self._least(int(one)) if wait else 0 for one, wait in zip(different, pending, strict=True)])
        needs += least[places]
        if states.pending(np.array([state]))[0]:
            needs[self._ends] = NEVER
        return needs

    def _least(self, state: int) -> int:
        """The fewest symbols after which a text may end that is in a pending state. A banned word is not gone on with
        byte by byte: too many ways to follow, for a character that the vocabulary does not even have."""
        states = self._text.states
        if state not in self._known:
            self._known[state] = NEVER  # what stays in the state comes to nothing
            if not states.within_character(state):
                # Mostly one letter more will do, and no whole row need be made.
                after = np.unique(states.banned.row(state)[self._letters])
                if states.pending(after[after != HELD]).all():
                    after = np.unique(states.row(state)[self._ids[~self._ends]])
                after = after[after != HELD]
                pending = states.pending(after)
                each = [self._least(int(one)) for one in after] if pending.all() else [0]
                self._known[state] = min(NEVER, 1 + min(each, default=NEVER))
        return self._known[state]


class _Memory(NamedTuple):
    inner: Any
    most: Tensor
    """[B], the greatest length of each translation."""
    moves: Moves
    columns: Columns


class _State(NamedTuple):
    inner: Any
    text: Tensor
    """[N], the state of the text so far."""
    length: Tensor
    """[N], its symbols; -1 before BOS."""


class BannedScorer:
    """`scorer`, with -inf for symbols after which a translation holds a banned phrase, or could but go on into one."""

    def __init__(self, scorer: Scorer, text: BannedTokens, most: Array) -> None:
        """`most`: [B], the greatest length of each translation."""
        self._scorer, self._text, self._most = scorer, text, most
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised  # taking symbols away leaves a hypothesis's sum falling

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        moves = self._text.all if columns is None else Moves(self._text, columns)
        most = torch.from_numpy(self._most).to(self.device)
        own = _Memory(memory, most, moves, Columns(columns, self.vocabulary))
        return own, _State(state, torch.full_like(most, START), torch.full_like(most, -1))

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        text, length = state.text, state.length + 1
        if int(length[0]) > 0:
            column = memory.columns.find(y)
            text = text.clone()
            for one in state.text.unique().tolist():
                rows = (state.text == one).nonzero()[:, 0]
                text[rows] = memory.moves.of(one, self.device).after[column[rows]].long()
        # A symbol more, and so much is left behind it; the one after the last place is but looked at.
        room = (each(memory.most, len(y)) - length - 1).clamp(min=0)
        for one in text.unique().tolist():
            rows, move = (text == one).nonzero()[:, 0], memory.moves.of(one, self.device)
            scores = step.scores[rows[:, None], move.columns]
            step.scores[rows[:, None], move.columns] = scores.masked_fill(move.needs > room[rows][:, None], -torch.inf)
        return step._replace(state=_State(step.state, text, length))
