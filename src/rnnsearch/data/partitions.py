"""A deterministic train / dev / test split that shares no sentence between its parts.

Which pairs are held out depends on hashes of their text alone: the split is the same on every machine,
and a corpus that grows keeps nearly all of it (no pair ever moves between dev and test). Held-out
sentences are all different, and a training pair that has a source or target sentence in common with
dev or test is left out. Sentences are compared by their letters and digits alone, so that "Tom left!"
does not stand in train where "Tom left." is tested.

Memory holds a few thousand hashes, whatever the corpus's length; the corpus is read twice.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from rnnsearch.errors import DataError

Part = Literal["train", "dev", "test"]
Texts = tuple[str, str]

_NOT_WORD = re.compile(r"[\W_]+")


def sentence_key(text: str) -> bytes:
    """8 bytes, equal for sentences with the same letters and digits, whatever their case and punctuation."""
    core = _NOT_WORD.sub("", text.casefold()) or text
    return blake2b(core.encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Partition:
    """Which part each pair of one corpus belongs to; `number` counts the corpus's pairs from 0."""

    dev: frozenset[int]
    test: frozenset[int]
    sources: frozenset[bytes]
    """Keys of all held-out source sentences."""
    targets: frozenset[bytes]

    def part(self, number: int, source: str, target: str) -> Part | None:
        """The pair's part; None where it shares a sentence with a held-out pair and is left out."""
        if number in self.dev:
            return "dev"
        if number in self.test:
            return "test"
        shared = sentence_key(source) in self.sources or sentence_key(target) in self.targets
        return None if shared else "train"


@dataclass(frozen=True, order=True)
class _Candidate:
    rank: bytes
    number: int
    source: bytes
    target: bytes

    @property
    def is_test(self) -> bool:
        return bool(self.rank[-1] & 1)


def split(pairs: Callable[[], Iterable[Texts]], dev_size: int, test_size: int) -> Partition:
    """Choose the held-out pairs. `pairs` begins a new reading of the corpus at each call.

    Errors: DataError where the corpus has too few distinct sentences.
    """
    capacity = 2 * max(dev_size, test_size) + 64
    while True:
        total, candidates = _candidates(pairs(), capacity)
        chosen = _choose(candidates, dev_size, test_size)
        dev = frozenset(c.number for c in chosen if not c.is_test)
        test = frozenset(c.number for c in chosen if c.is_test)
        if len(dev) == dev_size and len(test) == test_size and total > len(chosen):
            sources, targets = (c.source for c in chosen), (c.target for c in chosen)
            return Partition(dev, test, frozenset(sources), frozenset(targets))
        if capacity >= total:
            wanted = f"enough distinct sentences for {dev_size} dev, {test_size} test and some training pairs"
            advice = "lower data.dev_size and data.test_size, or give data.dev and data.test"
            raise DataError(f"the corpus must have {wanted}; got {total} pairs ({advice})")
        capacity *= 8


def _candidates(pairs: Iterable[Texts], capacity: int) -> tuple[int, list[_Candidate]]:
    """The number of pairs, and the `capacity` pairs of lowest hash for dev and as many for test, sorted."""
    total = 0
    pools: tuple[list[_Reversed], list[_Reversed]] = ([], [])
    for number, (source, target) in enumerate(pairs):
        total += 1
        keys = sentence_key(source), sentence_key(target)
        candidate = _Candidate(blake2b(keys[0] + keys[1], digest_size=8).digest(), number, *keys)
        pool = pools[candidate.is_test]
        if len(pool) < capacity:
            heapq.heappush(pool, _Reversed(candidate))
        elif candidate < pool[0].candidate:
            heapq.heapreplace(pool, _Reversed(candidate))
    return total, sorted(entry.candidate for pool in pools for entry in pool)


@dataclass(frozen=True)
class _Reversed:
    """Turns heapq's smallest-first heap into one whose first is the largest candidate."""

    candidate: _Candidate

    def __lt__(self, other: _Reversed) -> bool:
        return other.candidate < self.candidate


def _choose(candidates: list[_Candidate], dev_size: int, test_size: int) -> list[_Candidate]:
    """In the order of hashes, every pair both of whose sentences are new, until both parts are full."""
    chosen: list[_Candidate] = []
    room = [dev_size, test_size]
    sources: set[bytes] = set()
    targets: set[bytes] = set()
    for candidate in candidates:
        if room[candidate.is_test] and candidate.source not in sources and candidate.target not in targets:
            room[candidate.is_test] -= 1
            sources.add(candidate.source)
            targets.add(candidate.target)
            chosen.append(candidate)
    return chosen
