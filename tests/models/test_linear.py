"""The linear layer equals PyTorch's, gradients included, and multiplies many rows in one call."""

import pytest
import torch
from torch.nn import functional

from rnnsearch.models.layers import Linear
from rnnsearch.ops import linear as module
from rnnsearch.ops.linear import linear, product_is_native

KINDS = [pytest.param(kind, id=str(kind).removeprefix("torch.")) for kind in (torch.float32, torch.bfloat16)]


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).requires_grad_()


def outcome(run, x, weight, bias, kind):
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        y = run(x, weight, bias)
    inputs = [each for each in (x, weight, bias) if each is not None]
    return y, *torch.autograd.grad((y.float() * numbers(*y.shape).detach()).sum(), inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(300, 7), (5, 60, 33), (256, 64)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_equals_pytorch(kind, shape, with_bias, monkeypatch):
    if not product_is_native(torch.device("cpu"), kind):
        pytest.skip(f"products in {kind} are PyTorch's on this processor")
    called, product = [], module.product
    monkeypatch.setattr(module, "product", lambda *a, **b: called.append(1) or product(*a, **b))
    x, weight, bias = numbers(*shape), numbers(19, shape[-1]), numbers(19) if with_bias else None
    found = outcome(linear, x, weight, bias, kind)
    assert len(called) == 2  # y, d_x
    expected = outcome(functional.linear, x, weight, bias, kind)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert (got - want).float().norm() < (0.02 if kind == torch.bfloat16 else 1e-5) * want.float().norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [torch.float64, torch.float16])
def test_gradients_of_other_dtypes_equal_pytorch(kind, wide):
    if kind == torch.float32 or not product_is_native(torch.device("cpu"), kind):
        pytest.skip("products are of the type that is read")
    x, weight = numbers(300, 64).detach().to(wide).requires_grad_(), numbers(19, 64)
    _, found, _ = outcome(linear, x, weight, None, kind)
    _, expected, _ = outcome(functional.linear, x.detach().float().requires_grad_(), weight, None, kind)
    assert found.dtype == wide and (found - expected).float().norm() < 0.02 * expected.norm()


def test_only_required_gradients_are_computed():
    x, weight = numbers(300, 8).detach(), numbers(4, 8)
    (only,) = torch.autograd.grad(linear(x, weight).sum(), [weight])
    assert torch.allclose(only, x.sum(0).expand(4, 8), atol=1e-3)


@pytest.mark.parametrize("rows", [1, module.MIN_NATIVE_ROWS - 1])
def test_few_rows_and_other_dtypes_use_pytorch(rows, monkeypatch):
    monkeypatch.setattr(module, "product", None)
    layer = Linear(6, 5)
    x = numbers(rows, 6)
    assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))
    many = numbers(module.MIN_NATIVE_ROWS, 6).double()
    layer = layer.double()
    assert torch.equal(layer(many), functional.linear(many, layer.weight, layer.bias))
