"""NCE and BlackOut equal the papers' losses in loops, converge to the softmax loss, and add up over a batch."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.data.batch import NoiseWords
from rnnsearch.models.outputs import Output
from rnnsearch.objectives.contrast import CONTRASTS, NCE
from rnnsearch.objectives.likelihood import Likelihood

M, K, V, R = 4, 6, 7, 3


@pytest.fixture
def given():
    draw = np.random.default_rng(3)
    own, others = draw.normal(size=M), draw.normal(size=(M, K))
    target, ids = np.array([1, 4, 2, 4]), np.array([0, 4, 4, 6, 3, 1])
    q = draw.dirichlet(np.ones(V))
    return own, others, target, ids, q


def losses(name, own, others, target, ids, q):
    log_q = torch.from_numpy(np.log(q))
    same = torch.from_numpy(target[:, None] == ids)
    contrast = CONTRASTS[name](len(q))
    return contrast(torch.from_numpy(own), torch.from_numpy(others), log_q[target], log_q[ids], same)


def test_nce_equals_the_paper(given):
    """Mnih & Teh 2012, eq. 8: classify each word as data or as one of K samples from q."""
    own, others, target, ids, q = given
    found = losses("nce", *given)
    for m in range(M):
        p = math.exp(own[m]) / V
        expected = -math.log(p / (p + K * q[target[m]]))
        for k in range(K):
            p = math.exp(others[m, k]) / V
            expected -= math.log(K * q[ids[k]] / (p + K * q[ids[k]]))
        assert found[m].item() == pytest.approx(expected)


def test_blackout_equals_the_paper(given):
    """Ji et al. 2016, eq. 6 and 7; samples that equal the target are left out."""
    own, others, target, ids, q = given
    found = losses("blackout", *given)
    for m in range(M):
        weight = math.exp(own[m]) / q[target[m]]
        noise = [math.exp(others[m, k]) / q[ids[k]] for k in range(K) if ids[k] != target[m]]
        whole = weight + sum(noise)
        expected = -math.log(weight / whole) - sum(math.log(1 - one / whole) for one in noise)
        assert found[m].item() == pytest.approx(expected)


def test_nce_gradient_converges_to_the_softmax_gradient():
    """Many noise samples and a normalised model give the gradient of the softmax (Mnih & Teh 2012, section 3.1)."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.log_softmax(torch.randn(V, generator=generator, dtype=torch.float64), 0)
    q = torch.softmax(torch.randn(V, generator=generator, dtype=torch.float64), 0)
    ids = torch.multinomial(q, 50_000, replacement=True, generator=generator)
    target = torch.tensor(2)
    found = []
    for contrast in (True, False):
        s = scores.clone().requires_grad_()
        if contrast:
            shifted = s + math.log(V)  # the loss subtracts log V again
            same = (ids == target)[None]
            loss = NCE(V)(shifted[None, target], shifted[None, ids], q.log()[None, target], q.log()[ids], same).sum()
        else:
            loss = -torch.log_softmax(s, 0)[target]
        loss.backward()
        found.append(s.grad)
    torch.testing.assert_close(found[0], found[1], atol=5e-3, rtol=0)


@pytest.mark.parametrize("name", CONTRASTS)
def test_batch_loss_is_the_sum_of_its_halves(name, make, batches):
    model, batch = make(), batches([0, 1, 2])
    draw = np.random.default_rng(1)
    size = model.output.vocabulary
    q = draw.dirichlet(np.ones(size))
    log_q, ids = torch.from_numpy(np.log(q)), torch.from_numpy(draw.integers(0, size, 5))
    batch = replace(batch, noise=NoiseWords(ids, log_q[ids], log_q[batch.target.ids]))
    objective = Likelihood(contrast=CONTRASTS[name](size))
    loss, done = objective.loss_and_pass(model, batch, None)
    logits = model.output.logits(done.decoder_outputs.readout).detach()
    expected = 0.0
    for n, i in batch.target.mask.nonzero().tolist():
        y = batch.target.ids[n, i].item()
        scores = logits[n, i].numpy()
        expected += losses(name, scores[[y]], scores[ids][None], np.array([y]), ids.numpy(), q).item()
    assert loss.total.item() == pytest.approx(expected) == loss.nll.item()
    assert sum(objective(model, half, None).total.item() for half in batch.split()) == pytest.approx(expected)
    loss.total.backward()
    touched = model.output.weight.grad.abs().sum(1).nonzero()[:, 0].tolist()
    assert set(touched) == {*ids.tolist(), *batch.target.ids[batch.target.mask].tolist()}
    without = replace(batch, noise=None)
    assert objective(model, without, None).nll.item() == pytest.approx(Likelihood()(model, without, None).nll.item())


@pytest.mark.parametrize("lexical", [0, 2])
def test_candidate_scores_equal_the_logits(lexical):
    output = Output(R, V, lexical=lexical)
    for parameter in output.parameters():
        parameter.data.normal_()
    t, target, others = torch.randn(M, R + lexical), torch.tensor([1, 4, 2, 4]), torch.tensor([0, 4, 6])
    own, beside = output.sampled_logits(t, target, others)
    logits = output.logits(t)
    torch.testing.assert_close(own, logits.gather(1, target[:, None])[:, 0])
    torch.testing.assert_close(beside, logits[:, others])
