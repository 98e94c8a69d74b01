"""What a search may do: its options, the maximal lengths, and the constraints that filter scores."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from rnnsearch.config.search import STOPS
from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.search.banned import BannedScorer, BannedTokens
from rnnsearch.search.candidates import ColumnChooser, Columns
from rnnsearch.search.hypothesis import Array, SentenceError
from rnnsearch.search.phrases import Phrase, PhraseScorer
from rnnsearch.search.prefixes import ForcedBytes, ForcedBytesScorer, RepeatScorer
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.results import source_lengths
from rnnsearch.search.sampling import Variant, require_all
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.search.topk import ScoredRows
from rnnsearch.text.prefixes import Prefix
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import BOS, EOS, PAD

NEVER_PRODUCED = frozenset({PAD, BOS})
"""Symbols that no translation has."""


@dataclass(frozen=True)
class SearchOptions:
    """How to search. Lengths count target symbols without EOS."""

    beam: int = 5
    """Hypotheses kept a sentence; also the number of finished ones after which a sentence stops."""
    length_penalty: float = 1.0
    """Score = log-probability / length ** this; this length counts EOS (0: the plain sum; 1: the mean)."""
    length_norm: str = "power"
    """A norm of `ranking.LENGTH_NORMS`: what `length_penalty` is the exponent of."""
    stop: str = "bound"
    """Of `STOPS`: when a beam search of a sentence ends (see `beam`)."""
    coverage_penalty: float = 0.0
    """beta of Wu et al. 2016: what source symbols that were attended to too little cost (see `ranking`)."""
    max_ratio: float = 2.0
    max_extra: int = 20
    """A translation has at most max_ratio * (source symbols, without EOS) + max_extra symbols; there is
    always room for what it is forced to begin with and one more."""
    n_best: int = 1
    """Hypotheses returned a sentence, at most; not more than `beam`."""
    banned: frozenset[int] = frozenset()
    """Symbols that must not be produced. PAD and BOS never are."""
    prefix: tuple[tuple[int, ...], ...] | None = None
    """For each sentence of the call, the symbols its translations must begin with, banned ones too."""
    forced_bytes: ForcedBytes | None = None
    """What its translations must spell after these, in whatever symbols."""
    phrases: tuple[tuple[Phrase, ...], ...] | None = None
    """For each sentence of the call, phrases (symbols) that its translations must hold, anywhere and in any order. A
    beam of one takes them at the end, if it does not come to them by itself."""
    banned_phrases: BannedTokens | None = None
    """Phrases that no translation holds. None: it may hold any."""
    min_length: int = 0
    """EOS is not allowed before this many symbols; the maximal length goes before it."""
    no_repeat_ngram: int = 0
    """No sequence of so many symbols stands in a translation twice, but in what it is forced to begin with. 0: any
    may."""
    variant: Variant | None = None
    """What is not a beam search of each sentence: sampling, a stochastic beam, diverse groups, noisy chains; None:
    nothing. None of them goes with `phrases`."""
    compact_at: float = 0.25
    """Share of the batch's sentences that must have ended before they leave it, for dropping them copies the
    rest. Changes the speed, never the result."""

    def __post_init__(self) -> None:
        require_all(
            (
                ("beam", self.beam >= 1, "at least 1", self.beam),
                ("max_ratio", self.max_ratio >= 0, "at least 0", self.max_ratio),
                ("max_ratio", self.max_ratio < math.inf, "finite", self.max_ratio),
                ("max_extra", self.max_extra >= 0, "at least 0", self.max_extra),
                ("n_best", 1 <= self.n_best <= self.beam, f"between 1 and beam ({self.beam})", self.n_best),
                ("min_length", self.min_length >= 0, "at least 0", self.min_length),
                ("no_repeat_ngram", self.no_repeat_ngram >= 0, "at least 0", self.no_repeat_ngram),
                ("compact_at", 0 <= self.compact_at <= 1, "between 0 and 1", self.compact_at),
            )
        )
        if self.stop not in STOPS:
            raise RnnsearchError(f"stop {must_be_one_of(STOPS, self.stop)}")
        _ = self.ranking  # checks its own options
        if self.variant is not None:
            _ = self.variant.copies(self.beam)  # so does it
        if EOS in self.banned:
            raise RnnsearchError(f"banned must not hold EOS (id {EOS}), or no translation could end")
        for sentence, ids in enumerate(self.prefix or ()):
            if any(i < 0 or i == EOS for i in ids):
                message = f"the prefix of {{sentence}} must hold symbol ids without EOS; got {list(ids)}"
                raise SentenceError(sentence, message)
        for sentence, phrases in enumerate(self.phrases or ()):
            if any(not ids or min(ids) < 0 or EOS in ids for ids in phrases):
                raise SentenceError(
                    sentence, "the phrases of {sentence} must hold symbol ids without EOS, and not be empty"
                )
        if self.variant is not None and any(self.phrases or ()):
            raise RnnsearchError(f"phrases need a plain beam search; got {self.variant.name}")
        if self.banned_phrases is not None:
            self._require_none_banned(self.banned_phrases)

    def _require_none_banned(self, banned: BannedTokens) -> None:
        for sentence, ids in enumerate(self.prefix or ()):
            if banned.held(ids):
                raise SentenceError(sentence, "the prefix of {sentence} must not hold a banned phrase")
        for sentence, phrases in enumerate(self.phrases or ()):
            if any(banned.held(ids, whole=True) for ids in phrases):
                raise SentenceError(sentence, "the phrases of {sentence} must not hold a banned phrase")

    @property
    def ranking(self) -> Ranking:
        """What hypotheses are compared by."""
        return Ranking(self.length_penalty, self.length_norm, self.coverage_penalty)

    @property
    def unconstrained(self) -> bool:
        """Whether nothing but `banned` binds what a translation is made of, after what it must begin with."""
        return self.phrases is None and self.banned_phrases is None and self.min_length == self.no_repeat_ngram == 0

    @property
    def has_prefix(self) -> bool:
        """Whether a translation must begin with something."""
        return self.prefix is not None or self.forced_bytes is not None


def beginning_with(options: SearchOptions, begins: Sequence[Prefix], tokenizer: Tokenizer) -> SearchOptions:
    """The search whose hypotheses begin with what is given for each sentence of the call."""
    sizes = torch.tensor([len(spelling) for spelling in tokenizer.spellings()])
    spelling = ForcedBytes(tuple(begin.rest for begin in begins), sizes)
    return replace(options, prefix=tuple(begin.ids for begin in begins), spelling=spelling)


def require_one_entry_per_sentence(options: SearchOptions, sentences: int) -> None:
    """Errors: RnnsearchError where prefixes, phrases, or what is to be spelled, are not as many as the sentences."""
    spelled = None if options.forced_bytes is None else options.forced_bytes.allowed_tokens
    for name, own in (("phrases", options.phrases), ("prefix", options.prefix), ("spelling", spelled)):
        if own is not None and len(own) != sentences:
            raise RnnsearchError(f"{name} must have one entry a sentence ({sentences}); got {len(own)}")


def batch_options(options: SearchOptions, sentences: Sequence[int]) -> SearchOptions:
    """The options of some sentences of the call."""
    if options.prefix is not None:
        options = replace(options, prefix=tuple(options.prefix[i] for i in sentences))
    if options.forced_bytes is not None:
        options = replace(options, spelling=options.forced_bytes.select(sentences))
    if options.phrases is not None:
        options = replace(options, phrases=tuple(options.phrases[i] for i in sentences))
    return options


def constrain(scorer: Scorer, options: SearchOptions, most: Array) -> Scorer:
    """The scorer of a search whose translations, of at most so many symbols, must spell or hold something: `scorer`
    itself where they need not."""
    if options.forced_bytes is not None:
        forced = [len(ids) for ids in options.prefix or [()] * len(options.forced_bytes.allowed_tokens)]
        scorer = ForcedBytesScorer(scorer, options.forced_bytes, forced)
    if options.no_repeat_ngram:
        free = [sorted(set(chain.from_iterable(own))) for own in options.phrases or [()] * len(most)]
        scorer = RepeatScorer(scorer, options.no_repeat_ngram, _begun(options, most).tolist(), free)
    if options.banned_phrases is not None:
        scorer = BannedScorer(scorer, options.banned_phrases, most)
    return PhraseScorer(scorer, options.phrases, most) if options.phrases and any(options.phrases) else scorer


def _begun(options: SearchOptions, most: Array) -> Array:
    """[B], at most so many symbols are forced to stand at the beginning."""
    begun = np.zeros_like(most)
    if options.prefix is not None:
        begun += [len(ids) for ids in options.prefix]
    if options.forced_bytes is not None:
        begun += [len(rest) for rest in options.forced_bytes.allowed_tokens]
    return begun


def score_columns(
    scorer: Scorer, sources: Sources, options: SearchOptions, choose: ColumnChooser | None = None
) -> Columns:
    """The score columns of a search: what `choose` gives and the symbols of prefixes and phrases that the scorer knows;
    all where something is to be spelled, for any symbol may spell it."""
    ids = None if choose is None or options.forced_bytes is not None else choose(sources)
    if ids is not None:
        ids = ids.to(scorer.device)
        wanted = (*(options.prefix or ()), *chain.from_iterable(options.phrases or ()))
        known = sorted({id for id in chain.from_iterable(wanted) if id < scorer.vocabulary})
        more = torch.tensor(known, dtype=torch.int64, device=scorer.device)
        ids = torch.cat((ids, more[~torch.isin(more, ids)]))
    return Columns(ids, scorer.vocabulary)


def max_lengths(sources: Sources, options: SearchOptions) -> Array:
    """[B], the most symbols, without EOS, that each sentence's translation may have, by its longest source.

    Errors: as in `require_entries`.
    """
    symbols = np.max(list(source_lengths(sources).values()), axis=0) - 1
    most: Array = (np.floor(options.max_ratio * symbols) + options.max_extra).astype(np.int64)
    require_one_entry_per_sentence(options, len(most))
    least = 1 + _begun(options, most)
    if options.phrases is not None:
        least += [sum(map(len, phrases)) for phrases in options.phrases]
    found: Array = np.maximum(most, least)
    return found


Constraint = Callable[[Tensor, ScoredRows], None]
"""Sets to -inf, in place, the scores [A * width, C] of what is not allowed."""


class BannedColumns:
    """These score columns are never allowed, in the first `steps` positions or in all."""

    def __init__(self, columns: Tensor, steps: int | None = None) -> None:
        self._columns = columns
        self._steps = steps

    def __call__(self, scores: Tensor, rows: ScoredRows) -> None:
        if self._steps is None or rows.step <= self._steps:
            scores.index_fill_(1, self._columns, -torch.inf)


class PrefixConstraint:
    """Each sentence must begin with its own columns [B, P], -1 after their end, whatever the `others` say; after them
    the others hold."""

    def __init__(self, columns: Tensor, others: Sequence[Constraint]) -> None:
        self._columns = columns
        self._others = others

    def __call__(self, scores: Tensor, rows: ScoredRows) -> None:
        if rows.step > self._columns.shape[1]:
            self._apply_others(scores, rows)
            return
        forced = self._columns[:, rows.step - 1].index_select(0, rows.sentences).repeat_interleave(rows.width)
        column = forced.clamp(min=0)[:, None]
        kept = scores.gather(1, column)
        self._apply_others(scores, rows)
        begins = (forced >= 0)[:, None]
        scores.masked_fill_(begins, -torch.inf)
        scores.scatter_(1, column, torch.where(begins, kept, scores.gather(1, column)))

    def _apply_others(self, scores: Tensor, rows: ScoredRows) -> None:
        for other in self._others:
            other(scores, rows)


def constraints(options: SearchOptions, columns: Columns, device: torch.device) -> list[Constraint]:
    """The constraints that `options` ask for.

    Errors: SentenceError where there is no column for a symbol of a prefix.
    """
    never = columns.find(torch.tensor(sorted(options.banned | NEVER_PRODUCED), device=device))
    wanted: list[Constraint] = [BannedColumns(never[never >= 0])]
    if options.min_length:
        wanted.append(BannedColumns(columns.find(torch.tensor([EOS], device=device)), options.min_length))
    if options.prefix is not None:
        wanted = [PrefixConstraint(prefix_columns(options.prefix, columns, device), wanted)]
    return wanted


def prefix_columns(prefixes: Sequence[Sequence[int]], columns: Columns, device: torch.device) -> Tensor:
    """[B, P], -1 behind the last. Errors: SentenceError where there is no column for a symbol."""
    longest = max((len(ids) for ids in prefixes), default=0)
    rows = [[*ids, *[-1] * (longest - len(ids))] for ids in prefixes]
    tokens = torch.tensor(rows, dtype=torch.int64, device=device)
    found = columns.find(tokens)
    for sentence, position in ((found < 0) & (tokens >= 0)).nonzero().tolist()[:1]:
        token = prefixes[sentence][position]
        message = f"the prefix of {{sentence}} must hold symbols that the scorer scores; got {token}"
        raise SentenceError(sentence, message)
    return found
