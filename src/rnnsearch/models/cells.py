"""Recurrent cells, one class an equation. "The GRU" is several cells; they differ so:

| name      | old state is carried by | reset acts on              | source                                   |
|-----------|-------------------------|----------------------------|------------------------------------------|
| gru       | 1 - z                   | the state, before U        | Bahdanau et al. 2015, appendix A.1.1     |
| cho-gru   | z                       | the state, before U        | Cho et al. 2014, eq. 5-8                 |
| torch-gru | z                       | the product, after U       | PyTorch's `nn.GRU` (and cuDNN)           |

Cho et al.'s decoder has one more, with the context inside the reset: `decoders/cho.py`.

With layer normalisation, LN(a) = g * (a - mean(a)) / std(a) + b over a vector's numbers:

| name            | what is normalised                                                        | source              |
|-----------------|---------------------------------------------------------------------------|---------------------|
| layer-norm-gru  | W x and U h, each for the two gates together and for the candidate        | Ba et al. 2016      |
| layer-norm-lstm | W x and U h, each for all four blocks together; c before the output's tanh | Ba et al. 2016      |
| gate-norm-lstm  | the sum W x + U h of each gate by itself; c is not                        | after Chen et al.   |
| rnmt-lstm       | the same, and h' = o * c' without a tanh                                  | Chen et al. 2018    |

Without any product of the state: ssru (Kim et al. 2019), whose step costs next to nothing.

What a decoder adds to the inputs' share (its context's product) stands outside the norms of Ba et al.'s cells and
inside those of the last two, which are taken of the sum.

A cell is split so that what depends on the inputs alone is one matrix product for all positions: `inputs` maps x to its
share of all gates, `step` adds what the state feeds back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.config import cells
from rnnsearch.config.cells import (
    CellOptions,
    ChoGRUOptions,
    GateNormLSTMOptions,
    GRUOptions,
    LayerNormGRUOptions,
    LayerNormLSTMOptions,
    LSTMOptions,
    RNMTLSTMOptions,
    SSRUOptions,
    TanhOptions,
    TorchGRUOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import CellOnly, CellState, Hidden, HiddenAndCell
from rnnsearch.utils.tensors import at_least_fp32

GateInputs = Float[Tensor, "N G"]
Units = Float[Tensor, "N D"]


class BiasOnly(Linear):
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

    component: ClassVar[type[CellOptions]]
    """The declaration of the component, set by `@implements`."""
    blocks: ClassVar[int]
    state: ClassVar[type[Hidden] | type[HiddenAndCell]] = Hidden
    """What it carries from one position to the next."""
    fast_forward: Callable[..., tuple[Tensor, CellState]] | None = None

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__()
        self.size = size
        blocks = self.blocks * size
        self.input = BiasOnly(blocks) if inputs_size is None else Linear(inputs_size, blocks)
        """W and b of every gate, one block below the other."""

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """W x + b of every gate, G = blocks * size: the part that depends on the inputs alone."""
        projected: Tensor = self.input(x)
        return projected

    def start(self, h: Float[Tensor, "N D"]) -> CellState:
        """The state whose output is h, with an empty memory in a cell that has one."""
        return Hidden(h) if self.state is Hidden else HiddenAndCell(h, torch.zeros_like(h))

    def step(self, x: GateInputs, state: CellState, keep: Units | None = None) -> CellState:
        """The next state, from the inputs' share of the gates and the state.

        `keep`: the sequence's dropout mask on h wherever it enters a recurrent product, but not where it is carried
        over (Gal & Ghahramani 2016, eq. 7).
        """
        return self.next(x, apply_mask(state.h, keep), state)

    @abstractmethod
    def next(self, x: GateInputs, h: Units, state: Any) -> CellState:
        """The equations of `step`; h: what of state.h enters the recurrent products."""

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
        """`run` from the inputs themselves, or by a chosen twin (`accel/registry.py`)."""
        if self.fast_forward is not None:
            return self.fast_forward(self, x, mask, backward, start, keep)
        return self.run(self.inputs(x), mask, backward, start, keep)


def apply_mask(h: Tensor, keep: Tensor | None) -> Tensor:
    """What of h enters the recurrent products."""
    return h if keep is None else h * keep


LAYER_NORM_EPSILON = 1e-5
"""Added to the variance that layer normalisation divides by."""


class SingleProductCell(Cell):
    """A cell whose state enters by one product U h of all blocks."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, self.blocks * size, bias=False, role="recurrent")
        """U of every block, one below the other."""


