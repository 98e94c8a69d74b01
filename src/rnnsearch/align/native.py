"""Calls of the C++ implementation of the word aligner (`ops/native/aligner.cpp`).

`align/hmm.py` contains the definition, and uses this module if there is native code. The structures mirror those of the
C++ file; change them together. Tests: tests/align/test_native.py.

The C++ library depends on nothing above `utils`, so this module may import its loader although `ops` is a higher layer.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rnnsearch.align.sentences import READ_SIZE, Ids, Sentences
from rnnsearch.ops.native.library import library

MAX_SET_WORDS = 1 << 22
"""Maximum size of a `PairSet`, which has a word for 32 possible pairs; larger vocabularies use NumPy."""
MIN_PARALLEL_CELLS = 20_000
"""Number of position pairs below which one thread is used."""


class _Texts(Structure):
    _fields_ = tuple((name, c_void_p) for name in ("chunks", "starts", "tokens", "token_starts"))


class _PairSet(Structure):
    _fields_ = (("bits", c_void_p), ("before", c_void_p), ("words_per_source", c_int64))


class _Direction(Structure):
    _fields_ = tuple((name, c_void_p) for name in ("scale", "null", "jumps"))


class _ExpectationRequest(Structure):
    _fields_ = (
        ("sources", _Texts),
        ("targets", _Texts),
        ("rows", c_void_p),
        ("widths", c_void_p),
        ("heights", c_void_p),
        ("num_rows", c_int64),
        ("pairs", _PairSet),
        ("values", c_void_p),
        ("unseen", c_float),
        ("forward", _Direction),
        ("backward", _Direction),
        ("max_jump", c_int64),
        ("null_probability", c_float),
        ("is_hmm", c_int64),
        ("jump_step", c_int64),
        *((name, c_void_p) for name in ("target_null", "source_null", "forward_jumps", "backward_jumps")),
    )


class Direction:
    """Parameters of one direction: the scale of each state, p(emitted | null) and the weights of the jumps.

    In learning, p(emitted | state) is the base value of the token pair times the scale of the state. In a learned
    lexicon, the scale is the probability of any unseen token.
    """

    def __init__(self, scale: NDArray[Any], null: NDArray[Any], jumps: NDArray[Any]) -> None:
        # The structure has only addresses, so the arrays are kept.
        self.scale, self.null, self.jumps = (table.astype(np.float32) for table in (scale, null, jumps))
        self.structure = _Direction(_address(self.scale), _address(self.null), _address(self.jumps))


class PairSet:
    """Set of token pairs, numbered in ascending order."""

    def __init__(self, native: ctypes.CDLL, vocabulary_sizes: tuple[int, int]) -> None:
        self._native = native
        self.vocabulary_sizes = vocabulary_sizes
        num_sources, num_targets = vocabulary_sizes
        words_per_source = -(-num_targets // 32)
        # A bit per possible pair, and the number of pairs before each word.
        self._bits, self._before = (np.zeros(num_sources * words_per_source, np.uint32) for _ in range(2))
        self.structure = _PairSet(_address(self._bits), _address(self._before), words_per_source)

    def add_keys(self, keys: Ids) -> None:
        """Add pairs to an empty set.

        Args:
            keys: The pairs as source * target vocabulary size + target, in ascending order.
        """
        keys = np.ascontiguousarray(keys)
        sizes = (c_int64(self.vocabulary_sizes[1]), byref(self.structure), c_int64(len(self._bits)))
        self._native.aligner_index_pairs(_pointer(keys), c_int64(len(keys)), *sizes)

    def add_pairs_of(self, sources: Sentences, targets: Sentences, rows: Ids) -> int:
        """Add all token pairs of the sentence pairs to an empty set, and return their number."""
        _check_ids((sources, targets), self.vocabulary_sizes)
        collect = self._native.aligner_collect_pairs
        collect.restype = c_int64
        texts = (byref(_texts(sources)), byref(_texts(targets)))
        threads = c_int64(torch.get_num_threads())
        num_pairs = collect(threads, *texts, *_rows(rows), byref(self.structure), c_int64(len(self._bits)))
        return int(num_pairs)


class PairTable(PairSet):
    """The token pairs of sentence pairs, with a base value and an expected number of links each."""

    def __init__(
        self,
        native: ctypes.CDLL,
        vocabulary_sizes: tuple[int, int],
        texts: tuple[Sentences, Sentences],
        rows: Ids,
    ) -> None:
        super().__init__(native, vocabulary_sizes)
        self.texts = texts
        self.rows = rows
        self._lengths = [text.lengths()[rows].astype(np.int32) for text in texts]
        self._values = np.zeros((self.add_pairs_of(*texts, rows), 2), np.float32)  # base and count of each pair
        # Start from uniform probabilities.
        self._values[:, 0] = 1
        self._removed = tuple(np.zeros(size) for size in vocabulary_sizes)  # number of removed pairs of each token

    def prune(self, min_count: float, min_fraction: float) -> None:
        """Remove pairs whose count is lower than `min_count`, or than `min_fraction` of the counts of both tokens.

        From then on, they have a count of 0.
        """
        prune = self._native.aligner_prune
        prune.restype = c_int64
        sizes = map(c_int64, self.vocabulary_sizes)
        limits = (c_float(min_count), c_float(min_fraction))
        removed = map(_pointer, self._removed)
        num_pairs = prune(byref(self.structure), *sizes, _pointer(self._values), *limits, *removed)
        # A copy, so that the memory of the larger table is freed.
        self._values = self._values[:num_pairs].copy()

    def expect(
        self,
        directions: tuple[Direction, Direction],
        unseen: float,
        null_probability: float,
        is_hmm: bool,
        jump_step: int,
    ) -> Counts:
        """Add the expected number of links of all pairs to their counts, and return the other expected counts.

        Args:
            directions: Parameters of p(t | s) and of p(s | t).
            unseen: Base value of removed pairs.
            null_probability: p_0.
            is_hmm: True for the hidden Markov model, False for IBM model 1, which needs all pairs.
            jump_step: The HMM counts jumps in the sentence pairs at these distances.
        """
        assert is_hmm or not any(removed.any() for removed in self._removed)
        num_sources, num_targets = self.vocabulary_sizes
        num_jumps = len(directions[0].jumps)
        counts = Counts((np.zeros(num_targets), np.zeros(num_sources)), (np.zeros(num_jumps), np.zeros(num_jumps)))
        request = _ExpectationRequest(
            *map(_texts, self.texts),
            _address(self.rows),
            *map(_address, self._lengths),
            len(self.rows),
            self.structure,
            _address(self._values),
            unseen,
            *(direction.structure for direction in directions),
            num_jumps // 2,
            null_probability,
            is_hmm,
            jump_step,
            *map(_address, (*counts.null, *counts.jumps)),
        )
        self._native.aligner_expect(c_int64(torch.get_num_threads()), byref(request))
        return counts

    def maximise(self, prior: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Set all base values to e^digamma(count + prior) and the counts to 0.

        Returns:
            The sums of count + prior of each source token and of each target token.
        """
        num_sources, num_targets = self.vocabulary_sizes
        source_totals = np.zeros(num_sources)
        target_totals = np.zeros(num_targets)
        self._native.aligner_maximise(
            byref(self.structure),
            c_int64(num_sources),
            c_float(prior),
            _pointer(self._values),
            _pointer(source_totals),
            _pointer(target_totals),
        )
        removed_sources, removed_targets = self._removed
        return source_totals + prior * removed_sources, target_totals + prior * removed_targets

    def frequent(self, min_count: float) -> tuple[Ids, NDArray[np.float32]]:
        """Return the keys (see `PairSet.add_keys`) of the pairs with at least `min_count`, and their counts."""
        find = self._native.aligner_frequent_pairs
        find.restype = c_int64
        sizes = map(c_int64, self.vocabulary_sizes)
        arguments = (byref(self.structure), *sizes, _pointer(self._values), c_float(min_count))
        num_frequent = find(*arguments, c_void_p(), c_void_p())
        keys = np.empty(num_frequent, np.int64)
        key_counts = np.empty(num_frequent, np.float32)
        find(*arguments, _pointer(keys), _pointer(key_counts))
        return keys, key_counts


