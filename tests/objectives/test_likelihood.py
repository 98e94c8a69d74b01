"""Maximum likelihood covers only real tokens, adds up over batches, and can normalise over a partition."""

from dataclasses import replace

import pytest
import torch

from rnnsearch.accel.fast_forwards import output_losses
from rnnsearch.data.batch import Stream
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.text.vocabulary import BOS, EOS
from tests.objectives.passes import SOURCE, TARGET


def log_p(model, source, target):
    """Return log p of all tokens at each position of one sentence, step by step."""
    memory = model.encode({"en": Stream.from_ids(torch.tensor([[*source, EOS]]))})
    state, rows = model.start(memory), []
    for y in [BOS, *target]:
        readout, state, _ = model.step(torch.tensor([y]), state, memory)
        rows.append(model.log_probs(readout)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_sums_cover_only_real_tokens(smoothing, make, batches):
    model, nll, smoothed = make(), 0.0, 0.0
    for source, target in zip(SOURCE, TARGET, strict=True):
        rows = log_p(model, source, target)
        for row, y in zip(rows, [*target, EOS], strict=True):
            nll -= row[y].item()
            smoothed -= (1 - smoothing) * row[y].item() + smoothing * row.mean().item()
    loss = Likelihood(smoothing)(model, batches([0, 1, 2]), None)
    assert loss.nll.item() == pytest.approx(nll, rel=1e-5)
    assert loss.total.item() == pytest.approx(smoothed, rel=1e-5)
    assert not loss.nll.requires_grad


def test_batch_is_the_sum_of_its_halves(make, batches):
    model, batch = make(), batches([0, 1, 2])
    whole = Likelihood(0.1)(model, batch, None)
    halves = [Likelihood(0.1)(model, half, None) for half in batch.split()]
    assert whole.nll.item() == pytest.approx(sum(h.nll.item() for h in halves), rel=1e-5)
    assert whole.total.item() == pytest.approx(sum(h.total.item() for h in halves), rel=1e-5)


def test_partition_softmax_covers_its_tokens(make, batches):
    model, batch = make(), batches([0, 1, 2])
    whole = Likelihood(0.1)(model, batch, None)
    size = len(model.output.bias)
    every = Likelihood(0.1)(model, replace(batch, vocabulary=torch.arange(size)), None)
    torch.testing.assert_close(every.total, whole.total)
    own = batch.target.ids[batch.target.mask].unique()
    part = Likelihood()(model, replace(batch, vocabulary=own), None)
    assert len(own) < size and part.nll < whole.nll, "fewer words share the probability"


def test_shortlist_softmax_is_weighted(make, batches):
    model, batch = make(), batches([0, 1, 2])
    own = batch.target.ids[batch.target.mask].unique()
    log_weights = torch.linspace(-1, 2, len(own))
    batch = replace(batch, vocabulary=own, log_weights=log_weights)
    loss, done = Likelihood().loss_and_pass(model, batch, None)
    logits = model.output.logits(done.decoder_outputs.readout, own).double() + log_weights
    columns = torch.searchsorted(own, batch.target.ids[batch.target.mask])
    expected = -logits.log_softmax(-1)[batch.target.mask].gather(1, columns[:, None]).sum()
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    halves = [Likelihood()(model, half, None).total.item() for half in batch.split()]
    assert sum(halves) == pytest.approx(expected.item(), rel=1e-5)
    model.output.fast_forward = None if model.output.fast_forward else output_losses
    assert Likelihood()(model, batch, None).total.item() == pytest.approx(expected.item(), rel=1e-5)
