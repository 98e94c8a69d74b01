"""Recurrent cells, one class an equation. "The GRU" is several cells; they differ so:

| name      | old state is carried by | reset acts on              | source                                   |
|-----------|-------------------------|----------------------------|------------------------------------------|
| gru       | 1 - z                   | the state, before U        | Bahdanau et al. 2015, appendix A.1.1     |
| cho-gru   | z                       | the state, before U        | Cho et al. 2014, eq. 5-8                 |
| torch-gru | z                       | the product, after U       | PyTorch's `nn.GRU` (and cuDNN)           |

Cho et al.'s decoder has one more, with the context inside the reset: `decoders/cho.py`.

A cell is split so that what depends on the inputs alone is one matrix product for all positions:
`inputs` maps x to its share of all gates, `step` adds what the state feeds back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rnnsearch.models.fused.gru_sequence import gru_sequence
from rnnsearch.models.initialise import Init, linear
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell


class Cell(nn.Module, ABC):
    """A recurrent cell of `size` units over inputs of `inputs_size` numbers.

    The share of the inputs in all gates, W x + b, has `blocks` times `size` numbers.
    """

    name: ClassVar[str]
    blocks: ClassVar[int]

    def __init__(self, inputs_size: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.input = nn.Linear(inputs_size, self.blocks * size)
        """W and b of every gate, one block below the other."""

    def initialise(self, init: Init) -> None:
        """Draw the parameters."""
        linear(init, self.input)
        for name, weight in self.named_parameters():
            if name.startswith("recurrent"):
                init.recurrent(weight) if weight.ndim == 2 else init.bias(weight)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """W x + b of every gate, G = blocks * size: the part that depends on the inputs alone."""
        projected: Tensor = self.input(x)
        return projected

    def start(self, h: Float[Tensor, "N D"]) -> CellState:
        """The state whose output is h."""
        return Hidden(h)

    @abstractmethod
    def step(self, x: Float[Tensor, "N G"], state: CellState) -> CellState:
        """The next state, from the inputs' share of the gates and the state."""

    def sequence(
        self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], backward: bool = False
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """All outputs from a zero state, read left to right or (backward) right to left, and the last state.

        On padding the state stays as it is: the last output is that of a row's last real position
        (backward: of its first).
        """
        gates = self.inputs(x).unbind(1)
        real = mask.unsqueeze(-1).unbind(1)
        state = self.start(x.new_zeros(x.shape[0], self.size))
        outputs: list[Tensor] = []
        order = range(len(gates) - 1, -1, -1) if backward else range(len(gates))
        for j in order:
            new = self.step(gates[j], state)
            state = type(state)(*(torch.where(real[j], n, o.to(n.dtype)) for n, o in zip(new, state, strict=True)))
            outputs.append(state.h)
        return torch.stack(outputs[::-1] if backward else outputs, dim=1), state


