"""`SearchOptions`: everything that determines how a search runs, built from `[search]` of a run file with overrides.

The options that every search has, with their defaults, are in `BeamOptions` (`ranking.py`). `Translator.options`
creates one from `[search]` and the options of a request, and every search of this package takes one. `constraints.py`
turns the options that restrict translations into filters of scores.

Before changing it: the fields in `CONFIG_FIELDS` are those of `[search]` (`config/search.py`) and of engine files
(`export/engine_file.py`, `SEARCH_SETTINGS`). Fields with one entry per sentence must be handled in `select` and
`require_one_entry_per_sentence`, and fields that restrict translations in `unconstrained`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rnnsearch.config.search import STOPS
from rnnsearch.errors import RnnsearchError, must_be_one_of
from rnnsearch.search.banned import BannedTokens
from rnnsearch.search.hypothesis import SearchCancelled, SentenceError
from rnnsearch.search.phrases import Phrase
from rnnsearch.search.prefixes import ForcedBytes
from rnnsearch.search.ranking import BeamOptions
from rnnsearch.search.sampling import Variant, require_all
from rnnsearch.text.vocabulary import EOS

if TYPE_CHECKING:
    from rnnsearch.config import SearchConfig
    from rnnsearch.text.prefixes import Prefix
    from rnnsearch.text.tokenizer import Tokenizer

CONFIG_FIELDS = (
    "beam",
    "length_penalty",
    "length_norm",
    "stop",
    "coverage_penalty",
    "max_ratio",
    "max_extra",
    "no_repeat_ngram",
)
"""Fields that a model's `[search]` table sets."""


class LengthLimit(NamedTuple):
    """Maximum length of a translation, without EOS: `max_ratio` times the length of the source plus `max_extra`."""

    max_ratio: float
    max_extra: int


@dataclass(frozen=True)
class SearchOptions(BeamOptions):
    """Options of one search. Lengths count target tokens without EOS unless stated otherwise.

    `prefix`, `forced_bytes` and `phrases` have one entry per sentence of the call.
    """

    stop: str = "bound"
    """Stopping criterion of beam search, one of `STOPS` (see `beam.py`)."""
    prefix: tuple[tuple[int, ...], ...] | None = None
    """Tokens that translations must begin with; they may be banned ones."""
    forced_bytes: ForcedBytes | None = None
    """UTF-8 bytes that must follow the prefix, in any segmentation."""
    phrases: tuple[tuple[Phrase, ...], ...] | None = None
    """Token sequences that translations must contain, in any order; a beam of 1 appends missing ones at the end."""
    banned_phrases: BannedTokens | None = None
    """Phrases that no translation may contain."""
    min_length: int = 0
    """EOS is forbidden before this many tokens; the maximum length has priority."""
    no_repeat_ngram: int = 0
    """Forbid repeated n-grams of this length, except in a forced prefix; 0 allows them."""
    variant: Variant | None = None
    """Search other than one beam per sentence (sampling, diverse groups, ...); not supported with `phrases`."""
    compact_at: float = 0.25
    """Drop finished sentences from the batch when this fraction has finished; affects only the speed."""
    is_cancelled: Callable[[], bool] | None = None
    """Called before every batch and step, in any thread; the search raises `SearchCancelled` if it returns True."""

    def raise_if_cancelled(self) -> None:
        """Raise SearchCancelled if the result is not needed any more."""
        if self.is_cancelled is not None and self.is_cancelled():
            raise SearchCancelled

    @classmethod
    def from_config(cls, config: SearchConfig, **overrides: Any) -> SearchOptions:
        """Return the options of a `[search]` table.

        Args:
            config: Table that sets the fields in `CONFIG_FIELDS`.
            overrides: Values of any fields by name; None keeps the value of the table or the default.

        Raises:
            TypeError: There is no field of this name.
            RnnsearchError: A value is not valid.
        """
        names = [field.name for field in fields(cls)]
        for name in overrides.keys() - set(names):
            raise TypeError(f"search options {must_be_one_of(sorted(names), name)}")
        values = {name: getattr(config, name) for name in CONFIG_FIELDS}
        values.update((name, value) for name, value in overrides.items() if value is not None)
        return cls(**values)

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
        super().__post_init__()
        if self.variant is not None:
            _ = self.variant.copies(self.beam)  # called for its check: raises if the beam cannot be divided
        self._check_tokens()
        if self.variant is not None and any(self.phrases or ()):
            raise RnnsearchError(f"phrases need an ordinary beam search; got {self.variant.name}")
        if self.banned_phrases is not None:
            self._check_banned_phrases(self.banned_phrases)

    def _check_tokens(self) -> None:
        if EOS in self.banned:
            raise RnnsearchError(f"banned must not contain EOS (id {EOS}), or no translation could end")
        for sentence, ids in enumerate(self.prefix or ()):
            if any(i < 0 or i == EOS for i in ids):
                message = f"the prefix of {{sentence}} must consist of token ids without EOS; got {list(ids)}"
                raise SentenceError(sentence, message)
        for sentence, phrases in enumerate(self.phrases or ()):
            if any(not ids or min(ids) < 0 or EOS in ids for ids in phrases):
                message = "the phrases of {sentence} must consist of token ids without EOS, and must not be empty"
                raise SentenceError(sentence, message)

    def _check_banned_phrases(self, banned: BannedTokens) -> None:
        for sentence, ids in enumerate(self.prefix or ()):
            if banned.contains_phrase(ids):
                raise SentenceError(sentence, "the prefix of {sentence} must not contain a banned phrase")
        for sentence, phrases in enumerate(self.phrases or ()):
            if any(banned.contains_phrase(ids, complete=True) for ids in phrases):
                raise SentenceError(sentence, "the phrases of {sentence} must not contain a banned phrase")

    @property
    def unconstrained(self) -> bool:
        """True if only `banned` and a prefix restrict translations."""
        return self.phrases is None and self.banned_phrases is None and self.min_length == self.no_repeat_ngram == 0

    @property
    def has_prefix(self) -> bool:
        """True if translations must begin with certain tokens or bytes."""
        return self.prefix is not None or self.forced_bytes is not None

    def with_prefixes(self, prefixes: Sequence[Prefix], tokenizer: Tokenizer) -> SearchOptions:
        """Return the options of a search whose translations begin with one prefix per sentence."""
        token_bytes = torch.tensor([len(spelling) for spelling in tokenizer.token_bytes()])
        forced_bytes = ForcedBytes(tuple(prefix.continuations for prefix in prefixes), token_bytes)
        return replace(self, prefix=tuple(prefix.ids for prefix in prefixes), forced_bytes=forced_bytes)

    def select(self, sentences: Sequence[int]) -> SearchOptions:
        """Return the options for some sentences of the call, by index."""
        options = self
        if options.prefix is not None:
            options = replace(options, prefix=tuple(options.prefix[i] for i in sentences))
        if options.forced_bytes is not None:
            options = replace(options, forced_bytes=options.forced_bytes.select(sentences))
        if options.phrases is not None:
            options = replace(options, phrases=tuple(options.phrases[i] for i in sentences))
        return options

    def require_one_entry_per_sentence(self, sentences: int) -> None:
        """Raise RnnsearchError if an option with entries per sentence has a different number of entries."""
        allowed_tokens = None if self.forced_bytes is None else self.forced_bytes.allowed_tokens
        entries = {"phrases": self.phrases, "prefix": self.prefix, "forced_bytes": allowed_tokens}
        for name, values in entries.items():
            if values is not None and len(values) != sentences:
                raise RnnsearchError(f"{name} must have one entry per sentence ({sentences}); got {len(values)}")
