"""Scores of a model on the dev set during training: NLL, and other metrics that a run configures.

The training loop calls a `DevEvaluator`; a system returns one, usually `NllEvaluator`, from
`Trainable.validation`. `systems.dev_set` has the metrics that need translations or alignments.

`translation.py` and `language.py` build the evaluators of systems; `training/tasks.py` holds them, and has that of a
translation pair. `training/loop.py` selects the best weights by `DevScore.cost`. All processes must call `score` at the
same time, because it sums over them. A metric in which higher scores are better must be in `HIGHER_IS_BETTER`. Tests:
tests/training/test_loop.py, tests/training/test_resume.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

import torch

from rnnsearch.data.batches import Batch
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.utils.distributed import Processes

NLL = "nll"
"""Name of the metric that every evaluation has."""
HIGHER_IS_BETTER = {"bleu", "reward"}
"""Metrics in which higher scores are better."""


class DevScore(NamedTuple):
    """Scores of one evaluation on the dev set."""

    nll: float
    """Nats per sentence."""
    nll_per_token: float
    """Nats per target token, including EOS."""
    metrics: Mapping[str, float | None] = {}
    """Other scores by metric; None for a metric that was not measured."""

    def cost(self, metric: str) -> float:
        """Return the score in a metric, negated if higher scores are better, so that lower costs are better."""
        value = self.nll if metric == NLL else self.metrics[metric] or 0.0
        return -value if metric in HIGHER_IS_BETTER else value


class DevEvaluator(ABC, Generic[Model]):
    """Evaluation of a model on the dev set."""

    @abstractmethod
    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        """Return the dev scores of a model.

        Args:
            stop: Called between batches; True interrupts the evaluation.

        Returns:
            The scores, or None if any process was interrupted.
        """


@dataclass(frozen=True)
class DevBatches(Generic[Model]):
    """The dev batches of one process."""

    objective: Objective[Model]
    """Objective whose NLL is computed."""
    batches: Sequence[Batch]
    """Batches of this process."""
    sentences: int
    """Number of sentences of all processes."""
    tokens: int
    """Number of target tokens of all processes, including EOS."""
    device: torch.device
    """Device of the model."""
    processes: Processes
    """Processes that share the evaluation."""

    def nll(self, model: Model, stop: Callable[[], bool]) -> float | None:
        """Return the summed NLL of the batches of all processes in nats, or None if any process was interrupted."""
        # Summed on the device, so that no batch waits for the one before it.
        total = torch.zeros((), device=self.device)
        interrupted = False
        with torch.no_grad():
            for batch in self.batches:
                interrupted = stop()
                if interrupted:
                    break
                total += self.objective(model, batch.to(self.device), None).nll
        # All processes take part in the sum, also interrupted ones: the others would wait for them forever.
        nll, num_interrupted = self.processes.sum(float(total), float(interrupted))
        return None if num_interrupted else nll


Measure = Callable[[Model], float]


@dataclass(frozen=True)
class NllEvaluator(DevEvaluator[Model]):
    """NLL of the dev batches, and other metrics."""

    held_out: DevBatches[Model]
    measures: Mapping[str, Measure[Model] | None]
    """Function per metric; None for a metric that the run does not measure."""
    policy: Callable[[Model], Mapping[str, float]] | None = None
    """Function for all metrics of a read and write policy, which replace others of the same names."""

    def score(self, model: Model, stop: Callable[[], bool]) -> DevScore | None:
        nll = self.held_out.nll(model, stop)
        if nll is None:
            return None
        others: dict[str, float | None] = {}
        for name, measure in self.measures.items():
            others[name] = None if measure is None else measure(model)
        if self.policy is not None:
            others |= self.policy(model)
        return DevScore(nll / self.held_out.sentences, nll / self.held_out.tokens, others)
