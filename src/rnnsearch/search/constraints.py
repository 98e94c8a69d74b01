"""Restrictions of translations: maximum lengths, score columns and filters that set forbidden scores to -inf.

`BeamSearch` applies them. Restrictions that depend only on the position (banned tokens, a minimum length, forced
prefix tokens) are a `Constraint`. Those that depend on a hypothesis's history (banned phrases, repeated n-grams, ...)
wrap the scorer, so that their state moves with the hypotheses (`constrain`).

Constraints change scores in place and see the live sentences only (`ScoredRows.sentences`). A new option that depends
on the history is a scorer wrapper in a module of its own and a line in `constrain`; `SearchOptions.unconstrained` must
know it, or native searches would ignore it.

Axes: A sentences still in the batch, B sentences of the call, K hypotheses per sentence, P prefix positions, C score
columns.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.banned import BannedScorer
from rnnsearch.search.candidates import ColumnChooser, Columns
from rnnsearch.search.hypothesis import SentenceError
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.phrases import PhraseScorer
from rnnsearch.search.prefixes import ForcedBytesScorer, RepeatScorer
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.search.topk import ScoredRows
from rnnsearch.text.vocabulary import BOS, EOS, PAD

NEVER_PRODUCED = frozenset({PAD, BOS})
"""Tokens that no translation contains."""


def max_lengths(sources: Sources, options: SearchOptions) -> Array:
    """Return the maximum length [B] of each translation, without EOS, from its longest source.

    Raises:
        RnnsearchError: An option does not have one entry per sentence.
    """
    source_tokens = np.max([source.num_words.tolist() for source in sources.values()], axis=0)
    max_length = (np.floor(options.max_ratio * source_tokens) + options.max_extra).astype(np.int64)
    options.require_one_entry_per_sentence(len(max_length))
    # Forced tokens and one more always fit, and so do the phrases.
    required = 1 + _forced_lengths(options, len(max_length))
    if options.phrases is not None:
        required += [sum(map(len, phrases)) for phrases in options.phrases]
    lengths: Array = np.maximum(max_length, required)
    return lengths


def _forced_lengths(options: SearchOptions, sentences: int) -> Array:
    """Return the maximum number of tokens [B] that a translation is forced to begin with."""
    lengths = np.zeros(sentences, np.int64)
    if options.prefix is not None:
        lengths += [len(ids) for ids in options.prefix]
    if options.forced_bytes is not None:
        lengths += [len(allowed) for allowed in options.forced_bytes.allowed_tokens]
    return lengths


def score_columns(
    scorer: Scorer, sources: Sources, options: SearchOptions, candidates: ColumnChooser | None = None
) -> Columns:
    """Return the score columns of a search.

    With `candidates` these are the candidate list and all tokens of prefixes and phrases, except that forced bytes
    need the whole vocabulary, because any token may spell them.
    """
    ids = None if candidates is None or options.forced_bytes is not None else candidates(sources)
    if ids is not None:
        ids = ids.to(scorer.device)
        required = chain(options.prefix or (), chain.from_iterable(options.phrases or ()))
        tokens = sorted({id for id in chain.from_iterable(required) if id < scorer.vocabulary})
        extra = torch.tensor(tokens, dtype=torch.int64, device=scorer.device)
        # `Scorer.start` requires distinct tokens.
        ids = torch.cat((ids, extra[~torch.isin(extra, ids)]))
    return Columns(ids, scorer.vocabulary)


def constrain(scorer: Scorer, options: SearchOptions, max_length: Array) -> Scorer:
    """Return the scorer with the restrictions that depend on a hypothesis's history.

    Args:
        max_length: Maximum length [B] of each translation.
    """
    sentences = len(max_length)
    if options.forced_bytes is not None:
        prefixes = options.prefix or [()] * sentences
        scorer = ForcedBytesScorer(scorer, options.forced_bytes, [len(ids) for ids in prefixes])
    if options.no_repeat_ngram:
        phrases = options.phrases or [()] * sentences
        # Phrases may share n-grams with the rest of the translation, or with each other.
        exempt = [sorted(set(chain.from_iterable(required))) for required in phrases]
        forced = _forced_lengths(options, sentences).tolist()
        scorer = RepeatScorer(scorer, options.no_repeat_ngram, forced, exempt)
    if options.banned_phrases is not None:
        scorer = BannedScorer(scorer, options.banned_phrases, max_length)
    # The outermost wrapper: `BeamSearch` recognises it by its type, and its state is read by `select_by_banks`.
    if options.phrases and any(options.phrases):
        scorer = PhraseScorer(scorer, options.phrases, max_length)
    return scorer


Constraint = Callable[[Tensor, ScoredRows], None]
"""Sets the scores [A * K, C] of forbidden columns to -inf, in place."""


class BannedColumns:
    """A constraint that forbids score columns, at the first `positions` positions or (None) at all of them."""

    def __init__(self, columns: Tensor, positions: int | None = None) -> None:
        self._columns = columns
        self._positions = positions

    def __call__(self, scores: Tensor, rows: ScoredRows) -> None:
        if self._positions is None or rows.position <= self._positions:
            scores.index_fill_(1, self._columns, -torch.inf)


class PrefixConstraint:
    """A constraint that forces a prefix of score columns [B, P], padded with -1, and applies others after it."""

    def __init__(self, columns: Tensor, others: Sequence[Constraint]) -> None:
        self._columns = columns
        self._others = others

    def __call__(self, scores: Tensor, rows: ScoredRows) -> None:
        if rows.position > self._columns.shape[1]:
            self._apply_others(scores, rows)
            return
        forced = self._columns[:, rows.position - 1].index_select(0, rows.sentences)  # [A]
        forced = forced.repeat_interleave(rows.width)  # [A * K], -1 after the end of a prefix
        column = forced.clamp(min=0)[:, None]  # [A * K, 1]
        # The others may ban a forced column, so its score is saved before and restored after them.
        forced_scores = scores.gather(1, column)
        self._apply_others(scores, rows)
        is_forced = (forced >= 0)[:, None]
        scores.masked_fill_(is_forced, -torch.inf)
        scores.scatter_(1, column, torch.where(is_forced, forced_scores, scores.gather(1, column)))

    def _apply_others(self, scores: Tensor, rows: ScoredRows) -> None:
        for other in self._others:
            other(scores, rows)


def constraints(options: SearchOptions, columns: Columns, device: torch.device) -> list[Constraint]:
    """Return the restrictions that depend only on the position.

    Raises:
        SentenceError: A token of a prefix has no score column.
    """
    never = columns.find(torch.tensor(sorted(options.banned | NEVER_PRODUCED), device=device))
    filters: list[Constraint] = [BannedColumns(never[never >= 0])]
    if options.min_length:
        filters.append(BannedColumns(columns.find(torch.tensor([EOS], device=device)), options.min_length))
    if options.prefix is not None:
        filters = [PrefixConstraint(prefix_columns(options.prefix, columns, device), filters)]
    return filters


def prefix_columns(prefixes: Sequence[Sequence[int]], columns: Columns, device: torch.device) -> Tensor:
    """Return the score columns [B, P] of prefixes, padded with -1.

    Raises:
        SentenceError: A token of a prefix has no score column.
    """
    longest = max((len(ids) for ids in prefixes), default=0)
    rows = [[*ids, *[-1] * (longest - len(ids))] for ids in prefixes]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    prefix = columns.find(tokens)
    for sentence, position in ((prefix < 0) & (tokens >= 0)).nonzero().tolist()[:1]:
        token = prefixes[sentence][position]
        message = f"the prefix of {{sentence}} must consist of tokens that the scorer scores; got {token}"
        raise SentenceError(sentence, message)
    return prefix