class Counts(NamedTuple):
    """Expected counts of one round, for p(t | s) and for p(s | t)."""

    null: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Number of occurrences of each emitted token that the null word generates."""
    jumps: tuple[NDArray[np.float64], NDArray[np.float64]]
    """Number of jumps of each distance."""


def native_library(vocabulary_sizes: tuple[int, int]) -> ctypes.CDLL | None:
    """Return the C++ library, or None if there is none or the vocabularies are too large for it."""
    num_sources, num_targets = vocabulary_sizes
    if num_sources * -(-num_targets // 32) > MAX_SET_WORDS:
        return None
    return library()


def posteriors(
    native: ctypes.CDLL,
    sources: Sentences,
    targets: Sentences,
    rows: Ids,
    shapes: list[tuple[int, int]],
    pairs: PairSet,
    seen: tuple[NDArray[np.float32], NDArray[np.float32]],
    directions: tuple[Direction, Direction],
    null_probability: float,
) -> list[NDArray[np.float32]]:
    """Return the link probabilities [2, I, J] of sentence pairs in both directions.

    Args:
        native: The library.
        sources: Source sentences.
        targets: Target sentences.
        rows: Numbers of the sentence pairs.
        shapes: I and J of each pair.
        pairs: Token pairs of the lexicon.
        seen: p(t | s) and p(s | t) of each of them.
        directions: Parameters of p(t | s) and of p(s | t).
        null_probability: p_0.
    """
    _check_ids((sources, targets), pairs.vocabulary_sizes)
    ends = np.cumsum([2 * height * width for height, width in shapes])
    starts = np.append(0, ends[:-1])
    links = np.empty(int(ends[-1]), np.float32)
    threads = torch.get_num_threads() if len(links) >= 2 * MIN_PARALLEL_CELLS else 1
    native.aligner_posteriors(
        c_int64(threads),
        byref(_texts(sources)),
        byref(_texts(targets)),
        *_rows(rows),
        byref(pairs.structure),
        *(_pointer(np.ascontiguousarray(table)) for table in seen),
        *(byref(direction.structure) for direction in directions),
        c_int64(len(directions[0].jumps) // 2),
        c_float(null_probability),
        _pointer(starts),
        _pointer(links),
    )
    parts = np.split(links, ends[:-1])
    return [part.reshape(2, *shape) for part, shape in zip(parts, shapes, strict=True)]


def _check_ids(texts: tuple[Sentences, Sentences], vocabulary_sizes: tuple[int, int]) -> None:
    # C++ does not check indices.
    for sentences, size in zip(texts, vocabulary_sizes, strict=True):
        assert sentences.tokens.max(initial=0) < size
        assert len(sentences.tokens) >= sentences.token_starts[-1] + READ_SIZE - 1


def _texts(sentences: Sentences) -> _Texts:
    arrays = (sentences.chunks, sentences.starts, sentences.tokens, sentences.token_starts)
    return _Texts(*(_address(array) for array in arrays))


def _rows(rows: Ids) -> tuple[c_void_p, c_int64]:
    assert rows.dtype == np.int64 and rows.flags.c_contiguous
    return _pointer(rows), c_int64(len(rows))


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _pointer(array: NDArray[Any]) -> c_void_p:
    return c_void_p(_address(array))
