"""What a run says that it will take, before it begins."""

import re
from dataclasses import replace

import pytest
import torch

from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.training import run as running
from rnnsearch.training import sparse_tables
from rnnsearch.training import summary as module
from rnnsearch.utils.weights import read_weights

SAID = re.compile(r"about (\d+) min (\d\d) s per epoch on this machine, at most (\d+) min (\d\d) s in all; (\d+\.\d) GiB of memory")


def said(told) -> tuple[int, int, float]:
    """Seconds an epoch and in all, and GiB."""
    [found] = filter(None, map(SAID.fullmatch, told.messages))
    a, b, c, d, gib = found.groups()
    return 60 * int(a) + int(b), 60 * int(c) + int(d), float(gib)


@pytest.mark.parametrize(
    ("limits", "updates"), [({"max_epochs": 2}, 12), ({"max_updates": 3}, 3), ({"max_updates": 3, "max_epochs": 2}, 3)]
)
def test_time_is_that_of_the_updates_tried_out(learn, monkeypatch, limits, updates):
    """Six batches an epoch of about as many symbols."""
    original, taken = running.estimate, []

    def timed(trainer):
        readings = map(float, range(0, 10**6, 30))
        with monkeypatch.context() as patch:
            patch.setattr(module.time, "monotonic", lambda: next(readings))
            taken.append(original(trainer))
        return taken[-1]

    monkeypatch.setattr(running, "estimate", timed)
    told = learn(**limits)
    epoch, whole, gib = said(told)
    assert epoch == pytest.approx(6 * 30, rel=0.25)
    assert whole == pytest.approx(updates * 30, rel=0.25)
    assert 0.05 < gib < 64


def test_minutes_limit_it_too(learn):
    told = learn(max_minutes=0.001)
    assert said(told)[1] == 0


def test_moments_in_files_are_no_memory(learn, monkeypatch, tmp_path):
    tables = {"objective": {"partition": 9}}
    monkeypatch.setattr(module, "MOMENT_BYTES", 1 << 30)  # a GiB a number
    *_, memory = said(learn("memory", tables, max_updates=1))
    weights = read_weights(tmp_path / "memory" / "model.safetensors")
    monkeypatch.setattr(sparse_tables, "MIN_MAPPED_BYTES", 1)
    *_, less = said(learn("files", tables, max_updates=1))
    of_words = [w.numel() for name, w in weights.items() if "embedding" in name or name.startswith("output.")]
    assert sum(of_words) > 0
    assert memory - less == pytest.approx(sum(of_words), abs=2)


def test_it_changes_nothing(learn, monkeypatch, tmp_path):
    """Dropout and all: the run with it and the run without have the same weights."""
    tables = {"model": {"dropout": {"embedding": 0.2, "readout": 0.3}}}
    learn(tables=tables, max_updates=5)
    with_it = read_weights(tmp_path / "run" / "model.safetensors")
    monkeypatch.setattr(running, "estimate", lambda *_: None)
    learn("again", tables, max_updates=5)
    for name, without in read_weights(tmp_path / "again" / "model.safetensors").items():
        assert torch.equal(with_it[name], without), name


def test_a_batch_that_does_not_fit_is_left_to_training(learn, monkeypatch):
    """Which halves it."""

    class Full(Likelihood):
        def __call__(self, *_):
            raise torch.OutOfMemoryError

    original = running.estimate

    def out_of_memory(trainer):
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "task", replace(trainer.task, objective=Full()))
            return original(trainer)

    monkeypatch.setattr(running, "estimate", out_of_memory)
    told = learn(max_updates=2)
    assert not any(map(SAID.fullmatch, told.messages))
    assert "2 updates done" in told.reason


def test_a_resumed_run_says_nothing_again(learn):
    assert any(map(SAID.fullmatch, learn(max_updates=2).messages))
    assert not any(map(SAID.fullmatch, learn(max_updates=4, resume=True).messages))
