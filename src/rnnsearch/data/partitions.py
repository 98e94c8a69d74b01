"""A deterministic train / dev / test split that shares no sentence between its parts.

Which pairs are held out depends on hashes of their text alone: the split is the same on every machine,
and a corpus that grows keeps nearly all of it (no pair ever moves between dev and test). Held-out
sentences are all different, and a training pair that has a source or target sentence in common with
dev or test is left out. Sentences are compared by their letters and digits alone, so that "Tom left!"
does not stand in train where "Tom left." is tested.

The choice is made by arrays of hashes, 24 bytes a pair, which may be memory-mapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import DataError

Part = Literal["train", "dev", "test"]
Texts = tuple[str, str]

PARTS: tuple[Part | None, ...] = (None, "train", "dev", "test")
Numbers = npt.NDArray[np.uint64]

_NOT_WORD = re.compile(r"[\W_]+")
_ASCII_WORDS = {code: None for code in range(128) if not chr(code).isalnum()}


def sentence_key(text: str) -> bytes:
    """8 bytes, equal for sentences with the same letters and digits, whatever their case and punctuation."""
    if text.isascii():  # the same, several times as fast
        core = text.lower().translate(_ASCII_WORDS) or text
    else:
        core = _NOT_WORD.sub("", text.casefold()) or text
    return blake2b(core.encode(), digest_size=8).digest()


@dataclass(frozen=True)
class Partition:
    """Which part each pair of one corpus belongs to; `number` counts the corpus's pairs from 0."""

    dev: frozenset[int]
    test: frozenset[int]
    sources: frozenset[int]
    """Keys of all held-out source sentences."""
    targets: frozenset[int]

    def part(self, number: int, source: str, target: str) -> Part | None:
        """The pair's part; None where it shares a sentence with a held-out pair and is left out."""
        if number in self.dev:
            return "dev"
        if number in self.test:
            return "test"
        keys = (int.from_bytes(sentence_key(text), "big") for text in (source, target))
        return None if next(keys) in self.sources or next(keys) in self.targets else "train"

    def parts(self, keys: Keys) -> npt.NDArray[np.uint8]:
        """The part of each pair of the corpus with these keys, as its place in `PARTS`."""
        shared = np.isin(keys.source, np.array([*self.sources], dtype=np.uint64))
        shared |= np.isin(keys.target, np.array([*self.targets], dtype=np.uint64))
        parts = np.where(shared, PARTS.index(None), PARTS.index("train")).astype(np.uint8)
        parts[[*self.dev]] = PARTS.index("dev")
        parts[[*self.test]] = PARTS.index("test")
        return parts


class Keys(NamedTuple):
    """Of each pair, the keys of its sentences and the hash of both, by which pairs are chosen."""

    source: Numbers
    target: Numbers
    rank: Numbers

    @classmethod
    def of(cls, pairs: Iterable[Texts]) -> Keys:
        """The keys of some pairs."""
        digests = bytearray()
        for source, target in pairs:
            keys = sentence_key(source) + sentence_key(target)
            digests += keys + blake2b(keys, digest_size=8).digest()
        # as numbers they have the order of their bytes
        table = np.frombuffer(bytes(digests), dtype=">u8").reshape(-1, 3).astype(np.uint64)
        return cls(table[:, 0], table[:, 1], table[:, 2])


@dataclass(frozen=True, order=True)
class _Candidate:
    rank: int
    number: int
    source: int
    target: int

    @property
    def is_test(self) -> bool:
        return bool(self.rank & 1)


def split(pairs: Callable[[], Iterable[Texts]], dev_size: int, test_size: int) -> Partition:
    """Choose the held-out pairs of a corpus (`pairs` begins a reading of it). Errors: as in `split_keys`."""
    return split_keys(Keys.of(pairs()), dev_size, test_size)


def split_keys(keys: Keys, dev_size: int, test_size: int) -> Partition:
    """Choose the held-out pairs by their keys.

    Errors: DataError where the corpus has too few distinct sentences.
    """
    capacity, total = 2 * max(dev_size, test_size) + 64, len(keys.rank)
    while True:
        chosen = _choose(_candidates(keys, capacity), dev_size, test_size)
        dev = frozenset(c.number for c in chosen if not c.is_test)
        test = frozenset(c.number for c in chosen if c.is_test)
        if len(dev) == dev_size and len(test) == test_size and total > len(chosen):
            return Partition(dev, test, frozenset(c.source for c in chosen), frozenset(c.target for c in chosen))
        if capacity >= total:
            wanted = f"enough distinct sentences for {dev_size} dev, {test_size} test and some training pairs"
            advice = "lower data.dev_size and data.test_size, or give data.dev and data.test"
            raise DataError(f"the corpus must have {wanted}; got {total} pairs ({advice})")
        capacity *= 8


def _candidates(keys: Keys, capacity: int) -> list[_Candidate]:
    """The `capacity` pairs of lowest hash for dev and as many for test, sorted."""
    found: list[_Candidate] = []
    for is_test in (0, 1):
        places = np.flatnonzero((keys.rank & np.uint64(1)) == is_test)
        ranks = keys.rank[places]
        if len(places) > capacity:
            places = places[ranks <= np.partition(ranks, capacity - 1)[capacity - 1]]
        by_rank = places[np.argsort(keys.rank[places], kind="stable")][:capacity]
        ranks, sources, targets = (c[by_rank].tolist() for c in (keys.rank, keys.source, keys.target))
        found += map(_Candidate, ranks, by_rank.tolist(), sources, targets)
    return sorted(found)


def _choose(candidates: list[_Candidate], dev_size: int, test_size: int) -> list[_Candidate]:
    """In the order of hashes, every pair both of whose sentences are new, until both parts are full."""
    chosen: list[_Candidate] = []
    room = [dev_size, test_size]
    sources: set[int] = set()
    targets: set[int] = set()
    for candidate in candidates:
        if room[candidate.is_test] and candidate.source not in sources and candidate.target not in targets:
            room[candidate.is_test] -= 1
            sources.add(candidate.source)
            targets.add(candidate.target)
            chosen.append(candidate)
    return chosen
