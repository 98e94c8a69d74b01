"""Classes and trees of target tokens for the outputs in `models/class_outputs.py`, computed from the training text.

V is the size of the vocabulary.

`systems/translation.py` calls it before training, and the results are stored in the checkpoint. Results are
deterministic.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
from numpy.typing import NDArray

from rnnsearch.data.id_store import ParallelIds
from rnnsearch.text.vocabulary import EOS

Classes = NDArray[np.int64]
"""Class of each token [V]."""

MAX_SWEEPS = 10
"""Sweeps of the exchange algorithm over all tokens."""
MAX_BIGRAMS = 20_000_000
"""Neighbouring tokens of the training text that classes are computed from."""
MAX_TABLE_CELLS = 50_000_000
"""Size of the table of tokens and classes; tokens too rare for it get their class by frequency."""


def frequency_classes(counts: NDArray[np.int64], num_classes: int) -> Classes:
    """Return classes 0, 1, ... of tokens by falling frequency.

    The sum of the square roots of counts is about the same for every class (the toolkit of Mikolov et al. 2011).
    """
    order = np.argsort(-counts, kind="stable")
    cumulative = np.cumsum(np.sqrt(counts[order] + 1.0))
    classes = np.empty(len(counts), dtype=np.int64)
    classes[order] = np.minimum(cumulative / cumulative[-1] * num_classes, num_classes - 1).astype(np.int64)
    return classes


def huffman_parents(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the parent of each node [2 V - 2] of a Huffman tree, the binary tree with the shortest paths on average.

    Nodes 0 to V - 1 are the tokens, the others the inner nodes in the order in which they were made, so that the last
    one, 2 V - 2, is the root. Equal counts are ordered by node.
    """
    num_tokens = len(counts)
    parents = np.empty(2 * num_tokens - 2, dtype=np.int64)
    heap = [(int(count), token) for token, count in enumerate(counts)]
    heapify(heap)
    for node in range(num_tokens, 2 * num_tokens - 1):
        first_count, first = heappop(heap)
        second_count, second = heap[0]
        parents[[first, second]] = node
        heapreplace(heap, (first_count + second_count, node))
    return parents


def exchange_classes(ids: ParallelIds, stream: str, vocabulary: int, num_classes: int) -> Classes:
    """Return classes of tokens that follow the same tokens.

    The exchange algorithm (Kneser & Ney 1993) with the one-sided criterion of Uszkoreit & Brants (2008),
    p(w_i | w_{i-1}) = p(w_i | c(w_i)) p(c(w_i) | w_{i-1}). It starts from `frequency_classes` and moves each token,
    most frequent first, to the class that maximises the likelihood of the text, until few tokens move or for
    `MAX_SWEEPS` sweeps. It is deterministic.
    """
    before, after, counts = _bigrams(ids, stream, vocabulary)
    token_counts = np.bincount(after, counts, vocabulary).astype(np.int64)
    classes = frequency_classes(token_counts, num_classes)
    by_frequency = np.argsort(-token_counts, kind="stable")[: max(MAX_TABLE_CELLS // num_classes, 1)]
    movable = by_frequency[token_counts[by_frequency] > 0]
    is_movable = np.zeros(vocabulary, dtype=bool)
    is_movable[movable] = True
    selected = is_movable[after] & is_movable[before]
    before, after, counts = before[selected], after[selected], counts[selected]
    row = np.cumsum(is_movable) - 1  # row of `table` of each token
    table = np.zeros((len(movable), num_classes))  # N(v, c): how often a token of class c follows v
    np.add.at(table, (row[before], classes[after]), counts)
    class_counts = np.bincount(classes[after], counts, num_classes).astype(np.float64)
    starts = np.searchsorted(after, np.arange(vocabulary + 1))  # bigrams are sorted by their second token
    for _ in range(MAX_SWEEPS):
        num_moved = 0
        for token in movable.tolist():
            bigrams = slice(starts[token], starts[token + 1])
            num_moved += _exchange(token, row[before[bigrams]], counts[bigrams], classes, table, class_counts)
        # Later sweeps would hardly change the likelihood.
        if num_moved <= len(movable) // 1000:
            break
    return classes


def _exchange(
    token: int,
    rows: NDArray[np.int64],
    counts: NDArray[np.float64],
    classes: Classes,
    table: NDArray[np.float64],
    class_counts: NDArray[np.float64],
) -> bool:
    """Move a token to its best class and return True if that is another one.

    Up to a constant, the log-likelihood is the sum of N(v, c) log N(v, c) over tokens v and classes c, minus the sum of
    N(c) log N(c) over classes.

    Args:
        token: The token.
        rows: Rows of `table` of the tokens that it follows.
        counts: How often it follows each of these.
        classes: Class of each token.
        table: N(v, c).
        class_counts: N(c).
    """
    old = int(classes[token])
    total = counts.sum()
    # Take the token out of its class, and compare the gains of adding it to each class.
    table[rows, old] -= counts
    class_counts[old] -= total
    without = table[rows]  # [tokens before, classes]
    gain = (
        (_x_log_x(without + counts[:, None]) - _x_log_x(without)).sum(0)
        - _x_log_x(class_counts + total)
        + _x_log_x(class_counts)
    )
    best = int(gain.argmax())
    if gain[best] <= gain[old] + 1e-9 * abs(gain[old]):  # do not move for rounding errors
        best = old
    table[rows, best] += counts
    class_counts[best] += total
    classes[token] = best
    return best != old


def _x_log_x(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x * np.log(np.maximum(x, 1.0))  # counts are integers: 0 log 0 = 0


def _bigrams(
    ids: ParallelIds, stream: str, vocabulary: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the distinct bigrams among the first `MAX_BIGRAMS`, sorted by their second token.

    Every sentence is preceded and followed by EOS.

    Returns:
        The first token, the second token and the count of each bigram.
    """
    flat, ends = ids.first(stream, MAX_BIGRAMS)
    # After each row; the first row is preceded by the EOS below.
    text = np.insert(flat, ends, EOS)
    previous = np.concatenate([[EOS], text[:-1]])
    # The second token is the leading digit, so that bigrams are sorted by it.
    pairs, counts = np.unique(text * vocabulary + previous, return_counts=True)
    return pairs % vocabulary, pairs // vocabulary, counts.astype(np.float64)
