"""Target text with a null source trains the decoder, but neither the encoder nor attention."""

import pytest
import torch

from rnnsearch.data.batches import make_batch
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.utils.tensors import map_tree
from tests.properties.conftest import PAIRS
from tests.untrained import BAHDANAU, untrained

NULL = [([], [4, 5, 6]), ([], [7])]
OBJECTIVE = Likelihood(0.1, freeze_null_sources=True)


def gradients(model, objective, rows):
    """Return the gradient of each parameter by name, and the loss."""
    model.zero_grad(set_to_none=True)
    loss = objective(model, make_batch(rows, range(len(rows))), None)
    loss.total.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}, loss.total


def test_null_sources_do_not_train_the_encoder(system, make, monkeypatch):
    """The gradient of a mixed batch is the sum of the gradients of its pairs and of its null rows.

    Null rows have the gradients of a decoder with a constant memory.
    """
    if system.model.attention and NORMALISERS[system.model.attention.normaliser].component.needs_noise:
        pytest.skip("where positions are drawn, they are not in two batches as in one")
    model = make(system).double()
    null, _ = gradients(model, OBJECTIVE, NULL)
    pairs, _ = gradients(model, OBJECTIVE, PAIRS)
    plain, loss = gradients(model, Likelihood(0.1), PAIRS)
    mixed, total = gradients(model, OBJECTIVE, [PAIRS[0], *NULL, *PAIRS[1:]])
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda *given: map_tree(torch.Tensor.detach, encode(*given)))
    alone, _ = gradients(model, Likelihood(0.1), NULL)
    for name in null:
        torch.testing.assert_close(null[name], alone[name])
        torch.testing.assert_close(pairs[name], plain[name])
        torch.testing.assert_close(mixed[name], null[name] + pairs[name])
        if name.startswith(("encoder.", "source_embedding.")):
            assert null[name].abs().max() == 0
    assert total > loss


def test_null_sources_do_not_train_attention():
    """Bahdanau's weights over one position are 1 for any parameters."""
    null, _ = gradients(untrained(BAHDANAU).model.double(), OBJECTIVE, NULL)
    own = [found for name, found in null.items() if name.startswith("decoder.attention.")]
    assert own and all(found.abs().max() < 1e-15 for found in own)
