"""A System of another kind, which reads no source, goes the whole way: prepared, trained, kept, loaded, and refused
where it cannot serve. Nothing on that way knows that systems translate."""

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
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.loss import Loss, Objective
from rnnsearch.processes import Processes
from rnnsearch.systems import table
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import Ability, System
from rnnsearch.systems.validation import HeldOut, Validation
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.training.progress import Together
from rnnsearch.training.run import train
from rnnsearch.translate import Translator

TEXT = ["one two three four", "two three", "three four one two three", "four one", "one two", "two three four"]


class Bigrams(nn.Module):
    """p(y_i | y_{i-1}), a row of scores a symbol."""

    def __init__(self, symbols: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(symbols, symbols))


class NextSymbol(Objective[Bigrams]):
    """-log p of each symbol."""

    def __call__(self, model: Bigrams, batch: Batch, draws: Draws | None) -> Loss:
        y = batch.target
        each = model.rows[y.previous()].log_softmax(-1).gather(2, y.ids[:, :, None]).flatten()
        total = -each.index_select(0, y.places).sum()
        return Loss(total, total.detach())


@dataclass(frozen=True)
class BigramSystem(System[Bigrams]):
    """A language model."""

    kind = "bigrams"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> BigramSystem:
        (tokenizer,) = tokenizers.values()
        return cls(Bigrams(len(tokenizer)), config, tokenizers)

    @property
    def cannot(self) -> Mapping[Ability, str]:
        return {"translate": "translating needs a model with a source; this one is a language model"}

    def objective(self) -> NextSymbol:
        return NextSymbol()

    def validation(
        self, rows: Sequence[Row], gold: Any, device: torch.device, processes: Processes
    ) -> Validation[Bigrams]:
        ids = self.target.ids([row.texts[0] for row in rows])
        batch = make_batch([(each,) for each in ids], range(len(ids)), self.direction)
        return Validation(HeldOut(NextSymbol(), [batch], len(ids), batch.target.tokens, device, processes), {})

    def fastest(self, precision: str) -> Any:
        raise ModelError(self.cannot["translate"])

    def plain(self) -> Any:
        raise ModelError(self.cannot["translate"])

    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
        return {}


def test_a_system_without_a_source_goes_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.SYSTEMS, "translation", BigramSystem)
    (tmp_path / "text.xx").write_text("".join(f"{line}\n" for line in TEXT * 3))
    (tmp_path / "dev.xx").write_text("one two three\nthree four\n")
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
        "training": {"max_updates": 12, "evaluate_every": 4, "batch": {"sentences": 6}},
    }
    config = resolve(tables, ["training.optimiser.type=sgd", "training.optimiser.learning_rate=0.5"], tmp_path)
    prepared = prepare(config, tmp_path / "data")
    assert [*prepared.tokenizers] == ["xx"]
    train(config, prepared, tmp_path / "run", Together())
    system = load_system(tmp_path / "run")
    assert isinstance(system, BigramSystem)
    learned: Tensor = system.model.rows.log_softmax(-1)
    two, three, four = (system.target.ids([f"one {word}"])[0][1] for word in ("two", "three", "four"))
    assert learned[two].argmax() == three
    assert learned[three].argmax() == four
    with pytest.raises(ModelError, match="this one is a language model"):
        Translator(system)
