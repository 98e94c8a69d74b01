"""Every learning-rate schedule: exact factors at exact updates and epochs."""

from typing import Any

import pytest

from rnnsearch.config import training
from rnnsearch.errors import ConfigError
from rnnsearch.training.run import check
from rnnsearch.training.schedules import SCHEDULES, Schedule

REQUIRED_OPTIONS: dict[str, dict[str, Any]] = {
    "constant": {},
    "halving": {"start": 5.0, "every": 1.0},
    "inverse-sqrt": {"warmup": 4},
    "linear": {},
    "plateau": {"patience": 1},
    "exponential": {"decay_start": 4, "decay_end": 8, "minimum": 0.5},
    "rnmt-plus": {"decay_start": 4, "decay_end": 8, "minimum": 0.5},
}


def make(name: str, **options: Any) -> Schedule:
    return SCHEDULES[name](training.SCHEDULES[name](**(REQUIRED_OPTIONS[name] | options)))


def test_every_schedule_is_tested():
    assert set(REQUIRED_OPTIONS) == set(SCHEDULES)


@pytest.mark.parametrize("name", ["constant", "halving", "linear", "plateau", "exponential"])
def test_warmup_rises_linearly(name):
    schedule = make(name, warmup=4)
    assert [schedule.factor(n, 0.0) for n in range(1, 5)] == [0.25, 0.5, 0.75, 1.0]
    assert [schedule.factor(n, 0.0) for n in (5, 6)] == [make(name).factor(n, 0.0) for n in (5, 6)]
    assert make(name).factor(1, 0.0) == 1.0, "without warm-up, the first update has the full rate"


def test_inverse_square_root_after_warmup():
    schedule = make("inverse-sqrt")
    assert [schedule.factor(n, 9.0) for n in (1, 2, 4, 16, 64)] == [0.25, 0.5, 1.0, 0.5, 0.25]
    assert [make("inverse-sqrt", warmup=0).factor(n, 9.0) for n in (1, 4)] == [1.0, 0.5]


def test_exponential_decays_by_the_same_factor_per_update():
    schedule = make("exponential")
    factors = [schedule.factor(n, 9.0) for n in (1, 4, 5, 6, 8, 100)]
    assert factors == pytest.approx([1.0, 1.0, 0.5**0.25, 0.5**0.5, 0.5, 0.5])


