"""The mean REINFORCE gradient over all samples equals the gradient of E[log p], by enumeration."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from rnnsearch.accel.registry import choose
from rnnsearch.models.attention.normalisers import AttentionWeights, Hard
from rnnsearch.models.auxiliary import BASELINES
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationPair
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.reinforce import Reinforce
from rnnsearch.objectives.symmetry import SymmetricLikelihood

REINFORCE = {
    "average": {"baseline": "average", "decay": 0.9},
    "learned": {"baseline": "learned"},
}


class Chosen(Hard):
    """Hard attention whose samples are the noise itself: one-hot rows."""

    name = "chosen"

    def forward(self, energy: Tensor, noise: Tensor | None = None, last: Tensor | None = None) -> AttentionWeights:
        assert noise is not None
        return AttentionWeights(noise.to(energy.dtype), torch.softmax(energy, dim=-1))


class Positions(BatchRng):
    """Random numbers that select these positions [I] out of J, as one-hot noise."""

    def __init__(self, positions: tuple[int, ...]) -> None:
        super().__init__(seed=0)
        self.positions = positions

    def uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        batch, steps, _, width = shape
        if steps == width == 1:  # selects the sentences that are sampled
            return torch.ones(shape)
        assert batch == 1 and steps == len(self.positions)
        return torch.nn.functional.one_hot(torch.tensor([self.positions]), width).double().unsqueeze(2)


def hard_model(make, baseline):
    model = make({"normaliser": "hard"}, reinforce=REINFORCE[baseline])
    model.decoder.attention.normaliser = Chosen()
    choose(model)
    return model


def gradients(model, value):
    names = [(n, p) for n, p in model.named_parameters() if p.requires_grad and not n.startswith("auxiliary")]
    found = torch.autograd.grad(value, [p for _, p in names], allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(names, found, strict=True)}


def test_each_baseline_is_tested():
    assert REINFORCE.keys() == BASELINES.keys()


@pytest.mark.parametrize("baseline", REINFORCE)
def test_mean_gradient_equals_the_gradient_of_the_expected_log_likelihood(make, batches, baseline):
    model, batch = hard_model(make, baseline), batches([2])  # 2 source tokens, 3 target tokens: 8 samples
    steps, width = batch.target.ids.shape[1], batch.source.ids.shape[1]
    exact, total, mean = torch.zeros(()), 0.0, {}
    for positions in product(range(width), repeat=steps):
        _, done = Likelihood().loss_and_pass(model, batch, Positions(positions))
        reading = done.decoder_outputs.reading
        chance = (reading.expected_alpha * reading.alpha).sum(-1).prod()
        log_p = model.output.log_probs(done.decoder_outputs.readout).gather(2, batch.target.ids[:, :, None]).sum()
        exact = exact + chance * log_p
        loss = Likelihood(0.0, [(1.0, Reinforce())])(model, batch, Positions(positions))
        for name, gradient in gradients(model, loss.total).items():
            mean[name] = mean.get(name, 0.0) + chance.detach() * gradient
        total += chance.item()
    assert total == pytest.approx(1.0)
    for name, gradient in gradients(model, exact).items():
        assert torch.allclose(mean[name], -gradient, atol=1e-6), name
    assert mean["decoder.attention.score.query.weight"].abs().max() > 1e-4


def test_sample_is_not_credited_for_earlier_rewards(make, batches):
    """The reward of a sample is the log-likelihood from its position on."""
    model, batch = hard_model(make, "average"), batches([2])
    model.auxiliary.baseline.value.fill_(-0.5)
    _, done = Likelihood().loss_and_pass(model, batch, Positions((0, 1, 1)))
    value = Reinforce()(done)
    drawn = [done.decoder_outputs.reading.expected_alpha[0, i, j].log() for i, j in enumerate((0, 1, 1))]
    log_p = (-done.nll[0]).tolist()
    expected = -sum((sum(log_p[i:]) - (-0.5) * (3 - i)) * drawn[i] for i in range(3))
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)


def test_half_of_the_sentences_use_expected_weights(make, batches):
    """Their weights are soft and trained only by likelihood; the weights of the other half are one-hot."""
    model, batch = make({"normaliser": "hard"}, reinforce=REINFORCE["average"]), batches([0, 1, 2])
    soft = 0
    for seed in range(40):
        _, done = Likelihood().loss_and_pass(model, batch, BatchRng(seed))
        alpha, expected = done.decoder_outputs.reading.alpha, done.decoder_outputs.reading.expected_alpha
        for b, length in enumerate(batch.target.mask.sum(1)):
            own = alpha[b, :length]
            if torch.equal(own, expected[b, :length]):
                soft += 1
            else:
                assert set(own.unique().tolist()) <= {0.0, 1.0}
    assert 40 < soft < 80
    only_soft = [seed for seed in range(40) if _is_soft(model, batches([2]), seed)]
    _, done = Likelihood().loss_and_pass(model, batches([2]), BatchRng(only_soft[0]))
    assert Reinforce()(done).item() == 0.0


def _is_soft(model, batch, seed):
    reading = Likelihood().loss_and_pass(model, batch, BatchRng(seed))[1].decoder_outputs.reading
    return torch.equal(reading.alpha, reading.expected_alpha)


def test_average_baseline_moves_after_an_update(make, batches):
    model, batch = make({"normaliser": "hard"}, reinforce=REINFORCE["average"]), batches([0, 1, 2])
    model.auxiliary.baseline.value.fill_(-2.0)
    objective = Likelihood(0.0, [(1.0, Reinforce())])
    loss, done = objective.loss_and_pass(model, batch, BatchRng(3))
    loss.total.backward()
    assert model.auxiliary.baseline.value.item() == -2.0
    assert model.auxiliary.baseline.value.grad is None
    objective.after_update(model, loss.statistics)
    mean = (-done.nll.sum(1) / batch.target.mask.sum(1)).mean()
    assert model.auxiliary.baseline.value.item() == pytest.approx(0.9 * -2.0 + 0.1 * mean.item())


def test_each_direction_has_its_baseline(make, batches):
    pair = TranslationPair(*(make({"normaliser": "hard"}, n, n == 2, reinforce=REINFORCE["average"]) for n in (1, 2)))
    symmetric = SymmetricLikelihood(0.1, Likelihood(0.0, [(1.0, Reinforce())]))
    parts = symmetric(pair, batches([0, 1, 2]), BatchRng(3)).statistics
    before = [model.auxiliary.baseline.value.item() for model in (pair.onward, pair.back)]
    symmetric.after_update(pair, parts)
    for model, name, value in zip((pair.onward, pair.back), ("onward", "back"), before, strict=True):
        mean = parts[f"{name}.reinforce.means"].item() / 3
        assert model.auxiliary.baseline.value.item() == pytest.approx(0.9 * value + 0.1 * mean)


def test_learned_baseline_is_causal_and_has_no_gradient_to_the_model(make, batches):
    model, batch = make({"normaliser": "hard"}, reinforce=REINFORCE["learned"]), batches([0, 1, 2])
    readout = torch.randn(2, 4, model.decoder.readout_size, dtype=torch.float64, requires_grad=True)
    guess = model.auxiliary.baseline(readout)
    changed = readout.detach().clone()
    changed[:, 2:] += 1.0
    assert torch.equal(guess[:, :3], model.auxiliary.baseline(changed)[:, :3])
    assert not torch.autograd.grad(guess.sum(), readout, allow_unused=True)[0]
    loss, _ = Likelihood(0.0, [(1.0, Reinforce())]).loss_and_pass(model, batch, BatchRng(1))
    loss.total.backward()
    assert model.auxiliary.baseline.linear.weight.grad.abs().max() > 0


def test_entropy_lowers_the_loss(make, batches):
    model, batch = hard_model(make, "average"), batches([2])
    _, done = Likelihood().loss_and_pass(model, batch, Positions((0, 0, 1)))
    plain = Reinforce()(done)
    more = Reinforce(0.7)(done)
    p = done.decoder_outputs.reading.expected_alpha
    assert (more - plain).item() == pytest.approx(0.7 * (p * p.log()).sum().item(), rel=1e-6)
