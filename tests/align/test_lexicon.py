"""Lexicons of an aligner: a round of learning equals reference loops, and both directions are consistent."""

import numpy as np
import pytest
import torch

from rnnsearch.align import hmm, native
from rnnsearch.align.hmm import MIN_EXPECTED_COUNT, NUM_JUMPS, PRIOR, Lexicon, hmm_posterior, learn_lexicon

SIZES = (7, 9)
RNG = np.random.default_rng(5)


def corpus(count=40):
    """Target symbols are source symbols + 1, the second half of a sentence before the first."""
    sources = [RNG.integers(0, SIZES[0], RNG.integers(2, 7)) for _ in range(count)]
    return sources, [np.roll(ids + 1, len(ids) // 2) for ids in sources]


def weight(count, total):
    digamma = torch.tensor([count + PRIOR, total], dtype=torch.float64).digamma()
    return float((digamma[0] - digamma[1]).exp())


def round_by_hand(sources, targets, model):
    """One round of model 1 or the HMM with agreement, pair by pair."""
    counts, none_t, none_s = np.zeros(SIZES), np.zeros(SIZES[1]), np.zeros(SIZES[0])
    jumps = np.zeros((2, NUM_JUMPS))
    for s, t in zip(sources, targets, strict=True):
        there = [model["t|s"][s][:, t].T, model["t|none"][t]]
        back = [model["s|t"][t][:, s].T, model["s|none"][s]]
        size = (np.array([len(t)]), np.array([len(s)]))
        one = hmm_posterior(there[0][None].astype(np.float32), there[1][None].astype(np.float32), size, model["c"][0])
        two = hmm_posterior(
            back[0][None].astype(np.float32), back[1][None].astype(np.float32), size[::-1], model["c"][1]
        )
        for i, y in enumerate(t):
            none_t[y] += one.null[0, i]
            for j, x in enumerate(s):
                counts[x, y] += np.sqrt(one.links[0, i, j] * two.links[0, j, i])
        for j, x in enumerate(s):
            none_s[x] += two.null[0, j]
        jumps += one.jumps, two.jumps
    return counts, none_t, none_s, jumps


@pytest.mark.parametrize("is_native", [True, False])
def test_one_round_equals_a_loop(monkeypatch, is_native):
    if not is_native:
        monkeypatch.setattr(native, "MAX_SET_WORDS", 0)
    monkeypatch.setattr(hmm, "MODEL1_ROUNDS", 0)
    monkeypatch.setattr(hmm, "MAX_BATCH_CELLS", 60)
    sources, targets = corpus()
    level = np.ones((2, NUM_JUMPS), np.float32)
    start = {
        "t|s": np.ones(SIZES),
        "s|t": np.ones(SIZES[::-1]),
        "t|none": np.ones(SIZES[1]),
        "s|none": np.ones(SIZES[0]),
    }
    counts, none_t, none_s, jumps = round_by_hand(sources, targets, {**start, "c": level})
    found = learn_lexicon(sources, targets, SIZES, hmm_rounds=1)
    together = np.zeros(SIZES, dtype=bool)
    for s, t in zip(sources, targets, strict=True):
        together[np.ix_(s, t)] = True
    kept = together & (counts >= MIN_EXPECTED_COUNT)
    np.testing.assert_array_equal(found.pairs, np.flatnonzero(kept.ravel()))
    by_s, by_t = (np.where(together, counts + PRIOR, 0).sum(axis=axis) for axis in (1, 0))
    for pair, there, back in zip(found.pairs, found.forward.seen, found.backward.seen, strict=True):
        x, y = divmod(int(pair), SIZES[1])
        assert there == pytest.approx(weight(counts[x, y], by_s[x]), rel=1e-3)
        assert back == pytest.approx(weight(counts[x, y], by_t[y]), rel=1e-3)
    assert found.forward.unseen == pytest.approx([weight(0, total) for total in by_s], rel=1e-3)
    usual = by_t[by_t > 0].mean()
    assert (by_t == 0).any()
    assert found.backward.unseen == pytest.approx([weight(0, total or usual) for total in by_t], rel=1e-3)
    assert found.forward.none == pytest.approx([weight(n, (none_t + PRIOR).sum()) for n in none_t], rel=1e-3)
    assert found.backward.none == pytest.approx([weight(n, (none_s + PRIOR).sum()) for n in none_s], rel=1e-3)
    for model, own in ((found.forward, jumps[0]), (found.backward, jumps[1])):
        np.testing.assert_allclose(model.jumps, (own + 0.5) / (own + 0.5).sum(), rtol=1e-3)


@pytest.fixture(scope="module")
def learned():
    sources, targets = corpus(200)
    return learn_lexicon(sources, targets, SIZES), sources, targets


def weights(model: Lexicon, sources, targets):
    return {n: (there, back) for n, there, back in model.posteriors(sources, targets)}


def test_word_by_word_translation_is_learned(learned):
    model, _, _ = learned
    sources, targets = corpus(50)
    rights = [t[:, None] == s[None, :] + 1 for s, t in zip(sources, targets, strict=True)]
    found = weights(model, sources, targets).items()
    assert sum((np.sqrt(there * back) * rights[n]).sum() for n, (there, back) in found) > 0.9 * sum(map(len, targets))
    assert all(np.sqrt(there * back)[~rights[n]].max() < 0.01 for n, (there, back) in found if not rights[n].all())


def test_reversed_lexicon_equals_learning_in_reverse(learned):
    model, sources, targets = learned
    there, back = weights(model, sources, targets), weights(model.reversed(), targets, sources)
    for n, (one, two) in there.items():
        np.testing.assert_allclose(one, back[n][1].T, rtol=1e-5)
        np.testing.assert_allclose(two, back[n][0].T, rtol=1e-5)
    twice = model.reversed().reversed()
    np.testing.assert_array_equal(twice.pairs, model.pairs)
    for one, two in zip((*twice.forward, *twice.backward), (*model.forward, *model.backward), strict=True):
        np.testing.assert_array_equal(one, two)
    again = learn_lexicon(targets, sources, SIZES[::-1]).reversed()
    np.testing.assert_array_equal(again.pairs, model.pairs)
    np.testing.assert_allclose(again.forward.seen, model.forward.seen, rtol=1e-3)


def test_result_does_not_depend_on_the_batch(learned, monkeypatch):
    model, sources, targets = learned
    together = weights(model, sources, targets)
    monkeypatch.setattr(native, "MAX_SET_WORDS", 0)
    monkeypatch.setattr(hmm, "MAX_BATCH_CELLS", 1)
    for n, (there, back) in weights(model, sources, targets).items():
        np.testing.assert_allclose(there, together[n][0], rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(back, together[n][1], rtol=1e-3, atol=1e-6)


def test_empty_and_too_long_pairs_have_no_links(learned, monkeypatch):
    """An empty side, and a pair that is too long, are left out, in learning too; an unknown symbol is not."""
    model, _, _ = learned
    monkeypatch.setattr(hmm, "MAX_LENGTH", 6)
    empty, six, seven = np.zeros(0, np.int64), np.arange(6), np.arange(7)
    rows = [(six, empty), (empty, six), (seven, six), (six, six), (np.array([0]), np.array([0]))]
    found = weights(model, *zip(*rows, strict=True))
    assert sorted(found) == [3, 4]
    assert 0 < float(found[4][0][0, 0]) < 1, "no source symbol is ever translated by target symbol 0"
    nothing = learn_lexicon([seven, empty], [six, six], SIZES)
    assert len(nothing.pairs) == 0
    assert not nothing.reversed().pairs.size


def test_large_texts_are_sampled(monkeypatch):
    """A very long row, which is ignored, does not displace the others."""
    read = []
    original = hmm._NumpyLearner
    monkeypatch.setattr(native, "MAX_SET_WORDS", 0)
    monkeypatch.setattr(hmm, "_NumpyLearner", lambda *args: read.append(args[-1].tolist()) or original(*args))
    short = [np.array([1])] * 100
    long = [np.ones(4000, np.int64)]
    for rows, max_cells in ((short, 100), (short + long, 100), (short, 40)):
        monkeypatch.setattr(hmm, "MAX_NUMPY_CELLS", max_cells)
        learn_lexicon(rows, rows, SIZES)
    assert read == [list(range(100)), list(range(100)), list(range(0, 100, 3))]
