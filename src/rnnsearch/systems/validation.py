"""The dev set during training: the objective's NLL of it, and whatever else a run measures there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.processes import Processes

HIGHER_IS_BETTER = {"bleu"}
NLL = "nll"


class DevScore(NamedTuple):
    """nll: nats a sentence; per_word: nats a symbol (EOS counted); others: by metric, None where not measured."""

    nll: float
    per_word: float
    others: Mapping[str, float | None] = {}

    def cost(self, metric: str) -> float:
        """The score in the run's metric; the less, the better."""
        value = self.nll if metric == NLL else self.others[metric] or 0.0
        return -value if metric in HIGHER_IS_BETTER else value


class Assessor(ABC, Generic[Model]):
    """What the loop asks for dev scores."""

    @abstractmethod
    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        """The dev scores of a model; None if `stop` asked to leave between two batches, in any process."""


@dataclass(frozen=True)
class HeldOut(Generic[Model]):
    """Batches that are not trained on. Each process has its own of them."""

    objective: Objective[Model]
    batches: Sequence[Batch]
    sentences: int
    """Of all processes together."""
    tokens: int
    """The same: target symbols, EOS among them."""
    device: torch.device
    processes: Processes

    def nll(self, model: Model, stop: Callable[[], bool]) -> float | None:
        """-log p summed over the batches of all processes, in nats; None if `stop` asked to leave, in any of them."""
        total, left = torch.zeros((), device=self.device), False
        with torch.no_grad():
            for batch in self.batches:
                left = stop()
                if left:
                    break
                total += self.objective(model, batch.to(self.device), None).nll
        nll, leaving = self.processes.sum(float(total), float(left))
        return None if leaving else nll


Measure = Callable[[Model], float]


@dataclass(frozen=True)
class Validation(Assessor[Model]):
    """The NLL of held-out batches, and other measures by name; None for one that the run leaves out."""

    held_out: HeldOut[Model]
    measures: Mapping[str, Measure[Model] | None]

    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        nll = self.held_out.nll(model, stop)
        if nll is None:
            return None
        others = {name: None if measure is None else measure(model) for name, measure in self.measures.items()}
        return DevScore(nll / self.held_out.sentences, nll / self.held_out.tokens, others)
