"""The pointer softmax equals NumPy loops: each word is generated or copied from a source position."""

import numpy as np
import pytest
import torch

from rnnsearch.config.model import PointerConfig
from rnnsearch.models.copying import PointerOutput, Switch
from rnnsearch.text.vocabulary import UNK
from tests.models import reference as paper
from tests.models.reference import close, within

R, V = 5, 7


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_switch_equals_its_definition(layers, drawn, numbers):
    switch, p = drawn(Switch(PointerConfig(size=6, layers=layers), 3, 4, 2))
    parts = [numbers(5, size) for size in (3, 4, 2)]
    for found, *row in zip(switch(*parts), *(part.numpy() for part in parts), strict=True):
        hidden = np.tanh(paper.product(p["hidden.weight"], np.concatenate(row)) + p["hidden.bias"])
        for layer in range(layers - 1):
            hidden = np.tanh(paper.product(p[f"upper.{layer}.weight"], hidden) + p[f"upper.{layer}.bias"])
        close(found, paper.product(p["choice.weight"], hidden) + p["choice.bias"])


@pytest.mark.parametrize("rows", [None, [6, UNK, 3]])
def test_switch_scales_the_softmax_and_unknown_gets_the_rest(rows, drawn, numbers):
    layer, p = drawn(PointerOutput(R, V))
    t = numbers(4, R + 1)
    log_p = layer.logits_function(None if rows is None else torch.tensor(rows))(t)
    own, some = within(p, "words"), list(range(V)) if rows is None else rows
    for found, row in zip(log_p, t.numpy(), strict=True):
        said = paper.sigma(row[-1])
        words = paper.softmax((paper.product(own["weight"], row[:-1]) + own["bias"])[some])
        close(found.exp(), [said * q + (1 - said) * (w == UNK) for w, q in zip(some, words, strict=True)])
    close(log_p.exp().sum(1), np.ones(4))
    close(layer.log_probs(t), layer.logits(t).detach())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_copied_tokens_use_the_pointer_and_others_the_softmax(smoothing, drawn, numbers):
    layer, p = drawn(PointerOutput(R, V))
    t, target = numbers(4, R + 1), torch.tensor([3, UNK, UNK, 5])
    copied = torch.tensor([0.0, 0.4, 0.0, 0.0], dtype=torch.float64)
    total, nll = layer.losses(t, target, smoothing, copied)
    own, expected, whole = within(p, "words"), [], 0.0
    for row, y, alpha in zip(t.numpy(), target.tolist(), copied.tolist(), strict=True):
        said = paper.sigma(row[-1])
        if alpha:
            expected.append(-np.log(1 - said) - np.log(alpha))
            whole += expected[-1]
            continue
        log_q = np.log(paper.softmax(paper.product(own["weight"], row[:-1]) + own["bias"]))
        expected.append(-np.log(said) - log_q[y])
        whole += -np.log(said) - (1 - smoothing) * log_q[y] - smoothing * log_q.mean()
    close(nll, expected)
    close(total, whole)
    total.backward()
    assert layer.words.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("points", [0.0, 0.5])
def test_batches_with_only_copies_or_none(points, drawn, numbers):
    layer, _ = drawn(PointerOutput(R, V))
    total, nll = layer.losses(numbers(3, R + 1), torch.tensor([UNK] * 3), 0.1, torch.full((3,), points).double())
    total.backward()
    assert nll.shape == (3,) and nll.isfinite().all()
