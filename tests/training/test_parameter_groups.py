"""Groups of parameters: each at its own learning rate, frozen ones as they are, through clipping and resumption."""

from typing import Any

import torch

from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.system import ParameterGroup
from rnnsearch.utils.weights import weights
from tests.training.toys import PLAIN, SGD


def factor(name: str) -> float:
    """The decoder learns at half of the rate, and the encoder not at all."""
    return {"encoder": 0.0, "decoder": 0.5}.get(name.partition(".")[0], 1.0)


def groups(model: TranslationModel) -> list[ParameterGroup]:
    def having(share: float) -> list[torch.nn.Parameter]:
        return [p for name, p in model.named_parameters() if factor(name) == share]

    return [ParameterGroup(having(1.0)), ParameterGroup(having(0.5), 0.5), ParameterGroup(having(0.0), frozen=True)]


def test_each_group_moves_at_its_rate_by_gradients_clipped_together(trainer, configure):
    schedule = {"type": "constant", "warmup": 4}
    config = configure(PLAIN, optimiser=SGD, schedule=schedule, clip_norm=0.01, normalise="tokens", max_updates=1)
    plain, made = trainer(config), trainer(config, groups=groups)
    before = {name: tensor.detach().clone() for name, tensor in weights(made.model).items()}
    batch = next(iter(plain.batches.epoch(0)))
    (Likelihood()(plain.model, batch, None).total / batch.target.tokens).backward()
    gradients = {name: p.grad for name, p in weights(plain.model).items() if factor(name)}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert norm > 0.01
    made.run()
    for name, tensor in weights(made.model).items():
        if factor(name):
            moved = 0.2 * 0.25 * factor(name) * gradients[name] * (0.01 / norm)
            torch.testing.assert_close(tensor, before[name] - moved, rtol=1e-4, atol=1e-8)
        else:
            assert torch.equal(tensor, before[name])
            assert tensor.grad is None
    assert made.reporter.updates[0]["learning_rate"] == 0.2 * 0.25, "that of the run"


def test_resumed_is_uninterrupted(trainer, configure):
    def run(name: str, *ends: int) -> Any:
        for end in ends:
            made = trainer(configure(max_updates=end), name=name, groups=groups)
            if made.last.exists():
                made.resume()
            made.run()
        return weights(made.model)

    straight, broken = run("straight", 6), run("broken", 2, 6)
    assert all(torch.equal(tensor, broken[name]) for name, tensor in straight.items())
