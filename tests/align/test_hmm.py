"""The HMM of word alignment against all its alignments, one by one."""

from itertools import product

import numpy as np
import pytest

from rnnsearch.align import hmm
from rnnsearch.align.hmm import FARTHEST, JUMPS, NULL, model1, posterior

RNG = np.random.default_rng(3)


def by_enumeration(emission, none, weights):
    """Posteriors of one pair from every sequence of (place, whether a word comes of it), written from Vogel et al. and
    Och & Ney: the place stays where a word comes of none."""
    I, J = emission.shape

    def c(jump):
        return weights[max(-FARTHEST, min(FARTHEST, jump)) + FARTHEST]

    real, alone, jumps, total = np.zeros((I, J)), np.zeros(I), np.zeros(JUMPS), 0.0
    for begin in range(J):  # where the first jump leads, whether or not a word comes of it
        for rest in product(range(-1, J), repeat=I - 1):
            for first_real in (True, False):
                p = c(begin + 1) / sum(c(j + 1) for j in range(J))
                p *= (1 - NULL) * emission[0, begin] if first_real else NULL * none[0]
                place, taken = begin, [begin + 1] if first_real else []
                for i, j in enumerate(rest, 1):
                    if j < 0:
                        p *= NULL * none[i]
                        continue
                    p *= (1 - NULL) * c(j - place) / sum(c(k - place) for k in range(J)) * emission[i, j]
                    taken.append(j - place)
                    place = j
                total += p
                for i, j in enumerate((begin if first_real else -1, *rest)):
                    if j < 0:
                        alone[i] += p
                    else:
                        real[i, j] += p
                for jump in taken:
                    jumps[jump + FARTHEST] += p
    return real / total, alone / total, jumps / total


def drawn(I, J, B=1):
    return (RNG.random(shape).astype(np.float32) for shape in ((B, I, J), (B, I), (JUMPS,)))


def sizes(*pairs):
    return tuple(np.array(side) for side in zip(*pairs, strict=True))


@pytest.mark.parametrize(("I", "J"), [(1, 1), (1, 3), (4, 1), (3, 3), (4, 2), (3, 4)])
def test_posterior_is_that_of_all_alignments(I, J):
    emission, none, weights = drawn(I, J)
    found = posterior(emission, none, sizes((I, J)), weights)
    real, alone, jumps = by_enumeration(emission[0], none[0], weights)
    np.testing.assert_allclose(found.real[0], real, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.none[0], alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.jumps, jumps, rtol=1e-4, atol=1e-6)


def test_far_jumps_share_a_weight(monkeypatch):
    monkeypatch.setattr(hmm, "FARTHEST", 1)
    monkeypatch.setattr(hmm, "JUMPS", 3)
    emission, none, _ = drawn(3, 4)
    weights = np.array([0.2, 0.5, 0.3], dtype=np.float32)
    found = posterior(emission, none, sizes((3, 4)), weights)
    wide = np.full(JUMPS, 0.3, dtype=np.float32)
    wide[:FARTHEST], wide[FARTHEST] = 0.2, 0.5
    real, alone, jumps = by_enumeration(emission[0], none[0], wide)
    np.testing.assert_allclose(found.real[0], real, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.none[0], alone, rtol=1e-4, atol=1e-6)
    expected = [jumps[:FARTHEST].sum(), jumps[FARTHEST], jumps[FARTHEST + 1 :].sum()]
    np.testing.assert_allclose(found.jumps, expected, rtol=1e-4)


@pytest.mark.parametrize("way", [model1, posterior])
def test_company_changes_nothing(way):
    """A pair among others, padded, is what it is alone; jumps add up."""
    lengths = [(3, 4), (5, 2), (1, 6), (5, 6)]
    emission, none, weights = drawn(5, 6, B=4)
    for row, (I, J) in enumerate(lengths):
        emission[row, I:], emission[row, :, J:], none[row, I:] = 0, 0, 0
    both = way(emission, none, sizes(*lengths), weights)
    jumps = np.zeros(JUMPS)
    for row, (I, J) in enumerate(lengths):
        alone = way(emission[row : row + 1, :I, :J], none[row : row + 1, :I], sizes((I, J)), weights)
        np.testing.assert_allclose(both.real[row, :I, :J], alone.real[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.none[row, :I], alone.none[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.real[row].sum(), alone.real.sum(), rtol=1e-4)
        jumps += alone.jumps
    np.testing.assert_allclose(both.jumps, jumps, rtol=1e-4, atol=1e-6)


def test_model_1_forgets_places():
    emission, none, weights = drawn(3, 4)
    found = model1(emission, none, sizes((3, 4)), weights)
    for i in range(3):
        total = none[0, i] + sum(emission[0, i, j] for j in range(4))
        np.testing.assert_allclose(found.real[0, i], emission[0, i] / total, rtol=1e-5)
        np.testing.assert_allclose(found.none[0, i], none[0, i] / total, rtol=1e-5)


def test_a_long_pair_neither_vanishes_nor_overflows():
    emission, none, weights = drawn(300, 400)
    found = posterior(emission * 1e-12, none * 1e-12, sizes((300, 400)), weights)
    np.testing.assert_allclose(found.real.sum(axis=2) + found.none, 1, rtol=1e-3)
