"""Training waits for the device nowhere within an update: what is done depends on shapes, never on numbers.

Checked without a GPU: on tensors without numbers, asking for one is an error, as is a result whose size depends on them
(a selection by a mask). The functions are those that run on a GPU: native code stands aside.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from rnnsearch.data.batches import make_batch
from rnnsearch.kernels import cross_entropy, products, recurrence
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.build import penalties
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.systems.build import build
from rnnsearch.training.optimisers import clip


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(products, "way", lambda *_: products.TORCH)
    for module in (recurrence, cross_entropy.native):
        monkeypatch.setattr(module, "can_run", lambda *_: False)


@pytest.fixture
def batch():
    """Short sentences, of two lengths: what an operation waits for does not hang on how often it is done."""
    return make_batch([([5, 6, 7], [4, 5]), ([9], [6])], range(2))


def test_an_update_waits_for_nothing(system, batch):
    model = build(system.model, 12, 12, seed=1, objective=system.objective)
    objective = likelihood(0.1, penalties(system.objective))
    with FakeTensorMode(allow_non_fake_inputs=True):
        loss = objective(model, batch, Draws(1))
        loss.total.backward()
        norm = clip(model.parameters(), 1.0, None)
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            norm.item()


def test_a_selection_by_a_mask_would_be_found(batch):
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(DynamicOutputShapeException):
        torch.zeros(batch.target.ids.shape)[batch.target.mask]
