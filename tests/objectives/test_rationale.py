"""The mean gradient over all selections of words equals the gradient of the expected cost."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.objective import RationaleConfig
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives import penalties
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.reinforce import RationalePenalty
from rnnsearch.systems.translation import build
from tests.objectives.conftest import SOURCES, TARGETS

CONFIG = {"sparsity": 0.3, "coherence": 0.2}
MODEL = {
    "embedding": 5,
    "encoder": {"type": "rationale", "cell": "gru", "size": 4, "chooser": 3},
    "attention": {"score": "additive", "size": 6},
    "decoder": {"type": "bahdanau", "cell": "gru", "size": 5, "maxout": 4},
}


class These(BatchRng):
    """Random numbers that select these words [J] of one sentence; the value for EOS is arbitrary."""

    def __init__(self, read: tuple[bool, ...]) -> None:
        super().__init__(seed=0)
        self.read = read

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        assert shape == (1, len(self.read) + 1)
        return torch.tensor([[0.0 if read else 1.0 for read in (*self.read, False)]])


@pytest.fixture
def model():
    made = build(ModelConfig.model_validate(MODEL), SOURCES, TARGETS, 1, objective()).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.6, generator=generator)
    return made


def objective():
    return ObjectiveConfig.model_validate({"rationale": CONFIG})


def cost(done, read):
    """Return -log p(y | z, x) + lambda_1 (selected words) + lambda_2 (changes between neighbours)."""
    changes = sum(read[j] != read[j - 1] for j in range(1, len(read)))
    return done.nll.sum().item() + 0.3 * sum(read) + 0.2 * changes


def gradients(model, value):
    names = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(value, [p for _, p in names], allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(names, found, strict=True)}


def test_mean_gradient_equals_the_gradient_of_the_expected_cost(model, batches):
    batch, mean, total = batches([0]), {}, 0.0  # 4 words and EOS: 16 selections
    exact = torch.zeros(())
    words = batch.source.ids.shape[1] - 1
    for read in product((False, True), repeat=words):
        loss, done = Likelihood(0.0, penalties(objective())).loss_and_pass(model, batch, These(read))
        chance = done.memory.selection.log_prob.exp()
        log_p = model.output.log_probs(done.decoder_outputs.readout).gather(2, batch.target.ids[:, :, None]).sum()
        exact = exact + chance * (cost(done, read) - done.nll.sum() - log_p)
        for name, gradient in gradients(model, loss.total).items():
            mean[name] = mean.get(name, 0.0) + chance.detach() * gradient
        total += chance.item()
    assert total == pytest.approx(1.0)
    for name, gradient in gradients(model, exact).items():
        assert torch.allclose(mean[name], gradient, atol=1e-6), name
    assert mean["encoder.choice.weight"].abs().max() > 1e-3


def test_baseline_moves_to_the_mean_cost_per_token_after_an_update(model, batches):
    batch, value = batches([0, 1, 2]), model.auxiliary.rationale.value
    value.fill_(-2.0)
    objective = Likelihood(0.0, [(1.0, RationalePenalty(RationaleConfig(**CONFIG)))])
    loss, done = objective.loss_and_pass(model, batch, BatchRng(3))
    loss.total.backward()
    assert value.item() == -2.0 and value.grad is None
    objective.after_update(model, loss.statistics)
    lengths = batch.source.mask.sum(1) - 1
    read = [done.memory.selection.selected[b, :length].tolist() for b, length in enumerate(lengths)]
    costs = []
    for b, own in enumerate(read):
        changes = sum(own[j] != own[j - 1] for j in range(1, len(own)))
        whole = done.nll[b].sum().item() + 0.3 * sum(own) + 0.2 * changes
        costs.append(whole / batch.target.mask[b].sum().item())
    assert value.item() == pytest.approx(0.9 * -2.0 - 0.1 * sum(costs) / 3)


def test_value_is_advantage_times_log_probability(model, batches):
    model.auxiliary.rationale.value.fill_(-1.5)
    whole = Likelihood().loss_and_pass(model, batches([0]), These((True, False, True, True)))[1]
    expected = (
        cost(whole, (True, False, True, True)) - 1.5 * whole.batch.target.mask.sum().item()
    ) * whole.memory.selection.log_prob
    assert RationalePenalty(RationaleConfig(**CONFIG))(whole).item() == pytest.approx(expected.item(), rel=1e-6)
