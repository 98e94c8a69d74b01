"""Several processes that train one run together, as `torchrun` starts them, and what they have to agree on.

Every process holds the whole model and works on its rows of each batch. Gradients are summed (`gradient_sum.py`), so
that all make the same update; the first process alone writes files and tells of progress.
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
"""How long a process waits for the others, which may be preparing the corpus. One that ends is noticed at once."""
_SAID = "rnnsearch/said"
_LOOK = 0.02
"""Seconds between two looks into the store."""


class ProcessLost(TrainingError):
    """Another process has ended, so this one cannot go on."""


class Processes:
    """The processes of a run. With one alone, everything is its own and nothing is sent."""

    def __init__(self, rank: int = 0, world: int = 1, local_rank: int = 0, store: Store | None = None) -> None:
        self.rank = rank
        self.world_size = world
        self.local_rank = local_rank
        """The number among the processes of this machine, and of its GPU there."""
        self._store = store

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and tells of progress."""
        return self.rank == 0

    def shard(self, items: list[Value]) -> list[Value]:
        """This process's part of a list that all have."""
        return items[self.rank :: self.world_size]

    def sum(self, *values: float) -> list[float]:
        """The sums over all processes."""
        if self.world_size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        self.all_reduce(numbers)
        return [float(number) for number in numbers]

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if self.world_size > 1:
            with raising_process_lost():
                dist.all_reduce(tensor)

    def all_reduce_dict(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The sums over all processes of tensors that each has by the same names, sent together."""
        if self.world_size == 1:
            return tensors
        flat = torch.cat([tensor.flatten() for tensor in tensors.values()])
        self.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors.values()])
        return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return self.sum(float(flag))[0] > 0

    def broadcast(self, value: Value) -> Value:
        """The first process's value, in all of them."""
        if self.world_size == 1:
            return value
        box = [value]
        with raising_process_lost():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather(self, items: list[Value]) -> list[Value]:
        """The list whose parts (see `share`) the processes have."""
        if self.world_size == 1:
            return items
        parts: list[Any] = [None] * self.world_size
        with raising_process_lost():
            dist.all_gather_object(parts, items)
        whole: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            whole[rank :: self.world_size] = part
        return whole

    def broadcast_weights(self, tensors: list[Tensor]) -> None:
        """Give tensors the first process's values."""
        if self.world_size > 1:
            with raising_process_lost():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def run_on_first(self, work: Callable[[], Value]) -> Value:
        """What `work` returns in the first process, which alone does it, or the error that it raises, in all."""
        if self.world_size == 1:
            return work()
        result: tuple[Value | None, str, bool] | None = None
        if self.is_first:
            try:
                result = work(), "", False
            except RnnsearchError as error:
                result = None, str(error), isinstance(error, Interrupted)
        value, fault, interrupted = self.broadcast(result)  # type: ignore[misc]
        if fault:
            raise Interrupted(fault) if interrupted else RnnsearchError(fault)
        return value  # type: ignore[return-value]

    def should_report(self, error: RnnsearchError) -> bool:
        """Whether no process has said this yet; of a lost process, whether none has said anything."""
        if self._store is None:
            return True
        try:
            said_before = self._store.add(_SAID, 1) > 1
            digest = sha256(str(error).encode()).hexdigest()
            said_this = self._store.add(f"{_SAID}/{digest}", 1) > 1
        except RuntimeError:  # whoever kept the store is gone
            return True
        return not (said_before if isinstance(error, ProcessLost) else said_this)


@contextmanager
def raising_process_lost() -> Iterator[None]:
    """Errors: Lost, for what torch says where another process has ended."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ProcessLost(
            "another process of this run has ended, so training stopped; its last checkpoint is whole: start it again "
            f"with --resume ({str(error).strip().splitlines()[0]})"
        ) from None


def _round(store: Store, rank: int, world: int) -> str:
    """A name that the processes which are here now have in common, and no earlier ones had.

    `torchrun` may give processes that it starts again the store of those before them, with what these left in it. So
    each says its own new word; the first process says them all until each has heard its own among them; and the words
    that all have heard are the name.
    """
    word = token_hex(8)
    store.set(f"rnnsearch/word/{rank}", word)
    while rank > 0:
        heard: str = store.get("rnnsearch/words").decode()
        if word in heard:
            store.set(f"rnnsearch/heard/{rank}", heard)
            if store.check(["rnnsearch/name"]) and word in store.get("rnnsearch/name").decode():
                return heard  # no other words come after a name
        time.sleep(_LOOK)
    others = [f"rnnsearch/heard/{other}" for other in range(1, world)]
    while True:
        words = " ".join(store.get(f"rnnsearch/word/{other}").decode() for other in range(world))
        store.set("rnnsearch/words", words)
        time.sleep(_LOOK)
        if store.check(others) and all(store.get(key).decode() == words for key in others):
            store.set("rnnsearch/name", words)
            return words


def was_restarted() -> bool:
    """Whether `torchrun` has started this process anew after another had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """The processes that `torchrun` started, found by their environment; elsewhere this process alone.

    Errors: TrainingError where they do not find each other.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    both = "cpu:gloo,cuda:nccl"
    try:
        found, rank, world = next(iter(rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT)))
        store = PrefixStore(_round(found, rank, world), found)
        backend = both if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=RENDEZVOUS_TIMEOUT)
        dist.all_reduce(torch.zeros(1))  # none goes on, and perhaps ends at once, before all have met
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TrainingError(f"the {world} processes of this run did not find each other: {reason}") from None
    yield Processes(rank, world, int(os.environ.get("LOCAL_RANK", "0")), store)
    dist.destroy_process_group()  # not after an error: the others may be gone