@pytest.mark.parametrize(("n", "p", "s", "e"), [(1, 500, 40, 80), (4, 5, 400, 800), (32, 500, 1_200_000, 3_600_000)])
def test_rnmt_plus_equals_its_equation(n, p, s, e):
    """Chen et al. 2018, eq. 1: min(1 + t (n - 1) / (n p), n, n (2 n)^((s - n t) / (e - s))), until n t = e."""
    schedule = make("rnmt-plus", devices=n, warmup=p, decay_start=s, decay_end=e)
    for t in {min(t, e // n) for t in (1, 2, p, n * p, s // n, s // n + 1, (s + e) // (2 * n), e // n)}:
        expected = min(1 + t * (n - 1) / (n * p), n, n * (2 * n) ** ((s - n * t) / (e - s)))
        assert schedule.factor(t, 0.0) == pytest.approx(expected, rel=1e-12)
    assert schedule.factor(9 * e, 0.0) == pytest.approx(0.5)
    if n == 1:
        assert {schedule.factor(t, 0.0) for t in range(1, s)} == {1.0}


def test_linear_decay_follows_progress_of_the_run():
    schedule = make("linear", warmup=2)
    factors = []
    for update, progress in ((1, 0.0), (2, 0.25), (3, 0.5), (4, 1.0)):
        factors.append(schedule.factor(update, 0.0, progress))
    assert factors == [0.5, 0.75, 0.5, 0.0]


@pytest.mark.parametrize("limit", ["max_updates", "max_epochs"])
def test_linear_decay_ends_at_nearest_limit(learn, limit):
    far = {"max_updates": 1000, "max_epochs": 1000.0, "max_minutes": 1000.0}
    near = {"max_updates": 4, "max_epochs": 1.0}
    sgd = {"type": "sgd", "learning_rate": 0.8}
    recorder = learn(optimiser=sgd, schedule={"type": "linear"}, **(far | {limit: near[limit]}))
    rates = [row["learning_rate"] for row in recorder.updates]
    updates = {"max_updates": 4, "max_epochs": 6}[limit]
    assert rates == pytest.approx([0.8 * (1 - done / updates) for done in range(updates)], rel=0.01)


def test_linear_decay_needs_a_limit(configure):
    config = configure(optimiser={"type": "sgd", "learning_rate": 0.5}, schedule={"type": "linear"}, patience=2)
    assert check(config) == [
        "training.schedule.type: linear ends with the run; give max_epochs, max_updates or max_minutes"
    ]


def test_halving_after_five_epochs_like_luong():
    schedule = make("halving")
    factors = [schedule.factor(1000, epoch) for epoch in (0.0, 4.999, 5.0, 5.999, 6.0, 7.5, 10.0)]
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.25, 0.125, 2.0**-6]
    slow = make("halving", start=1.0, every=0.5)
    assert [slow.factor(1, epoch) for epoch in (0.9, 1.0, 1.5, 2.0)] == [1.0, 0.5, 0.25, 0.125]


def test_halving_starts_at_first_update_of_an_epoch(learn):
    sgd = {"type": "sgd", "learning_rate": 0.8}
    halving = {"type": "halving", "start": 1.0, "every": 1.0}
    recorder = learn(optimiser=sgd, schedule=halving, clip_norm=1.0, max_epochs=3)
    assert [row["learning_rate"] for row in recorder.updates] == [0.8] * 6 + [0.4] * 6 + [0.2] * 6


def test_plateau_lowers_rate_after_patience():
    schedule = make("plateau", patience=2, factor=0.1)
    factors = []
    early = []
    for better in (True, False, False, True, False, False, False, False, False, False):
        schedule.evaluated(better)
        factors.append(schedule.factor(1, 1.0))
        early.append(schedule.awaits_decay)
    assert factors == [1.0] * 6 + [0.1] * 3 + [pytest.approx(0.01)]
    assert early == [True] * 9 + [False]
    assert not make("constant").awaits_decay


def test_plateau_without_patience_halves_rate_down_to_minimum():
    schedule = make("plateau", patience=0, minimum=0.2)
    factors = []
    for _ in range(4):
        schedule.evaluated(False)
        factors.append(schedule.factor(1, 1.0))
    assert factors == [0.5, 0.25, 0.2, 0.2]
    at_minimum = make("plateau", patience=0, minimum=0.5)
    at_minimum.evaluated(False)
    assert not at_minimum.awaits_decay, "the rate cannot fall any more"


def test_plateau_continues_from_restored_state():
    straight, before, after = (make("plateau", patience=2) for _ in range(3))
    for schedule in (straight, before):
        for _ in range(5):
            schedule.evaluated(False)
    after.state = dict(before.state)
    for _ in range(4):
        straight.evaluated(False)
        after.evaluated(False)
        assert after.factor(1, 1.0) == straight.factor(1, 1.0)
    assert straight.factor(1, 1.0) == 0.125


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"type": "halving", "start": 5.0}, "every: must be given for the halving schedule"),
        ({"type": "constant", "factor": 0.5}, "factor: has no effect with the constant schedule; remove it"),
        ({"type": "plato"}, "type: must be one of constant, halving"),
        (
            {"type": "exponential", "decay_start": 9, "decay_end": 5, "minimum": 0.5},
            "decay_end: must be after",
        ),
    ],
)
def test_invalid_options_are_reported(configure, table, problem):
    with pytest.raises(ConfigError, match=rf"^training\.schedule\.{problem}"):
        configure(optimiser={"type": "sgd", "learning_rate": 0.5}, schedule=table, max_updates=1)
