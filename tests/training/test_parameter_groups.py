"""Parameter groups with their own learning rates, some of them frozen."""

from typing import Any

import torch

from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.systems.system import ParameterGroup
from rnnsearch.utils.weights import named_weights
from tests.training.toys import SGD, WITHOUT_DROPOUT


def factor(name: str) -> float:
    """Return the learning-rate factor of a parameter: half for the decoder, none for the encoder."""
    return {"encoder": 0.0, "decoder": 0.5}.get(name.partition(".")[0], 1.0)


def groups(model: TranslationModel) -> list[ParameterGroup]:
    def with_factor(value: float) -> list[torch.nn.Parameter]:
        return [p for name, p in model.named_parameters() if factor(name) == value]

    return [
        ParameterGroup(with_factor(1.0)),
        ParameterGroup(with_factor(0.5), 0.5),
        ParameterGroup(with_factor(0.0), frozen=True),
    ]


def test_groups_have_their_own_rates_and_common_clipping(make_trainer, configure):
    schedule = {"type": "constant", "warmup": 4}
    config = configure(
        WITHOUT_DROPOUT, optimiser=SGD, schedule=schedule, clip_norm=0.01, normalise="tokens", max_updates=1
    )
    reference = make_trainer(config)
    trainer = make_trainer(config, groups=groups)
    before = {name: tensor.detach().clone() for name, tensor in named_weights(trainer.model).items()}
    batch = next(iter(reference.batches.epoch(0)))
    (Likelihood()(reference.model, batch, None).total / batch.target.num_tokens).backward()
    gradients = {name: p.grad for name, p in named_weights(reference.model).items() if factor(name)}
    norm = torch.stack([g.norm() for g in gradients.values()]).norm()
    assert norm > 0.01
    trainer.run()
    for name, tensor in named_weights(trainer.model).items():
        if factor(name):
            step = 0.2 * 0.25 * factor(name) * gradients[name] * (0.01 / norm)
            torch.testing.assert_close(tensor, before[name] - step, rtol=1e-4, atol=1e-8)
        else:
            assert torch.equal(tensor, before[name])
            assert tensor.grad is None
    assert trainer.reporter.updates[0]["learning_rate"] == 0.2 * 0.25  # without the factor of a group


def test_resumed_run_equals_uninterrupted_run(make_trainer, configure):
    def run(name: str, *ends: int) -> Any:
        for end in ends:
            trainer = make_trainer(configure(max_updates=end), name=name, groups=groups)
            if trainer.last_checkpoint.exists():
                trainer.resume()
            trainer.run()
        return named_weights(trainer.model)

    straight = run("straight", 6)
    broken = run("broken", 2, 6)
    assert all(torch.equal(tensor, broken[name]) for name, tensor in straight.items())
