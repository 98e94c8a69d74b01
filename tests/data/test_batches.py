"""Laws of batches: every pair once an epoch, the same epoch from the same seed, the budget kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from rnnsearch.config import BatchConfig
from rnnsearch.data.batches import Batch, Batches, make_batch
from rnnsearch.data.prepared import ParallelIds
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.vocabulary import BOS, EOS, PAD

BUDGETS = [
    BatchConfig(tokens=60, sort_batches=3),
    BatchConfig(tokens=25),
    BatchConfig(sentences=7, sort_batches=2),
    BatchConfig(sentences=1),
    BatchConfig(sentences=1000),
]


def corpus(pairs: int = 203, longest: int = 20, seed: int = 0) -> ParallelIds:
    rng = np.random.default_rng(seed)
    sides = [[rng.integers(4, 99, rng.integers(0, longest + 1)).tolist() for _ in range(pairs)] for _ in "st"]
    return ParallelIds.of(*sides)


def seen(batches: list[Batch]) -> Counter[int]:
    return Counter(index for batch in batches for index in batch.indices)


def same(a: Batch, b: Batch) -> bool:
    return a.indices == b.indices and torch.equal(a.source, b.source) and torch.equal(a.target, b.target)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_every_pair_comes_exactly_once_an_epoch_whole_and_within_the_budget(budget: BatchConfig) -> None:
    ids = corpus()
    batches = Batches(ids, budget, None, seed=3)
    epoch = list(batches.epoch(2))
    assert seen(epoch) == Counter(range(len(ids)))
    assert batches.count(2) == len(epoch)
    for batch in epoch:
        for row, index in enumerate(batch.indices):
            source, target = ids.pair(index)
            assert batch.source[row][batch.source_mask[row]].tolist() == [*source, EOS]
            assert batch.target[row][batch.target_mask[row]].tolist() == [*target, EOS]
        assert (batch.source[~batch.source_mask] == PAD).all()
        assert batch.source_mask.any(0).all(), "a column of nothing but padding"
        assert batch.target_mask.any(0).all(), "a column of nothing but padding"
        if budget.tokens is not None:
            assert batch.sentences * max(batch.source.shape[1], batch.target.shape[1]) <= budget.tokens
        else:
            assert batch.sentences <= (budget.sentences or 0)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_an_epoch_is_a_function_of_seed_and_number(budget: BatchConfig) -> None:
    ids = corpus()
    one, two = Batches(ids, budget, None, seed=3), Batches(ids, budget, None, seed=3)
    list(two.epoch(0)), list(two.epoch(9))
    assert all(same(a, b) for a, b in zip(one.epoch(4), two.epoch(4), strict=True))
    order = [batch.indices for batch in one.epoch(4)]
    if len(order) > 1:
        assert order != [batch.indices for batch in one.epoch(5)]
        assert order != [batch.indices for batch in Batches(ids, budget, None, seed=4).epoch(4)]


@pytest.mark.parametrize("skip", [0, 1, 5])
def test_skipping_gives_the_tail(skip: int) -> None:
    batches = Batches(corpus(), BUDGETS[0], None, seed=1)
    assert all(same(a, b) for a, b in zip(batches.epoch(1, skip), list(batches.epoch(1))[skip:], strict=True))
    assert list(batches.epoch(1, skip=batches.count(1))) == []


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("budget", BUDGETS[:3], ids=str)
def test_ranks_share_an_epoch_out_evenly(budget: BatchConfig, world: int) -> None:
    ids = corpus()
    ranks = [Batches(ids, budget, None, seed=5, rank=rank, world=world) for rank in range(world)]
    epochs = [list(rank.epoch(1)) for rank in ranks]
    assert {len(epoch) for epoch in epochs} == {ranks[0].count(1)}
    assert seen([batch for epoch in epochs for batch in epoch]) == Counter(range(len(ids)))


def test_two_ranks_take_the_batches_of_one_in_turn() -> None:
    ids, budget = corpus(), BUDGETS[0]
    alone = [b.indices for b in Batches(ids, budget, None, seed=5).epoch(0)]
    pair = [Batches(ids, budget, None, seed=5, rank=rank, world=2).epoch(0) for rank in (0, 1)]
    turns = [b.indices for both in zip(*pair, strict=True) for b in both]
    changed = 0 if len(alone) % 2 == 0 else 1  # an odd one out is halved
    assert len(turns) == len(alone) + changed
    assert sum(a != b for a, b in zip(alone, turns, strict=False)) == changed


def test_single_pairs_that_cannot_be_halved_wait_for_another_epoch() -> None:
    ids, budget = corpus(pairs=5), BatchConfig(sentences=1)
    ranks = [Batches(ids, budget, None, seed=5, rank=rank, world=2) for rank in (0, 1)]
    assert [len(list(rank.epoch(0))) for rank in ranks] == [2, 2]
    met = seen([b for epoch in range(20) for rank in ranks for b in rank.epoch(epoch)])
    assert set(met) == set(range(5))


def test_long_pairs_are_left_out_and_counted() -> None:
    ids = ParallelIds.of([[4] * 5, [4] * 6, [4], []], [[5] * 5, [5], [5] * 6, []])
    batches = Batches(ids, BatchConfig(sentences=2), max_length=5, seed=0)
    assert batches.left_out == 2
    assert seen(list(batches.epoch(0))) == Counter([0, 3])
    with pytest.raises(DataError, match="no training pair has at most 3 symbols"):
        Batches(ParallelIds.of([[4] * 4], [[4]]), BatchConfig(sentences=2), max_length=3, seed=0)


def test_a_budget_smaller_than_a_pair_is_refused() -> None:
    ids = ParallelIds.of([[4] * 5], [[5] * 30])
    with pytest.raises(ConfigError, match=r"training.batch.tokens: must be at least 31.*got 30"):
        Batches(ids, BatchConfig(tokens=30), None, seed=0)
    assert Batches(ids, BatchConfig(tokens=31), None, seed=0).count(0) == 1


def test_padding_waste_is_the_share_of_padding_and_small_after_sorting() -> None:
    ids = corpus(pairs=2000)
    batches = Batches(ids, BatchConfig(tokens=400), None, seed=0)
    epoch = list(batches.epoch(3))
    positions = sum(b.source.numel() + b.target.numel() for b in epoch)
    real = sum(b.source_tokens + b.target_tokens for b in epoch)
    assert batches.padding_waste == pytest.approx(1 - real / positions)
    unsorted = Batches(ids, BatchConfig(tokens=400, sort_batches=1), None, seed=0)
    assert batches.padding_waste < 0.15 < unsorted.padding_waste


def test_a_batch_knows_what_comes_before_each_word() -> None:
    batch = make_batch([([7, 8], [9]), ([7], [5, 6])], [10, 11])
    assert batch.source.tolist() == [[7, 8, EOS], [7, EOS, PAD]]
    assert batch.target.tolist() == [[9, EOS, PAD], [5, 6, EOS]]
    assert batch.previous().tolist() == [[BOS, 9, EOS], [BOS, 5, 6]]
    assert (batch.sentences, batch.source_tokens, batch.target_tokens) == (2, 5, 5)
    assert batch.indices == (10, 11)
    assert same(batch.to("cpu"), batch)


def test_halves_hold_the_same_pairs_with_needless_padding_cut() -> None:
    batch = make_batch([([7], [9]), ([7, 7], [5, 6]), ([4] * 9, [4] * 8)], [3, 1, 2])
    first, second = batch.split()
    assert first.indices == (3,)
    assert second.indices == (1, 2)
    assert first.source.tolist() == [[7, EOS]]
    assert second.target.shape == (2, 9)
    assert second.source_mask.sum(1).tolist() == [3, 10]


def test_ids_of_any_width_give_the_same_pairs() -> None:
    ids = ParallelIds(
        np.array([5, 6, 7], dtype=np.uint16),
        np.array([2, 2, 3], dtype=np.uint64),
        np.array([8, 9], dtype=np.uint32),
        np.array([0, 1, 2], dtype=np.uint64),
    )
    assert len(ids) == 3
    assert [tuple(side.tolist() for side in ids.pair(i)) for i in range(3)] == [
        ([5, 6], []),
        ([], [8]),
        ([7], [9]),
    ]
    assert ids.source_lengths.tolist() == [3, 1, 2]
    assert ids.padded(np.array([2, 0]))[0].tolist() == [[7, EOS, PAD], [5, 6, EOS]]
    with pytest.raises(IndexError):
        ids.pair(3)
