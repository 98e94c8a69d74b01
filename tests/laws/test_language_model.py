"""The training loop knows nothing of translation: a toy language model, of one side and no source, learns by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rnnsearch.config import BatchConfig, TrainingConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.data.parallel import ParallelIds
from rnnsearch.models.draws import Draws, dropout
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.processes import Processes
from rnnsearch.systems.parameters import ParameterGroup
from rnnsearch.systems.validation import HeldOut, Validation
from rnnsearch.training.loop import Task, Trainer
from rnnsearch.training.progress import Together
from rnnsearch.weights import weights

SYMBOLS = 10
CPU = torch.device("cpu")
ROWS = [[4 + (first + n) % 6 for n in range(2 + first % 5)] for first in range(40)]
"""Counting, from somewhere on."""


class LanguageModel(nn.Module):
    """p(y_i | y_1..y_{i-1}) by a GRU; `seen` counts the symbols that it has learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 8)
        self.cell = nn.GRU(8, 12, batch_first=True)
        self.output = nn.Linear(12, SYMBOLS)
        self.seen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def log_probs(self, previous: Tensor, draws: Draws | None) -> Tensor:
        states, _ = self.cell(dropout(self.embedding(previous), 0.1, draws))
        return self.output(states).log_softmax(-1)


class NextSymbol(Objective[LanguageModel]):
    """-log p of each symbol."""

    def __call__(self, model: LanguageModel, batch: Batch, draws: Draws | None) -> Loss:
        assert batch.direction.sources == ()
        y = batch.target
        log_p = model.log_probs(y.previous(), draws).gather(2, y.ids[:, :, None])[:, :, 0]
        total = -log_p.flatten().index_select(0, y.places).sum()
        return Loss(total, total.detach(), {"symbols": total.new_full((), len(y.places))})

    def after_update(self, model: LanguageModel, parts: Mapping[str, Tensor]) -> None:
        model.seen += parts["symbols"]


def trained(folder: Path, *ends: int) -> Trainer[LanguageModel]:
    """A model trained to each of some numbers of updates, each time by another Trainer that goes on from the last."""
    ids = ParallelIds.of({"xx": ROWS})
    budget = BatchConfig(sentences=8, accumulate=2)
    held_out = HeldOut(
        NextSymbol(), [Batches(ids, budget, None, 1).of(range(40))], 40, sum(map(len, ROWS)) + 40, CPU, Processes()
    )
    for end in ends:
        torch.manual_seed(1)
        model = LanguageModel()
        task = Task(model, [ParameterGroup([*model.parameters()])], NextSymbol(), Validation(held_out, {}))
        adam: Any = {"type": "adam", "learning_rate": 0.03}
        options = {"batch": budget.model_dump(), "optimiser": adam, "max_updates": end, "evaluate_every": 10}
        training = TrainingConfig.model_validate(options)
        made = Trainer(training, task, Batches(ids, budget, None, 1), CPU, folder, Together(), lambda: None)
        if made.last.exists():
            made.resume()
        made.run()
    return made


def test_it_learns_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight, broken = trained(tmp_path / "straight", 30), trained(tmp_path / "broken", 7, 30)
    scores = [row["dev_nll_per_word"] for row in straight.state.history]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 1.2
    assert scores[-1] < 0.9
    for name, tensor in weights(straight.model).items():
        assert torch.equal(tensor, weights(broken.model)[name]), name
    assert straight.state.history[-1]["dev_nll"] == broken.state.history[-1]["dev_nll"]
    symbols = sum(map(len, ROWS)) + 40  # three updates an epoch: 2 + 2 + 1 batches
    assert straight.model.seen.item() == pytest.approx(10 * symbols)
