"""Properties of batches: every pair once per epoch, reproducible epochs, the budget."""

from collections import Counter

import numpy as np
import pytest
import torch

from rnnsearch.config import BatchConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.batches import Batch, Batches, make_batch
from rnnsearch.data.characters import Characters, WordCharacters
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.ragged import RaggedArray
from rnnsearch.errors import ConfigError, DataError
from rnnsearch.text.tokenizer import SpelledIds
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.text.words import train_words

BUDGETS = [
    BatchConfig(tokens=60, sort_batches=3),
    BatchConfig(tokens=25),
    BatchConfig(sentences=7, sort_batches=2),
    BatchConfig(sentences=1),
    BatchConfig(sentences=1000),
]


def corpus(pairs: int = 203, longest: int = 20, seed: int = 0) -> ParallelIds:
    rng = np.random.default_rng(seed)
    return pairs_of(*([rng.integers(4, 99, rng.integers(0, longest + 1)).tolist() for _ in range(pairs)] for _ in "st"))


def pairs_of(sources: list[list[int]], targets: list[list[int]]) -> ParallelIds:
    return ParallelIds.from_rows({"en": sources, "de": targets})


def seen(batches: list[Batch]) -> Counter[int]:
    return Counter(index for batch in batches for index in batch.indices)


def padding(epoch: list[Batch]) -> float:
    """The share of positions that hold nothing."""
    sides = [side for batch in epoch for side in (batch.source, batch.target)]
    return 1 - sum(side.num_tokens for side in sides) / sum(side.ids.numel() for side in sides)


def same(a: Batch, b: Batch) -> bool:
    return a.indices == b.indices and all(torch.equal(a.streams[name].ids, b.streams[name].ids) for name in a.streams)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_epoch_has_every_pair_once_within_the_budget(budget):
    ids = corpus()
    batches = Batches(ids, budget, None, seed=3)
    epoch = list(batches.epoch(2))
    assert seen(epoch) == Counter(range(len(ids)))
    assert batches.count(2) == len(epoch)
    for batch in epoch:
        for row, index in enumerate(batch.indices):
            source, target = ids.row(index)
            assert batch.source.ids[row][batch.source.mask[row]].tolist() == [*source, EOS]
            assert batch.target.ids[row][batch.target.mask[row]].tolist() == [*target, EOS]
        assert (batch.source.ids[~batch.source.mask] == PAD).all()
        assert batch.source.mask.any(0).all(), "a column of nothing but padding"
        assert batch.target.mask.any(0).all(), "a column of nothing but padding"
        if budget.tokens is not None:
            assert batch.sentences * max(batch.source.ids.shape[1], batch.target.ids.shape[1]) <= budget.tokens
        else:
            assert batch.sentences <= (budget.sentences or 0)


def test_token_positions_are_correct_in_all_batches():
    [batch, *_] = Batches(corpus(), BUDGETS[2], None, seed=3).epoch(0)
    for made in (batch, batch.reversed(), *batch.split(), *batch.reversed().split(), batch.to("cpu")):
        for side in (made.source, made.target):
            assert torch.equal(side.ids.flatten()[side.token_positions], side.ids[side.mask])
            assert torch.equal(side.mask, side.ids != PAD)
            assert side.num_tokens == len(side.token_positions) == side.mask.sum()


