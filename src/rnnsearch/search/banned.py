"""Banned phrases in a search: a scorer wrapper that forbids tokens after which a translation contains one.

`text.banned` defines when a text contains a phrase, and follows the text of each hypothesis as the state of an
automaton. A text that ends with a phrase is *pending*: it contains the phrase if the word ends here, but not if the
word continues (`Hund`, `Hunde`). `constraints.constrain` applies the wrapper.

`translator/requests.py` makes the `BannedTokens` of `--ban`, which threads share; `PhraseTransitions` belongs
to one search.

Axes: B sentences, N hypotheses, C score columns, M restricted columns.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.banned import MATCHED, START, BannedPhrases, TokenAutomaton
from rnnsearch.text.vocabulary import EOS, UNK
from rnnsearch.utils.tensors import repeat_rows

IMPOSSIBLE = 1 << 20
"""Tokens needed to avoid a phrase if that is impossible; more than any translation has."""


class BannedTokens:
    """Banned phrases over the tokens of a vocabulary. Can be shared by threads."""

    def __init__(self, banned: BannedPhrases, spellings: Sequence[bytes]) -> None:
        """Build the automaton over tokens; `spellings` has the UTF-8 that each token adds to a text."""
        self.banned = banned
        self.states = TokenAutomaton(banned, spellings)
        self.lock = Lock()  # rows of `states` are computed when they are first needed
        self.transitions = PhraseTransitions(self, None)
        """Transitions over the whole vocabulary."""

    def contains_phrase(self, ids: Sequence[int], complete: bool = False) -> bool:
        """Return True if the text of the tokens contains a phrase, whatever follows or (`complete`) if nothing does."""
        with self.lock:
            state = START
            for id in ids:
                state = int(self.states.transitions(state)[id if id < len(self.states) else UNK])
            return state == MATCHED or (complete and bool(self.states.is_pending(np.array([state]))[0]))


class Transition(NamedTuple):
    """Effects of each possible next token on texts in one state."""

    next_state: Tensor
    """[C], state after each column's token."""
    restricted: Tensor
    """[M], columns that are allowed only if enough tokens can still follow."""
    tokens_needed: Tensor
    """[M], tokens that must follow each restricted column to avoid a phrase; IMPOSSIBLE if it completes one."""

    def to(self, device: torch.device) -> "Transition":
        return Transition(*(tensor.to(device) for tensor in self))


class PhraseTransitions:
    """Transitions of a search over some score columns, computed per state when they are first needed."""

    def __init__(self, banned: BannedTokens, tokens: Tensor | None) -> None:
        """Index the columns; `tokens` [C] has their tokens, None is the whole vocabulary."""
        self._banned = banned
        ids = np.arange(len(banned.states)) if tokens is None else tokens.cpu().numpy()
        self._ids = np.where(ids < len(banned.states), ids, UNK)
        self._is_eos = ids == EOS
        letters = banned.states.single_characters
        self._letters = [letters[id] for id in self._ids.tolist() if id in letters]
        self._by_state: dict[int, Transition] = {}
        self._min_escape: dict[int, int] = {}

    def from_state(self, state: int, device: torch.device) -> Transition:
        """Return the transition from a state."""
        if state not in self._by_state:
            with self._banned.lock:
                next_state = self._banned.states.transitions(state)[self._ids]
                needed = self._tokens_needed(state, next_state)
            restricted = np.flatnonzero(needed)
            arrays = (next_state, restricted, needed[restricted])
            self._by_state[state] = Transition(*map(torch.from_numpy, arrays)).to(device)
        return self._by_state[state]

    def _tokens_needed(self, state: int, next_state: Array) -> Array:
        """Return the number of tokens [C] that must follow each column's token to avoid a phrase."""
        states = self._banned.states
        needed: Array = np.where(next_state == MATCHED, IMPOSSIBLE, 0)
        distinct, index = np.unique(next_state, return_inverse=True)
        # Per distinct next state, because an escape is expensive to compute and few states are pending.
        escapes = np.zeros(len(distinct), np.int64)
        for n, pending in enumerate(states.is_pending(distinct)):
            if pending:
                escapes[n] = self._shortest_escape(int(distinct[n]))
        needed += escapes[index]
        # Ending the text here ends the word, which completes the phrase.
        if states.is_pending(np.array([state]))[0]:
            needed[self._is_eos] = IMPOSSIBLE
        return needed

    def _shortest_escape(self, state: int) -> int:
        """Return the minimum number of tokens after which a text in a pending state may end.

        A word that ends with an incomplete UTF-8 character is not followed further: there would be too many
        continuations, for a character that is not even in the vocabulary.
        """
        states = self._banned.states
        if state not in self._min_escape:
            self._min_escape[state] = IMPOSSIBLE  # paths that return to this state are no escape
            if not states.inside_character(state):
                # One more letter usually suffices; then the whole row need not be computed.
                following = np.unique(states.banned.transitions(state)[self._letters])
                if states.is_pending(following[following != MATCHED]).all():
                    following = np.unique(states.transitions(state)[self._ids[~self._is_eos]])
                following = following[following != MATCHED]
                shortest = 0
                if states.is_pending(following).all():
                    shortest = min((self._shortest_escape(int(s)) for s in following), default=IMPOSSIBLE)
                self._min_escape[state] = min(IMPOSSIBLE, 1 + shortest)
        return self._min_escape[state]


class _Memory(NamedTuple):
    inner: Any
    max_length: Tensor  # [B]
    transitions: PhraseTransitions
    columns: Columns


class _State(NamedTuple):
    inner: Any
    text: Tensor  # [N], automaton state of the text so far
    length: Tensor  # [N], number of tokens so far; -1 before BOS


class BannedScorer:
    """A scorer with -inf for tokens that complete a banned phrase, or make it unavoidable within the maximum length."""

    def __init__(self, scorer: Scorer, banned: BannedTokens, max_length: Array) -> None:
        """Wrap `scorer`; `max_length` [B] has the maximum length of each translation."""
        self._scorer = scorer
        self._banned = banned
        self._max_length = max_length
        self.vocabulary = scorer.vocabulary
        self.device = scorer.device
        self.normalised = scorer.normalised  # with fewer tokens allowed, sums still only decrease

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        transitions = self._banned.transitions if columns is None else PhraseTransitions(self._banned, columns)
        max_length = torch.from_numpy(self._max_length).to(self.device)
        return (
            _Memory(memory, max_length, transitions, Columns(columns, self.vocabulary)),
            _State(state, torch.full_like(max_length, START), torch.full_like(max_length, -1)),
        )

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        text = state.text
        length = state.length + 1
        if int(length[0]) > 0:  # y is not BOS
            column = memory.columns.find(y)
            text = text.clone()
            # One lookup per distinct state: most hypotheses of a batch are in few states.
            for value in state.text.unique().tolist():
                rows = (state.text == value).nonzero()[:, 0]
                transition = memory.transitions.from_state(value, self.device)
                text[rows] = transition.next_state[column[rows]].long()
        # Tokens that can follow the next one. It is 0 also for the token after the last position, which is only scored.
        remaining = (repeat_rows(memory.max_length, len(y)) - length - 1).clamp(min=0)  # [N]
        for value in text.unique().tolist():
            rows = (text == value).nonzero()[:, 0]
            transition = memory.transitions.from_state(value, self.device)
            columns = (rows[:, None], transition.restricted)
            too_few = transition.tokens_needed > remaining[rows][:, None]
            step.scores[columns] = step.scores[columns].masked_fill(too_few, -torch.inf)
        return step._replace(state=_State(step.state, text, length))
