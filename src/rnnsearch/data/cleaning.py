"""Which rows of a corpus are left out of training, with a count and examples a reason."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig
from rnnsearch.data.corpus import Row
from rnnsearch.text.languages import in_another_language, length

EXAMPLES = 3
DUPLICATE = "duplicate"
MOST = 0.2
"""The share of a corpus that one reason may take without a warning."""
_SHOWN = 60
_SLACK = 5
"""Words that the longer side may have beyond the ratio, so that short sentences are not judged by it."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SHARDS = 16


def fault(row: Row, config: CleaningConfig, languages: Sequence[str], needed: int = 2) -> str | None:
    """Why a row is unfit for training by itself, or None. Lengths are words (see `languages.length`); sides that the
    row lacks do not count, as long as it has as many as are `needed`.

    Reasons, in the order they are looked for: invalid UTF-8, one column, control characters, empty, too short, too
    long, ratio, identical, other language.
    """
    if row.fault:
        return row.fault
    if any(map(_CONTROL.search, row.texts)):
        return "control characters"
    lengths = [n for n in map(length, row.texts, languages) if n]
    if len(lengths) < needed:
        return "empty"
    shorter, longer = min(lengths), max(lengths)
    if shorter < config.min_words:
        return "too short"
    if longer > config.max_words:
        return "too long"
    if longer > config.max_ratio * shorter + _SLACK:
        return "ratio"
    if config.drop_identical and shorter > 1 and _identical(row.texts):
        return "identical"
    if config.language_id and any(map(in_another_language, row.texts, languages)):
        return "other language"
    return None


def _identical(texts: Sequence[str]) -> bool:
    """Whether two sides have the same words."""
    first = [text.lstrip()[:1] for text in texts if text]
    if len(set(first)) == len(first):
        return False
    words = [text.split() for text in texts if text]
    return any(one == other for one, other in combinations(words, 2))


def row_key(texts: Sequence[str]) -> bytes:
    """8 bytes, equal for rows with the same words on every side, spacing aside.

    Among ten million rows the chance that even two others are given the same is about one in 400,000.
    """
    return blake2b("\t".join([" ".join(text.split()) for text in texts]).encode(), digest_size=8).digest()


def first_of_each(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Where a key stands that did not stand before. Looks at a sixteenth of the keys at a time, to hold little."""
    first = np.zeros(len(keys), dtype=bool)
    shards = (np.asarray(keys) >> np.uint64(60)).astype(np.uint8)
    for shard in range(_SHARDS):
        places = np.flatnonzero(shards == shard)
        first[places[np.unique(keys[places], return_index=True)[1]]] = True
    return first


class Tally:
    """How many pairs were read, and how many of them rejected for which reason, with the first examples."""

    def __init__(self) -> None:
        self.read = 0
        self.rejected: Counter[str] = Counter()
        self._examples: defaultdict[str, list[str]] = defaultdict(list)

    def reject(self, reason: str, row: Row) -> None:
        """Count a rejected row."""
        self.rejected[reason] += 1
        if self.rejected[reason] <= EXAMPLES:
            self._examples[reason].append(f"{row.where}: {' | '.join(map(_shown, row.texts))}")

    def add(self, other: "Tally") -> None:
        """Take in what was counted of the pairs after these."""
        self.read += other.read
        self.rejected += other.rejected
        for reason, examples in other._examples.items():
            self._examples[reason] = (self._examples[reason] + examples)[:EXAMPLES]

    def report(self, examples: bool = True) -> dict[str, Any]:
        """`read`, `kept`, and `rejected`: for each reason its `count` and, if asked, first `examples`."""
        rejected = {
            reason: {"count": count} | ({"examples": self._examples[reason]} if examples else {})
            for reason, count in sorted(self.rejected.items(), key=lambda item: (-item[1], item[0]))
        }
        return {"read": self.read, "kept": self.read - self.rejected.total(), "rejected": rejected}

    def warnings(self) -> list[str]:
        """A sentence for each reason that takes more than `MOST` of the corpus."""
        many = [(count, reason) for reason, count in self.rejected.items() if count > MOST * self.read]
        return [
            f'{count / self.read:.0%} of the corpus ({count:,} pairs) is left out for one reason: "{reason}"'
            for count, reason in sorted(many, reverse=True)
        ]

    def summary(self) -> str:
        """One line: how many pairs were left out, and for which reasons."""
        rejected = self.report(examples=False)["rejected"].items()
        reasons = ", ".join(f"{entry['count']} {reason}" for reason, entry in rejected)
        return f"{self.rejected.total()} of {self.read} pairs left out" + (f": {reasons}" if reasons else "")


def _shown(text: str) -> str:
    """The beginning of a text, with control characters written out."""
    short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", short)