@implements(TanhOptions)
class Tanh(SingleProductCell):
    """The plain recurrent cell: h' = tanh(W x + b + U h)."""

    blocks = 1

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        return Hidden(torch.tanh(x + self.recurrent(h)))


@implements(GRUOptions)
class GRU(Cell):
    """The GRU of Bahdanau et al. 2015 (appendix A.1.1); gates in the order z, r, candidate.

    z = sigma(W_z x + U_z h),  r = sigma(W_r x + U_r h),  h~ = tanh(W x + U [r * h]),
    h' = (1 - z) * h + z * h~.
    """

    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent_gates = Linear(size, 2 * size, bias=False, role="recurrent")
        """U_z above U_r."""
        self.recurrent = Linear(size, size, bias=False, role="recurrent")
        """U."""

    def _gates(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        D = self.size
        z, r = torch.sigmoid(x[:, : 2 * D] + self.recurrent_gates(h)).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + self.recurrent(r * h))
        return z, candidate

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        z, candidate = self._gates(x, h)
        return Hidden((1 - z) * state.h + z * candidate)


@implements(ChoGRUOptions)
class ChoGRU(GRU):
    """The hidden unit of Cho et al. 2014 (eq. 5-8): as `gru`, but z carries the OLD state:
    h' = z * h + (1 - z) * h~."""

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        z, candidate = self._gates(x, h)
        return Hidden(z * state.h + (1 - z) * candidate)


@implements(TorchGRUOptions)
class TorchGRU(Cell):
    """PyTorch's `nn.GRU`; gates in its order r, z, candidate.

    r = sigma(W_r x + U_r h),  z = sigma(W_z x + U_z h),  h~ = tanh(W x + r * (U h + b_U)),
    h' = (1 - z) * h~ + z * h.
    """

    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, 3 * size, role="recurrent")

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        D = self.size
        fed_back = self.recurrent(h)
        r, z = torch.sigmoid(x[:, : 2 * D] + fed_back[:, : 2 * D]).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * fed_back[:, 2 * D :])
        return Hidden((1 - z) * candidate + z * state.h)


@implements(LSTMOptions)
class LSTM(SingleProductCell):
    """Long short-term memory (tutorial, part 2b; Gers et al. 2000, no peepholes); gates i, f, o, candidate.

    c' = f * c + i * tanh(W_c x + U_c h),  h' = o * tanh(c').
    """

    blocks = 4
    state = HiddenAndCell

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        i, f, o, candidate = (x + self.recurrent(h)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c), c)


