"""The HMM of word alignment against all its alignments, one by one."""

from itertools import product

import numpy as np
import pytest

from rnnsearch.align import hmm
from rnnsearch.align.hmm import MAX_JUMP, NULL_PROBABILITY, NUM_JUMPS, hmm_posterior, model1_posterior

RNG = np.random.default_rng(3)


def by_enumeration(emission, none, weights):
    """Posteriors of one pair from every sequence of (place, whether a word comes of it), written from Vogel et al. and
    Och & Ney: the place stays where a word comes of none."""
    I, J = emission.shape

    def c(jump):
        return weights[max(-MAX_JUMP, min(MAX_JUMP, jump)) + MAX_JUMP]

    real, alone, jumps, total = np.zeros((I, J)), np.zeros(I), np.zeros(NUM_JUMPS), 0.0
    for begin in range(J):  # where the first jump leads, whether or not a word comes of it
        for rest in product(range(-1, J), repeat=I - 1):
            for first_real in (True, False):
                p = c(begin + 1) / sum(c(j + 1) for j in range(J))
                p *= (1 - NULL_PROBABILITY) * emission[0, begin] if first_real else NULL_PROBABILITY * none[0]
                place, taken = begin, [begin + 1] if first_real else []
                for i, j in enumerate(rest, 1):
                    if j < 0:
                        p *= NULL_PROBABILITY * none[i]
                        continue
                    p *= (1 - NULL_PROBABILITY) * c(j - place) / sum(c(k - place) for k in range(J)) * emission[i, j]
                    taken.append(j - place)
                    place = j
                total += p
                for i, j in enumerate((begin if first_real else -1, *rest)):
                    if j < 0:
                        alone[i] += p
                    else:
                        real[i, j] += p
                for jump in taken:
                    jumps[jump + MAX_JUMP] += p
    return real / total, alone / total, jumps / total


def drawn(I, J, B=1):
    return (RNG.random(shape).astype(np.float32) for shape in ((B, I, J), (B, I), (NUM_JUMPS,)))


def sizes(*pairs):
    return tuple(np.array(side) for side in zip(*pairs, strict=True))


@pytest.mark.parametrize(("I", "J"), [(1, 1), (1, 3), (4, 1), (3, 3), (4, 2), (3, 4)])
def test_posterior_equals_sum_over_all_alignments(I, J):
    emission, none, weights = drawn(I, J)
    found = hmm_posterior(emission, none, sizes((I, J)), weights)
    real, alone, jumps = by_enumeration(emission[0], none[0], weights)
    np.testing.assert_allclose(found.links[0], real, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.null[0], alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.jumps, jumps, rtol=1e-4, atol=1e-6)


def test_far_jumps_share_a_weight(monkeypatch):
    monkeypatch.setattr(hmm, "MAX_JUMP", 1)
    monkeypatch.setattr(hmm, "NUM_JUMPS", 3)
    emission, none, _ = drawn(3, 4)
    weights = np.array([0.2, 0.5, 0.3], dtype=np.float32)
    found = hmm_posterior(emission, none, sizes((3, 4)), weights)
    wide = np.full(NUM_JUMPS, 0.3, dtype=np.float32)
    wide[:MAX_JUMP], wide[MAX_JUMP] = 0.2, 0.5
    real, alone, jumps = by_enumeration(emission[0], none[0], wide)
    np.testing.assert_allclose(found.links[0], real, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.null[0], alone, rtol=1e-4, atol=1e-6)
    expected = [jumps[:MAX_JUMP].sum(), jumps[MAX_JUMP], jumps[MAX_JUMP + 1 :].sum()]
    np.testing.assert_allclose(found.jumps, expected, rtol=1e-4)


@pytest.mark.parametrize("way", [model1_posterior, hmm_posterior])
def test_result_does_not_depend_on_the_batch(way):
    """A pair among others, padded, is what it is alone; jumps add up."""
    lengths = [(3, 4), (5, 2), (1, 6), (5, 6)]
    emission, none, weights = drawn(5, 6, B=4)
    for row, (I, J) in enumerate(lengths):
        emission[row, I:], emission[row, :, J:], none[row, I:] = 0, 0, 0
    both = way(emission, none, sizes(*lengths), weights)
    jumps = np.zeros(NUM_JUMPS)
    for row, (I, J) in enumerate(lengths):
        alone = way(emission[row : row + 1, :I, :J], none[row : row + 1, :I], sizes((I, J)), weights)
        np.testing.assert_allclose(both.links[row, :I, :J], alone.links[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.null[row, :I], alone.null[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(both.links[row].sum(), alone.links.sum(), rtol=1e-4)
        jumps += alone.jumps
    np.testing.assert_allclose(both.jumps, jumps, rtol=1e-4, atol=1e-6)


def test_model1_ignores_positions():
    emission, none, weights = drawn(3, 4)
    found = model1_posterior(emission, none, sizes((3, 4)), weights)
    for i in range(3):
        total = none[0, i] + sum(emission[0, i, j] for j in range(4))
        np.testing.assert_allclose(found.links[0, i], emission[0, i] / total, rtol=1e-5)
        np.testing.assert_allclose(found.null[0, i], none[0, i] / total, rtol=1e-5)


def test_long_pairs_neither_underflow_nor_overflow():
    emission, none, weights = drawn(300, 400)
    found = hmm_posterior(emission * 1e-12, none * 1e-12, sizes((300, 400)), weights)
    np.testing.assert_allclose(found.links.sum(axis=2) + found.null, 1, rtol=1e-3)
