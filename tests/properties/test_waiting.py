"""Updates do not synchronise with the device: the work depends on shapes, never on values.

The test needs no GPU. It uses torch's `meta` device, whose tensors have no values: it is an error to read a value, to
create a result whose size depends on values (selection by a mask), or to use a CPU tensor.
"""

from __future__ import annotations

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
def batch():
    """Return a batch of short sentences of two lengths; synchronisation does not depend on the number of steps."""
    return make_batch([([5, 6, 7], [4, 5]), ([9], [6])], range(2)).to("meta")


def test_update_does_not_synchronise_with_the_device(system, batch):
    model = build(system.model, 12, 12, seed=1, objective=system.objective).to("meta")
    objective = Likelihood(0.1, penalties(system.objective))
    loss = objective(model, batch, BatchRng(1))
    loss.total.backward()
    norm = clip(model.parameters(), 1.0, None)
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        norm.item()


def test_synchronising_operations_are_detected(batch):
    zeros = torch.zeros(batch.target.ids.shape, device="meta")
    with pytest.raises(NotImplementedError):
        zeros[batch.target.mask]
    with pytest.raises(RuntimeError, match="device"):
        zeros + torch.zeros(batch.target.ids.shape)
