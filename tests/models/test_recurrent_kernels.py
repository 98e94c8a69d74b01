"""Triton's kernels, run by its interpreter, equal the operations in PyTorch."""

import os

import pytest
import torch

from rnnsearch.ops import kernel_choice, loss, torch_recurrences
from rnnsearch.ops.torch_recurrences import RNNsearchParameters, gru_sequence, unroll_rnnsearch

B, I, J, D, H, A = 3, 4, 5, 7, 6, 9
LENGTHS = torch.tensor([5, 3, 4])


@pytest.fixture(autouse=True)
def interpreter():
    """Skip where kernels are compiled (tests/properties/test_cuda.py runs them) or Triton is not installed."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled for a GPU")


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(5)
    return lambda *shape: (0.5 * torch.randn(*shape, generator=generator)).requires_grad_()


def with_gradients(outputs, inputs):
    """Return the outputs, and the gradients of a fixed random function of them."""
    generator = torch.Generator().manual_seed(6)
    total = sum((out.float() * torch.randn(out.shape, generator=generator)).sum() for out in outputs)
    return [out.detach().float() for out in outputs] + [g.float() for g in torch.autograd.grad(total, inputs)]


def assert_kernels_agree(run, monkeypatch, dtype):
    """Compare a recurrence with kernels of Triton and of PyTorch."""
    found = []
    from rnnsearch.ops.triton_kernels import TritonKernels

    for choice in (kernel_choice.TORCH, TritonKernels()):
        monkeypatch.setattr(torch_recurrences, "kernels_for", lambda *_, choice=choice: choice)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            found.append(run())
    for number, (want, got) in enumerate(zip(*found, strict=True)):
        tolerance = 3e-2 if dtype == torch.bfloat16 else 2e-6
        assert (got - want).norm() <= tolerance * want.norm(), number


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recurrence_of_rnnsearch(dtype, numbers, monkeypatch):
    mask = torch.arange(J) < LENGTHS[:, None]
    inputs = [numbers(B, I, 3 * D), numbers(B, D), numbers(B, J, H), numbers(B, J, A)]
    weights = RNNsearchParameters(numbers(A, D), numbers(A), numbers(3 * D, H), numbers(2 * D, D), numbers(D, D))
    assert_kernels_agree(
        lambda: with_gradients(unroll_rnnsearch(*inputs, mask, weights), [*inputs, *weights]),
        monkeypatch,
        dtype,
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recurrence_of_the_gru(dtype, backward, numbers, monkeypatch):
    mask = torch.arange(J) < LENGTHS[:, None]
    x, gates, candidate, start = numbers(B, J, 3 * D), numbers(2 * D, D), numbers(D, D), numbers(B, D)

    def run():
        outputs = gru_sequence(x, mask, gates, candidate, backward, start)
        return with_gradients(outputs, [x, gates, candidate, start])

    assert_kernels_agree(run, monkeypatch, dtype)


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("V", [7, 5000])  # one block of logits and several
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")  # -inf - -inf, which is not used
def test_softmax_loss(dtype, V, eps):
    from rnnsearch.ops.triton_loss import triton_softmax_loss

    generator = torch.Generator().manual_seed(7)
    logits = (3 * torch.randn(4, V, generator=generator)).to(dtype)
    bias = torch.randn(V, generator=generator)
    target = torch.tensor([0, V - 1, loss.NO_TARGET, 3])
    found = []
    for function in (loss.torch_softmax_loss, triton_softmax_loss):
        changed, d_bias = logits.clone(), torch.ones(V)
        found.append((*function(changed, bias, target, eps, d_bias), changed.float(), d_bias))
        assert not changed[2].any()
        assert found[-1][0][2] == found[-1][1][2] == 0
    for want, got in zip(*found, strict=True):
        assert (got - want).norm() <= (1e-2 if dtype == torch.bfloat16 else 1e-6) * want.norm()


def test_triton_is_not_used_on_a_cpu_or_for_other_types():
    states = torch.zeros(1)
    assert kernel_choice.kernels_for(states, torch.float32) is kernel_choice.TORCH
    assert not kernel_choice.runs_triton(torch.device("cuda"), torch.float64, torch.float64)
