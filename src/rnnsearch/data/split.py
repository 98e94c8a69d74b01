"""Deterministic train / dev / test split in which no sentence is in two parts.

The rows that are held out depend only on hashes of their text: the split is the same on every machine, and a corpus
that grows keeps nearly all of it (no row ever moves between dev and test). Held-out sentences are distinct, and a
training row is left out if it shares a sentence of any language with dev or test. Only letters and digits of sentences
are compared, so "Tom left!" is not in train if "Tom left." is in test.

A corpus of documents is split by whole documents, and training documents stay whole: their sentences that are also in
dev or test are counted, not left out.

The inputs are arrays of hashes, eight bytes per sentence and eight per row, which may be memory-mapped.

A change of `sentence_key` or `split_key` moves rows between train, dev and test of existing corpora.

Axes: R rows, L languages.
"""

from __future__ import annotations

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
"""Parts by their numbers; `None` is left out."""
LEFT_OUT, TRAIN, DEV, TEST = range(len(PARTS))
HELD_OUT = ("dev", "test")
"""Parts that are not for training."""
Parts = npt.NDArray[np.uint8]
"""Part of each row, as an index of `PARTS`."""
Hashes = npt.NDArray[np.uint64]

_NOT_WORD = re.compile(r"[\W_]+")
_NOT_ASCII_WORD = bytes(code for code in range(128) if not chr(code).isalnum())


def sentence_key(text: str) -> bytes:
    """Return an 8-byte hash of a sentence that ignores case and everything but letters and digits."""
    if text.isascii():  # same result, several times as fast
        core = text.encode().lower().translate(None, _NOT_ASCII_WORD)
    else:
        core = _NOT_WORD.sub("", text.casefold()).encode()
    # Text without any letter or digit is compared as it is.
    return blake2b(core or text.encode(), digest_size=8).digest()


def split_key(texts: Sequence[str]) -> bytes:
    """Return the key of a row, a record of `key_fields`.

    It consists of the keys of its sentences (0 for a missing text) and the hash of these, by which rows are chosen.
    """
    keys = b"".join([sentence_key(text) if text else bytes(8) for text in texts])
    return keys + blake2b(keys, digest_size=8).digest()


def key_fields(num_languages: int) -> list[tuple[Any, ...]]:
    """Return the fields of a key; big-endian, so that numbers are ordered like their bytes."""
    return [("sentences", ">u8", (num_languages,)), ("rank", ">u8")]


class SplitKeys(NamedTuple):
    """The keys of R rows in L languages."""

    sentences: Hashes
    """Keys of the sentences [R, L]."""
    rank: Hashes
    """Hashes of whole rows [R]."""

    @classmethod
    def from_table(cls, table: npt.NDArray[Any]) -> SplitKeys:
        """Return the keys in an array with `key_fields`."""
        return cls(table["sentences"].astype(np.uint64), table["rank"].astype(np.uint64))

    @classmethod
    def from_texts(cls, rows: Sequence[Sequence[str]]) -> SplitKeys:
        """Return the keys of rows in memory."""
        num_languages = len(rows[0]) if rows else 1
        return cls.from_table(np.frombuffer(b"".join(map(split_key, rows)), dtype=key_fields(num_languages)))

    def share_sentence(self, others: Hashes) -> npt.NDArray[np.bool_]:
        """Return the mask [R] of rows that share a sentence with other rows, given their sentence keys [., L]."""
        result = np.zeros(len(self.rank), dtype=bool)
        for column, other_column in zip(self.sentences.T, others.T, strict=True):
            # The key 0 is a missing text, which is not shared.
            result |= np.isin(column, other_column[other_column > 0])
        return result


def split(keys: SplitKeys, dev_size: int, test_size: int) -> Parts:
    """Return the part of each row; raise DataError if the corpus has too few distinct sentences.

    Dev and test consist of complete rows or, if there are too few of them in a corpus of three or more languages, of
    rows in at least two languages.
    """
    # Usually enough: more are needed only if many candidates share sentences.
    capacity = 2 * max(dev_size, test_size) + 64
    total = len(keys.rank)
    min_texts = keys.sentences.shape[1]
    while True:
        chosen = _choose(_candidates(keys, capacity, min_texts), dev_size, test_size)
        if len(chosen) == dev_size + test_size < total:
            break
        if capacity >= total and min_texts > 2:
            min_texts = 2
            continue
        if capacity >= total:
            wanted = f"enough distinct sentences for {dev_size} dev, {test_size} test and some training pairs"
            advice = "lower data.dev_size and data.test_size, or give data.dev and data.test"
            raise DataError(f"the corpus must have {wanted}; got {total} pair{'s' * (total != 1)} ({advice})")
        capacity *= 8
    chosen_rows = np.array([candidate.row for candidate in chosen], dtype=np.int64)
    parts = np.where(keys.share_sentence(keys.sentences[chosen_rows]), LEFT_OUT, TRAIN).astype(np.uint8)
    parts[chosen_rows] = [TEST if candidate.is_test else DEV for candidate in chosen]
    return parts


