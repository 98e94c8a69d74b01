"""Training waits for the device nowhere within an update: what is done depends on shapes, never on numbers; and all of
it is done on the device.

Checked without a GPU: on tensors without numbers, torch's `meta` device, asking for one is an error, as is a result
whose size depends on them (a selection by a mask), and a tensor of the CPU beside one of theirs.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from rnnsearch.data.batches import make_batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.translation import build
from rnnsearch.training.optimisers import clip

pytestmark = pytest.mark.usefixtures("as_on_a_gpu", "without_autocast")


@pytest.fixture
def without_autocast(monkeypatch):
    """Which knows no `meta`."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.fixture
def batch():
    """Short sentences, of two lengths: what an operation waits for does not hang on how often it is done."""
    return make_batch([([5, 6, 7], [4, 5]), ([9], [6])], range(2)).to("meta")


def test_an_update_waits_for_nothing(system, batch):
    model = build(system.model, 12, 12, seed=1, objective=system.objective).to("meta")
    objective = Likelihood(0.1, penalties(system.objective))
    loss = objective(model, batch, BatchRng(1))
    loss.total.backward()
    norm = clip(model.parameters(), 1.0, None)
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        norm.item()


def test_a_selection_by_a_mask_and_a_tensor_elsewhere_would_be_found(batch):
    zeros = torch.zeros(batch.target.ids.shape, device="meta")
    with pytest.raises(NotImplementedError):
        zeros[batch.target.mask]
    with pytest.raises(RuntimeError, match="device"):
        zeros + torch.zeros(batch.target.ids.shape)
