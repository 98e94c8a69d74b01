"""Word-level distillation equals loops for loss and gradients, at both extremes and in its fast implementation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rnnsearch.config import ModelConfig
from rnnsearch.data.batch import Stream
from rnnsearch.objectives import likelihood
from rnnsearch.objectives.likelihood import Likelihood, Teacher
from rnnsearch.systems.translation import build
from rnnsearch.text.vocabulary import BOS, EOS
from tests.objectives.conftest import SOURCES, TARGETS
from tests.objectives.passes import SOURCE, TARGET

ALL = [0, 1, 2]


def taught(model, alpha, smoothing=0.0):
    return replace(Likelihood(smoothing), teacher=Teacher(model.requires_grad_(False), alpha))


@pytest.fixture
def other():
    """Return a teacher with another architecture and sizes but the same vocabularies."""
    options = {"embedding": 3, "encoder": {"type": "stacked", "cell": "lstm", "size": 4, "layers": 1}}
    options["decoder"] = {"type": "sutskever", "cell": "lstm", "size": 4, "layers": 1, "bridge": "copy"}
    options["output"] = {"type": "hierarchical"}
    options["encoder"]["direction"] = "forward"
    return build(ModelConfig.model_validate(options), SOURCES, TARGETS, 3).double()


def positions(model, source, target):
    """Return the logits and the readout of each position of one sentence, step by step."""
    memory = model.encode({"en": Stream.from_ids(torch.tensor([[*source, EOS]]))})
    state, rows = model.start(memory), []
    for y in [BOS, *target]:
        readout, state, _ = model.step(torch.tensor([y]), state, memory)
        rows.append((model.output.logits(readout)[0].detach().numpy(), readout[0].detach().numpy()))
    return rows


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_loss_and_gradients_equal_the_paper(make, batches, alpha):
    """(1 - alpha) L_NLL + alpha L_KD (Kim & Rush 2016, section 2.2), with L_KD of section 3.1 summed over tokens."""
    student, teacher = make(), make(seed=2)
    expected, nll = 0.0, 0.0
    d_bias, d_weight = np.zeros(TARGETS), np.zeros(student.output.weight.shape)
    for source, target in zip(SOURCE, TARGET, strict=True):
        pairs = zip(positions(student, source, target), positions(teacher, source, target), [*target, EOS], strict=True)
        for (own, readout), (its, _), y in pairs:
            p, q = softmax(own), softmax(its)
            for k in range(TARGETS):
                gold = float(k == y)
                expected -= ((1 - alpha) * gold + alpha * q[k]) * math.log(p[k])
                d = p[k] - (1 - alpha) * gold - alpha * q[k]
                d_bias[k] += d
                d_weight[k] += d * readout
            nll -= math.log(p[y])
    loss = taught(teacher, alpha)(student, batches(ALL), None)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(expected)
    assert loss.nll.item() == pytest.approx(nll)
    np.testing.assert_allclose(student.output.bias.grad.numpy(), d_bias, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(student.output.weight.grad.numpy(), d_weight, rtol=1e-6, atol=1e-9)
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_teacher_of_weight_zero_changes_nothing(make, batches):
    student, teacher = make(), make(seed=2)
    plain = Likelihood(0.1)(student, batches(ALL), None).total
    assert torch.equal(taught(teacher, 0.0, 0.1)(student, batches(ALL), None).total, plain)


def test_student_equal_to_its_teacher_has_zero_gradient(make, batches):
    student = make()
    loss = taught(make(), 1.0)(student, batches(ALL), None)
    loss.total.backward()
    assert loss.total.item() > 1.0, "the loss includes the teacher's entropy"
    for name, parameter in student.named_parameters():
        assert parameter.grad.abs().max().item() < 1e-12, name


def test_distillation_loss_is_the_sum_of_the_halves(make, batches, other):
    student, objective = make(), taught(other, 0.5, 0.1)
    whole = objective(student, batches(ALL), None).total
    halves = [objective(student, half, None).total.item() for half in batches(ALL).split()]
    assert whole.item() == pytest.approx(sum(halves))
    assert whole.item() != pytest.approx(Likelihood(0.1)(student, batches(ALL), None).total.item())


def test_dev_score_ignores_the_teacher(make, batches, other, monkeypatch):
    monkeypatch.setattr(Teacher, "__call__", None)
    with torch.no_grad():
        loss = taught(other, 0.5)(make(), batches(ALL), None)
    assert loss.total.item() == pytest.approx(loss.nll.item())


def test_chunked_loss_equals_the_loss(make, batches, monkeypatch):
    found = []
    for held in (1 << 26, 1):
        monkeypatch.setattr(likelihood, "MAX_DISTRIBUTION_BYTES", held)
        monkeypatch.setattr(likelihood, "chunk_rows", lambda _rows, _bytes: 3)
        student = make()
        loss = taught(make(seed=2), 0.7)(student, batches(ALL), None)
        loss.total.backward()
        found.append([loss.total.detach(), *(parameter.grad for parameter in student.parameters())])
    for whole, chunked in zip(*found, strict=True):
        torch.testing.assert_close(chunked, whole)
