"""Batches of several directions: each pair once per epoch, reproducible, resumable and weighted by a temperature."""

from collections import Counter

import numpy as np
import pytest

from rnnsearch.config import BatchConfig
from rnnsearch.data.batch import COPY_SUFFIX, Direction
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.mixed_batches import MixedBatches, TaskBatches
from rnnsearch.data.tasks import task_rows
from tests.data.test_batches import same

EN_DE = Direction(("en",), "de")
FR_DE = Direction(("fr",), "de")
DE_FR = Direction(("de",), "fr")
COPY = Direction((f"en{COPY_SUFFIX}",), "en")
MODEL_OF_DE = Direction((), "de")


def corpus() -> ParallelIds:
    """300 rows with German, 280 with English, 40 with French."""
    rng = np.random.default_rng(0)

    def sentences(count: int, start: int = 0) -> list[list[int] | None]:
        rows: list[list[int] | None] = [None] * 300
        for row in range(start, start + count):
            rows[row] = rng.integers(4, 99, rng.integers(0, 12)).tolist()
        return rows

    return ParallelIds.from_rows({"en": sentences(280), "fr": sentences(40, start=260), "de": sentences(300)})


def mixed(
    *directions: Direction,
    temperature: float = 1.0,
    tasks: dict[Direction, float] | None = None,
    rank: int = 0,
    world: int = 1,
) -> MixedBatches:
    budget = BatchConfig(tokens=60, sort_batches=3)
    ids = corpus()

    def make(ids: ParallelIds, direction: Direction) -> Batches:
        return Batches(ids, budget, None, seed=3, direction=direction, rank=rank, world=world)

    parts = {direction: make(ids, direction) for direction in directions}
    task_parts = {}
    for task, ratio in (tasks or {}).items():
        task_parts[task] = TaskBatches(make(task_rows(ids, task, monolingual=False), task), ratio)
    return MixedBatches(parts, 3, temperature, task_parts)


def equal(batches: list[Batch], others: list[Batch]) -> bool:
    pairs = zip(batches, others, strict=True)
    return all(a.direction == b.direction and same(a, b) for a, b in pairs)


def test_epoch_has_each_pair_of_each_direction_once():
    batches = mixed(EN_DE, FR_DE, DE_FR)
    epoch = list(batches.epoch(1))
    assert len(epoch) == batches.count(1)
    seen = Counter((batch.direction, index) for batch in epoch for index in batch.indices)
    assert set(seen.values()) == {1}
    rows = {direction: {index for owner, index in seen if owner == direction} for direction in batches.parts}
    assert rows == {EN_DE: set(range(280)), FR_DE: set(range(260, 300)), DE_FR: set(range(260, 300))}
    assert all(set(batch.streams) == {*batch.direction.sources, batch.direction.target} for batch in epoch)


def test_directions_are_mixed():
    directions = [batch.direction for batch in mixed(EN_DE, FR_DE).epoch(0)]
    last_large = len(directions) - directions[::-1].index(EN_DE)
    assert directions.index(FR_DE) < last_large // 2


