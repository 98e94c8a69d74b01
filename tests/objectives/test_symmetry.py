"""Two directions trained together: the agreement, the folders they leave, and what resumption keeps."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rnnsearch.models.translation_pair import TranslationPair
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.objectives.symmetry import Symmetric, agreement
from rnnsearch.systems.folder import load_model


def test_the_agreement_is_a_trace(make, batches):
    onward, back, batch = make(), make(seed=2, turned=True), batches([0, 1, 2])
    _, there = likelihood().passed(onward, batch, None)
    _, again = likelihood().passed(back, batch.turned(), None)
    expected = 0.0
    for row in range(3):
        height, width = int(batch.target.mask[row].sum()), int(batch.source.mask[row].sum())
        A = there.unrolled.reading.alpha[row, :height, :width].detach().numpy()
        A_back = again.unrolled.reading.alpha[row, :width, :height].detach().numpy().T
        expected += np.trace(A.T @ A_back)
    assert agreement(there, again).item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_is_both_directions_less_the_agreement(make, batches):
    pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
    loss = Symmetric(0.4, likelihood(0.1))(pair, batch, None)
    there, again = likelihood(0.1)(pair.onward, batch, None), likelihood(0.1)(pair.back, batch.turned(), None)
    _, one = likelihood().passed(pair.onward, batch, None)
    _, two = likelihood().passed(pair.back, batch.turned(), None)
    expected = there.total + again.total - 0.4 * agreement(one, two)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-9)
    assert loss.nll.item() == pytest.approx((there.nll + again.nll).item() / 2, rel=1e-9)
    loss.total.backward()
    assert all(p.grad is not None for p in pair.parameters())


def test_the_bonus_makes_them_agree(make, batches):
    def agreed(weight):
        pair, batch = TranslationPair(make(), make(seed=2, turned=True)), batches([0, 1, 2])
        optimiser = torch.optim.Adam(pair.parameters(), lr=0.05)
        for _ in range(30):
            optimiser.zero_grad()
            Symmetric(weight, likelihood())(pair, batch, None).total.backward()
            optimiser.step()
        _, one = likelihood().passed(pair.onward, batch, None)
        _, two = likelihood().passed(pair.back, batch.turned(), None)
        return agreement(one, two).item()

    assert agreed(3.0) > agreed(1e-9) + 1.0


def test_a_run_leaves_two_models(trainable, tmp_path):
    config, prepared, reporter, train = trainable({"symmetry": 0.5}, max_updates=4)
    train(config, prepared, tmp_path / "run", reporter)
    there, back = load_model(tmp_path / "run"), load_model(tmp_path / "run-reverse")
    assert (back.config.data.source, back.config.data.target) == ("bb", "aa")
    assert back.source.fingerprint() == there.target.fingerprint() != there.source.fingerprint()
    assert back.config.data.train == ["train.bb|train.aa"]
    for folder, pair in (("run", ["aa", "bb"]), ("run-reverse", ["bb", "aa"])):
        facts = json.loads((tmp_path / folder / "training.json").read_text())
        assert facts["pair"] == pair and facts["updates"] == 4
        assert facts["parameters"] == sum(p.numel() for p in there.model.parameters())
        assert (tmp_path / folder / "card.md").is_file()
    assert len(reporter.evaluations) == 1


def test_resumed_is_uninterrupted(trainable, tmp_path):
    """Bit for bit, in both folders."""
    for name, ends in (("whole", [6]), ("parts", [3, 6])):
        for end in ends:
            config, prepared, reporter, train = trainable({"symmetry": 0.5}, max_updates=end, evaluate_every=3)
            train(config, prepared, tmp_path / name, reporter, resume=True)
    for suffix in ("", "-reverse"):
        one, two = (load_model(tmp_path / f"{name}{suffix}").model for name in ("whole", "parts"))
        for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
            assert torch.equal(a, b), name


def test_a_reverse_model_in_the_way_is_kept(trainable, tmp_path):
    from rnnsearch.errors import TrainingError

    (tmp_path / "run-reverse").mkdir()
    (tmp_path / "run-reverse" / "model.safetensors").write_bytes(b"precious")
    config, prepared, reporter, train = trainable({"symmetry": 0.5}, max_updates=2)
    with pytest.raises(TrainingError, match="run-reverse: holds a model without a checkpoint"):
        train(config, prepared, tmp_path / "run", reporter)
    assert (tmp_path / "run-reverse" / "model.safetensors").read_bytes() == b"precious"


def test_averages_of_both_directions_can_be_kept(trainable, tmp_path):
    config, prepared, reporter, train = trainable({"symmetry": 0.5}, max_updates=6, evaluate_every=2, average=2)
    train(config, prepared, tmp_path / "run", reporter)
    assert any("mean of the last 2" in message for message in reporter.messages)
    assert load_model(tmp_path / "run-reverse")
