"""Which sentence pairs are left out of training, with a count and examples a reason."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig
from rnnsearch.data.corpus import Pair

EXAMPLES = 3
DUPLICATE = "duplicate"
_SHOWN = 60
_SLACK = 5
"""Words that the longer side may have beyond the ratio, so that short sentences are not judged by it."""

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_SHARDS = 16


def fault(pair: Pair, config: CleaningConfig) -> str | None:
    """Why a pair is unfit for training by itself, or None. Lengths are whitespace-separated words.

    Reasons, in the order they are looked for: invalid UTF-8, one column, control characters, empty, too short, too
    long, ratio, identical.
    """
    if pair.fault:
        return pair.fault
    if _CONTROL.search(pair.source) or _CONTROL.search(pair.target):
        return "control characters"
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
    return None


def pair_key(source: str, target: str) -> bytes:
    """8 bytes, equal for pairs with the same words on either side, spacing aside.

    Among ten million pairs the chance that even two others are given the same is about one in 400,000.
    """
    return blake2b(f"{' '.join(source.split())}\t{' '.join(target.split())}".encode(), digest_size=8).digest()


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
        self._rejected: dict[str, tuple[int, list[str]]] = {}

    def reject(self, reason: str, pair: Pair) -> None:
        """Count a rejected pair."""
        count, examples = self._rejected.get(reason, (0, []))
        if count < EXAMPLES:
            examples = [*examples, f"{pair.where}: {_shown(pair.source)} | {_shown(pair.target)}"]
        self._rejected[reason] = (count + 1, examples)

    def reject_more(self, reason: str, count: int) -> None:
        """Count rejected pairs beyond the examples."""
        before, examples = self._rejected.get(reason, (0, []))
        self._rejected[reason] = (before + count, examples)

    def add(self, other: Tally) -> None:
        """Take in what was counted of the pairs after these."""
        self.read += other.read
        for reason, (count, examples) in other._rejected.items():
            before, first = self._rejected.get(reason, (0, []))
            self._rejected[reason] = (before + count, [*first, *examples][:EXAMPLES])

    def report(self, examples: bool = True) -> dict[str, Any]:
        """`read`, `kept`, and `rejected`: for each reason its `count` and, if asked, first `examples`."""
        rejected = {
            reason: {"count": count} | ({"examples": shown} if examples else {})
            for reason, (count, shown) in sorted(self._rejected.items(), key=lambda item: (-item[1][0], item[0]))
        }
        return {"read": self.read, "kept": self.read - self._left_out(), "rejected": rejected}

    def summary(self) -> str:
        """One line: how many pairs were left out, and for which reasons."""
        reasons = ", ".join(
            f"{entry['count']} {reason}" for reason, entry in self.report(examples=False)["rejected"].items()
        )
        return f"{self._left_out()} of {self.read} pairs left out" + (f": {reasons}" if reasons else "")

    def _left_out(self) -> int:
        return sum(count for count, _ in self._rejected.values())


def _shown(text: str) -> str:
    """The beginning of a text, with control characters written out."""
    short = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", short)
