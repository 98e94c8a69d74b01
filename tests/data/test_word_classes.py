"""Word classes by frequency and by the exchange algorithm."""

import numpy as np

from rnnsearch.data import word_classes
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.word_classes import exchange_classes, frequency_classes, huffman_parents
from rnnsearch.text.vocabulary import EOS


def test_frequency_classes_balance_square_roots_of_counts():
    counts = np.array([0, 3, 99, 8, 8, 0, 24])
    # square roots of counts + 1: 10 of symbol 2, 5 of 6, 3 and 3 of 3 and 4, 2 of 1, 1 and 1 of 0 and 5: 25 together
    assert frequency_classes(counts, 5).tolist() == [4, 4, 2, 3, 4, 4, 3]
    assert frequency_classes(counts, 1).tolist() == [0] * 7


def likelihood(rows, classes):
    """log p of a text, as the criterion has it, by counting: p(c(w) | v) p(w | c(w))."""
    found, pairs = 0.0, [(v, w) for row in rows for v, w in zip([EOS, *row], [*row, EOS], strict=True)]
    for v, w in pairs:
        after = [other for before, other in pairs if before == v]
        same = [other for _, other in pairs if classes[other] == classes[w]]
        found += np.log(sum(classes[other] == classes[w] for other in after) / len(after))
        found += np.log(same.count(w) / len(same))
    return found


def planted(size):
    """Sentences in which words of three kinds take turns."""
    draw = np.random.default_rng(1)
    kinds = [np.arange(4, 9), np.arange(9, 14), np.arange(14, 19)]
    return [[int(draw.choice(kinds[place % 3])) for place in range(6)] for _ in range(size)], kinds


def test_words_that_follow_the_same_words_share_a_class():
    rows, kinds = planted(300)
    classes = exchange_classes(ParallelIds.from_rows({"de": rows}), "de", 19, 4)
    assert all(len({int(classes[word]) for word in kind}) == 1 for kind in kinds)
    assert len({int(classes[kind[0]]) for kind in kinds}) == 3
    again = exchange_classes(ParallelIds.from_rows({"de": rows}), "de", 19, 4)
    assert np.array_equal(classes, again)


def test_no_single_exchange_increases_the_likelihood():
    draw = np.random.default_rng(2)
    rows = [draw.integers(4, 12, 5).tolist() for _ in range(12)]
    counts = np.bincount(np.concatenate(rows), minlength=12)
    counts[EOS] = len(rows)
    classes = exchange_classes(ParallelIds.from_rows({"de": rows}), "de", 12, 3)
    reached = likelihood(rows, classes)
    assert reached >= likelihood(rows, frequency_classes(counts, 3))
    for word in range(4, 12):
        for other in range(3):
            moved = classes.copy()
            moved[word] = other
            assert likelihood(rows, moved) <= reached + 1e-9


def test_words_too_rare_for_the_table_keep_their_frequency_class(monkeypatch):
    rows, _ = planted(50)
    monkeypatch.setattr(word_classes, "MAX_TABLE_CELLS", 4 * 6)
    counts = ParallelIds.from_rows({"de": rows}).counts("de", 19)
    before = frequency_classes(counts, 4)
    classes = exchange_classes(ParallelIds.from_rows({"de": rows}), "de", 19, 4)
    rare = np.argsort(-counts, kind="stable")[6:]
    assert np.array_equal(classes[rare], before[rare])


def test_only_the_first_bigrams_of_a_long_text_count(monkeypatch):
    rows, _ = planted(50)
    monkeypatch.setattr(word_classes, "MAX_BIGRAMS", 60)
    some = exchange_classes(ParallelIds.from_rows({"de": rows}), "de", 19, 4)
    assert np.array_equal(some, exchange_classes(ParallelIds.from_rows({"de": rows[:10]}), "de", 19, 4))


def test_huffman_tree_has_the_shortest_paths():
    # 0 and 1 are joined first (node 5), then 2 and 5 (6), 3 and 6 (7), 4 and 7 (8, the root).
    assert huffman_parents(np.array([1, 1, 2, 4, 8])).tolist() == [5, 5, 6, 7, 8, 6, 7, 8]
    # Equal counts make a balanced tree.
    assert huffman_parents(np.zeros(4, dtype=np.int64)).tolist() == [4, 4, 5, 5, 6, 6]
    parents = huffman_parents(np.array([7, 3, 3, 1, 0, 12, 5]))
    assert np.bincount(parents)[7:].tolist() == [2] * 6
    assert (parents > np.arange(12)).all()