@pytest.mark.parametrize("world", [1, 2])
def test_streams_are_padded_to_a_multiple(world):
    ids = corpus(longest=21)
    longest = int(ids.lengths(np.arange(len(ids))).max())
    assert longest % 8
    narrow, wide = (
        list(Batches(ids, BUDGETS[2], None, seed=3, rank=world - 1, world=world, multiple=m).epoch(0)) for m in (1, 8)
    )
    for one, other in zip(narrow, wide, strict=True):
        assert (one.indices, one.shard) == (other.indices, other.shard)
        for side in ("en", "de"):
            before, now = one.streams[side].ids, other.streams[side].ids
            assert now.shape[1] == min(-(-before.shape[1] // 8) * 8, longest)
            assert torch.equal(now[:, : before.shape[1]], before)
            assert (now[:, before.shape[1] :] == PAD).all()


def test_budget_includes_padding_to_a_multiple():
    batches = Batches(corpus(), BatchConfig(tokens=200, sort_batches=8), None, seed=3, multiple=8)
    epoch = list(batches.epoch(0))
    shapes = Counter(
        (len(batch.source.ids), max(batch.source.ids.shape[1], batch.target.ids.shape[1])) for batch in epoch
    )
    assert all(rows * width <= 200 for rows, width in shapes)
    assert shapes[12, 16] > 1
    assert shapes[9, 21] > 1
    assert batches.padding_waste == pytest.approx(padding(epoch))


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_epoch_depends_only_on_seed_and_number(budget):
    ids = corpus()
    one, two = Batches(ids, budget, None, seed=3), Batches(ids, budget, None, seed=3)
    list(two.epoch(0)), list(two.epoch(9))
    assert all(same(a, b) for a, b in zip(one.epoch(4), two.epoch(4), strict=True))
    order = [batch.indices for batch in one.epoch(4)]
    if len(order) > 1:
        assert order != [batch.indices for batch in one.epoch(5)]
        assert order != [batch.indices for batch in Batches(ids, budget, None, seed=4).epoch(4)]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_shuffle_once_repeats_the_first_epoch(budget):
    """Bahdanau et al., appendix B.2: so many batches' worth of shuffled pairs at a time, sorted by length."""
    once = Batches(corpus(), budget.model_copy(update={"shuffle": "once"}), None, seed=3)
    each = Batches(corpus(), budget, None, seed=3)
    first, sixth = ([batch.indices for batch in once.epoch(n)] for n in (0, 5))
    assert first == sixth
    assert sorted(first) == sorted(batch.indices for batch in each.epoch(0)), "the same batches in another order"
    for start in range(0, len(first), budget.sort_batches):
        if budget.sentences is not None:
            piece = list(once.epoch(0))[start : start + budget.sort_batches]
            widths = [max(batch.source.ids.shape[1], batch.target.ids.shape[1]) for batch in piece]
            assert widths == sorted(widths)


@pytest.mark.parametrize("skip", [0, 1, 5])
def test_skipped_epoch_equals_its_tail(skip):
    batches = Batches(corpus(), BUDGETS[0], None, seed=1)
    assert all(same(a, b) for a, b in zip(batches.epoch(1, skip), list(batches.epoch(1))[skip:], strict=True))
    assert list(batches.epoch(1, skip=batches.count(1))) == []


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("budget", BUDGETS[:4], ids=str)
def test_processes_partition_each_batch(budget, world):
    ids = corpus()
    alone = list(Batches(ids, budget, None, seed=5).epoch(1))
    ranks = [Batches(ids, budget, None, seed=5, rank=rank, world=world) for rank in range(world)]
    assert {rank.count(1) for rank in ranks} == {len(alone)}
    for batch, *parts in zip(alone, *(rank.epoch(1) for rank in ranks), strict=True):
        shares = [part.shard for part in parts]
        assert {(share.indices, share.target_tokens) for share in shares} == {(batch.indices, batch.target.num_tokens)}
        assert [share.is_counted for share in shares] == [rank < batch.sentences for rank in range(world)]
        real = [(row, part, n) for part in parts if part.shard.is_counted for n, row in enumerate(part.shard.rows)]
        assert sorted(row for row, _, _ in real) == list(range(batch.sentences)), "every row is worked on once"
        for row, part, n in real:
            assert part.indices[n] == batch.indices[row]
            assert torch.equal(part.source.ids[n], batch.source.ids[row]), "as wide as the whole"
            assert torch.equal(part.target.ids[n], batch.target.ids[row])
        for part in parts:
            if not part.shard.is_counted:
                assert part.indices == batch.indices[:1], "it keeps step on a row that another has"
        assert max(part.sentences for part in parts) - min(part.sentences for part in parts) <= 1


def test_any_pairs_form_a_batch():
    batches = Batches(corpus(), BUDGETS[0], None, seed=5)
    first = next(batches.epoch(0))
    assert same(batches.whole_batch(first.indices), first)


def test_long_pairs_are_skipped_and_counted():
    ids = pairs_of([[4] * 5, [4] * 6, [4], []], [[5] * 5, [5], [5] * 6, []])
    batches = Batches(ids, BatchConfig(sentences=2), max_length=5, seed=0)
    assert batches.left_out == 2
    assert seen(list(batches.epoch(0))) == Counter([0, 3])
    with pytest.raises(DataError, match="no training pair has at most 3 tokens"):
        Batches(pairs_of([[4] * 4], [[4]]), BatchConfig(sentences=2), max_length=3, seed=0)


def test_budget_smaller_than_a_pair_is_rejected():
    ids = pairs_of([[4] * 5], [[5] * 30])
    with pytest.raises(ConfigError, match=r"training.batch.tokens: must be at least 31.*got 30"):
        Batches(ids, BatchConfig(tokens=30), None, seed=0)
    assert Batches(ids, BatchConfig(tokens=31), None, seed=0).count(0) == 1


def test_padding_waste_is_the_padding_rate_and_small_after_sorting():
    ids = corpus(pairs=2000)
    batches = Batches(ids, BatchConfig(tokens=400), None, seed=0)
    epoch = list(batches.epoch(3))
    assert batches.padding_waste == pytest.approx(padding(epoch))
    unsorted = Batches(ids, BatchConfig(tokens=400, sort_batches=1), None, seed=0)
    assert batches.padding_waste < 0.15 < unsorted.padding_waste


def test_previous_shifts_ids_after_bos():
    batch = make_batch([([7, 8], [9]), ([7], [5, 6])], [10, 11])
    assert batch.source.ids.tolist() == [[7, 8, EOS], [7, EOS, PAD]]
    assert batch.target.ids.tolist() == [[9, EOS, PAD], [5, 6, EOS]]
    assert batch.target.previous().tolist() == [[BOS, 9, EOS], [BOS, 5, 6]]
    assert (batch.sentences, batch.source.num_tokens, batch.target.num_tokens) == (2, 5, 5)
    assert batch.indices == (10, 11)
    assert same(batch.to("cpu"), batch)


def test_halves_keep_pairs_and_width():
    batch = make_batch([([7], [9]), ([7, 7], [5, 6]), ([4] * 9, [4] * 8)], [3, 1, 2])
    first, second = batch.split()
    assert first.indices == (3,)
    assert second.indices == (1, 2)
    assert first.source.ids.tolist() == [[7, EOS, *[0] * 8]]
    assert second.target.ids.shape == (2, 9)
    assert second.source.mask.sum(1).tolist() == [3, 10]


def test_batches_are_equal_for_any_id_dtype():
    sides = {
        "en": RaggedArray(np.array([5, 6, 7], dtype=np.uint16), np.array([2, 2, 3], dtype=np.uint64)),
        "de": RaggedArray(np.array([8, 9], dtype=np.uint32), np.array([0, 1, 2], dtype=np.uint64)),
    }
    ids = ParallelIds(sides)
    assert len(ids) == 3
    assert [tuple(side.tolist() for side in ids.row(i)) for i in range(3)] == [
        ([5, 6], []),
        ([], [8]),
        ([7], [9]),
    ]
    assert ids.lengths(np.arange(3)).tolist() == [[3, 1, 2], [1, 2, 2]]
    assert ids.padded("de", np.array([1]), 4).tolist() == [[8, EOS, PAD, PAD]]
    assert ids.padded("en", np.array([2, 0])).tolist() == [[7, EOS, PAD], [5, 6, EOS]]
    with pytest.raises(IndexError):
        ids.row(3)


def test_batch_has_only_rows_with_all_streams_of_its_direction():
    ids = ParallelIds.from_rows({
        "en": [[5], [6, 6], None, [7]],
        "fr": [[15], None, [16, 16, 16], [17]],
        "de": [[25], [26], [27], None],
    })  # fmt: skip
    budget = BatchConfig(sentences=9)
    for sources, target, rows in ((("en", "fr"), "de", [0]), (("fr",), "de", [0, 2]), ((), "en", [0, 1, 3])):
        batches = Batches(ids, budget, None, seed=0, direction=Direction(sources, target))
        [batch] = batches.epoch(0)
        assert sorted(batch.indices) == rows and batches.left_out == 0
        assert set(batch.streams) == {*sources, target} and batch.target is batch.streams[target]
        assert all(side.present.all() for side in batch.streams.values())
    with pytest.raises(ValueError, match="unpack"):
        _ = batch.source
    assert Batches(ids, budget, 2, seed=0, direction=Direction(("fr",), "de")).left_out == 1
    lacking = ids.padded("en", np.array([2, 1]), 4)
    assert lacking.tolist() == [[PAD] * 4, [6, 6, EOS, PAD]]
    assert ids.lengths(np.arange(4)).tolist() == [[2, 3, 0, 2], [2, 0, 4, 2], [2, 2, 2, 0]]


def doubled(ids, random):
    """Other ids of the "same text": each of them once or twice."""
    return [id for id in ids for _ in range(random.choice((1, 2)))]


def told(source, target, random):
    """A source that says more, where it has a translation."""
    return doubled(source, random) if target else source


DRAWN = [{"segments": {"en": doubled}}, {"inlines": told}]


@pytest.mark.parametrize("drawn", DRAWN, ids=["segments", "inlines"])
def test_resegmentation_depends_only_on_seed_epoch_and_row(drawn):
    ids = corpus()

    def epoch(number, seed=3, skip=0):
        return list(Batches(ids, BUDGETS[0], None, seed, **drawn).epoch(number, skip))

    first = epoch(0)
    assert seen(first) == Counter(range(len(ids)))
    assert all(same(a, b) for a, b in zip(first, epoch(0), strict=True))
    assert all(same(a, b) for a, b in zip(first[5:], epoch(0, skip=5), strict=True))
    by_row = [{index: b.source.ids[row][b.source.mask[row]].tolist() for b in e for row, index in enumerate(b.indices)}
              for e in (first, epoch(1), epoch(0, seed=4))]  # fmt: skip
    assert by_row[0] != by_row[1] != by_row[2] != by_row[0]
    for batch in first:
        for row, index in enumerate(batch.indices):
            source, target = ids.row(index)
            own = batch.source.ids[row][batch.source.mask[row]].tolist()
            assert own[-1] == EOS and set(own[:-1]) == set(source.tolist()) and len(own) > len(source)
            assert batch.target.ids[row][batch.target.mask[row]].tolist() == [*target, EOS]


@pytest.mark.parametrize("options", [{"segments": {"en": doubled, "de": doubled}}, *DRAWN])
def test_resegmentation_is_equal_for_any_number_of_processes(options):
    ids = corpus()
    whole = list(Batches(ids, BUDGETS[0], None, 3, **options).epoch(1))
    parts = [list(Batches(ids, BUDGETS[0], None, 3, rank=rank, world=2, **options).epoch(1)) for rank in range(2)]
    for batch, *shares in zip(whole, *parts, strict=True):
        for share in shares:
            assert share.shard.target_tokens == batch.target.num_tokens
            for name, side in share.streams.items():
                assert torch.equal(side.ids, batch.streams[name].ids[list(share.shard.rows)])


def test_links_are_dropped_for_resegmented_streams():
    sources, targets = [[4, 5], [6]], [[7], [8, 9]]
    links = RaggedArray.from_rows([[(0, 0)], [(0, 1)]], columns=2)
    ids = ParallelIds.from_rows({"en": sources, "de": targets}, links)
    assert next(Batches(ids, BUDGETS[3], None, 0).epoch(0)).links is not None
    assert next(Batches(ids, BUDGETS[3], None, 0, segments={"de": doubled}).epoch(0)).links is None


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("budget", BUDGETS[:3], ids=str)
def test_epoch_partitions_limit_target_tokens(budget, world):
    ids, most = corpus(), 80
    for rank in range(world):
        batches = Batches(ids, budget, None, seed=3, rank=rank, world=world, partition=most)
        epoch, free = list(batches.epoch(1)), list(Batches(ids, budget, None, seed=3, rank=rank, world=world).epoch(1))
        assert all(map(same, epoch, free)) and all(batch.vocabulary is None for batch in free)
        parts = []
        for batch in epoch:
            wanted = set(batches.whole_batch(batch.shard.indices).target.ids.unique().tolist()) - {PAD}
            known = batch.vocabulary.tolist()
            assert known == sorted(known) and wanted <= set(known)
            if not parts or parts[-1][0] != known:
                parts.append((known, [], []))
            parts[-1][1].append(wanted)
        for known, each, _ in parts:
            assert set().union(*each) == set(known)
            assert len(known) <= most or len(each) == 1
        assert any(len(each) > 1 for _, each, _ in parts) and len(parts) > 1
        for skip in (1, len(epoch) - 1, len(epoch)):
            rest = list(batches.epoch(1, skip))
            assert [b.vocabulary.tolist() for b in rest] == [b.vocabulary.tolist() for b in epoch[skip:]]
        assert torch.equal(epoch[0].split()[0].vocabulary, epoch[0].vocabulary) if epoch[0].sentences > 1 else True
    whole = list(Batches(ids, budget, None, seed=3, partition=1000).epoch(0))
    assert {tuple(batch.vocabulary.tolist()) for batch in whole} == {tuple(sorted({EOS, *range(4, 99)}))}


def test_unknown_words_stay_with_resegmented_streams():
    rows = [SpelledIds([5, 1, 1], [" ab", "c"]), SpelledIds([6], []), SpelledIds([1], [" ab"])]
    ids = ParallelIds.from_rows({"en": rows, "de": [[7, 8], [9], [4]]})
    inventory = Characters(train_words(["a b c"], 8, 1), known=False)
    made = Batches(ids, BatchConfig(sentences=3), None, 1, segments={"de": lambda ids, _: [*ids, 5]},
                   spellings=WordCharacters({"en": inventory}))  # fmt: skip
    [batch] = made.epoch(0)
    assert sorted((batch.source.characters.indices > 0).sum(1).tolist()) == [0, 1, 2]
    assert (batch.target.ids == 5).sum() == 3
