"""Random numbers equal the published generator, have the right distributions, and do not depend on the batch."""

import math

import numpy as np
import pytest
import torch

from rnnsearch.search.decode import make_sources
from rnnsearch.search.sampling import gumbel, normal, random_bits, stream_keys, uniform

KEYS = np.arange(50, dtype=np.uint64) * np.uint64(12345)
MASK = 2**64 - 1


def plain(state):
    """Return the next number of SplitMix64, as published."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_random_numbers_equal_splitmix64():
    assert random_bits(np.array([1234567], np.uint64), 2)[0].tolist() == [6457827717110365317, 3203168211198807973]
    key = 2**63 + 17
    own = plain((plain((key + 3 * 0x9E3779B97F4A7C15) & MASK) + 5 * 0x9E3779B97F4A7C15) & MASK)
    expected = [plain((own + place * 0x9E3779B97F4A7C15) & MASK) for place in range(4)]
    assert random_bits(np.array([key], np.uint64), 4, 3, 5)[0].tolist() == expected


@pytest.mark.parametrize("draw", [uniform, gumbel, normal])
def test_random_numbers_do_not_depend_on_the_batch(draw):
    together = draw(KEYS, 37, 2, 0)
    for row in (0, 7, 49):
        assert np.array_equal(draw(KEYS[row : row + 1], 37, 2, 0)[0], together[row])
    assert np.array_equal(draw(KEYS[3:9], 37, 2, 0), together[3:9])
    assert np.array_equal(draw(KEYS, 37, 2, 0), together), "the keys must not change"


DISTRIBUTIONS = {
    uniform: lambda x: x,
    gumbel: lambda x: np.exp(-np.exp(-x)),
    normal: lambda x: np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x]),
}


@pytest.mark.parametrize("draw", DISTRIBUTIONS)
@pytest.mark.parametrize("across", ["places", "streams", "steps"])
def test_random_numbers_have_their_distribution(draw, across):
    """The Kolmogorov-Smirnov distance of 40,000 numbers exceeds 1.95 / sqrt(n) with probability 0.001."""
    count = 40_000
    if across == "places":
        found = draw(KEYS[:1], count, 1)[0]
    elif across == "streams":
        found = draw(np.arange(count, dtype=np.uint64), 1, 1)[:, 0]
    else:
        found = np.concatenate([draw(KEYS[1:2], 40, step, 1)[0] for step in range(count // 40)])
    expected = DISTRIBUTIONS[draw](np.sort(found.astype(np.float64)))
    distance = np.abs(expected - (np.arange(count) + 0.5) / count).max() + 0.5 / count
    assert distance < 1.95 / math.sqrt(count)


def test_normal_numbers_have_the_right_moments_and_tails():
    x = normal(KEYS, 20_000, 4).astype(np.float64).ravel()
    n = len(x)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((x**power).mean() - moment) < 4 * math.sqrt(variance / n), power
    for far in (2.0, 3.0, 4.0):
        p = math.erfc(far / math.sqrt(2))
        assert abs((np.abs(x) > far).mean() - p) < 4 * math.sqrt(p / n)
    assert np.isfinite(x).all()


def test_neighbouring_numbers_are_uncorrelated():
    """Correlations over positions, halves, streams, steps and parts are near zero."""
    x = normal(KEYS[:2], 500_000, 1, 0).astype(np.float64)
    half = x.shape[1] // 2
    pairs = [(x[0, 1:], x[0, :-1]), (x[0, :half], x[0, half:]), (x[0], x[1])]
    pairs += [(x[0], normal(KEYS[:1], 500_000, *at)[0]) for at in ((2, 0), (1, 1), (0, 1))]
    for one, other in pairs:
        for a, b in ((one, other), (one**2 - 1, other**2 - 1)):
            assert abs((a * b).mean()) < 5 * a.std() * b.std() / math.sqrt(len(a))


def test_streams_depend_only_on_source_copy_and_seed(sentences):
    sources = make_sources(sentences, torch.device("cpu"))
    every = stream_keys(sources, 3, 1)
    assert len(set(every.tolist())) == 3 * len(sentences)
    [alone] = {
        tuple(stream_keys(make_sources([sentences[2]], torch.device("cpu")), copies, 1)[:1]) for copies in (1, 5)
    }
    assert alone[0] == every[6]
    assert not set(every.tolist()) & set(stream_keys(sources, 3, 2).tolist())
