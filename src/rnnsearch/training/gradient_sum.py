"""Gradients summed over processes, in buckets that are sent while the backward pass still makes the others.

This is done here and not by torch's DistributedDataParallel because an objective is a function, not a module's
forward; because a batch that does not fit into one GPU's memory is split and done again by that process alone, which
must not send anything twice; and because the mean over processes is not the mean over sentences or words.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rnnsearch.processes import Processes, noticing_losses

BUCKET = 25 << 20
"""Bytes of gradients sent together."""


class GradientSum:
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
