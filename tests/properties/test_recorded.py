"""Recorded passes of every system, replayed with other inputs and random numbers, equal the passes.

Without a GPU, a recording is the Python code that launches the kernels (tests/objectives/test_recorded.py). That
kernels depend only on shapes is tested in `test_waiting.py` and `test_cuda.py`.
"""

from __future__ import annotations

import pytest
import torch

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import PassRecorder
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives import likelihood as module
from rnnsearch.objectives import penalties
from rnnsearch.systems.translation import build
from tests.objectives.passes import again
from tests.properties.conftest import SYMBOLS, others, pass_with_gradients

SEEDS = range(3)
"""One pass without recording, one that is recorded, and one replay."""


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("rng", [BatchRng, lambda _: None], ids=["drawn", "not drawn"])
def test_replayed_pass_equals_the_pass(system, batch, rng, monkeypatch):
    model = build(system.model, SYMBOLS, SYMBOLS, seed=1, objective=system.objective)
    weighted = penalties(system.objective) if rng is BatchRng else ()
    objective, batches = module.Likelihood(0.1, weighted), others(batch)
    expected = [pass_with_gradients(objective, model, batches[seed % 2], rng(seed)) for seed in SEEDS]
    recorder = PassRecorder(again)
    monkeypatch.setattr(cuda_graphs, "MIN_OCCURRENCES", 1)
    monkeypatch.setattr(module, "run_recorded", recorder.run)
    for seed, (loss, gradients) in zip(SEEDS, expected, strict=True):
        found, theirs = pass_with_gradients(objective, model, batches[seed % 2], rng(seed))
        assert found == pytest.approx(loss, rel=1e-5)
        for name, gradient in gradients.items():
            assert (gradient is None) == (theirs[name] is None), name
            if gradient is not None:
                torch.testing.assert_close(theirs[name], gradient, rtol=1e-4, atol=1e-6)
    assert len(recorder) == 1
