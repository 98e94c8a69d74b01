"""Projection of encoder states, compared with NumPy's SVD, and the automatic choice of sentences."""

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.evaluation.projection import GroupedSentence, principal_components, project, similar_sentences


def states(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)) * np.linspace(3, 0.5, columns) + rng.normal(size=columns)


@pytest.mark.parametrize(("rows", "columns"), [(12, 40), (40, 7), (5, 5)])
def test_components_equal_singular_value_decomposition(rows, columns):
    x = states(rows, columns)
    points, fractions = principal_components(x.astype(np.float32), 3)
    u, s, _ = np.linalg.svd(x.astype(np.float32).astype(np.float64) - x.astype(np.float32).mean(axis=0, dtype=float))
    expected = u[:, :3] * s[:3]
    for n in range(3):
        sign = np.sign(expected[:, n] @ points[:, n])
        np.testing.assert_allclose(points[:, n], sign * expected[:, n], atol=1e-6)
        assert points[np.abs(points[:, n]).argmax(), n] > 0
    np.testing.assert_allclose(fractions, (s**2 / (s**2).sum())[:3], atol=1e-9)


def test_all_components_preserve_distances():
    x = states(6, 4)
    points, fractions = principal_components(x, 4)
    distances = np.linalg.norm(x[:, None] - x[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), distances, atol=1e-9)
    assert fractions.sum() == pytest.approx(1.0)


def test_degenerate_states():
    line = np.outer([0.0, 1.0, 3.0], np.ones(5))
    points, fractions = principal_components(line, 2)
    np.testing.assert_allclose(fractions, [1.0, 0.0], atol=1e-9)
    assert np.allclose(points[:, 1], 0.0)
    points, fractions = principal_components(np.ones((4, 5)), 2)
    assert not points.any()
    assert not fractions.any()


def test_projection_has_sentences_and_groups():
    sentences = [GroupedSentence("a", "x"), GroupedSentence("b", "y"), GroupedSentence("c", "x")]
    projection = project(sentences, states(3, 8))
    assert projection.groups == ["x", "y"]
    assert projection.points.shape == (3, 2)
    assert 0 < projection.variance_fractions[1] <= projection.variance_fractions[0] <= 1


def test_invalid_states_are_rejected():
    with pytest.raises(RnnsearchError, match="at least 3 sentences; got 2"):
        project([GroupedSentence("a"), GroupedSentence("b")], states(2, 4))
    with pytest.raises(RnnsearchError, match=r"one finite vector per sentence \(3\); got shape \[4, 4\]"):
        project([GroupedSentence("a")] * 3, states(4, 4))
    with pytest.raises(RnnsearchError, match="finite"):
        project([GroupedSentence("a")] * 3, np.full((3, 4), np.nan))


SENTENCES = [
    "A dog runs over the green grass.", "The brown dog runs on the grass.", "Two dogs and a dog on grass run fast.",
    "A dog in the grass runs.", "A man plays the old guitar.", "The guitar is what a man plays.",
    "One man plays his guitar now.", "A child eats ice cream.", "Ice cream for the child there.", "Yes.",
    "A lonely sentence about quantum physics.", " ".join(["long"] * 30), "A dog in the grass runs.",
]  # fmt: skip


def test_similar_sentences_are_grouped_by_topic():
    chosen = similar_sentences(SENTENCES, num_groups=2, group_size=3)
    groups: dict[str, list[str]] = {}
    for choice in chosen:
        groups.setdefault(choice.group, []).append(choice.sentence.lower())
    assert len(groups) == 2
    topics = set()
    for name, sentences in groups.items():
        [topic] = [t for t in ("dog", "guitar", "cream") if all(t in sentence for sentence in sentences)]
        assert topic in name
        topics.add(topic)
    assert len(topics) == 2
    assert len({c.sentence for c in chosen}) == len(chosen)
    assert not {"Yes.", " ".join(["long"] * 30)} & {c.sentence for c in chosen}
    assert similar_sentences(SENTENCES, num_groups=2, group_size=3) == chosen


def test_few_sentences_give_few_groups():
    assert similar_sentences([]) == []
    assert similar_sentences(["Yes.", "No."]) == []
    assert similar_sentences(["One lonely sentence is here."]) == []
    two = similar_sentences(["the red dog barks loudly", "the red dog sleeps now", "a blue bird sings well"])
    assert {c.sentence for c in two} == {"the red dog barks loudly", "the red dog sleeps now"}
