"""Noise words: their distribution, and that the same batch has the same ones."""

import numpy as np
import pytest
import torch

from rnnsearch.config import BatchConfig
from rnnsearch.data.batch import NoiseDistribution
from rnnsearch.data.batches import Batches
from rnnsearch.data.id_store import ParallelIds

COUNTS = np.array([0, 0, 9, 0, 40, 20, 10, 5])


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_noise_words_follow_counts_to_a_power(power):
    share = np.maximum(COUNTS, 1) ** power
    noise = NoiseDistribution(COUNTS, power, 200_000).sample(torch.tensor([[4, 6], [2, 0]]), 1, 2, 3)
    found = np.bincount(noise.ids.numpy(), minlength=len(COUNTS)) / 200_000
    np.testing.assert_allclose(found, share / share.sum(), atol=5e-3)
    expected = np.log(share / share.sum())
    np.testing.assert_allclose(noise.log_q.numpy(), expected[noise.ids.numpy()], rtol=1e-5)
    np.testing.assert_allclose(noise.target_log_q.numpy(), expected[[[4, 6], [2, 0]]], rtol=1e-5)


def test_batches_have_separate_reproducible_noise():
    rows = [[4, 5], [6], [7, 4, 4], [5, 5], [4]]
    ids = ParallelIds.from_rows({"en": rows, "de": rows})
    assert ids.counts("de", 8).tolist() == [0, 0, 0, 5, 4, 3, 1, 1], "EOS once a row"

    def epoch(number, skip=0, **processes):
        made = Batches(ids, BatchConfig(sentences=2), None, 1, proposal=NoiseDistribution(COUNTS, 1.0, 30), **processes)
        return list(made.epoch(number, skip))

    first, again = epoch(0), epoch(0)
    assert all(torch.equal(one.noise.ids, other.noise.ids) for one, other in zip(first, again, strict=True))
    assert torch.equal(epoch(0, skip=1)[0].noise.ids, first[1].noise.ids), "a run that goes on has the same"
    assert not torch.equal(first[0].noise.ids, first[1].noise.ids)
    assert not torch.equal(first[0].noise.ids, epoch(1)[0].noise.ids)
    for rank in (0, 1):
        assert torch.equal(epoch(0, rank=rank, world=2)[0].noise.ids, first[0].noise.ids), "of all processes alike"
    for batch in (*first, first[0].to("cpu"), *first[0].split()):
        assert batch.noise.target_log_q.shape == batch.target.ids.shape
    assert first[0].reversed().noise is None


def test_weighted_sums_over_shortlists_average_to_the_sum_over_the_vocabulary():
    targets = np.array([1, 5])
    values = np.random.default_rng(2).random(len(COUNTS))
    distribution = NoiseDistribution(COUNTS, 0.5, 4)
    sums = []
    for number in range(4000):
        ids, log_weights = distribution.shortlist(targets, number)
        assert (np.diff(ids) > 0).all()
        assert set(targets) <= set(ids.tolist()) and not log_weights[np.isin(ids, targets)].any()
        sums.append((np.exp(log_weights) * values[ids]).sum())
    assert np.mean(sums) == pytest.approx(values.sum(), rel=0.03)


def test_shortlists_depend_only_on_the_batch():
    ids = ParallelIds.from_rows({"en": [[4], [5, 6], [4, 4], [6]], "de": [[4], [5, 5], [6], [4, 6]]})

    def shortlists(skip=0, **processes):
        distribution = NoiseDistribution(COUNTS, 1.0, 3)
        batches = Batches(ids, BatchConfig(sentences=2), None, 1, shortlist=distribution, **processes)
        return [(batch.vocabulary.tolist(), batch.log_weights.tolist()) for batch in batches.epoch(2, skip)]

    whole = shortlists()
    assert whole[0] != whole[1]
    assert shortlists(rank=1, world=2) == whole and shortlists(skip=1) == whole[1:]
