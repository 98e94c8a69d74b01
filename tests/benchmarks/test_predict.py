"""The arithmetic of docs/cost.md."""

from __future__ import annotations

import pytest

from benchmarks.predict import Run, fixed_bytes, sum_seconds, training_hours


def test_one_gpu_takes_the_symbols_by_the_speed() -> None:
    run = Run(pairs=1000, symbols=36.0, epochs=2.0)
    assert training_hours(run, 10.0, 100.0, 1000, gpus=1) == pytest.approx(2.0)


def test_eight_gpus_take_an_eighth_and_the_sums() -> None:
    run = Run(pairs=1000, symbols=36.0, epochs=2.0, bandwidth=1000.0)
    assert sum_seconds(1000, 8, 1000.0) == pytest.approx(7.0)
    assert sum_seconds(1000, 8, 1000.0, number_bytes=2) == pytest.approx(3.5)
    updates = 1000 * 36 * 2 / 800
    assert training_hours(run, 10.0, 100.0, 1000, gpus=8) == pytest.approx(2.0 / 8 + updates * 7 / 3600)


def test_several_processes_hold_buckets_too() -> None:
    assert (fixed_bytes(10, 1), fixed_bytes(10, 8)) == (160, 200)
