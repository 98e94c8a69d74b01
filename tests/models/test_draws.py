"""Dropout has the configured rate and scale, and equal masks for equal seeds."""

import pytest
import torch

from rnnsearch.models.batch_rng import BatchRng, dropout, word_dropout


def test_dropout_zeroes_values_and_rescales_the_rest():
    dropped = dropout(torch.ones(200, 100), 0.3, BatchRng(1))
    assert sorted(dropped.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    assert (dropped == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)


def test_word_dropout_zeroes_whole_words_without_rescaling():
    dropped = word_dropout(torch.ones(50, 80, 4), 0.2, BatchRng(1))
    words = dropped.sum(-1)
    assert sorted(words.unique().tolist()) == pytest.approx([0, 4])
    assert (words == 0).float().mean().item() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("drop", [dropout, word_dropout])
def test_no_dropout_without_rng_or_rate(drop):
    x = torch.ones(3, 4)
    assert drop(x, 0.5, None) is x
    assert drop(x, 0.0, BatchRng(1)) is x


@pytest.mark.parametrize("drop", [dropout, word_dropout])
def test_dropout_depends_only_on_the_seed(drop):
    x = torch.ones(40, 5)

    def twice(seed):
        rng = BatchRng(seed)
        return drop(x, 0.5, rng), drop(x, 0.5, rng)

    first, second = twice(1)
    again, _ = twice(1)
    other, _ = twice(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    torch.rand(1)  # the global generator is not used
    assert torch.equal(first, twice(1)[0])


def test_mask_has_the_dtype_of_the_masked_tensor():
    assert dropout(torch.ones(3, dtype=torch.bfloat16), 0.5, BatchRng(1)).dtype == torch.bfloat16
