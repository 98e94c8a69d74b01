"""Scorers that force the end of a prefix, and that forbid repeated n-grams.

A prefix that ends inside a word is given as tokens for its complete words, and as UTF-8 bytes for the rest. Several
tokens may consist of these bytes or continue beyond them: `Hund`, `Hu` and `H` can all begin `Hun`.
`ForcedBytesScorer` counts the bytes that each hypothesis has spelled. `constraints.constrain` applies both scorers.

`translator/requests.py` makes the prefixes for `Translator.n_best`, with `text/prefixes.py`; `serve/v1.py`
uses them for completions. Native code implements forced bytes as well (`native_beam.py`), so a change must be made in
both. Tests: tests/search/test_spelling.py (prefixes), tests/search/test_repeats.py (n-grams).

Axes: B sentences, N hypotheses, V tokens of the vocabulary, F exempt tokens per sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.search.candidates import Columns
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.prefixes import ByteContinuations
from rnnsearch.text.vocabulary import EOS
from rnnsearch.utils.tensors import repeat_rows


@dataclass(frozen=True, eq=False)
class ForcedBytes:
    """Bytes that translations must continue with after their prefixes."""

    allowed_tokens: tuple[ByteContinuations, ...]
    """Ids, per sentence and byte, of the tokens that may start at this byte."""
    token_bytes: Tensor
    """[V] int64, number of bytes of each token."""

    def select(self, sentences: Sequence[int]) -> "ForcedBytes":
        """Return the bytes of some sentences of the call, by index."""
        return ForcedBytes(tuple(self.allowed_tokens[i] for i in sentences), self.token_bytes)


class _ForcedBytesMemory(NamedTuple):
    inner: Any
    sentences: Tensor  # [B], indices in the call


class _ForcedBytesState(NamedTuple):
    inner: Any
    spelled: Tensor  # [N], bytes spelled; within the forced prefix -1 - (number of tokens left)


class ForcedBytesScorer:
    """A scorer with -inf for tokens that do not spell the forced bytes. It needs the whole vocabulary."""

    def __init__(self, scorer: Scorer, forced_bytes: ForcedBytes, prefix_lengths: Sequence[int]) -> None:
        """Wrap `scorer`.

        Args:
            scorer: Scorer to restrict.
            forced_bytes: Bytes that each sentence's translation must spell.
            prefix_lengths: Number of forced tokens before these bytes, per sentence.
        """
        self._scorer = scorer
        self.vocabulary = scorer.vocabulary
        self.device = scorer.device
        self.normalised = scorer.normalised  # with fewer tokens allowed, sums still only decrease
        self._allowed: list[list[Tensor]] = []
        for allowed in forced_bytes.allowed_tokens:
            self._allowed.append([torch.tensor(ids, dtype=torch.int64, device=scorer.device) for ids in allowed])
        self._token_bytes = forced_bytes.token_bytes.to(scorer.device)
        total_bytes = [len(allowed) for allowed in forced_bytes.allowed_tokens]
        self._total_bytes = torch.tensor(total_bytes, device=scorer.device)
        # The first step reads BOS, which counts as one token of the prefix.
        self._initial = torch.tensor([-1 - length for length in prefix_lengths], device=scorer.device)

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        # Any token may spell the bytes (see `constraints.score_columns`).
        assert columns is None
        memory, state = self._scorer.start(sources, None)
        sentences = torch.arange(len(self._total_bytes), device=self.device)
        return _ForcedBytesMemory(memory, sentences), _ForcedBytesState(state, self._initial.clone())

    def step(self, memory: _ForcedBytesMemory, state: _ForcedBytesState, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        sentences = repeat_rows(memory.sentences, len(y))  # [N]
        y_bytes = self._token_bytes[y.clamp(max=len(self._token_bytes) - 1)]
        total_bytes = self._total_bytes[sentences]
        # Negative counts of the prefix rise by tokens, others by bytes; the last token may reach beyond the forced
        # bytes.
        spelled = torch.minimum(state.spelled + torch.where(state.spelled < 0, 1, y_bytes), total_bytes)
        unfinished = ((spelled >= 0) & (spelled < total_bytes)).nonzero()[:, 0]
        positions = (unfinished.tolist(), sentences[unfinished].tolist(), spelled[unfinished].tolist())
        for row, sentence, byte in zip(*positions, strict=True):
            allowed = self._allowed[sentence][byte]
            allowed_scores = step.scores[row, allowed]  # a copy, saved before the row is overwritten
            step.scores[row] = -torch.inf
            step.scores[row, allowed] = allowed_scores
        return step._replace(state=_ForcedBytesState(step.state, spelled))


class _RepeatMemory(NamedTuple):
    inner: Any
    forced: Tensor  # [B], number of tokens at the start that may repeat anything
    exempt: Tensor  # [B, F], tokens that are never forbidden, padded with EOS (which is not forbidden either)
    columns: Columns


class _RepeatState(NamedTuple):
    inner: Any
    tokens: Tensor  # [N, t], tokens so far, BOS first


class RepeatScorer:
    """A scorer with -inf for tokens that would repeat an n-gram of the hypothesis (n-gram blocking)."""

    def __init__(self, scorer: Scorer, size: int, forced: Sequence[int], exempt: Sequence[Sequence[int]]) -> None:
        """Wrap `scorer`.

        Args:
            scorer: Scorer to restrict.
            size: Length n of the n-grams.
            forced: Number of forced tokens at the start of each translation, where nothing is forbidden.
            exempt: Tokens per sentence that are never forbidden.
        """
        self._scorer = scorer
        self._size = size
        self._forced = torch.tensor(forced)
        self._exempt = _pad(exempt)
        self.vocabulary = scorer.vocabulary
        self.device = scorer.device
        self.normalised = scorer.normalised  # with fewer tokens allowed, sums still only decrease

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        forced = self._forced.to(self.device)
        exempt = self._exempt.to(self.device)
        no_tokens = torch.zeros(len(forced), 0, dtype=torch.int64, device=self.device)
        return _RepeatMemory(memory, forced, exempt, Columns(columns, self.vocabulary)), _RepeatState(state, no_tokens)

    def step(self, memory: _RepeatMemory, state: _RepeatState, y: Tensor) -> Step:
        step = self._scorer.step(memory.inner, state.inner, y)
        tokens = torch.cat((state.tokens, y[:, None]), dim=1)  # [N, t]
        length = tokens.shape[1]
        if length > self._size:  # BOS is not part of an n-gram that can be repeated
            ngrams = tokens.unfold(1, self._size, 1)  # [N, t - n + 1, n]
            context = tokens[:, length - (self._size - 1) :]  # [N, n - 1], the last tokens
            following = ngrams[:, :, -1]  # [N, t - n + 1]
            repeats = (ngrams[:, :, :-1] == context[:, None]).all(2)  # [N, t - n + 1]
            repeats &= (length > repeat_rows(memory.forced, len(y)))[:, None]
            repeats &= (following[:, :, None] != repeat_rows(memory.exempt, len(y))[:, None, :]).all(2)
            column = memory.columns.find(following)
            row, index = (repeats & (column >= 0)).nonzero(as_tuple=True)
            step.scores[row, column[row, index]] = -torch.inf
        return step._replace(state=_RepeatState(step.state, tokens))


def _pad(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[EOS] * (longest - len(row))] for row in rows]).long().view(len(rows), longest)
