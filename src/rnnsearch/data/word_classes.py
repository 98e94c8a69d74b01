"""Classes of target symbols, counted in the training text, for the hierarchical output."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rnnsearch.data.id_store import ParallelIds
from rnnsearch.text.vocabulary import EOS

Classes = NDArray[np.int64]

SWEEPS = 10
"""Of the exchange over all symbols, at most."""
PAIRS = 20_000_000
"""Of neighbouring symbols that classes are learned from."""
CELLS = 50_000_000
"""Numbers of the table of symbols and classes: what is not among the most frequent has its class by frequency."""


def by_frequency(counts: NDArray[np.int64], number: int) -> Classes:
    """[V] classes 0, 1, ..., of the most frequent symbols first, each with an equal share of the sum of the square
    roots of counts (Mikolov et al. 2011, as their toolkit bins words)."""
    order = np.argsort(-counts, kind="stable")
    share = np.cumsum(np.sqrt(counts[order] + 1.0))
    classes = np.empty(len(counts), dtype=np.int64)
    classes[order] = np.minimum(share / share[-1] * number, number - 1).astype(np.int64)
    return classes


def by_neighbours(ids: ParallelIds, side: str, vocabulary: int, number: int) -> Classes:
    """[V] classes of symbols that follow the same symbols: the exchange algorithm (Kneser & Ney 1993) with the
    one-sided criterion of Uszkoreit & Brants (2008), p(w_i | w_{i-1}) = p(w_i | c(w_i)) p(c(w_i) | w_{i-1}).

    It begins with `by_frequency`; symbols in order of frequency go, each, to the class that makes the text likeliest,
    until none wants to go or for `SWEEPS` sweeps. The same text gives the same classes.
    """
    before, after, times = _pairs(ids, side, vocabulary)
    counts = np.bincount(after, times, vocabulary).astype(np.int64)
    classes = by_frequency(counts, number)
    frequent = np.argsort(-counts, kind="stable")[: max(CELLS // number, 1)]
    moved = frequent[counts[frequent] > 0]
    known = np.zeros(vocabulary, dtype=bool)
    known[moved] = True
    kept = known[after] & known[before]
    before, after, times = before[kept], after[kept], times[kept]
    row = np.cumsum(known) - 1
    table = np.zeros((len(moved), number))
    np.add.at(table, (row[before], classes[after]), times)
    of_class = np.bincount(classes[after], times, number).astype(np.float64)
    begins = np.searchsorted(after, np.arange(vocabulary + 1))
    for _ in range(SWEEPS):
        changed = 0
        for word in moved.tolist():
            own = slice(begins[word], begins[word + 1])
            changed += _exchange(word, row[before[own]], times[own], classes, table, of_class)
        if changed <= len(moved) // 1000:
            break
    return classes


def _exchange(
    word: int,
    rows: NDArray[np.int64],
    times: NDArray[np.float64],
    classes: Classes,
    table: NDArray[np.float64],
    of_class: NDArray[np.float64],
) -> bool:
    """Move a word to its best class; `rows`: of `table` [before, class], where it follows so many `times`.

    The log-likelihood is the sum of N(v, c) log N(v, c) over pairs less that of N(c) log N(c) over classes, but for
    what no exchange changes.
    """
    old, n = int(classes[word]), times.sum()
    table[rows, old] -= times
    of_class[old] -= n
    with_word = table[rows]
    gain = (_plogp(with_word + times[:, None]) - _plogp(with_word)).sum(0) - _plogp(of_class + n) + _plogp(of_class)
    best = int(gain.argmax())
    if gain[best] <= gain[old] + 1e-9 * abs(gain[old]):
        best = old
    table[rows, best] += times
    of_class[best] += n
    classes[word] = best
    return best != old


def _plogp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * np.log(np.maximum(x, 1.0))


def _pairs(
    ids: ParallelIds, side: str, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Each different pair of neighbouring symbols of the first `PAIRS`, by what comes after, and how often it occurs.
    A sentence stands between two EOS."""
    flat, ends = ids.first(side, PAIRS)
    whole = np.insert(flat, ends, EOS)
    before = np.concatenate([[EOS], whole[:-1]])
    pairs, times = np.unique(whole * vocabulary + before, return_counts=True)
    return pairs % vocabulary, pairs // vocabulary, times.astype(np.float64)
