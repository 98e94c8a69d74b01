"""The estimate of time and memory before the first update."""

import re
from dataclasses import replace

import pytest
import torch

from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.training import run as run_module
from rnnsearch.training import sparse_tables, summary
from rnnsearch.utils.weights import read_weights

ESTIMATE = re.compile(
    r"about (\d+) min (\d\d) s per epoch on this machine, at most (\d+) min (\d\d) s in all; "
    r"(\d+\.\d) GiB of memory"
)


def read_estimate(recorder) -> tuple[int, int, float]:
    """Return the seconds per epoch and in all, and the GiB."""
    [match] = filter(None, map(ESTIMATE.fullmatch, recorder.messages))
    epoch_minutes, epoch_seconds, minutes, seconds, gib = match.groups()
    return 60 * int(epoch_minutes) + int(epoch_seconds), 60 * int(minutes) + int(seconds), float(gib)


@pytest.mark.parametrize(
    ("limits", "updates"), [({"max_epochs": 2}, 12), ({"max_updates": 5}, 5), ({"max_updates": 5, "max_epochs": 2}, 5)]
)
def test_estimated_time_is_that_of_trial_batches(learn, monkeypatch, limits, updates):
    """An epoch has six batches with about the same number of tokens; each pass takes 30 s."""
    original = run_module.estimate

    def timed(trainer):
        readings = map(float, range(0, 10**6, 30))
        with monkeypatch.context() as patch:
            patch.setattr(summary.time, "monotonic", lambda: next(readings))
            return original(trainer)

    monkeypatch.setattr(run_module, "estimate", timed)
    recorder = learn(**limits)
    epoch_seconds, seconds, gib = read_estimate(recorder)
    assert epoch_seconds == pytest.approx(6 * 30, rel=0.25)
    assert seconds == pytest.approx(updates * 30, rel=0.25)
    assert 0.05 < gib < 64


def test_run_of_fewer_batches_than_the_estimate_has_none(learn):
    messages = learn(max_updates=summary.NUM_TRIAL_BATCHES).messages
    assert not any(map(ESTIMATE.fullmatch, messages))


def test_estimate_respects_max_minutes(learn):
    recorder = learn(max_minutes=0.001)
    assert read_estimate(recorder)[1] == 0


def test_estimate_excludes_memory_mapped_moments(learn, monkeypatch, tmp_path):
    tables = {"objective": {"partition": 9}}
    monkeypatch.setattr(summary, "MOMENT_BYTES", 1 << 30)  # a GiB per parameter
    *_, in_memory = read_estimate(learn("memory", tables, max_updates=5))
    weights = read_weights(tmp_path / "memory" / "model.safetensors")
    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    *_, mapped = read_estimate(learn("files", tables, max_updates=5))
    tables = [w.numel() for name, w in weights.items() if "embedding" in name or name.startswith("output.")]
    assert sum(tables) > 0
    assert in_memory - mapped == pytest.approx(sum(tables), abs=2)


def test_estimate_does_not_change_training(learn, monkeypatch, tmp_path):
    """Runs with and without the estimate have the same weights, also with dropout."""
    tables = {"model": {"dropout": {"embedding": 0.2, "readout": 0.3}}}
    learn(tables=tables, max_updates=5)
    expected = read_weights(tmp_path / "run" / "model.safetensors")
    monkeypatch.setattr(run_module, "estimate", lambda *_: None)
    learn("again", tables, max_updates=5)
    for name, tensor in read_weights(tmp_path / "again" / "model.safetensors").items():
        assert torch.equal(expected[name], tensor), name


def test_no_estimate_if_a_batch_does_not_fit(learn, monkeypatch):
    class OutOfMemory(Likelihood):
        def __call__(self, *_):
            raise torch.OutOfMemoryError

    original = run_module.estimate

    def out_of_memory(trainer):
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "task", replace(trainer.task, objective=OutOfMemory()))
            return original(trainer)

    monkeypatch.setattr(run_module, "estimate", out_of_memory)
    recorder = learn(max_updates=5)
    assert not any(map(ESTIMATE.fullmatch, recorder.messages))
    assert "5 updates done" in recorder.reason


def test_resumed_run_has_no_estimate(learn):
    assert any(map(ESTIMATE.fullmatch, learn(max_updates=5).messages))
    assert not any(map(ESTIMATE.fullmatch, learn(max_updates=10, resume=True).messages))