class _Candidate(NamedTuple):
    """A row that may be held out; candidates are sorted by rank."""

    rank: int
    row: int
    sentences: tuple[int, ...]

    @property
    def is_test(self) -> bool:
        """True if the row may be in test, False if it may be in dev."""
        # A bit of the row's own hash, so that no row moves between dev and test when the corpus grows.
        return bool(self.rank & 1)


def _candidates(keys: SplitKeys, capacity: int, min_texts: int) -> list[_Candidate]:
    """Return the rows of lowest rank with so many texts, sorted: up to `capacity` for dev and as many for test."""
    candidates: list[_Candidate] = []
    # The key 0 is a missing text.
    has_texts = np.count_nonzero(keys.sentences, axis=1) >= min_texts
    for is_test in (0, 1):
        rows = np.flatnonzero(((keys.rank & np.uint64(1)) == is_test) & has_texts)
        ranks = keys.rank[rows]
        if len(rows) > capacity:  # avoid sorting all rows
            rows = rows[ranks <= np.partition(ranks, capacity - 1)[capacity - 1]]
        rows = rows[np.argsort(keys.rank[rows], kind="stable")][:capacity]
        sentences = map(tuple, keys.sentences[rows].tolist())
        candidates += map(_Candidate, keys.rank[rows].tolist(), rows.tolist(), sentences)
    return sorted(candidates)


def _choose(candidates: list[_Candidate], dev_size: int, test_size: int) -> list[_Candidate]:
    """Return, by rank, the rows whose sentences are all new, until dev and test are full."""
    chosen: list[_Candidate] = []
    remaining = [dev_size, test_size]
    seen: set[tuple[int, int]] = set()  # (language index, sentence key)
    for candidate in candidates:
        sentences = {(language, key) for language, key in enumerate(candidate.sentences) if key}
        if remaining[candidate.is_test] and not sentences & seen:
            remaining[candidate.is_test] -= 1
            seen |= sentences
            chosen.append(candidate)
    return chosen


def split_documents(keys: SplitKeys, documents: npt.NDArray[np.uint32], dev_size: int, test_size: int) -> Parts:
    """Return the part of each row, whole documents in the order of their hashes until dev and test are full.

    Args:
        keys: Keys of the rows.
        documents: Document number of each row.
        dev_size: Minimum number of dev rows.
        test_size: Minimum number of test rows.

    Raises:
        DataError: There are too few documents.
    """
    ranks, starts = document_keys(keys.rank, documents)
    ends = np.append(starts[1:], len(documents))
    parts = np.full(len(documents), TRAIN, dtype=np.uint8)
    remaining = [dev_size, test_size]
    for index in np.argsort(ranks, kind="stable").tolist():
        # Like `_Candidate.is_test` for single rows.
        is_test = int(ranks[index]) & 1
        if remaining[is_test] > 0:
            parts[starts[index] : ends[index]] = TEST if is_test else DEV
            remaining[is_test] -= int(ends[index] - starts[index])
    if max(remaining) > 0 or not (parts == TRAIN).any():
        wanted = f"enough documents for {dev_size} dev, {test_size} test and some training pairs"
        raise DataError(f"the corpus must have {wanted}; got {len(starts)} documents of {len(documents)} pairs")
    return parts


def document_keys(keys: Hashes, documents: npt.NDArray[np.uint32]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return a key for each document, which hashes the keys of its rows, and the index of its first row.

    Args:
        keys: Key of each row.
        documents: Document number of each row.
    """
    # The prepended number differs from the first, so that the first document has a start, too.
    starts = np.flatnonzero(np.diff(documents, prepend=documents[:1] + 1))
    # Fixed byte order: the split is the same on every machine.
    keys_by_document = np.split(keys.astype("<u8"), starts[1:])
    digests = b"".join(blake2b(rows.tobytes(), digest_size=8).digest() for rows in keys_by_document if len(rows))
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64), starts