class LayerNorm(nn.Module):
    """LN over the last axis, in fp32 at least; with a bias b where asked, else b = 0."""

    def __init__(self, size: int, bias: bool = True) -> None:
        super().__init__()
        self.gain = parameter(1.0, size)
        """g."""
        self.bias = parameter(0.0, size) if bias else None
        """b."""

    def forward(self, a: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """LN(a)."""
        return nn.functional.layer_norm(at_least_fp32(a), self.gain.shape, self.gain, self.bias, LAYER_NORM_EPSILON)


def input_norm(inputs_size: int | None, size: int) -> nn.Module:
    """The norm of W x; a cell without inputs has a bias in its place."""
    return nn.Identity() if inputs_size is None else LayerNorm(size)


class NormalisedCell(SingleProductCell):
    """A cell whose biases are those of its norms: W and U have none."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        if inputs_size is not None:
            self.input = Linear(inputs_size, self.blocks * size, bias=False)
        """W of every block."""


@implements(LayerNormGRUOptions)
class LayerNormGRU(NormalisedCell):
    """The layer-normalised GRU (Ba et al. 2016, supplement, eq. 23-25); gates in the order z, r, candidate.

    (z, r) = sigma(LN(U_g h) + LN(W_g x)),  h~ = tanh(LN(W x) + r * LN(U h)),  h' = (1 - z) * h + z * h~.

    Two biases that only add up are one: LN(U_g h) has none.
    """

    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input_gates = input_norm(inputs_size, 2 * size)
        self.norm_input = input_norm(inputs_size, size)
        self.norm_gates = LayerNorm(2 * size, bias=False)
        self.norm = LayerNorm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        gates, candidate = self.input(x).split([2 * self.size, self.size], dim=-1)
        return torch.cat([self.norm_input_gates(gates), self.norm_input(candidate)], dim=-1)

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        D = self.size
        gates, fed_back = self.recurrent(h).split([2 * D, D], dim=-1)
        z, r = torch.sigmoid(x[:, : 2 * D] + self.norm_gates(gates)).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * self.norm(fed_back))
        return Hidden((1 - z) * state.h + z * candidate)


@implements(LayerNormLSTMOptions)
class LayerNormLSTM(NormalisedCell):
    """The layer-normalised LSTM (Ba et al. 2016, supplement, eq. 20-22); gates in the order i, f, o, candidate.

    (i, f, o, c~) = LN(U h) + LN(W x),  c' = sigma(f) * c + sigma(i) * tanh(c~),  h' = sigma(o) * tanh(LN(c')).

    Biases that only add up are one: LN(U h) has none, nor have the gates besides LN(W x)'s.
    """

    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input = input_norm(inputs_size, 4 * size)
        self.norm = LayerNorm(4 * size, bias=False)
        self.norm_cell = LayerNorm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        share: Tensor = self.norm_input(self.input(x))
        return share

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        i, f, o, candidate = (x + self.norm(self.recurrent(h))).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(self.norm_cell(c)), c)


@implements(GateNormLSTMOptions)
class GateNormLSTM(NormalisedCell):
    """The LSTM with "per-gate layer normalization" (Chen et al. 2018, section 3); gates i, f, o, candidate.

    i = sigma(LN(W_i x + U_i h)), f and o alike,  c' = f * c + i * tanh(LN(W_c x + U_c h)),  h' = o * tanh(c').
    """

    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norms = nn.ModuleList(LayerNorm(size) for _ in range(4))

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        blocks = (x + self.recurrent(h)).chunk(4, dim=-1)
        i, f, o, candidate = (norm(block) for norm, block in zip(self.norms, blocks, strict=True))
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * self.output_activation(c), c)

    @staticmethod
    def output_activation(c: Units) -> Units:
        """What the output gate lets through."""
        return torch.tanh(c)


@implements(RNMTLSTMOptions)
class RNMTLSTM(GateNormLSTM):
    """The LSTM of RNMT+ as its authors train it: as `gate-norm-lstm`, but without a non-linearity on the output,
    h' = o * c' (Chen et al. 2018; its published code, `output_nonlinearity = False`)."""

    @staticmethod
    def read(c: Units) -> Units:
        return c


@implements(SSRUOptions)
class SSRU(Cell):
    """The simpler simple recurrent unit (Kim et al. 2019, "From research to production and back"); f, candidate.

    f = sigma(W_f x + b_f),  c' = f * c + (1 - f) * (W x + b),  h' = max(0, c').

    The paper's W x has no b; without inputs nothing would be left of it.
    """

    blocks = 2
    state = CellOnly

    def start(self, h: Float[Tensor, "N D"]) -> CellOnly:
        return CellOnly(h, h)

    def next(self, x: GateInputs, h: Units, state: CellOnly) -> CellOnly:
        f, candidate = x.chunk(2, dim=-1)
        f = torch.sigmoid(f)
        c = f * state.c + (1 - f) * candidate
        return CellOnly(torch.relu(c), c)


CELLS: Implementations[type[Cell]] = Implementations(cells.CELLS)