def test_one_direction_has_the_batches_of_a_bilingual_run():
    ids = corpus().select(("en", "de"))
    bilingual = Batches(ids, BatchConfig(tokens=60, sort_batches=3), None, seed=3)
    for epoch in (0, 2):
        assert equal(list(mixed(EN_DE).epoch(epoch)), list(bilingual.epoch(epoch)))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_epoch_continues_after_skipped_batches(temperature):
    whole = list(mixed(EN_DE, FR_DE, DE_FR, temperature=temperature).epoch(4))
    for skip in (1, len(whole) // 2, len(whole)):
        rest = list(mixed(EN_DE, FR_DE, DE_FR, temperature=temperature).epoch(4, skip))
        assert equal(rest, whole[skip:])


def test_higher_temperatures_use_small_corpora_more_often():
    fractions = []
    for temperature in (1.0, 2.0, 1000.0):
        batches = mixed(EN_DE, FR_DE, temperature=temperature)
        directions = Counter(batch.direction for batch in batches.epoch(0))
        assert sum(directions.values()) == batches.count(0)
        fractions.append(directions[FR_DE] / batches.count(0))
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(0.5, abs=0.02)
    counts = [part.count(0) for part in mixed(EN_DE, FR_DE).parts.values()]
    assert fractions[1] == pytest.approx(counts[1] ** 0.5 / (counts[0] ** 0.5 + counts[1] ** 0.5), abs=0.02)


def test_repeated_passes_have_other_batches():
    batches = [batch for batch in mixed(EN_DE, FR_DE, temperature=1000.0).epoch(0) if batch.direction == FR_DE]
    num_pairs = 40
    first_pass: list[Batch] = []
    while sum(len(batch.indices) for batch in first_pass) < num_pairs:
        first_pass.append(batches.pop(0))
    second_pass = batches[: len(first_pass)]
    assert [batch.indices for batch in first_pass] != [batch.indices for batch in second_pass]


def test_processes_share_the_rows_of_each_batch():
    whole = list(mixed(EN_DE, FR_DE).epoch(0))
    parts = zip(*(mixed(EN_DE, FR_DE, rank=rank, world=2).epoch(0) for rank in range(2)), strict=True)
    for batch, processes in zip(whole, parts, strict=True):
        assert all(part.direction == batch.direction for part in processes)
        assert {index for part in processes for index in part.indices} == set(batch.indices)


def test_whole_batch_is_of_the_given_direction():
    batches = mixed(EN_DE, DE_FR)
    batch = next(batch for batch in batches.epoch(0) if batch.direction == DE_FR)
    assert same(batches.whole_batch(batch.indices, DE_FR), batch)


TASKS = {COPY: 0.5, MODEL_OF_DE: 2.5}


def test_tasks_have_their_ratios_and_change_no_other_batches():
    plain = list(mixed(EN_DE, FR_DE).epoch(1))
    batches = mixed(EN_DE, FR_DE, tasks=TASKS)
    epoch = list(batches.epoch(1))
    assert len(epoch) == batches.count(1)
    assert equal([batch for batch in epoch if batch.direction in batches.directions], plain)
    counts = Counter(batch.direction for batch in epoch)
    for task, ratio in TASKS.items():
        assert counts[task] == pytest.approx(ratio * len(plain), abs=1)
    # Spread over the whole epoch.
    halves = [
        Counter(batch.direction for batch in half) for half in (epoch[: len(epoch) // 2], epoch[len(epoch) // 2 :])
    ]
    assert all(half[task] > counts[task] / 4 for half in halves for task in TASKS)


def test_autoencoding_reads_its_target_and_language_modelling_nothing():
    for batch in mixed(EN_DE, tasks=TASKS).epoch(0):
        if batch.direction == COPY:
            assert batch.source.ids.equal(batch.target.ids)
        elif batch.direction == MODEL_OF_DE:
            assert batch.streams.keys() == {"de"} and batch.sources == {}


def test_small_ratios_have_a_batch_in_some_epochs():
    batches = mixed(EN_DE, tasks={COPY: 0.01})
    num_tasks = [batches.count(epoch) - batches.directions[EN_DE].count(epoch) for epoch in range(20)]
    assert set(num_tasks) == {0, 1}
    total = sum(batches.directions[EN_DE].count(epoch) for epoch in range(20))
    assert sum(num_tasks) == pytest.approx(0.01 * total, abs=1)


def test_epoch_with_tasks_continues_after_skipped_batches():
    whole = list(mixed(EN_DE, FR_DE, tasks=TASKS).epoch(4))
    for skip in (1, len(whole) // 2, len(whole)):
        assert equal(list(mixed(EN_DE, FR_DE, tasks=TASKS).epoch(4, skip)), whole[skip:])


def test_task_uses_other_sentences_in_each_epoch():
    batches = mixed(EN_DE, tasks={MODEL_OF_DE: 0.2})
    epochs = []
    for epoch in (0, 1):
        epochs.append([batch.indices for batch in batches.epoch(epoch) if batch.direction == MODEL_OF_DE])
    assert epochs[0] and epochs[0] != epochs[1]


def test_monolingual_rows_have_no_other_language():
    ids = corpus()
    assert task_rows(ids, MODEL_OF_DE, monolingual=False).present("de").all()
    # The rows after the 280 with English have French.
    assert not task_rows(ids, MODEL_OF_DE, monolingual=True).present("de").any()
    without_french = task_rows(ids.select(["en", "de"]), MODEL_OF_DE, monolingual=True)
    assert np.flatnonzero(without_french.present("de")).tolist() == list(range(280, 300))


def test_processes_share_the_rows_of_each_batch_of_a_task():
    whole = list(mixed(EN_DE, tasks=TASKS).epoch(0))
    parts = zip(*(mixed(EN_DE, tasks=TASKS, rank=rank, world=2).epoch(0) for rank in range(2)), strict=True)
    for batch, processes in zip(whole, parts, strict=True):
        assert all(part.direction == batch.direction for part in processes)
        assert {index for part in processes for index in part.indices} == set(batch.indices)
