"""Distributed training: the processes that `torchrun` starts for one run, and their communication.

Every process holds the whole model and works on its rows of each batch. Gradients are summed
(`training/gradients.py`), so that all processes make the same updates; only the first process writes files and
reports progress. With one process, every method of `Processes` returns its input without communication, so callers
need no special case.

`training/` and `systems/` take a `Processes`; `cli/train.py` starts it. Every process must call the same collective
operations in the same order. Tests: tests/training/test_distributed.py, tests/commands/test_torchrun.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from secrets import token_hex
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from rnnsearch.errors import Interrupted, RnnsearchError, TrainingError

Value = TypeVar("Value")

RENDEZVOUS_TIMEOUT = timedelta(hours=2)
"""Time to wait for the other processes, which may be preparing the corpus; an ended process is noticed at once."""
STORE_POLL_SECONDS = 0.02
REPORTED_KEY = "rnnsearch/reported"
"""Key of the store that counts reported errors."""


class ProcessLost(TrainingError):
    """Another process of the run has ended, so this one cannot continue."""


class Processes:
    """The processes of a run; by default only this one."""

    def __init__(self, rank: int = 0, world_size: int = 1, local_rank: int = 0, store: Store | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        """Number among the processes of this machine, and of its GPU there."""
        self._store = store

    @property
    def is_first(self) -> bool:
        """True in the process that writes files and reports progress."""
        return self.rank == 0

    def shard(self, items: list[Value]) -> list[Value]:
        """Return this process's part of a list that is the same in all processes."""
        return items[self.rank :: self.world_size]

    def all_gather(self, items: list[Value]) -> list[Value]:
        """Return the whole list from the parts (see `shard`) of all processes."""
        if self.world_size == 1:
            return items
        shards: list[Any] = [None] * self.world_size
        with raising_process_lost():
            dist.all_gather_object(shards, items)
        gathered: list[Any] = [None] * sum(map(len, shards))
        for rank, shard in enumerate(shards):
            gathered[rank :: self.world_size] = shard
        return gathered

    def sum(self, *values: float) -> list[float]:
        """Return each value's sum over all processes."""
        if self.world_size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        self.all_reduce(sums)
        return [float(value) for value in sums]

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set in any process."""
        return self.sum(float(flag))[0] > 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.world_size > 1:
            with raising_process_lost():
                dist.all_reduce(tensor)

    def all_reduce_dict(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums of named tensors over all processes; they are sent as one tensor."""
        if self.world_size == 1:
            return tensors
        flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
        self.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}

    def broadcast(self, value: Value) -> Value:
        """Return the first process's value in all processes."""
        if self.world_size == 1:
            return value
        objects = [value]
        with raising_process_lost():
            dist.broadcast_object_list(objects, src=0)
        return objects[0]

    def broadcast_weights(self, tensors: list[Tensor]) -> None:
        """Replace tensors by the first process's, in place."""
        if self.world_size > 1:
            with raising_process_lost():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def run_on_first(self, work: Callable[[], Value]) -> Value:
        """Call `work` in the first process only; return its result, or raise its error, in all processes.

        Only errors of class RnnsearchError are passed on: all processes, the first one included, raise a plain
        RnnsearchError with the message, or Interrupted for an Interrupted. Any other exception is raised in the first
        process only; the others wait until that process ends, and then raise ProcessLost.
        """
        if self.world_size == 1:
            return work()
        result: tuple[Value | None, str, bool] | None = None
        if self.is_first:
            try:
                result = work(), "", False
            except RnnsearchError as error:
                result = None, str(error), isinstance(error, Interrupted)
        value, message, interrupted = self.broadcast(result)  # type: ignore[misc]
        if message:
            raise Interrupted(message) if interrupted else RnnsearchError(message)
        return value  # type: ignore[return-value]

    def should_report(self, error: RnnsearchError) -> bool:
        """Return True if no process has reported this error yet; for ProcessLost, if none has reported any error."""
        if self._store is None:
            return True
        digest = sha256(str(error).encode()).hexdigest()
        try:
            any_reported = self._store.add(REPORTED_KEY, 1) > 1
            same_reported = self._store.add(f"{REPORTED_KEY}/{digest}", 1) > 1
        except RuntimeError:  # the process that hosts the store has ended
            return True
        return not (any_reported if isinstance(error, ProcessLost) else same_reported)


@contextmanager
def raising_process_lost() -> Iterator[None]:
    """Raise ProcessLost for the RuntimeError of torch.distributed if another process has ended."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ProcessLost(
            "another process of this run has ended, so training stopped; its last checkpoint is intact: start it again "
            f"with --resume ({str(error).strip().splitlines()[0]})"
        ) from None


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that `torchrun` started, by its environment variables; otherwise yield only this process.

    Raises:
        TrainingError: If the processes do not find each other.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Processes()
        return
    try:
        shared_store, rank, world_size = next(iter(rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT)))
        store = PrefixStore(_agree_on_prefix(shared_store, rank, world_size), shared_store)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=RENDEZVOUS_TIMEOUT)
        dist.all_reduce(torch.zeros(1))  # a barrier: no process continues, and perhaps ends, before all have joined
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TrainingError(f"the {world_size} processes of this run did not find each other: {reason}") from None
    yield Processes(rank, world_size, int(os.environ.get("LOCAL_RANK", "0")), store)
    dist.destroy_process_group()  # not after an error: the others may have ended


def _agree_on_prefix(store: Store, rank: int, world_size: int) -> str:
    """Return a prefix of store keys that the current processes share and no earlier ones used.

    `torchrun` may give restarted processes the store of their predecessors, with the entries these left in it.
    Therefore each process publishes a new random word. The first process publishes the list of all words until every
    process has acknowledged a list with its word in it; the list that all have acknowledged is the prefix.
    """
    word = token_hex(8)
    store.set(f"rnnsearch/word/{rank}", word)
    if rank > 0:
        while True:
            words: str = store.get("rnnsearch/words").decode()
            if word in words:
                store.set(f"rnnsearch/heard/{rank}", words)
                if store.check(["rnnsearch/name"]) and word in store.get("rnnsearch/name").decode():
                    return words  # no other list is published after the prefix
            time.sleep(STORE_POLL_SECONDS)
    acknowledgements = [f"rnnsearch/heard/{other}" for other in range(1, world_size)]
    while True:
        words = " ".join(store.get(f"rnnsearch/word/{other}").decode() for other in range(world_size))
        store.set("rnnsearch/words", words)
        time.sleep(STORE_POLL_SECONDS)
        if store.check(acknowledgements) and all(store.get(key).decode() == words for key in acknowledgements):
            store.set("rnnsearch/name", words)
            return words


def was_restarted() -> bool:
    """Return True if `torchrun` restarted this process because another one had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
