"""Which sentence pairs are left out of training, with a count and examples a reason."""

from __future__ import annotations

import re
from array import array
from hashlib import blake2b
from typing import Any

from rnnsearch.config import CleaningConfig
from rnnsearch.data.corpus import Pair

EXAMPLES = 3
_SHOWN = 60
_SLACK = 5
"""Words that the longer side may have beyond the ratio, so that short sentences are not judged by it."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class Cleaner:
    """Tells which pairs to keep, and counts the others. Lengths are whitespace-separated words.

    Reasons, in the order they are looked for: invalid UTF-8, one column, control characters, empty,
    too short, too long, ratio, identical, duplicate. A duplicate is a pair both of whose sides occurred
    together before, spacing aside. 64-bit hashes of the kept pairs are held to tell it: 12 to 24 bytes a
    pair, the only memory that grows with the corpus. Among ten million pairs the chance that even one is
    taken for a duplicate wrongly is about one in 400,000.
    """

    def __init__(self, config: CleaningConfig) -> None:
        self._config = config
        self._seen = HashSet()
        self._read = 0
        self._rejected: dict[str, tuple[int, list[str]]] = {}

    def keep(self, pair: Pair) -> bool:
        """Whether the pair is fit for training; counted either way."""
        self._read += 1
        reason = self._fault(pair)
        if reason is None:
            return True
        count, examples = self._rejected.get(reason, (0, []))
        if count < EXAMPLES:
            examples = [*examples, f"{pair.where}: {_shown(pair.source)} | {_shown(pair.target)}"]
        self._rejected[reason] = (count + 1, examples)
        return False

    def report(self, examples: bool = True) -> dict[str, Any]:
        """`read`, `kept`, and `rejected`: for each reason its `count` and, if asked, first `examples`."""
        rejected = {
            reason: {"count": count} | ({"examples": shown} if examples else {})
            for reason, (count, shown) in sorted(self._rejected.items(), key=lambda item: -item[1][0])
        }
        return {"read": self._read, "kept": self._read - self._left_out(), "rejected": rejected}

    def summary(self) -> str:
        """One line: how many pairs were left out, and for which reasons."""
        reasons = ", ".join(
            f"{entry['count']} {reason}" for reason, entry in self.report(examples=False)["rejected"].items()
        )
        return f"{self._left_out()} of {self._read} pairs left out" + (f": {reasons}" if reasons else "")

    def _left_out(self) -> int:
        return sum(count for count, _ in self._rejected.values())

    def _fault(self, pair: Pair) -> str | None:
        if pair.fault:
            return pair.fault
        if _CONTROL.search(pair.source) or _CONTROL.search(pair.target):
            return "control characters"
        config = self._config
        source, target = pair.source.split(), pair.target.split()
        shorter, longer = sorted((len(source), len(target)))
        if shorter == 0:
            return "empty"
        if shorter < config.min_words:
            return "too short"
        if longer > config.max_words:
            return "too long"
        if longer > config.max_ratio * shorter + _SLACK:
            return "ratio"
        if config.drop_identical and shorter > 1 and source == target:
            return "identical"
        if config.drop_duplicates and not self._seen.add(f"{' '.join(source)}\t{' '.join(target)}"):
            return "duplicate"
        return None


def _shown(text: str) -> str:
    """The beginning of a text, with control characters written out."""
    short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", short)


class HashSet:
    """Which texts were seen, by 64-bit hashes in a flat open-addressing table, 12 to 24 bytes a text."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, text: str) -> bool:
        """Add a text; False if it was there."""
        value = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") or 1
        if not self._put(value):
            return False
        self._count += 1
        if 3 * self._count > 2 * len(self._table):
            old, self._table = self._table, array("Q", bytes(16 * len(self._table)))
            for value in filter(None, old):
                self._put(value)
        return True

    def _put(self, value: int) -> bool:
        table, mask = self._table, len(self._table) - 1
        place = value & mask
        while table[place]:
            if table[place] == value:
                return False
            place = (place + 1) & mask
        table[place] = value
        return True
