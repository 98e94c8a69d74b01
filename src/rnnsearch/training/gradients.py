"""The gradients of one update: a group of batches, passes that may not fit into memory, other processes' shares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import torch
from torch import Tensor

from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.device import precision
from rnnsearch.errors import TrainingError
from rnnsearch.models.draws import Draws
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.objectives.recorded import forget
from rnnsearch.processes import Processes
from rnnsearch.systems.parameters import ParameterGroup
from rnnsearch.systems.validation import Assessor
from rnnsearch.training.gradient_sum import GradientSum
from rnnsearch.training.kept_zeros import KeptZeros
from rnnsearch.training.optimisers import add_l2, clip
from rnnsearch.training.progress import Reporter
from rnnsearch.training.tables import Tables
from rnnsearch.weights import save_weights

SEED_STRIDE = 1_000_003
"""Keeps the seeds of one run's updates apart from another run's."""
BATCH_STRIDE = 500_000_003
"""Keeps the seeds of one update's batches apart."""
SEEDS = 2**64
"""How many there are for torch."""
NLL = "nll"
"""Under which name it is summed beside the loss's parts."""
SENT = {None: torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Task(Generic[Model]):
    """What is to be learned: any module, by an objective; `validation` is None without a dev set. `zeros`: its weights
    that stay zero; `tables`: those of which an update changes what was read alone."""

    model: Model
    groups: Sequence[ParameterGroup]
    objective: Objective[Model]
    validation: Assessor[Model] | None
    zeros: KeptZeros = field(default_factory=KeptZeros)
    tables: Tables = field(default_factory=Tables)


@dataclass
class Gradients(Generic[Model]):
    """Fills the parameters' gradients with those of a whole update."""

    training: TrainingConfig
    task: Task[Model]
    batches: Batches
    device: torch.device
    folder: Path
    reporter: Reporter
    processes: Processes

    def __post_init__(self) -> None:
        self.parameters = [p for group in self.task.groups for p in group.parameters]
        self.total = GradientSum(self.parameters, self.processes, SENT[self.training.all_reduce])

    def fill(self, group: list[Batch], update: int) -> tuple[float, float, dict[str, Tensor]]:
        """Gradients of the loss over a group of batches, of all processes together, clipped.

        Returns the summed NLL, the gradients' norm before clipping, and the loss's summed parts.
        Errors: TrainingError where one of them is not finite.
        """
        sentences, tokens = size(group)
        count = sentences if self.training.normalise == "sentences" else tokens
        self.total.begin()
        sums = self._passes(list(enumerate(group)), update, count)
        self.total.finish()
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        self.task.zeros.clear_gradients()
        if self.training.l2:
            add_l2(self.parameters, self.training.l2)
        norm = clip(self.parameters, self.training.clip_norm, self.training.clip_value)
        sums = self.processes.summed(sums)
        own = sums.pop(NLL)
        nll, norm_value = torch.stack([own, norm.to(own.dtype)]).tolist()
        if not (math.isfinite(nll) and math.isfinite(norm_value)):
            self._refuse(group, update, nll, norm_value)
        return nll, norm_value, sums

    def _passes(self, batches: list[tuple[int, Batch]], update: int, count: int) -> dict[str, Tensor]:
        """Forward and backward passes over numbered batches; returns the summed NLL and parts of the loss. A batch too
        large for the GPU's memory is halved and all of them done again."""
        for parameter in self.parameters:
            parameter.grad = None
        sums = {NLL: torch.zeros((), device=self.device)}
        for place, (number, batch) in enumerate(batches):
            fits, weight = True, 1.0 if batch.share is None or batch.share.counts else 0.0
            try:
                with precision(self.device, self.training.precision):
                    loss = self.task.objective(self.task.model, batch, self._draws(update, number, batch))
                with self.total.sending(last=place == len(batches) - 1):
                    (loss.total * (weight / count)).backward()  # type: ignore[no-untyped-call]
                for name, value in {NLL: loss.nll, **loss.parts}.items():
                    sums[name] = sums.get(name, 0.0) + value.detach() * weight
            except torch.OutOfMemoryError:
                fits = False  # and no more in here: the exception keeps what the failed pass had allocated
            if not fits:
                halves = [(number, half) for half in self._halved(batch, update)]
                return self._passes([*batches[:place], *halves, *batches[place + 1 :]], update, count)
        return sums

    def _draws(self, update: int, number: int, batch: Batch) -> Draws:
        """The random numbers of batch `number` of an update: for some of its rows the same as for all of them."""
        seed = self.training.seed * SEED_STRIDE + update + number * BATCH_STRIDE
        draws = Draws(seed % SEEDS, self.device)
        if batch.share is not None and len(batch.share.rows) < len(batch.share.indices):
            draws.take(batch.share.rows, len(batch.share.indices))
        return draws

    def _halved(self, batch: Batch, update: int) -> tuple[Batch, Batch]:
        if batch.sentences == 1:
            sizes = " and ".join(str(side.ids.shape[1]) for side in batch.sides.values())
            pair = f"training pair {batch.indices[0] + 1} ({sizes} symbols)"
            advice = "lower training.max_length or the model's sizes"
            raise TrainingError(f"{pair} alone does not fit into the memory of {self.device}; {advice}")
        forget(self.task.model)
        torch.cuda.empty_cache()
        told = f"{batch.sentences} sentences do not fit into memory; split and tried again"
        self.reporter.message(f"update {update}: {told}")
        return batch.split()

    def _refuse(self, group: list[Batch], update: int, nll: float, norm: float) -> None:
        """Save the batch that gave a NaN or infinite loss and say so; the weights are those before it."""
        path = self.folder / f"not-finite-update-{update}.safetensors"
        wholes = [batch if batch.share is None else self.batches.of(batch.share.indices) for batch in group]
        tensors: dict[str, Tensor] = {}
        for number, batch in enumerate(wholes):
            tensors |= {f"{number}.{name}": side.ids for name, side in batch.sides.items()}
            tensors[f"{number}.indices"] = torch.tensor(batch.indices)
        if self.processes.first:
            save_weights(path, tensors)
        pairs = ", ".join(str(index + 1) for batch in wholes for index in batch.indices[:8])
        raise TrainingError(
            f"the loss of update {update} is not finite (NLL {nll}, gradient norm {norm}); its batch "
            f"(training pairs {pairs}, ...) is saved in {path} and the weights were not changed by it; "
            "begin another run with a lower learning rate or training.clip_norm (training.begin_from takes the weights "
            "of this one's folder, where a model is in it)"
        )


def size(group: list[Batch]) -> tuple[int, int]:
    """Sentences and target symbols of a group of batches, other processes' rows among them."""
    shares = [batch.share for batch in group]
    sentences = sum(b.sentences if s is None else len(s.indices) for b, s in zip(group, shares, strict=True))
    return sentences, sum(b.target.tokens if s is None else s.target_tokens for b, s in zip(group, shares, strict=True))
