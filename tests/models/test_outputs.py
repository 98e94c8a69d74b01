"""The output layer equals its definition, and the chunked loss equals the loss over all logits."""

import numpy as np
import pytest
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.config.outputs import GlorotOptions
from rnnsearch.models.layers import Glorot, generator, initialise
from rnnsearch.models.outputs import Output
from rnnsearch.ops import loss
from rnnsearch.text.vocabulary import PAD
from tests.models import reference as paper
from tests.models.reference import close

M, R, V = 11, 5, 7
CHUNKS = [1, V, 3 * V, 4 * V + 1, 1 << 21]
"""Chunk sizes for one row (a fraction of a row is rounded up), three rows, four rows and all rows."""


@pytest.fixture
def output(drawn):
    return drawn(Output(R, V))


@pytest.fixture
def target():
    return torch.randint(V, (M,), generator=torch.Generator().manual_seed(3))


def losses_and_gradients(layer, readout, target, smoothing, plain):
    x = readout.detach().clone().requires_grad_()
    layer.zero_grad()
    choose(layer, fast=not plain)
    total, nll = layer.losses(x, target, smoothing)
    # The factor is not 1, because the training loop divides the loss by the number of sentences.
    (total * 0.37).backward()
    return total.detach(), nll, x.grad, layer.weight.grad.clone(), layer.bias.grad.clone()


@pytest.mark.parametrize("lexical", [0, 2])
@pytest.mark.parametrize("rows", [None, [6, 1, 3]])
def test_log_probs_are_a_softmax_over_the_rows(lexical, rows, drawn, numbers):
    layer, p = drawn(Output(R, V, lexical=lexical))
    t, some = numbers(2, R + lexical), slice(None) if rows is None else rows
    W = np.concatenate([p["weight"], p["lexical"]], axis=1) if lexical else p["weight"]
    log_probs = layer.log_probs(t, None if rows is None else torch.tensor(rows))
    for got, row in zip(log_probs.exp(), t, strict=True):
        close(got, paper.softmax((paper.product(W, row.numpy()) + p["bias"])[some]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_equals_its_definition(output, numbers, target, smoothing):
    layer, p = output
    t = numbers(M, R)
    expected = nll = 0.0
    for row, y in zip(t.numpy(), target.tolist(), strict=True):
        if y == PAD:
            continue  # it has no loss
        probabilities = paper.softmax(paper.product(p["weight"], row) + p["bias"])
        nll -= np.log(probabilities[y])
        for v in range(V):
            wanted = smoothing / V + (1 - smoothing) * (v == y)
            expected -= wanted * np.log(probabilities[v])
    choose(layer, fast=False)
    total, without = layer.losses(t, target, smoothing)
    assert not without.requires_grad
    assert total.item() == pytest.approx(expected, rel=1e-12)
    assert without.sum().item() == pytest.approx(nll, rel=1e-12)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_chunked_loss_equals_the_loss(output, numbers, target, smoothing, chunk, kind, tolerance, monkeypatch):
    monkeypatch.setattr(loss, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(loss, "MIN_CHUNK_ROWS", 1)
    layer, readout = output[0].to(kind), numbers(M, R).to(kind)
    plain = losses_and_gradients(layer, readout, target, smoothing, plain=True)
    chunked = losses_and_gradients(layer, readout, target, smoothing, plain=False)
    for got, want in zip(chunked, plain, strict=True):
        assert got.dtype == want.dtype == kind
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_no_gradients_are_computed_if_not_required(output, numbers, target, monkeypatch):
    """The loss of a dev set costs only a forward pass."""
    layer, _ = output
    x = numbers(M, R).requires_grad_()
    with_gradients = layer.losses(x, target, 0.1)

    products = []
    for name in ("product", "weight_gradient"):
        inner = getattr(loss, name)
        monkeypatch.setattr(loss, name, lambda *given, inner=inner: products.append(1) or inner(*given))
    layer.losses(x, target, 0.1)
    assert len(products) == 3  # the logits and two gradients
    with torch.no_grad():
        again = layer.losses(x, target, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(again, with_gradients, strict=True))
    assert len(products) == 4


def test_empty_batch_has_zero_loss(output):
    layer, _ = output
    total, nll = layer.losses(torch.empty(0, R, dtype=torch.float64, requires_grad=True), torch.empty(0).long(), 0.1)
    assert (total.item(), nll.numel()) == (0.0, 0)
    total.backward()
    assert not layer.weight.grad.any()


def test_output_rows_are_initialised_like_embeddings():
    """Glorot's bound of the whole matrix shrinks with the vocabulary and wastes the first hundreds of updates."""
    few, many = Output(R, 500), Output(R, 8_000)
    for layer in (few, many):
        initialise(layer, Glorot(GlorotOptions(), generator(1)))
        assert layer.weight.std().item() == pytest.approx(R**-0.5, rel=0.05)


@pytest.mark.parametrize("lexical", [0, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_over_selected_rows_equals_a_smaller_layer(smoothing, lexical, drawn, numbers):
    layer, _ = drawn(Output(R, V, lexical=lexical))
    rows, target, t = torch.tensor([1, 2, 5, 6]), torch.tensor([5, 1, 6, 6, 2]), numbers(5, R + lexical)
    small, _ = drawn(Output(R, len(rows), lexical=lexical))
    for name, parameter in small.named_parameters():
        parameter.data.copy_(dict(layer.named_parameters())[name].data[rows])
    choose(small, fast=False)
    # Not by `losses` of the smaller layer, in which column 0 would be PAD.
    scores, columns = small.logits(t), torch.searchsorted(rows, target)
    expected = torch.nn.functional.cross_entropy(scores, columns, label_smoothing=smoothing, reduction="sum")
    each = torch.nn.functional.cross_entropy(scores, columns, reduction="none").detach()
    expected.backward()
    for fast in (False, True):
        choose(layer, fast)
        layer.zero_grad()
        total, nll = layer.losses(t, target, smoothing, rows)
        total.backward()
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(nll, each)
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(parameter.grad[rows], dict(small.named_parameters())[name].grad)
            assert not parameter.grad[[0, 3, 4]].any()


@pytest.mark.parametrize("fast", [False, True])
def test_selecting_all_rows_equals_the_full_loss(fast, output, numbers, target):
    layer, _ = output
    choose(layer, fast)
    t = numbers(M, R)
    for found, whole in zip(layer.losses(t, target, 0.1, torch.arange(V)), layer.losses(t, target, 0.1), strict=True):
        torch.testing.assert_close(found, whole)
