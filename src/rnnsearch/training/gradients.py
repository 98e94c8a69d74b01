"""The gradients of one update, accumulated over batches and summed over processes.

The training loop (`loop.py`) calls `Gradients.accumulate` and `Gradients.clip` once per update. A batch that does not
fit into GPU memory is halved and tried again.

Before changing it: the random numbers of a batch depend on the seed, the update and the batch's number (`_batch_rng`),
and all processes must send the same buckets in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rnnsearch.config import TrainingConfig
from rnnsearch.data.batches import Batch
from rnnsearch.data.mixed_batches import TrainingBatches
from rnnsearch.errors import TrainingError
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.layers import Embedding
from rnnsearch.objectives.loss import Model
from rnnsearch.ops.device import precision
from rnnsearch.training.optimisers import add_l2, clip
from rnnsearch.training.progress import Reporter
from rnnsearch.training.tasks import Task
from rnnsearch.utils.distributed import Processes, raising_process_lost
from rnnsearch.utils.weights import save_weights

BUCKET_BYTES = 25 << 20
"""Size of the buckets in which gradients are sent."""
SEED_STRIDE = 1_000_003
"""Separates the seeds of different runs' updates."""
BATCH_STRIDE = 500_000_003
"""Separates the seeds of the batches of one update."""
NUM_SEEDS = 2**64
"""Number of seeds that torch accepts."""
NLL = "nll"
"""Key of the summed NLL next to the statistics of the loss."""
ALL_REDUCE_DTYPES = {None: torch.float32, "fp32": torch.float32, "bf16": torch.bfloat16}
"""Data type of the sent gradients by `training.all_reduce`."""


