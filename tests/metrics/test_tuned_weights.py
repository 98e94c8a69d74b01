"""Weights of n-best lists: MERT's line search against trying every step, PRO on lists that can be told apart."""

from itertools import combinations

import numpy as np
import pytest

from rnnsearch.errors import DataError
from rnnsearch.metrics.calibration import fit_logistic_regression
from rnnsearch.metrics.reranking import NBestLists, feature_deviations, line_search, mert, pro
from rnnsearch.metrics.scores import corpus_scores, sentence_chrf

WORDS = ["a", "small", "red", "bird", "sees", "the", "old", "quiet", "tree", "and", "hears", "one", "dog"]


def drawn(seed=1, sentences=6, most=5, features=3):
    """Lists of two hypotheses at least: references with some words changed, and features that say nothing."""
    random = np.random.default_rng(seed)
    references = [" ".join(random.choice(WORDS, 9)) for _ in range(sentences)]
    texts = []
    for reference in references:
        own = []
        for _ in range(random.integers(2, most + 1)):
            words = reference.split()
            for place in random.choice(9, random.integers(0, 5), replace=False):
                words[place] = str(random.choice(WORDS))
            own.append(" ".join(words[: random.integers(6, 10)]))
        texts.append(own)
    return [random.standard_normal((len(own), features)) for own in texts], texts, references


def chosen(features, texts, weights):
    return [own[int(np.argmax(x @ weights))] for x, own in zip(features, texts, strict=True)]


@pytest.mark.parametrize("goal", ["bleu", "chrf"])
def test_scores_equal_sacrebleu_of_selected_hypotheses(goal):
    features, texts, references = drawn()
    lists = NBestLists.from_texts(features, texts, references, goal)
    for weights in np.random.default_rng(2).standard_normal((10, 3)):
        bleu, chrf, _ = corpus_scores(chosen(features, texts, weights), references)
        assert lists.score(weights) == pytest.approx((bleu if goal == "bleu" else chrf).value)
    best = [max(own, key=lambda text: sentence_chrf(text, ref)) for own, ref in zip(texts, references, strict=True)]
    if goal == "chrf":
        assert lists.oracle == pytest.approx(corpus_scores(best, references)[1].value)
    assert lists.oracle >= lists.score(mert(lists)) - 3.0


def test_sentence_bleu_is_smoothed():
    lists = NBestLists.from_texts([np.zeros((1, 1))], [["a b c d x"]], ["a b c d e"])
    precisions = 4 / 5, (3 + 1) / (4 + 1), (2 + 1) / (3 + 1), (1 + 1) / (2 + 1)
    assert lists.metric.sentence_score(lists.statistics[0, 0]) == pytest.approx(100 * np.prod(precisions) ** 0.25)


@pytest.mark.parametrize("goal", ["bleu", "chrf"])
@pytest.mark.parametrize("seed", range(8))
def test_line_search_equals_grid_of_steps(seed, goal):
    features, texts, references = drawn(seed)
    lists = NBestLists.from_texts(features, texts, references, goal)
    random = np.random.default_rng(seed)
    weights = random.standard_normal(3)
    for direction in [*np.eye(3), random.standard_normal(3)]:
        # Between all points where two hypotheses of a sentence change places, and beyond them.
        meets = []
        for x in features:
            for i, j in combinations(range(len(x)), 2):
                meets.append(((x[i] - x[j]) @ weights) / ((x[j] - x[i]) @ direction))
        edges = np.sort(meets)
        tried = [edges[0] - 1, *((edges[1:] + edges[:-1]) / 2), edges[-1] + 1]
        best = max(lists.score(weights + step * direction) for step in tried)
        step, score = line_search(lists, weights, direction)
        assert score == pytest.approx(best)
        assert lists.score(weights + step * direction) == pytest.approx(score)


def test_constant_feature_gives_zero_step():
    features, texts, references = drawn()
    lists = NBestLists.from_texts([np.column_stack([x[:, :1], np.ones(len(x))]) for x in features], texts, references)
    weights = np.array([1.0, 0.0])
    assert line_search(lists, weights, np.array([0.0, 1.0])) == (0.0, pytest.approx(lists.score(weights)))


@pytest.mark.parametrize("seed", range(3))
def test_mert_reaches_grid_search_and_never_loses(seed):
    features, texts, references = drawn(seed, features=2)
    lists = NBestLists.from_texts(features, texts, references)
    angles = np.linspace(0, 2 * np.pi, 2000)
    grid = max(lists.score(np.array([np.cos(a), np.sin(a)])) for a in angles)
    found = mert(lists)
    assert lists.score(found) >= grid - 1e-9
    assert lists.score(found) >= lists.score(np.array([1.0, 0.0]))
    assert np.array_equal(found, mert(lists))


@pytest.mark.parametrize("goal", ["bleu", "chrf"])
@pytest.mark.parametrize("learn", [mert, pro])
def test_informative_feature_gets_the_weight(learn, goal):
    features, texts, references = drawn(3, sentences=30)
    told = [
        np.column_stack([x[:, 0], [-sentence_chrf(text, ref) for text in own]])
        for x, own, ref in zip(features, texts, references, strict=True)
    ]
    scale = feature_deviations(told)
    lists = NBestLists.from_texts([x / scale for x in told], texts, references, goal)
    found = learn(lists)
    assert -found[1] > 3 * abs(found[0])
    before, after = lists.score(np.array([1.0, 0.0])), lists.score(found)
    assert before < after
    assert after == pytest.approx(lists.score(np.array([0.0, -1.0])), abs=1.5)


def test_pro_learns_from_the_pairs_that_differ_most(monkeypatch):
    features, texts, references = drawn(4, sentences=3, most=6)
    lists = NBestLists.from_texts(features, texts, references)
    rows = []
    for n, own in enumerate(texts):
        worth = [lists.metric.sentence_score(lists.statistics[n, i]) for i in range(len(own))]
        pairs = [(abs(worth[i] - worth[j]), i, j) for i, j in combinations(range(len(own)), 2)]
        for gain, i, j in sorted(pairs, key=lambda pair: -pair[0])[:4]:
            if gain > 5:
                rows.append((features[n][i] - features[n][j]) * np.sign(worth[i] - worth[j]))
    mirrored = np.array([*rows, *(-row for row in rows)])
    right = np.repeat([True, False], len(rows))
    monkeypatch.setattr("rnnsearch.metrics.reranking.MAX_TRAINING_PAIRS", 4)
    # As in the paper, every pair both ways: twice as much is said, so that twice the ridge gives the same.
    np.testing.assert_allclose(pro(lists), fit_logistic_regression(mirrored, right, np.full(3, 2.0)), rtol=1e-6)
    monkeypatch.setattr("rnnsearch.metrics.reranking.MAX_SAMPLED_PAIRS", 3)
    assert np.array_equal(pro(lists), pro(lists))
    assert not np.allclose(pro(lists), pro(lists, seed=2))


def test_deviations_are_within_lists():
    features = [np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([[101.0, 7.0], [103.0, 7.0]])]
    assert feature_deviations(features) == pytest.approx([1.0, 1.0])


def test_unusable_lists_raise_data_error():
    with pytest.raises(DataError, match="one reference per sentence; got 0 references for 0 sentences"):
        NBestLists.from_texts([], [], [])
    with pytest.raises(DataError, match="PRO needs translations of a sentence that differ by more than 5 points"):
        pro(NBestLists.from_texts([np.zeros((2, 1))], [["a b", "a b"]], ["a c"]))
