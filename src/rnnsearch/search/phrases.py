"""Lexical constraints: phrases that a translation must contain, as a scorer wrapper and a division of the beam.

Every hypothesis counts, for each phrase, how many of the phrase's tokens it ends with (matching as in Knuth, Morris &
Pratt). It may not end before all phrases are complete; when no more tokens are left than they take, only their tokens
are allowed. To make this rare, the beam is divided into banks of hypotheses that have met equally many tokens (dynamic
beam allocation: Post & Vilar 2018, "Fast lexically constrained decoding with dynamic beam allocation").

A `WordPhrase` must end where a word ends. After its last token it is *pending*: the translation may end, or the next
token may start another word, and the phrase is met; but if the next token continues the word, it is not. If the
phrase would then no longer fit, the word must not be continued.

`translator/requests.py` makes the phrases of a request's terms, `constraints.py` wraps the scorer, and
`beam.py` selects by banks. Only step-by-step search supports phrases.

Axes: A sentences still in the batch, B sentences of the call, K hypotheses per sentence, N = A * K, P phrases per
sentence, L tokens per phrase, M candidates per sentence, C score columns, V tokens of the vocabulary.
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
from rnnsearch.search.topk import ScoredRows, best_continuations
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.tensors import repeat_rows

Phrase = tuple[int, ...]
NO_TOKEN = -1
"""Padding of phrases, and the next token of a complete one."""


class WordPhrase(Phrase):
    """A phrase that must end where a word ends; an ordinary tuple is a phrase that may end anywhere."""

    continues_word: NDArray[np.bool_]
    """[V], True for tokens that continue a word before them; the same array in all phrases of a search."""

    def __new__(cls, ids: Iterable[int], continues_word: NDArray[np.bool_]) -> "WordPhrase":
        phrase = super().__new__(cls, ids)
        phrase.continues_word = continues_word
        return phrase


class PhraseTable:
    """Phrases of B sentences, at most P per sentence and L tokens per phrase, and the matching automaton.

    `progress` [N, P] counts the tokens met of each phrase; a WordPhrase that is met for good has size + 1.
    `sentences` [N] has the sentence (row of the table) of each hypothesis.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]], max_length: Array, columns: Columns) -> None:
        """Build the table.

        Args:
            phrases: Phrases of each sentence.
            max_length: [B], maximum length of each translation.
            columns: Score columns of the search.
        """
        P = max(map(len, phrases), default=0)
        self.longest = max((len(phrase) for required in phrases for phrase in required), default=0)  # L
        B = len(phrases)
        tokens = np.full((B, P, self.longest), NO_TOKEN, np.int64)
        sizes = np.zeros((B, P), np.int64)
        fallback = np.zeros((B, P, self.longest + 2), np.int64)
        must_end_word = np.zeros((B, P), np.bool_)
        continues_word = np.zeros(1, np.bool_)
        for b, required in enumerate(phrases):
            for p, phrase in enumerate(required):
                tokens[b, p, : len(phrase)] = phrase
                sizes[b, p] = len(phrase)
                fallback[b, p] = _fallback(phrase, self.longest)
                if isinstance(phrase, WordPhrase):
                    must_end_word[b, p] = True
                    continues_word = phrase.continues_word
        self.tokens = torch.from_numpy(tokens)  # [B, P, L]
        self.sizes = torch.from_numpy(sizes)  # [B, P]
        self.fallback = torch.from_numpy(fallback)  # [B, P, L + 2], progress that remains if the next token differs
        self.must_end_word = torch.from_numpy(must_end_word)  # [B, P]
        self._continues_word = torch.from_numpy(continues_word)  # [V], or [1] without a WordPhrase
        self.max_length = torch.from_numpy(max_length)  # [B]
        self.columns = columns

    def to(self, device: torch.device) -> "PhraseTable":
        """Move the table to a device."""
        self.tokens = self.tokens.to(device)
        self.sizes = self.sizes.to(device)
        self.fallback = self.fallback.to(device)
        self.must_end_word = self.must_end_word.to(device)
        self._continues_word = self._continues_word.to(device)
        self.max_length = self.max_length.to(device)
        return self

    @cached_property
    def columns_continue_word(self) -> Tensor:
        """[C], True for score columns whose token continues a word before it."""
        columns = torch.arange(self.columns.count, device=self._continues_word.device)
        return self.continues_word(self.columns.tokens(columns))

    def continues_word(self, tokens: Tensor) -> Tensor:
        """Return True where a token (in any shape) continues a word before it; source copies are whole words."""
        known = (tokens >= 0) & (tokens < len(self._continues_word))
        return self._continues_word[tokens.clamp(0, len(self._continues_word) - 1)] & known

    def pending(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """Return True [N, P] for phrases that are met unless the word continues."""
        return (progress == self.sizes[sentences]) & self.must_end_word[sentences]

    def advance(self, progress: Tensor, y: Tensor, sentences: Tensor) -> Tensor:
        """Return the progress [N, P] after the tokens `y` [N]; a complete phrase stays complete."""
        y_continues_word = self.continues_word(y)[:, None]
        y = y[:, None]
        pending = self.pending(progress, sentences)
        failed = pending & y_continues_word  # the phrase was the beginning of a longer word
        active = (progress < self.sizes[sentences]) | failed
        # Fall back to shorter and shorter matches, until y continues one of them or nothing is left.
        mismatch = failed | (active & (self._token_at(progress, sentences) != y) & (progress > 0))
        while mismatch.any():
            progress = torch.where(mismatch, self._lookup(self.fallback, progress, sentences), progress)
            mismatch = active & (self._token_at(progress, sentences) != y) & (progress > 0)
        matched = active & (self._token_at(progress, sentences) == y)
        return progress + (matched | (pending & ~y_continues_word))

    def next_tokens(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """Return the token [N, P] that continues each phrase; NO_TOKEN for a complete one."""
        return self._token_at(progress, sentences).masked_fill(progress >= self.sizes[sentences], NO_TOKEN)

    def fitting(self, progress: Tensor, sentences: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score columns [N, P * L] of all phrase tokens, and which of them leave enough capacity.

        Args:
            progress: [N, P].
            sentences: [N].
            remaining: [N], number of tokens that can follow the next one.
        """
        tokens = self.tokens[sentences].flatten(1)
        count = tokens.shape[1]
        repeated = sentences.repeat_interleave(count)
        after = self.advance(progress.repeat_interleave(count, 0), tokens.flatten(), repeated)
        fits = (self._tokens_needed(after, repeated).view_as(tokens) <= remaining[:, None]) & (tokens != NO_TOKEN)
        return self.columns.find(tokens).clamp(min=0), fits

    def _tokens_needed(self, progress: Tensor, sentences: Tensor) -> Tensor:
        """Return a sufficient number of tokens [N] to complete all phrases.

        These are the unmet phrases in full, minus the progress of one of them. If the next token of that one
        continues the current word, pending phrases fail and are needed again.
        """
        sizes = self.sizes[sentences]
        unmet = progress < sizes
        unmet_tokens = (sizes * unmet).sum(1)
        pending_tokens = (sizes * self.pending(progress, sentences)).sum(1)
        partial = progress * unmet
        fails_pending = self.continues_word(self.next_tokens(progress, sentences))
        without_failure = partial.masked_fill(fails_pending, 0)
        return torch.minimum(unmet_tokens - without_failure.amax(1), unmet_tokens + pending_tokens - partial.amax(1))

    def _token_at(self, progress: Tensor, sentences: Tensor) -> Tensor:
        return self._lookup(self.tokens, progress.clamp(max=self.longest - 1), sentences)

    def _lookup(self, table: Tensor, progress: Tensor, sentences: Tensor) -> Tensor:
        """Return the entries [N, P] of a table [B, P, ...] at each row's sentence and progress."""
        return table[sentences[:, None], torch.arange(progress.shape[1], device=progress.device), progress]


def _fallback(phrase: Phrase, longest: int) -> list[int]:
    """Return, for each number of tokens met, the longest smaller number that these tokens also end with."""
    fallback = [0] * (longest + 2)
    for met in range(2, len(phrase) + 1):
        # Quadratic, but phrases are short.
        fallback[met] = max(size for size in range(met) if phrase[:size] == phrase[met - size : met])
    return fallback


class _Memory(NamedTuple):
    inner: Any
    sentences: Tensor  # [B], indices in the call
    table: PhraseTable


class PhraseState(NamedTuple):
    """State of N hypotheses; `select_by_banks` reads it, too."""

    inner: Any
    """State of the wrapped scorer."""
    progress: Tensor
    """[N, P], tokens met of each phrase."""
    sentences: Tensor
    """[N], index of each hypothesis's sentence."""
    length: Tensor
    """[N], number of tokens so far, with BOS."""
    table: PhraseTable
    """The phrases of the batch."""


class PhraseScorer:
    """A scorer with -inf for tokens that would keep a hypothesis from containing its phrases."""

    def __init__(self, scorer: Scorer, phrases: Sequence[Sequence[Phrase]], max_length: Array) -> None:
        """Wrap `scorer`.

        Args:
            scorer: Scorer to restrict.
            phrases: Phrases of each sentence.
            max_length: [B], maximum length of each translation.
        """
        self._scorer = scorer
        self._phrases = phrases
        self._max_length = max_length
        self.vocabulary = scorer.vocabulary
        self.device = scorer.device
        self.normalised = scorer.normalised  # with fewer tokens allowed, sums still only decrease

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        table = PhraseTable(self._phrases, self._max_length, Columns(columns, self.vocabulary)).to(self.device)
        without_column = (table.columns.find(table.tokens) < 0) & (table.tokens != NO_TOKEN)
        for sentence, phrase, position in without_column.nonzero().tolist()[:1]:
            token = int(table.tokens[sentence, phrase, position])
            message = f"the phrases of {{sentence}} must consist of tokens that are scored; got {token}"
            raise SentenceError(sentence, message)
        sentences = torch.arange(len(self._max_length), device=self.device)
        progress = torch.zeros_like(table.sizes)
        phrase_state = PhraseState(state, progress, sentences, torch.zeros_like(sentences), table)
        return _Memory(memory, sentences, table), phrase_state

    def step(self, memory: _Memory, state: PhraseState, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        table = memory.table
        sentences = repeat_rows(memory.sentences, len(y))  # [N]
        progress = table.advance(state.progress, y, sentences)  # [N, P]
        length = state.length + 1
        sizes = table.sizes[sentences]
        unmet = progress < sizes
        any_unmet = unmet.any(1)
        eos = table.columns.find(torch.tensor([EOS], device=y.device))
        step.scores[:, eos] += torch.zeros(len(y), 1, device=y.device).masked_fill(any_unmet[:, None], -torch.inf)
        # While all unmet phrases still fit, any token is allowed; then only those after which they do.
        # `length` counts BOS, so this is the number of tokens that can follow the next one.
        remaining = table.max_length[sentences] - length
        pending = table.pending(progress, sentences)
        # `tight_if_failed`: the phrases fit only if no pending one fails, so that the word must not be continued.
        tight = any_unmet & ((sizes * unmet).sum(1) > remaining)
        tight_if_failed = pending.any(1) & ((sizes * (unmet | pending)).sum(1) > remaining)
        rows = (tight | tight_if_failed).nonzero()[:, 0]
        if len(rows):
            columns, fits = table.fitting(progress[rows], sentences[rows], remaining[rows])
            phrase_scores = step.scores[rows[:, None], columns].masked_fill(~fits, -torch.inf)
            forbidden = tight[rows][:, None] | table.columns_continue_word
            other_scores = step.scores[rows].masked_fill(forbidden, -torch.inf)
            step.scores[rows] = other_scores.scatter_reduce(1, columns, phrase_scores, "amax")
        return step._replace(state=PhraseState(step.state, progress, sentences, length, table))


def select_by_banks(scores: Tensor, log_probs: Tensor, count: int, rows: ScoredRows, state: PhraseState) -> Tensor:
    """Select continuations of hypotheses with phrases; with `state` bound, this is a `ContinuationSelector`.

    The candidates are the best continuations, the best one of each hypothesis, and those that continue a phrase. Half
    of `count` (the beam) is divided among the numbers of phrase tokens met, from the highest down, in turns; the other
    half are the best of the remaining candidates.
    """
    A, K, C = scores.shape
    table = state.table
    first_column = C * torch.arange(K, device=scores.device)  # flat index of each hypothesis's first column
    best = best_continuations(scores, log_probs, count, rows)  # [A, count]
    best_of_each = scores.argmax(2) + first_column  # [A, K]
    next_column = table.columns.find(table.next_tokens(state.progress, state.sentences)).view(A, K, -1)  # [A, K, P]
    continuing = (next_column.clamp(min=0) + first_column[:, None]).flatten(1)  # [A, K * P]
    index = torch.cat((best, best_of_each, continuing), 1)  # [A, M], the candidates
    always = torch.ones_like(index[:, : best.shape[1] + K], dtype=torch.bool)
    valid = torch.cat((always, (next_column >= 0).flatten(1)), 1)
    # The best continuation of a hypothesis may also be among the best ones, or continue a phrase.
    valid &= ~_is_repeated(index.masked_fill(~valid, -1))

    parent = index // C
    relative = log_probs - log_probs.amax(1, keepdim=True)
    total = scores.flatten(1).gather(1, index) + relative.gather(1, parent)
    total = total.masked_fill(~valid, -torch.inf)

    row = (parent + K * torch.arange(A, device=index.device)[:, None]).flatten()
    sentences = state.sentences[row]
    progress = table.advance(state.progress[row], table.columns.tokens(index % C).flatten(), sentences)
    met = progress.minimum(table.sizes[sentences]).sum(1).view(A, -1)  # [A, M], the bank of each candidate

    rank = _ranks(-total)
    # [A, M, M], True at (i, j) if j is in the bank of i and is better.
    better = (met[:, :, None] == met[:, None, :]) & (rank[:, :, None] > rank[:, None, :])
    # In turn 0 the best of each bank is taken, the highest bank first, then in turn 1 the second best, ...
    turn = better.sum(2) * (met.amax() + 1) + met.amax() - met
    allowed = total > -torch.inf
    in_banks = allowed & (_ranks(turn.double().masked_fill(~allowed, torch.inf)) < count // 2)
    # `best` has as many as are returned and comes first among equals, so that invalid candidates are never reached.
    order = (rank + rank.shape[1] * ~in_banks).argsort(1)
    return index.gather(1, order[:, : best.shape[1]])


def _ranks(values: Tensor) -> Tensor:
    """Return the rank of each value in its row, in ascending order; ties keep their order."""
    return values.argsort(dim=1, stable=True).argsort(1)


def _is_repeated(index: Tensor) -> Tensor:
    """Return True for values that occur earlier in their row."""
    ordered, order = index.sort(dim=1, stable=True)
    repeated = torch.zeros_like(index, dtype=torch.bool)
    repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(repeated).scatter(1, order, repeated)