class GradientReducer:
    """Sum of gradients over processes, in buckets that are sent while the backward pass computes the rest.

    One update consists of `begin`, backward passes, the last of them inside `sending`, and `finish`. All processes
    send the same buckets in the same order: the last parameters first, as backward passes produce them. A bucket is
    final when it is sent; repeating a pass does not change it.

    torch's DistributedDataParallel does not fit: an objective is a function, not a module's forward; a batch that
    does not fit into one GPU's memory is split and repeated by that process only, which must not send anything twice;
    and the mean over processes is not the mean over sentences or words.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], processes: Processes, dtype: torch.dtype) -> None:
        """Initialise buckets of the trainable parameters.

        Args:
            parameters: Parameters of the model, in order.
            processes: Processes that train together; with only one, nothing is sent.
            dtype: Type to send: fp32, or bf16, which halves the traffic and rounds each sum to 8 bits.
        """
        self._processes = processes
        self._dtype = dtype
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        self._buckets = _buckets(trainable[::-1], BUCKET_BYTES) if processes.world_size > 1 else []
        self._sending = False
        self._ready: set[int] = set()  # ids of parameters whose gradient is final
        self._sent: list[tuple[Tensor, dist.Work | None]] = []
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(lambda p, number=number: self._on_gradient(number, p))

    def begin(self) -> None:
        """Start an update."""
        self._sent = []

    @contextmanager
    def sending(self, last: bool = True) -> Iterator[None]:
        """Send the gradients of the backward pass inside the block as they become final, if it is the last pass."""
        self._ready = set()
        # Earlier passes only accumulate: a bucket is final when it is sent.
        self._sending = last
        try:
            yield
        finally:
            self._sending = False

    def finish(self) -> None:
        """Wait until every gradient is the sum over all processes."""
        if self._processes.world_size == 1:
            return
        with raising_process_lost():
            # Parameters without a gradient have called no hook, so that buckets may be left.
            while len(self._sent) < len(self._buckets):
                self._send_next_bucket()
            for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
                assert work is not None
                work.wait()
                *gradients, used = flat.split([*(p.numel() for p in bucket), len(bucket)])
                for parameter, gradient, num_users in zip(bucket, gradients, used.tolist(), strict=True):
                    # None if no process has a gradient: like a single process, the optimiser then skips the
                    # parameter.
                    parameter.grad = gradient.view_as(parameter).to(parameter.dtype) if num_users else None
        self._sent = []

    def _on_gradient(self, number: int, parameter: Tensor) -> None:
        # Called by torch when a parameter's gradient of one pass is complete.
        # Not the last pass, or a pass that is repeated after the bucket was sent.
        if not self._sending or number < len(self._sent):
            return
        self._ready.add(id(parameter))
        while len(self._sent) < len(self._buckets):
            if not all(id(p) in self._ready for p in self._buckets[len(self._sent)]):
                return
            with raising_process_lost():
                self._send_next_bucket()

    def _send_next_bucket(self) -> None:
        # A bucket holds the gradients and, per parameter, 1 if this process has one: if any process has a gradient
        # (of a rare word, say), all must apply the update, or their weights would diverge.
        bucket = self._buckets[len(self._sent)]
        used = torch.ones(len(bucket), dtype=bucket[0].dtype, device=bucket[0].device)
        for index, parameter in enumerate(bucket):
            if parameter.grad is None:
                used[index] = 0
        gradients = ((torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket)
        flat = torch.cat([*gradients, used]).to(self._dtype)
        for parameter in bucket:
            parameter.grad = None  # its values are in the bucket now
        self._sent.append((flat, dist.all_reduce(flat, async_op=True)))


def _buckets(parameters: Sequence[nn.Parameter], size: int) -> list[list[nn.Parameter]]:
    """Group neighbouring parameters of one dtype and device into buckets of at most `size` bytes."""
    buckets: list[list[nn.Parameter]] = []
    free = 0
    for parameter in parameters:
        needed = parameter.numel() * parameter.element_size()
        same_type = False
        if buckets:
            previous = buckets[-1][-1]
            same_type = (previous.dtype, previous.device) == (parameter.dtype, parameter.device)
        # A parameter larger than a bucket has one for itself.
        if not same_type or needed > free:
            buckets.append([])
            free = size
        buckets[-1].append(parameter)
        free -= needed
    return buckets


@dataclass
class Gradients(Generic[Model]):
    """Computes the gradients of an update, in the parameters' `grad`."""

    training: TrainingConfig
    """Options of `[training]`."""
    task: Task[Model]
    """Model and objective."""
    batches: TrainingBatches
    """Training batches of this process."""
    device: torch.device
    """Device of the model."""
    folder: Path
    """Folder for the weights of an update that is not finite."""
    reporter: Reporter
    """Receiver of messages."""
    processes: Processes
    """Processes that train together."""
    release_memory: Callable[[], None]
    """Frees memory of the device that is not needed to go on."""

    def __post_init__(self) -> None:
        self.parameters: list[nn.Parameter] = []
        for group in self.task.optimiser.param_groups:
            self.parameters += group["params"]
        self._uncounted: set[nn.Parameter] = set()
        if not self.training.clip_embeddings:
            tables = (module for module in self.task.model.modules() if isinstance(module, Embedding))
            self._uncounted = {parameter for table in tables for parameter in table.parameters()}
        self.reducer = GradientReducer(self.parameters, self.processes, ALL_REDUCE_DTYPES[self.training.all_reduce])

    def accumulate(self, group: list[Batch], update: int) -> dict[str, Tensor]:
        """Run forward and backward passes over a group of batches and sum the gradients over all processes.

        The loss is divided by the sentences or tokens of the whole group (`training.normalise`).

        Returns:
            The NLL (under "nll") and the statistics of the loss, summed over the batches and processes, on the device.
        """
        self.reducer.begin()
        sums = self._run_passes(list(enumerate(group)), update, self.normaliser(group))
        self.reducer.finish()
        return self.processes.all_reduce_dict(sums)

    def clip(self) -> Tensor:
        """Add L2, clip the gradients, and return their norm before clipping.

        The norm is a scalar on the device.
        """
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                # Rows that occur several times must be summed before norms are computed.
                parameter.grad = parameter.grad.coalesce()
        # Pruned weights are 0, so that L2 adds nothing to their gradients.
        if self.training.l2:
            add_l2(self.parameters, self.training.l2)
        return clip(self.parameters, self.training.clip_norm, self.training.clip_value, self._uncounted)

    def check_finite(self, group: list[Batch], update: int, nll: float, norm: float) -> None:
        """Save the batches of an update and raise TrainingError if its NLL or gradient norm is not finite."""
        if not (math.isfinite(nll) and math.isfinite(norm)):
            self._abort(group, update, nll, norm)

    def _run_passes(self, batches: list[tuple[int, Batch]], update: int, normaliser: int) -> dict[str, Tensor]:
        """Run the passes of numbered batches; if one does not fit into GPU memory, halve it and repeat them all."""
        for parameter in self.parameters:
            parameter.grad = None
        sums = {NLL: torch.zeros((), device=self.device)}
        for index, (number, batch) in enumerate(batches):
            is_last = index == len(batches) - 1
            try:
                self._run_pass(batch, self._batch_rng(update, number, batch), normaliser, sums, is_last)
                continue
            except torch.OutOfMemoryError:
                pass  # the exception holds the failed pass's memory: leave this block before trying again
            halves = [(number, half) for half in self._halve(batch, update)]
            return self._run_passes([*batches[:index], *halves, *batches[index + 1 :]], update, normaliser)
        return sums

    def _run_pass(self, batch: Batch, rng: BatchRng, normaliser: int, sums: dict[str, Tensor], is_last: bool) -> None:
        # A process without rows in this batch repeats others' rows with weight 0, so that all processes do the same
        # work.
        weight = 1.0 if batch.shard is None or batch.shard.is_counted else 0.0
        with precision(self.device, self.training.precision):
            loss = self.task.loss(batch, rng)
        with self.reducer.sending(last=is_last):
            (loss.total * (weight / normaliser)).backward()  # type: ignore[no-untyped-call]
        for name, value in {NLL: loss.nll, **loss.statistics}.items():
            sums[name] = sums.get(name, 0.0) + value.detach() * weight

    def seed(self, update: int, number: int = 0) -> int:
        """Return the seed of the random numbers of batch `number` of an update."""
        # A function of the update and the batch, so that a resumed run and a repeated pass get the same numbers.
        return (self.training.seed * SEED_STRIDE + update + number * BATCH_STRIDE) % NUM_SEEDS

    def normaliser(self, group: list[Batch]) -> int:
        """Return the divisor of the loss of a group of batches, its sentences or tokens."""
        sentences, tokens = count_examples(group)
        return sentences if self.training.normalise == "sentences" else tokens

    def _batch_rng(self, update: int, number: int, batch: Batch) -> BatchRng:
        """Return the random numbers of batch `number` of an update; a subset of its rows gets the same ones."""
        rng = BatchRng(self.seed(update, number), self.device)
        # Generate the numbers of the whole batch, and use those of this process or half.
        if batch.shard is not None and len(batch.shard.rows) < len(batch.shard.indices):
            rng.select_rows(batch.shard.rows, len(batch.shard.indices))
        return rng

    def _halve(self, batch: Batch, update: int) -> tuple[Batch, Batch]:
        if batch.sentences == 1:
            lengths = " and ".join(str(stream.ids.shape[1]) for stream in batch.streams.values())
            pair = f"training pair {batch.indices[0] + 1} ({lengths} tokens)"
            advice = "lower training.max_length or the model's sizes"
            raise TrainingError(f"{pair} does not fit into the memory of {self.device} by itself; {advice}")
        self.release_memory()
        message = f"{batch.sentences} sentences do not fit into memory; split and tried again"
        self.reporter.message(f"update {update}: {message}")
        return batch.split()

    def _abort(self, group: list[Batch], update: int, nll: float, norm: float) -> None:
        """Save the batches whose loss is not finite and raise TrainingError."""
        path = self.folder / f"not-finite-update-{update}.safetensors"
        tensors: dict[str, Tensor] = {}
        pairs: list[str] = []
        for number, process_batch in enumerate(group):
            # The whole batch, with the rows of all processes.
            batch = (
                process_batch
                if process_batch.shard is None
                else self.batches.whole_batch(process_batch.shard.indices, process_batch.direction)
            )
            tensors |= {f"{number}.{name}": stream.ids for name, stream in batch.streams.items()}
            tensors[f"{number}.indices"] = torch.tensor(batch.indices)
            pairs += [str(index + 1) for index in batch.indices[:8]]
        if self.processes.is_first:
            save_weights(path, tensors)
        raise TrainingError(
            f"the loss of update {update} is not finite (NLL {nll}, gradient norm {norm}); its batch "
            f"(training pairs {', '.join(pairs)}, ...) is saved in {path}, and no checkpoint contains it; "
            "start another run with a lower learning rate or training.clip_norm (training.begin_from reuses the "
            "weights of this run's folder if it contains a model)"
        )


def count_examples(group: list[Batch]) -> tuple[int, int]:
    """Return the sentences and target tokens of a group of batches, including other processes' rows."""
    sentences = 0
    tokens = 0
    for batch in group:
        sentences += batch.sentences if batch.shard is None else len(batch.shard.indices)
        tokens += batch.target.num_tokens if batch.shard is None else batch.shard.target_tokens
    return sentences, tokens
