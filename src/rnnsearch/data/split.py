"""A deterministic train / dev / test split that shares no sentence between its parts.

Which rows are held out depends on hashes of their text alone: the split is the same on every machine, and a corpus
that grows keeps nearly all of it (no row ever moves between dev and test). Held-out sentences are all different, and
a training row that has a sentence of any side in common with dev or test is left out. Sentences are compared by their
letters and digits alone, so that "Tom left!" does not stand in train where "Tom left." is tested.

A corpus of documents is split by whole documents, and training documents stay whole: sentences that also stand in dev
or test are counted, not left out.

The choice is made by arrays of hashes, eight bytes a sentence and as many a row, which may be memory-mapped.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import DataError

Part = str
"""`train`, `dev` or `test`."""
PARTS: tuple[Part | None, ...] = (None, "train", "dev", "test")
LEFT_OUT, TRAIN, DEV, TEST = range(len(PARTS))
HELD_OUT = ("dev", "test")
Parts = npt.NDArray[np.uint8]
"""The part of each row, as its place in `PARTS`."""
Numbers = npt.NDArray[np.uint64]

_NOT_WORD = re.compile(r"[\W_]+")
_NOT_ASCII_WORD = bytes(code for code in range(128) if not chr(code).isalnum())


def sentence_key(text: str) -> bytes:
    """8 bytes, equal for sentences with the same letters and digits, whatever their case and punctuation."""
    if text.isascii():  # the same, several times as fast
        core = text.encode().lower().translate(None, _NOT_ASCII_WORD)
    else:
        core = _NOT_WORD.sub("", text.casefold()).encode()
    return blake2b(core or text.encode(), digest_size=8).digest()


def split_key(texts: Sequence[str]) -> bytes:
    """What a row is split by, a row of `key_fields`: the keys of its sentences (0 for a side it lacks), and the hash
    of them all, by which rows are chosen."""
    keys = b"".join([sentence_key(text) if text else bytes(8) for text in texts])
    return keys + blake2b(keys, digest_size=8).digest()


def key_fields(sides: int) -> list[tuple[Any, ...]]:
    """The fields of a table of keys; as numbers they have the order of their bytes."""
    return [("sentences", ">u8", (sides,)), ("rank", ">u8")]


class Keys(NamedTuple):
    """The keys of rows: of their sentences [rows, sides], and their ranks [rows]."""

    sentences: Numbers
    rank: Numbers

    @classmethod
    def of(cls, table: npt.NDArray[Any]) -> "Keys":
        """From a table with `key_fields`."""
        return cls(table["sentences"].astype(np.uint64), table["rank"].astype(np.uint64))

    @classmethod
    def of_texts(cls, rows: Sequence[Sequence[str]]) -> "Keys":
        """Of rows in memory."""
        sides = len(rows[0]) if rows else 1
        return cls.of(np.frombuffer(b"".join(map(split_key, rows)), dtype=key_fields(sides)))

    def shared(self, held: Numbers) -> npt.NDArray[np.bool_]:
        """Which rows have a sentence in common with those of these keys [held rows, sides]."""
        columns = zip(self.sentences.T, held.T, strict=True)
        found = np.zeros(len(self.rank), dtype=bool)
        for own, others in columns:
            found |= np.isin(own, others[others > 0])
        return found


def split(keys: Keys, dev_size: int, test_size: int) -> Parts:
    """The part of each row.

    Errors: DataError where the corpus has too few distinct sentences.
    """
    capacity, total = 2 * max(dev_size, test_size) + 64, len(keys.rank)
    while True:
        chosen = _choose(_candidates(keys, capacity), dev_size, test_size)
        if len(chosen) == dev_size + test_size < total:
            break
        if capacity >= total:
            wanted = f"enough distinct sentences for {dev_size} dev, {test_size} test and some training pairs"
            advice = "lower data.dev_size and data.test_size, or give data.dev and data.test"
            raise DataError(f"the corpus must have {wanted}; got {total} pairs ({advice})")
        capacity *= 8
    held = np.array([candidate.number for candidate in chosen], dtype=np.int64)
    parts = np.where(keys.shared(keys.sentences[held]), LEFT_OUT, TRAIN).astype(np.uint8)
    parts[held] = [TEST if candidate.is_test else DEV for candidate in chosen]
    return parts


class _Candidate(NamedTuple):
    rank: int
    number: int
    sentences: tuple[int, ...]

    @property
    def is_test(self) -> bool:
        return bool(self.rank & 1)


def _candidates(keys: Keys, capacity: int) -> list[_Candidate]:
    """The `capacity` whole rows of lowest hash for dev and as many for test, sorted."""
    found: list[_Candidate] = []
    for is_test in (0, 1):
        places = np.flatnonzero(((keys.rank & np.uint64(1)) == is_test) & keys.sentences.all(1))
        ranks = keys.rank[places]
        if len(places) > capacity:
            places = places[ranks <= np.partition(ranks, capacity - 1)[capacity - 1]]
        by_rank = places[np.argsort(keys.rank[places], kind="stable")][:capacity]
        sentences = map(tuple, keys.sentences[by_rank].tolist())
        found += map(_Candidate, keys.rank[by_rank].tolist(), by_rank.tolist(), sentences)
    return sorted(found)


def _choose(candidates: list[_Candidate], dev_size: int, test_size: int) -> list[_Candidate]:
    """In the order of hashes, every row whose sentences are all new, until both parts are full."""
    chosen: list[_Candidate] = []
    room = [dev_size, test_size]
    seen: set[tuple[int, int]] = set()
    for candidate in candidates:
        sentences = set(enumerate(candidate.sentences))
        if room[candidate.is_test] and not sentences & seen:
            room[candidate.is_test] -= 1
            seen |= sentences
            chosen.append(candidate)
    return chosen


def document_keys(keys: Numbers, documents: npt.NDArray[np.uint32]) -> tuple[Numbers, npt.NDArray[np.int64]]:
    """A key for each document, of those of its rows, and where each document begins; `documents`: each row's
    number.
    """
    begins = np.flatnonzero(np.diff(documents, prepend=documents[:1] + 1))
    pieces = np.split(keys.astype("<u8"), begins[1:])
    digests = b"".join(blake2b(piece.tobytes(), digest_size=8).digest() for piece in pieces if len(piece))
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64), begins


def split_documents(keys: Keys, documents: npt.NDArray[np.uint32], dev_size: int, test_size: int) -> Parts:
    """The part of each row, by whole documents: in the order of their hashes, until dev and test have rows enough.

    Errors: DataError where there are too few documents.
    """
    ranks, begins = document_keys(keys.rank, documents)
    ends = np.append(begins[1:], len(documents))
    parts = np.full(len(documents), TRAIN, dtype=np.uint8)
    room = [dev_size, test_size]
    for number in np.argsort(ranks, kind="stable").tolist():
        is_test = int(ranks[number]) & 1
        if room[is_test] > 0:
            parts[begins[number] : ends[number]] = TEST if is_test else DEV
            room[is_test] -= int(ends[number] - begins[number])
    if max(room) > 0 or not (parts == TRAIN).any():
        wanted = f"enough documents for {dev_size} dev, {test_size} test and some training pairs"
        raise DataError(f"the corpus must have {wanted}; got {len(begins)} documents of {len(documents)} pairs")
    return parts