class Tanh(Cell):
    """The plain recurrent cell: h' = tanh(W x + b + U h)."""

    name = "tanh"
    blocks = 1

    def __init__(self, inputs_size: int, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = nn.Linear(size, size, bias=False)

    def step(self, x: Float[Tensor, "N G"], state: CellState) -> Hidden:
        return Hidden(torch.tanh(x + self.recurrent(state.h)))


class GRU(Cell):
    """The GRU of Bahdanau et al. 2015 (appendix A.1.1); gates in the order z, r, candidate.

    z = sigma(W_z x + U_z h),  r = sigma(W_r x + U_r h),  h~ = tanh(W x + U [r * h]),
    h' = (1 - z) * h + z * h~.
    """

    name = "gru"
    blocks = 3

    def __init__(self, inputs_size: int, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent_gates = nn.Linear(size, 2 * size, bias=False)
        """U_z above U_r."""
        self.recurrent = nn.Linear(size, size, bias=False)
        """U."""

    def _gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        D = self.size
        z, r = torch.sigmoid(x[:, : 2 * D] + self.recurrent_gates(h)).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + self.recurrent(r * h))
        return z, candidate

    def step(self, x: Float[Tensor, "N G"], state: CellState) -> Hidden:
        z, candidate = self._gates(x, state.h)
        return Hidden((1 - z) * state.h + z * candidate)

    def sequence(
        self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], backward: bool = False
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """The fast twin of the plain loop in `Cell.sequence`."""
        weights = (self.recurrent_gates.weight, self.recurrent.weight)
        outputs, last = gru_sequence(self.inputs(x), mask, *weights, backward)
        return outputs, Hidden(last)


class ChoGRU(GRU):
    """The hidden unit of Cho et al. 2014 (eq. 5-8): as `gru`, but z carries the OLD state:
    h' = z * h + (1 - z) * h~."""

    name = "cho-gru"
    sequence = Cell.sequence

    def step(self, x: Float[Tensor, "N G"], state: CellState) -> Hidden:
        z, candidate = self._gates(x, state.h)
        return Hidden(z * state.h + (1 - z) * candidate)


class TorchGRU(Cell):
    """PyTorch's `nn.GRU`, whose whole sequence is one fused call; gates in its order r, z, candidate.

    r = sigma(W_r x + U_r h),  z = sigma(W_z x + U_z h),  h~ = tanh(W x + r * (U h + b_U)),
    h' = (1 - z) * h~ + z * h.
    """

    name = "torch-gru"
    blocks = 3

    def __init__(self, inputs_size: int, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = nn.Linear(size, 3 * size)

    def step(self, x: Float[Tensor, "N G"], state: CellState) -> Hidden:
        D = self.size
        fed_back = self.recurrent(state.h)
        r, z = torch.sigmoid(x[:, : 2 * D] + fed_back[:, : 2 * D]).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * fed_back[:, 2 * D :])
        return Hidden((1 - z) * candidate + z * state.h)

    def sequence(
        self, x: Float[Tensor, "B J E"], mask: Bool[Tensor, "B J"], backward: bool = False
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """The library's fused recurrence: the twin of the plain loop in `Cell.sequence`."""
        lengths = mask.sum(1)
        if backward:
            x = _reverse(x, lengths)
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        weights = (self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias)
        start = x.new_zeros(1, x.shape[0], self.size)
        data, last = torch._VF.gru(  # type: ignore[attr-defined]
            packed.data, packed.batch_sizes, start, weights, True, 1, 0.0, self.training, False
        )
        restored = packed._replace(data=data)
        outputs, _ = pad_packed_sequence(restored, batch_first=True, total_length=x.shape[1])
        assert packed.unsorted_indices is not None  # because enforce_sorted is False
        last = last[0].index_select(0, packed.unsorted_indices)
        return (_reverse(outputs, lengths) if backward else outputs), Hidden(last)


class LSTM(Cell):
    """Long short-term memory (tutorial, part 2b; Gers et al. 2000, no peepholes); gates i, f, o, candidate.

    c' = f * c + i * tanh(W_c x + U_c h),  h' = o * tanh(c').
    """

    name = "lstm"
    blocks = 4

    def __init__(self, inputs_size: int, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = nn.Linear(size, 4 * size, bias=False)

    def start(self, h: Float[Tensor, "N D"]) -> HiddenAndCell:
        """The state whose output is h, with an empty memory."""
        return HiddenAndCell(h, torch.zeros_like(h))

    def step(self, x: Float[Tensor, "N G"], state: CellState) -> HiddenAndCell:
        assert isinstance(state, HiddenAndCell)
        i, f, o, candidate = (x + self.recurrent(state.h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c), c)


def _reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """The real positions of x [B, J, ...] in reverse order, padding left where it is."""
    positions = torch.arange(x.shape[1], device=x.device)[None, :]
    index = torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    return x.gather(1, index[:, :, None].expand_as(x))


CELLS: dict[str, type[Cell]] = {c.name: c for c in (GRU, ChoGRU, TorchGRU, LSTM, Tanh)}
