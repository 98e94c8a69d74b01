"""Losses, gradients and translations on a GPU equal those on a CPU. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

from rnnsearch.accel import cuda_graphs
from rnnsearch.accel.cuda_graphs import MIN_OCCURRENCES, SWITCH
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import precision
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import ModelScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.translation import build
from tests.properties.conftest import SYMBOLS, others, pass_with_gradients

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def exact_products(monkeypatch):
    """Disable TF32, which has only 10 bits of mantissa."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def loss_and_gradients(model, batch, device, kind="fp32"):
    """Return the loss and the gradients of a batch without dropout."""
    model.zero_grad()
    with precision(torch.device(device), kind):
        loss = Likelihood(0.1)(model, batch.to(device), None)
    loss.total.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return loss.total.item(), torch.cat([g.flatten().double().cpu() for g in gradients])


def test_cuda_loss_and_gradients_equal_cpu(system, make, batch):
    model, batches = make(system), others(batch)
    here = [loss_and_gradients(model, each, "cpu") for each in batches]
    model.cuda()
    for number in range(MIN_OCCURRENCES + 4):  # later iterations replay recorded kernels
        loss, gradient = here[number % 2]
        there, other = loss_and_gradients(model, batches[number % 2], "cuda")
        assert there == pytest.approx(loss, rel=1e-4)
        assert (gradient - other).norm() < 1e-3 * gradient.norm()
    assert len(cuda_graphs._RECORDERS[model]) == 1


def test_replay_uses_the_same_random_numbers(system, batch, monkeypatch):
    objective, batches = Likelihood(0.1, penalties(system.objective)), [one.to("cuda") for one in others(batch)]
    found = []
    for switch in "01":
        monkeypatch.setenv(SWITCH, switch)
        model = build(system.model, SYMBOLS, SYMBOLS, seed=1, objective=system.objective).cuda()
        passes = [(batches[seed % 2], BatchRng(seed, "cuda")) for seed in range(MIN_OCCURRENCES + 4)]
        found.append([pass_with_gradients(objective, model, *each) for each in passes])
    for (loss, gradients), (other, theirs) in zip(*found, strict=True):
        assert other == pytest.approx(loss, rel=1e-4)
        for name, gradient in gradients.items():
            assert (gradient is None) == (theirs[name] is None), name
            if gradient is not None:
                assert (gradient - theirs[name]).norm() <= 1e-3 * gradient.norm() + 1e-5, name


def test_cuda_bf16_is_near_fp32(system, make, batch, monkeypatch):
    model, batches, near = make(system).cuda(), others(batch), []
    exact = [loss_and_gradients(model, each, "cuda") for each in batches]
    for switch in "01":
        monkeypatch.setenv(SWITCH, switch)
        near.append([loss_and_gradients(model, batches[n % 2], "cuda", "bf16") for n in range(MIN_OCCURRENCES + 3)])
    for number, ((loss, gradient), (replayed, other)) in enumerate(zip(*near, strict=True)):
        assert loss == pytest.approx(exact[number % 2][0], rel=0.1)
        assert replayed == pytest.approx(loss, rel=1e-2)
        assert gradient.isfinite().all() and gradient.shape == other.shape


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_pass_does_not_synchronise_with_the_device(system, make, batch):
    model, on_device = make(system).cuda(), batch.pinned().to("cuda")
    objective = Likelihood(0.1)
    objective(model, on_device, BatchRng(1, "cuda")).total.backward()  # libraries may synchronise on their first call
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        objective(model, on_device, BatchRng(2, "cuda")).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("beam", [1, 3])
def test_cuda_search_equals_cpu(system, make, pairs, beam):
    model = make(system)
    sentences, options = [source for source, _ in pairs], SearchOptions(beam=beam, max_extra=3)
    here = decode_all(ModelScorer(model), sentences, options, 4)
    there = decode_all(ModelScorer(model.cuda()), sentences, options, 4)
    for one, other in zip(here, there, strict=True):
        assert other[0].score == pytest.approx(one[0].score, rel=1e-3, abs=1e-3)
