"""What a search keeps of its steps, side by side in few blocks.

A step takes a lot and gives it back, but for a few small tensors that stay until the end. Between those glibc before
2.38 does not use the freed room again (it is aligned), so that every step would take new memory: three sentences of 800
words took 9 to 15 GB with a beam of 5, and 0.4 with blocks.
"""

from typing import TypeVar

import torch
from torch import Tensor

from rnnsearch.tensors import map_tree

Step = TypeVar("Step")

BLOCK = 1 << 24
"""Bytes. Where smaller ones have been freed, glibc gives the heap's end back to the system step by step, which makes a
search slower by a twentieth (mallopt(3): M_MMAP_THRESHOLD follows what was freed)."""
ALIGNED = 64


class KeptSteps:
    """Copies of tensors on the processor; elsewhere they stay as they are."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._begin = 0

    def keep(self, step: Step) -> Step:
        """The same tree, its tensors in the blocks: to be kept in its place."""
        return map_tree(self._copy, step)

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor
        size = tensor.numel() * tensor.element_size()
        if self._begin + size > len(self._block):
            self._block, self._begin = torch.empty(max(BLOCK, size), dtype=torch.uint8), 0
        room = self._block[self._begin : self._begin + size]
        self._begin += size + -size % ALIGNED
        return room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
