"""The recurrent cell: what every class of `cells.py` and `layer_norm_cells.py` is.

A cell is split so that what depends on the inputs alone is one matrix product for all positions:
`inputs` maps x to its share of all gates, `step` adds what the state feeds back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.models.initialise import parameter
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell


class BiasAlone(Linear):
    """W x + b of an x without numbers: b."""

    def __init__(self, size: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = 0, size
        self.weight = torch.empty(size, 0)
        self.bias = parameter("bias", size)

    def forward(self, input: Float[Tensor, "N 0"]) -> Float[Tensor, "N G"]:
        return self.bias.expand(input.shape[0], -1)


class Cell(nn.Module, ABC):
    """A recurrent cell of `size` units over inputs of `inputs_size` numbers, or of None: of its state alone.

    The share of the inputs in all gates, W x + b, has `blocks` times `size` numbers.
    """

    name: ClassVar[str]
    blocks: ClassVar[int]
    state: ClassVar[type[Hidden] | type[HiddenAndCell]] = Hidden
    """What it carries from one position to the next."""
    twin: Callable[..., tuple[Tensor, CellState]] | None = None

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__()
        self.size = size
        blocks = self.blocks * size
        self.input = BiasAlone(blocks) if inputs_size is None else Linear(inputs_size, blocks)
        """W and b of every gate, one block below the other."""

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """W x + b of every gate, G = blocks * size: the part that depends on the inputs alone."""
        projected: Tensor = self.input(x)
        return projected

    def start(self, h: Float[Tensor, "N D"]) -> CellState:
        """The state whose output is h, with an empty memory in a cell that has one."""
        return Hidden(h) if self.state is Hidden else HiddenAndCell(h, torch.zeros_like(h))

    @abstractmethod
    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> CellState:
        """The next state, from the inputs' share of the gates and the state.

        `keep`: the sequence's dropout mask on h wherever it enters a recurrent product, but not where it is carried
        over (Gal & Ghahramani 2016, eq. 7).
        """

    def run(
        self,
        x: Float[Tensor, "B J G"],
        mask: Bool[Tensor, "B J"] | None = None,
        backward: bool = False,
        start: CellState | None = None,
        keep: Float[Tensor, "B D"] | None = None,
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """All outputs, read left to right or (backward) right to left, and the last state; x: the inputs' share.

        From a zero state unless `start` is given; without a mask every position is real. On padding the state stays
        as it is: the last output is that of a row's last real position (backward: of its first).
        """
        gates = x.unbind(1)
        real = None if mask is None else mask.unsqueeze(-1).unbind(1)
        state = self.start(x.new_zeros(x.shape[0], self.size)) if start is None else start
        outputs: list[Tensor] = []
        order = range(len(gates) - 1, -1, -1) if backward else range(len(gates))
        for j in order:
            new = self.step(gates[j], state, keep)
            if real is not None:
                kept = zip(new, state, strict=True)
                new = type(new)(*(torch.where(real[j], n, o.to(n.dtype)) for n, o in kept))
            state = new
            outputs.append(state.h)
        return torch.stack(outputs[::-1] if backward else outputs, dim=1), state

    def sequence(
        self,
        x: Float[Tensor, "B J E"],
        mask: Bool[Tensor, "B J"] | None = None,
        backward: bool = False,
        start: CellState | None = None,
        keep: Float[Tensor, "B D"] | None = None,
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """`run` from the inputs themselves, or by a chosen twin (`backend/twins.py`)."""
        if self.twin is not None:
            return self.twin(self, x, mask, backward, start, keep)
        return self.run(self.inputs(x), mask, backward, start, keep)


def kept(h: Tensor, keep: Tensor | None) -> Tensor:
    """What of h enters the recurrent products."""
    return h if keep is None else h * keep
