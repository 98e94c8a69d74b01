"""A system without a source, a language model, is prepared, trained, resumed and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rnnsearch.config import RunConfig, resolve
from rnnsearch.data.batches import Batch, make_batch
from rnnsearch.data.corpus import Row
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import ModelError
from rnnsearch.models.batch_rng import BatchRng, dropout
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.systems import folder
from rnnsearch.systems.dev_scores import DevBatches, NllEvaluator
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import Ability, Trainable
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import BOS
from rnnsearch.training.progress import ReporterGroup
from rnnsearch.training.run import train
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.distributed import Processes
from rnnsearch.utils.weights import named_weights

TEXT = ["one two three four", "two three four one", "three four one two", "four one two three"] * 5
"""Sentences that count in a cycle from different starts."""


class LanguageModel(nn.Module):
    """GRU language model p(y_i | y_1..y_{i-1}); `seen` counts the tokens of all updates."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, 8)
        self.cell = nn.GRU(8, 12, batch_first=True)
        self.output = nn.Linear(12, symbols)
        self.seen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def log_probs(self, previous: Tensor, rng: BatchRng | None = None) -> Tensor:
        states, _ = self.cell(dropout(self.embedding(previous), 0.1, rng))
        return self.output(states).log_softmax(-1)


class NextSymbol(Objective[LanguageModel]):
    """Negative log-likelihood of each token."""

    def __call__(self, model: LanguageModel, batch: Batch, rng: BatchRng | None) -> Loss:
        assert batch.direction.sources == ()
        y = batch.target
        log_p = model.log_probs(y.previous(), rng).gather(2, y.ids[:, :, None])
        total = -log_p.flatten().index_select(0, y.token_positions).sum()
        return Loss(total, total.detach(), {"symbols": total.new_full((), len(y.token_positions))})

    def after_update(self, model: LanguageModel, parts: Mapping[str, Tensor]) -> None:
        model.seen += parts["symbols"]


@dataclass(frozen=True)
class LanguageSystem(Trainable[LanguageModel]):
    """System of a language model without a source."""

    kind = "language"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> LanguageSystem:
        (tokenizer,) = tokenizers.values()
        if seed is not None:
            torch.manual_seed(seed)
        return cls(LanguageModel(len(tokenizer)), config, tokenizers)

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        return {"translate": "translating needs a model with a source; this one is a language model"}

    def objective(self) -> NextSymbol:
        return NextSymbol()

    def validation(
        self, rows: Sequence[Row], gold: Any, device: torch.device, processes: Processes, aligner: Any = None
    ) -> NllEvaluator[LanguageModel]:
        ids = self.target.ids([row.texts[0] for row in rows])
        batch = make_batch([(each,) for each in ids], range(len(ids)), self.direction)
        return NllEvaluator(DevBatches(NextSymbol(), [batch], len(ids), batch.target.num_tokens, device, processes), {})

    def fast_scorer(self, precision: str) -> Any:
        raise ModelError(self.unsupported["translate"])

    def reference_scorer(self) -> Any:
        raise ModelError(self.unsupported["translate"])

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
        return {}


def test_system_without_source_trains_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(folder.SYSTEMS, "translation", LanguageSystem)
    (tmp_path / "text.xx").write_text("".join(f"{line}\n" for line in TEXT))
    (tmp_path / "dev.xx").write_text("one two three four\nthree four one two\n")
    tables = {
        "preset": "rnnsearch-small",
        "data": {
            "target": "xx",
            "train": ["text.xx"],
            "dev": "dev.xx",
            "test_size": 0,
            "cleaning": {"drop_duplicates": False},
        },
        "text": {"type": "words", "vocabulary": 10},
        "training": {
            "batch": {"sentences": 6, "accumulate": 2},
            "optimiser": {"type": "adam", "learning_rate": 0.03},
            "evaluate_every": 10,
        },
    }
    config = resolve(tables, [], tmp_path)
    prepared = prepare(config, tmp_path / "data")
    assert [*prepared.tokenizers] == ["xx"]

    def trained(name: str, *ends: int) -> LanguageSystem:
        """Train in several runs; each resumes the last and ends at one of these numbers of updates."""
        for end in ends:
            until = resolve(tables, [f"training.max_updates={end}"], tmp_path)
            train(until, prepared, tmp_path / name, ReporterGroup(), resume=True)
        system = load_system(tmp_path / name)
        assert isinstance(system, LanguageSystem)
        return system

    system = trained("straight", 60)
    own, other = named_weights(system.model), named_weights(trained("broken", 7, 60).model)
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own), (
        "a resumed run must equal an uninterrupted one bit for bit"
    )
    (ids,) = system.target.ids(["two three four"])
    learned = system.model.log_probs(torch.tensor([[BOS, *ids]]))[0].argmax(-1)
    assert own["seen"] == 30 * 5 * len(TEXT), "each epoch has two updates"
    assert learned[1:3].tolist() == ids[1:]
    with pytest.raises(ModelError, match="this one is a language model"):
        Translator(system)
