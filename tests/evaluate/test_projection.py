"""The map of encoder states: its components are those of NumPy's SVD; its sentences are chosen as it says."""

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.evaluation.projection import Grouped, principal_components, project, similar_sentences


def states(rows: int, columns: int, seed: int = 1) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(rows, columns)) * np.linspace(3, 0.5, columns) + draw.normal(size=columns)


@pytest.mark.parametrize(("rows", "columns"), [(12, 40), (40, 7), (5, 5)])
def test_components_are_those_of_the_singular_value_decomposition(rows, columns):
    x = states(rows, columns)
    points, explained = principal_components(x.astype(np.float32), 3)
    u, s, _ = np.linalg.svd(x.astype(np.float32).astype(np.float64) - x.astype(np.float32).mean(axis=0, dtype=float))
    expected = u[:, :3] * s[:3]
    for n in range(3):
        sign = np.sign(expected[:, n] @ points[:, n])
        np.testing.assert_allclose(points[:, n], sign * expected[:, n], atol=1e-6)
        assert points[np.abs(points[:, n]).argmax(), n] > 0
    np.testing.assert_allclose(explained, (s**2 / (s**2).sum())[:3], atol=1e-9)


def test_all_components_keep_every_distance():
    x = states(6, 4)
    points, explained = principal_components(x, 4)
    between = np.linalg.norm(x[:, None] - x[None], axis=-1)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), between, atol=1e-9)
    assert explained.sum() == pytest.approx(1.0)


def test_points_on_a_line_or_on_a_spot():
    line = np.outer([0.0, 1.0, 3.0], np.ones(5))
    points, explained = principal_components(line, 2)
    np.testing.assert_allclose(explained, [1.0, 0.0], atol=1e-9)
    assert np.allclose(points[:, 1], 0.0)
    spot, nothing = principal_components(np.ones((4, 5)), 2)
    assert not spot.any()
    assert not nothing.any()


def test_a_projection_keeps_sentences_and_groups():
    sentences = [Grouped("a", "x"), Grouped("b", "y"), Grouped("c", "x")]
    found = project(sentences, states(3, 8))
    assert found.groups == ["x", "y"]
    assert found.points.shape == (3, 2)
    assert 0 < found.explained[1] <= found.explained[0] <= 1


def test_what_makes_no_map():
    with pytest.raises(RnnsearchError, match="at least 3 sentences; got 2"):
        project([Grouped("a"), Grouped("b")], states(2, 4))
    with pytest.raises(RnnsearchError, match=r"one finite vector a sentence \(3\); got shape \[4, 4\]"):
        project([Grouped("a")] * 3, states(4, 4))
    with pytest.raises(RnnsearchError, match="finite"):
        project([Grouped("a")] * 3, np.full((3, 4), np.nan))


SENTENCES = [
    "A dog runs over the green grass.", "The brown dog runs on the grass.", "Two dogs and a dog on grass run fast.",
    "A dog in the grass runs.", "A man plays the old guitar.", "The guitar is what a man plays.",
    "One man plays his guitar now.", "A child eats ice cream.", "Ice cream for the child there.", "Yes.",
    "A lonely sentence about quantum physics.", " ".join(["long"] * 30), "A dog in the grass runs.",
]  # fmt: skip


def test_similar_sentences_come_in_groups():
    chosen = similar_sentences(SENTENCES, groups=2, members=3)
    groups = {name: [c.sentence for c in chosen if c.group == name] for name in dict.fromkeys(c.group for c in chosen)}
    assert len(groups) == 2
    by_topic = [
        next(t for t in ("dog", "guitar", "cream") if all(t in s.lower() for s in some)) for some in groups.values()
    ]
    assert len(set(by_topic)) == 2
    assert all(topic in name for topic, name in zip(by_topic, groups, strict=True))
    assert len({c.sentence for c in chosen}) == len(chosen)
    assert not {"Yes.", " ".join(["long"] * 30)} & {c.sentence for c in chosen}
    assert similar_sentences(SENTENCES, groups=2, members=3) == chosen


def test_few_sentences_give_few_groups():
    assert similar_sentences([]) == []
    assert similar_sentences(["Yes.", "No."]) == []
    assert similar_sentences(["One lonely sentence stands here."]) == []
    two = similar_sentences(["the red dog barks loudly", "the red dog sleeps now", "a blue bird sings well"])
    assert {c.sentence for c in two} == {"the red dog barks loudly", "the red dog sleeps now"}
