"""The gradients of one update: a group of batches, passes that may not fit into memory, other processes' shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rnnsearch.accel.cuda_graphs import forget
from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch, Batches
from rnnsearch.errors import TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.ops.device import precision
from rnnsearch.systems.dev_scores import Assessor
from rnnsearch.systems.system import ParameterGroup
from rnnsearch.training.optimisers import add_l2, clip
from rnnsearch.training.progress import Reporter
from rnnsearch.training.sparse_tables import SparseTables
from rnnsearch.utils.distributed import Processes, noticing_losses
from rnnsearch.utils.weights import save_weights

# Gradients summed over processes, in buckets that are sent while the backward pass still makes the others.
#
# This is done here and not by torch's DistributedDataParallel because an objective is a function, not a module's
# forward; because a batch that does not fit into one GPU's memory is split and done again by that process alone, which
# must not send anything twice; and because the mean over processes is not the mean over sentences or words.

BUCKET = 25 << 20
"""Bytes of gradients sent together."""


class GradientReducer:
    """One update: `begin`, backward passes, the last of them within `sending`, `finish`.

    All processes send the same buckets in the same order, the parameters' last first, as backward passes make them.
    What a bucket holds when it is sent is final: a pass that is done again does not change it. `kind` is what is sent:
    fp32, or bf16, which is half as much and rounds each sum to 8 bits.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes, kind: torch.dtype) -> None:
        self._processes = processes
        self._kind = kind
        learning = [p for p in parameters if p.requires_grad]
        self._buckets = _buckets(learning[::-1], BUCKET) if processes.world > 1 else []
        self._sending = False
        self._made: set[int] = set()
        self._sent: list[tuple[Tensor, dist.Work | None]] = []
        for number, parameters_ in enumerate(self._buckets):
            for parameter in parameters_:
                parameter.register_post_accumulate_grad_hook(lambda p, number=number: self._note(number, p))

    def begin(self) -> None:
        """A new update."""
        self._sent = []

    @contextmanager
    def sending(self, last: bool = True) -> Iterator[None]:
        """While the block runs, what a backward pass makes is final (if this is the last one) and sent."""
        self._made, self._sending = set(), last
        try:
            yield
        finally:
            self._sending = False

    def finish(self) -> None:
        """Every gradient is now the sum over all processes."""
        if self._processes.world == 1:
            return
        with noticing_losses():
            while len(self._sent) < len(self._buckets):
                self._send()
            for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
                assert work is not None
                work.wait()
                *parts, used = flat.split([*(p.numel() for p in bucket), len(bucket)])
                for parameter, part, by in zip(bucket, parts, used.tolist(), strict=True):
                    parameter.grad = part.view_as(parameter).to(parameter.dtype) if by else None
        self._sent = []

    def _note(self, number: int, parameter: Tensor) -> None:
        """Called by torch when a parameter's gradient of one pass is whole."""
        if not self._sending or number < len(self._sent):
            return
        self._made.add(id(parameter))
        while len(self._sent) < len(self._buckets) and self._whole(self._buckets[len(self._sent)]):
            with noticing_losses():
                self._send()

    def _whole(self, bucket: list[nn.Parameter]) -> bool:
        return all(id(parameter) in self._made for parameter in bucket)

    def _send(self) -> None:
        """A bucket's gradients, and in how many processes each was made: where one alone has made it (of rare words,
        say), all must make the update, or their weights would no longer be the same."""
        bucket = self._buckets[len(self._sent)]
        used = torch.ones(len(bucket), dtype=bucket[0].dtype, device=bucket[0].device)
        for place, parameter in enumerate(bucket):
            if parameter.grad is None:
                used[place] = 0
        gradients = ((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket)
        flat = torch.cat([*gradients, used]).to(self._kind)
        for parameter in bucket:
            parameter.grad = None  # its numbers are in the bucket now
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))


def _buckets(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Neighbours of one type and device together, until they fill a bucket of `size` bytes."""
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        need = parameter.numel() * parameter.element_size()
        alike = bool(buckets) and (buckets[-1][-1].dtype, buckets[-1][-1].device) == (parameter.dtype, parameter.device)
        if not alike or need > room:
            buckets.append([])
            room = size
        buckets[-1].append(parameter)
        room -= need
    return buckets


# Weights that stay zero while the others are trained: retraining of a pruned model (See et al. 2016).


class SparsityMask:
    """The pruned weights of a model, by masks of its parameters; without masks none.

    They have no gradient, so that neither clipping nor an optimiser's moments know of them; and whatever an update did
    to them is undone right after it.
    """

    def __init__(self, model: nn.Module | None = None, masks: Mapping[str, Tensor] | None = None) -> None:
        own = {} if model is None else dict(model.named_parameters())
        self._pruned = [(own[name], mask.to(own[name].device)) for name, mask in (masks or {}).items()]

    def mask_gradients(self) -> None:
        """Their gradients become zero."""
        for parameter, mask in self._pruned:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(mask, 0.0)

    @torch.no_grad()
    def apply(self) -> None:
        """They become zero."""
        for parameter, mask in self._pruned:
            parameter.masked_fill_(mask, 0.0)


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
    sparsity: SparsityMask = field(default_factory=SparsityMask)
    tables: SparseTables = field(default_factory=SparseTables)


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
        self.reducer = GradientReducer(self.parameters, self.processes, SENT[self.training.all_reduce])

    def fill(self, group: list[Batch], update: int) -> tuple[float, float, dict[str, Tensor]]:
        """Gradients of the loss over a group of batches, of all processes together, clipped.

        Returns the summed NLL, the gradients' norm before clipping, and the loss's summed parts.
        Errors: TrainingError where one of them is not finite.
        """
        sentences, tokens = count_examples(group)
        count = sentences if self.training.normalise == "sentences" else tokens
        self.reducer.begin()
        sums = self._passes(list(enumerate(group)), update, count)
        self.reducer.finish()
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        self.task.sparsity.mask_gradients()
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
                with self.reducer.sending(last=place == len(batches) - 1):
                    (loss.total * (weight / count)).backward()  # type: ignore[no-untyped-call]
                for name, value in {NLL: loss.nll, **loss.parts}.items():
                    sums[name] = sums.get(name, 0.0) + value.detach() * weight
            except torch.OutOfMemoryError:
                fits = False  # and no more in here: the exception keeps what the failed pass had allocated
            if not fits:
                halves = [(number, half) for half in self._halved(batch, update)]
                return self._passes([*batches[:place], *halves, *batches[place + 1 :]], update, count)
        return sums

    def _draws(self, update: int, number: int, batch: Batch) -> BatchRng:
        """The random numbers of batch `number` of an update: for some of its rows the same as for all of them."""
        seed = self.training.seed * SEED_STRIDE + update + number * BATCH_STRIDE
        draws = BatchRng(seed % SEEDS, self.device)
        if batch.share is not None and len(batch.share.rows) < len(batch.share.indices):
            draws.select_rows(batch.share.rows, len(batch.share.indices))
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


def count_examples(group: list[Batch]) -> tuple[int, int]:
    """Sentences and target symbols of a group of batches, other processes' rows among them."""
    shares = [batch.share for batch in group]
    sentences = sum(b.sentences if s is None else len(s.indices) for b, s in zip(group, shares, strict=True))
    return sentences, sum(b.target.tokens if s is None else s.target_tokens for b, s in zip(group, shares, strict=True))
