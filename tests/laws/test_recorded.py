"""Every system's pass may be recorded: replayed with other numbers, and what is drawn, it equals the pass.

Without a GPU a recording is the Python that asks for the kernels (tests/objectives/test_recorded.py); that kernels
depend on shapes alone, `test_waiting.py` and `test_cuda.py` say.
"""

from __future__ import annotations

import pytest
import torch

from rnnsearch.models.draws import Draws
from rnnsearch.objectives import likelihood as module
from rnnsearch.objectives.build import penalties
from rnnsearch.objectives.recorded import OCCURRENCES, PassRecorder
from rnnsearch.systems.build import build
from tests.laws.conftest import SYMBOLS, others, pass_with_gradients


def again(work, _):
    work()
    return work


def test_a_replay_is_the_pass(system, batch, monkeypatch):
    model = build(system.model, SYMBOLS, SYMBOLS, seed=1, objective=system.objective)
    objective, batches = module.likelihood(0.1, penalties(system.objective)), others(batch)
    passes = [(batches[seed % 2], Draws(seed)) for seed in range(OCCURRENCES + 3)]
    expected = [pass_with_gradients(objective, model, *each) for each in passes]
    recorder = PassRecorder(again)
    monkeypatch.setattr(module, "recorded", recorder.run)
    for (each, draws), (loss, gradients) in zip(passes, expected, strict=True):
        found, others_found = pass_with_gradients(objective, model, each, Draws(draws.generator.initial_seed()))
        assert found == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            assert (gradient is None) == (others_found[name] is None), name
            if gradient is not None:
                torch.testing.assert_close(others_found[name], gradient, rtol=1e-4, atol=1e-6)
    assert len(recorder) == 1
