"""Filters that leave rows of a corpus out of training, and a tally of the rejected rows with examples per reason.

`preprocess.clean` applies them to a chunk of rows; `CleanedText.read` adds up the tallies of all chunks, and
`prepare.py` writes the result. Thresholds come from `[data.cleaning]`.

Keys (`row_key`) decide which rows are duplicates, and names of reasons are stored in cleaning.json.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig
from rnnsearch.data.corpus import Row
from rnnsearch.text.languages import is_other_language, length_in_words

MAX_EXAMPLES = 3
"""Maximum number of examples per reason."""
DUPLICATE = "duplicate"
"""Reason for rows that occurred before."""
MAX_REJECTED_FRACTION = 0.2
"""Fraction of a corpus that may be rejected for one reason without a warning."""
_MAX_EXAMPLE_CHARACTERS = 60
_RATIO_SLACK_WORDS = 5
"""Words that a text may have beyond the ratio, so that it does not apply to short sentences."""
_NUM_SHARDS = 16

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def rejection_reason(row: Row, config: CleaningConfig, languages: Sequence[str], min_texts: int = 2) -> str | None:
    """Return why a row is unfit for training, or None if it is fit.

    The reasons, in the order of the checks: invalid UTF-8, one column, control characters, empty, too short, too long,
    ratio, identical, other language. Duplicates are found elsewhere. Lengths are in words (see
    `languages.length_in_words`); empty texts do not count.

    Args:
        row: The row.
        config: Thresholds.
        languages: Language of each text.
        min_texts: Minimum number of texts that are not empty.
    """
    if row.problem:
        return row.problem
    if any(map(_CONTROL.search, row.texts)):
        return "control characters"
    lengths = [length for length in map(length_in_words, row.texts, languages) if length]
    if len(lengths) < min_texts:
        return "empty"
    shortest = min(lengths)
    longest = max(lengths)
    if shortest < config.min_words:
        return "too short"
    if longest > config.max_words:
        return "too long"
    if longest > config.max_ratio * shortest + _RATIO_SLACK_WORDS:
        return "ratio"
    # Single words, such as names and numbers, are often equal in both languages.
    if config.drop_identical and shortest > 1 and _has_identical_texts(row.texts):
        return "identical"
    if config.language_id and any(map(is_other_language, row.texts, languages)):
        return "other language"
    return None


def _has_identical_texts(texts: Sequence[str]) -> bool:
    """Return True if two texts have the same words."""
    first_characters = [text.lstrip()[:1] for text in texts if text]
    if len(set(first_characters)) == len(first_characters):  # cheap check for the common case
        return False
    words = [text.split() for text in texts if text]
    return any(one == other for one, other in combinations(words, 2))


def row_key(texts: Sequence[str]) -> bytes:
    """Return an 8-byte hash of the words of a row, which ignores spacing.

    In a corpus of ten million rows, the probability that any two different rows have the same hash is about 1 in
    400,000.
    """
    # Tabs separate the texts, so that a word at the border cannot belong to either.
    return blake2b("\t".join([" ".join(text.split()) for text in texts]).encode(), digest_size=8).digest()


def first_occurrences(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return the mask of keys that did not occur before."""
    is_first = np.zeros(len(keys), dtype=bool)
    # One sixteenth of the keys at a time, by their top four bits, to save memory.
    shards = (np.asarray(keys) >> np.uint64(60)).astype(np.uint8)
    for shard in range(_NUM_SHARDS):
        indices = np.flatnonzero(shards == shard)
        # Equal keys are in one shard, and `indices` is ascending: these are the first occurrences in the whole
        # corpus.
        _, first = np.unique(keys[indices], return_index=True)
        is_first[indices[first]] = True
    return is_first


@dataclass
class Tally:
    """Numbers of rows that were read, and rejected for each reason, with the first examples."""

    read: int = 0
    """Number of rows that were read."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Number of rejected rows by reason."""
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Locations and texts of the first rejected rows by reason."""

    def reject(self, reason: str, row: Row) -> None:
        """Count a rejected row."""
        self.rejected[reason] += 1
        if self.rejected[reason] <= MAX_EXAMPLES:
            self.examples.setdefault(reason, []).append(f"{row.location}: {' | '.join(map(_excerpt, row.texts))}")

    def add(self, other: Tally) -> None:
        """Add the tally of later rows."""
        self.read += other.read
        self.rejected += other.rejected
        for reason, examples in other.examples.items():
            # The first ones in the order of the corpus, however it was divided among processes.
            self.examples[reason] = (self.examples.get(reason, []) + examples)[:MAX_EXAMPLES]

    def report(self, examples: bool = True) -> dict[str, Any]:
        """Return `read`, `kept`, and `rejected`: by reason, its `count` and, on request, the first `examples`."""
        rejected: dict[str, Any] = {}
        for reason, count in sorted(self.rejected.items(), key=lambda item: (-item[1], item[0])):
            rejected[reason] = {"count": count}
            if examples:
                rejected[reason]["examples"] = self.examples[reason]
        return {"read": self.read, "kept": self.read - self.rejected.total(), "rejected": rejected}

    def warnings(self) -> list[str]:
        """Return a warning for each reason that rejects more than `MAX_REJECTED_FRACTION` of the corpus."""
        limit = MAX_REJECTED_FRACTION * self.read
        frequent = [(count, reason) for reason, count in self.rejected.items() if count > limit]
        return [
            f'{count / self.read:.0%} of the corpus ({count:,} pairs) is left out for one reason: "{reason}"'
            for count, reason in sorted(frequent, reverse=True)
        ]

    def summary(self) -> str:
        """Return one line: how many pairs were left out, and for which reasons."""
        rejected = self.report(examples=False)["rejected"].items()
        reasons = ", ".join(f"{entry['count']} {reason}" for reason, entry in rejected)
        return f"{self.rejected.total()} of {self.read} pairs left out" + (f": {reasons}" if reasons else "")


def _excerpt(text: str) -> str:
    """Return the start of a text, with control characters escaped."""
    short = text if len(text) <= _MAX_EXAMPLE_CHARACTERS else text[: _MAX_EXAMPLE_CHARACTERS - 1] + "…"
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", short)
