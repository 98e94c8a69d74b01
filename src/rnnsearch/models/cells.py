"""Recurrent cells, one class per equation, used by encoders, decoders and language models.

"The GRU" is several cells:

| name      | factor of the old state | the reset gate applies to  | source                                   |
|-----------|-------------------------|----------------------------|------------------------------------------|
| gru       | 1 - z                   | the state, before U        | Bahdanau et al. 2015, appendix A.1.1     |
| cho-gru   | z                       | the state, before U        | Cho et al. 2014, eq. 5-8                 |
| torch-gru | z                       | the product, after U       | PyTorch's `nn.GRU` (and cuDNN)           |

The decoder of Cho et al. has a fourth, with the context inside the reset: `decoders/cho.py`.

With layer normalisation, LN(a) = g * (a - mean(a)) / std(a) + b over the units of a vector:

| name            | normalised vectors                                                         | source              |
|-----------------|----------------------------------------------------------------------------|---------------------|
| layer-norm-gru  | W x and U h, each for the two gates together and for the candidate         | Ba et al. 2016      |
| layer-norm-lstm | W x and U h, each for all four blocks together; c before the output's tanh | Ba et al. 2016      |
| gate-norm-lstm  | the sum W x + U h of each gate separately; not c                           | after Chen et al.   |
| rnmt-lstm       | like gate-norm-lstm, and h' = o * c' without a tanh                        | Chen et al. 2018    |

A context that a decoder adds to the gate inputs is outside the norms of Ba et al.'s cells and inside those of the last
two, which normalise the sum. `ssru` (Kim et al. 2019) has no product with the state, which makes its step cheap.

A cell's `inputs` maps x to the part of the gates that depends only on x, with one matrix product for all positions;
`step` adds what depends on the state.

By default a checked equivalent (native or fused) of `sequence` runs, for exact classes (`accel/registry.py`); set
`RNNSEARCH_FAST=0` to debug the definition. An edited definition runs until its fast implementation is edited, too.

`accel/cell_steps.py` and `export/onnx_cells.py` have other versions of the equations. The order of the gates is part of
the checkpoint format. Tests: tests/models/test_cells.py against the loops in tests/models/reference.py.

Axes: B sentences, N rows (hypotheses), J positions, E input, D state, G = blocks * D gate inputs.
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
"""W x + b of all gates, from `Cell.inputs`; G = blocks * D."""
Units = Float[Tensor, "N D"]


class BiasOnly(Linear):
    """W x + b for an x of size 0: returns b."""

    def __init__(self, size: int) -> None:
        # Not that of Linear: the empty weight must not become a parameter.
        nn.Module.__init__(self)
        self.in_features, self.out_features = 0, size
        self.weight = torch.empty(size, 0)
        self.bias = parameter("bias", size)

    def forward(self, input: Float[Tensor, "N 0"]) -> Float[Tensor, "N G"]:
        return self.bias.expand(input.shape[0], -1)


class Cell(nn.Module, ABC):
    """A recurrent cell with `size` units over inputs of `inputs_size`; None if it only reads its state."""

    component: ClassVar[type[CellOptions]]
    """The declaration of the component, set by `@implements`."""
    blocks: ClassVar[int]
    """Number of gates and candidates; `inputs` returns `blocks * size` values."""
    state: ClassVar[type[Hidden] | type[HiddenAndCell]] = Hidden
    """Type of the state that is carried from one position to the next."""
    fast_forward: Callable[..., tuple[Tensor, CellState]] | None = None
    """Fast implementation of `sequence`, set by `accel/registry.py`."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__()
        self.size = size
        gates_size = self.blocks * size
        # W and b of all gates, stacked
        self.input = BiasOnly(gates_size) if inputs_size is None else Linear(inputs_size, gates_size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        """Return W x + b of every gate, the part that depends only on the inputs; G = blocks * size."""
        gates: Tensor = self.input(x)
        return gates

    def start(self, h: Float[Tensor, "N D"]) -> CellState:
        """Return the initial state with output h; the memory of a cell that has one is zero."""
        return Hidden(h) if self.state is Hidden else HiddenAndCell(h, torch.zeros_like(h))

    def step(self, x: GateInputs, state: CellState, recurrent_mask: Units | None = None) -> CellState:
        """Return the next state.

        Args:
            x: Gate inputs from `inputs`, and whatever else the caller adds.
            state: The previous state.
            recurrent_mask: Dropout mask of the sequence, applied to h in recurrent products, but not where h is carried
                over (Gal & Ghahramani 2016, eq. 7).
        """
        return self.next(x, apply_mask(state.h, recurrent_mask), state)

    @abstractmethod
    def next(self, x: GateInputs, h: Units, state: Any) -> CellState:
        """Return the next state; h is `state.h` with dropout, to be used in recurrent products."""

    def run(
        self,
        x: Float[Tensor, "B J G"],
        mask: Bool[Tensor, "B J"] | None = None,
        backward: bool = False,
        start: CellState | None = None,
        recurrent_mask: Float[Tensor, "B D"] | None = None,
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """Return all outputs and the last state, given the gate inputs x.

        Padding does not change the state: the last output is that of the last real position of a row (of the first one,
        if backward).

        Args:
            mask: True on real positions; None if all are.
            backward: Read from right to left.
            start: Initial state; None for zeros.
            recurrent_mask: See `step`.
        """
        x_j = x.unbind(1)  # J times [B, G]
        real = None if mask is None else mask.unsqueeze(-1).unbind(1)  # J times [B, 1]
        state = self.start(x.new_zeros(x.shape[0], self.size)) if start is None else start
        outputs: list[Tensor] = []
        order = range(len(x_j) - 1, -1, -1) if backward else range(len(x_j))
        for j in order:
            new = self.step(x_j[j], state, recurrent_mask)
            if real is not None:
                pairs = zip(new, state, strict=True)
                # On padding the state stays as it is. The initial state may be of another dtype than the cell's
                # (autocast).
                new = type(new)(*(torch.where(real[j], after, before.to(after.dtype)) for after, before in pairs))
            state = new
            outputs.append(state.h)
        return torch.stack(outputs[::-1] if backward else outputs, dim=1), state  # [B, J, D], in the order of x

    def sequence(
        self,
        x: Float[Tensor, "B J E"],
        mask: Bool[Tensor, "B J"] | None = None,
        backward: bool = False,
        start: CellState | None = None,
        recurrent_mask: Float[Tensor, "B D"] | None = None,
    ) -> tuple[Float[Tensor, "B J D"], CellState]:
        """Return all outputs and the last state, given the inputs x; see `run` for the arguments."""
        if self.fast_forward is not None:
            return self.fast_forward(self, x, mask, backward, start, recurrent_mask)
        return self.run(self.inputs(x), mask, backward, start, recurrent_mask)


def apply_mask(h: Tensor, mask: Tensor | None) -> Tensor:
    """Return h times a dropout mask, or h if there is none."""
    return h if mask is None else h * mask


class SingleProductCell(Cell):
    """A cell whose state enters through one product U h for all blocks."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, self.blocks * size, bias=False, role="recurrent")  # U of all blocks, stacked


@implements(TanhOptions)
class Tanh(SingleProductCell):
    """The simple recurrent cell h' = tanh(W x + b + U h)."""

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
        self.recurrent_gates = Linear(size, 2 * size, bias=False, role="recurrent")  # [U_z; U_r]
        self.recurrent = Linear(size, size, bias=False, role="recurrent")  # U

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        x_gates, x_candidate = x.split([2 * self.size, self.size], dim=-1)  # [N, 2 D], [N, D]
        z, r = torch.sigmoid(x_gates + self.recurrent_gates(h)).chunk(2, dim=-1)  # [N, D] each
        candidate = torch.tanh(x_candidate + self.recurrent(r * h))  # h~ [N, D]
        # state.h, not h: the old state is carried over without dropout (see `step`).
        return Hidden((1 - z) * state.h + z * candidate)


@implements(ChoGRUOptions)
class ChoGRU(GRU):
    """The hidden unit of Cho et al. 2014 (eq. 5-8): like `gru`, but z keeps the old state.

    h' = z * h + (1 - z) * h~.
    """

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        x_gates, x_candidate = x.split([2 * self.size, self.size], dim=-1)
        z, r = torch.sigmoid(x_gates + self.recurrent_gates(h)).chunk(2, dim=-1)
        candidate = torch.tanh(x_candidate + self.recurrent(r * h))
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
        self.recurrent = Linear(size, 3 * size, role="recurrent")  # [U_r; U_z; U], with biases like nn.GRU

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        sizes = [2 * self.size, self.size]
        x_gates, x_candidate = x.split(sizes, dim=-1)  # [N, 2 D], [N, D]
        h_gates, h_candidate = self.recurrent(h).split(sizes, dim=-1)
        r, z = torch.sigmoid(x_gates + h_gates).chunk(2, dim=-1)
        # The reset applies after the product, so that all three products with h are one.
        candidate = torch.tanh(x_candidate + r * h_candidate)
        return Hidden((1 - z) * candidate + z * state.h)


@implements(LSTMOptions)
class LSTM(SingleProductCell):
    """Long short-term memory (tutorial, part 2b; Gers et al. 2000, no peepholes); gates i, f, o, candidate.

    c' = f * c + i * tanh(W_c x + U_c h),  h' = o * tanh(c').
    """

    blocks = 4
    state = HiddenAndCell

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        i, f, o, candidate = (x + self.recurrent(h)).chunk(4, dim=-1)  # [N, D] each
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c), c)


LAYER_NORM_EPSILON = 1e-5  # added to the variance


class LayerNorm(nn.Module):
    """LN over the last axis, in fp32 or wider, with gain g and an optional bias b."""

    def __init__(self, size: int, bias: bool = True) -> None:
        super().__init__()
        self.gain = parameter(1.0, size)  # g
        self.bias = parameter(0.0, size) if bias else None  # b

    def forward(self, a: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        # Mean and variance of bf16 values would have 8 significant bits.
        return nn.functional.layer_norm(at_least_fp32(a), self.gain.shape, self.gain, self.bias, LAYER_NORM_EPSILON)


def input_norm(inputs_size: int | None, size: int) -> nn.Module:
    """Return the norm of W x; a cell without inputs has a bias there, which is not normalised."""
    return nn.Identity() if inputs_size is None else LayerNorm(size)


class NormalisedCell(SingleProductCell):
    """A cell whose biases are those of its norms: W and U have none."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        if inputs_size is not None:
            self.input = Linear(inputs_size, self.blocks * size, bias=False)  # W of all blocks, stacked


@implements(LayerNormGRUOptions)
class LayerNormGRU(NormalisedCell):
    """The layer-normalised GRU (Ba et al. 2016, supplement, eq. 23-25); gates in the order z, r, candidate.

    (z, r) = sigma(LN(U_g h) + LN(W_g x)),  h~ = tanh(LN(W x) + r * LN(U h)),  h' = (1 - z) * h + z * h~.

    LN(U_g h) has no bias, because it would only be added to that of LN(W_g x).
    """

    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input_gates = input_norm(inputs_size, 2 * size)
        self.norm_input = input_norm(inputs_size, size)
        self.norm_gates = LayerNorm(2 * size, bias=False)
        self.norm = LayerNorm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        # The norms of W x do not depend on the state, so they are applied to all positions at once.
        gates, candidate = self.input(x).split([2 * self.size, self.size], dim=-1)
        return torch.cat([self.norm_input_gates(gates), self.norm_input(candidate)], dim=-1)

    def next(self, x: GateInputs, h: Units, state: Hidden) -> Hidden:
        sizes = [2 * self.size, self.size]
        x_gates, x_candidate = x.split(sizes, dim=-1)
        h_gates, h_candidate = self.recurrent(h).split(sizes, dim=-1)
        # x has been normalised by `inputs`; only the products with the state remain.
        z, r = torch.sigmoid(x_gates + self.norm_gates(h_gates)).chunk(2, dim=-1)
        candidate = torch.tanh(x_candidate + r * self.norm(h_candidate))
        return Hidden((1 - z) * state.h + z * candidate)


@implements(LayerNormLSTMOptions)
class LayerNormLSTM(NormalisedCell):
    """The layer-normalised LSTM (Ba et al. 2016, supplement, eq. 20-22); gates in the order i, f, o, candidate.

    (i, f, o, c~) = LN(U h) + LN(W x),  c' = sigma(f) * c + sigma(i) * tanh(c~),  h' = sigma(o) * tanh(LN(c')).

    LN(W x) has the only bias of the gates: others would only be added to it.
    """

    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input = input_norm(inputs_size, 4 * size)
        self.norm = LayerNorm(4 * size, bias=False)
        self.norm_cell = LayerNorm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        gates: Tensor = self.norm_input(self.input(x))
        return gates

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        i, f, o, candidate = (x + self.norm(self.recurrent(h))).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        # Only the output reads the normalised c; the memory itself is carried over without a norm.
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(self.norm_cell(c)), c)


@implements(GateNormLSTMOptions)
class GateNormLSTM(NormalisedCell):
    """The LSTM with "per-gate layer normalization" (Chen et al. 2018, section 3); gates i, f, o, candidate.

    i = sigma(LN(W_i x + U_i h)), likewise f and o;  c' = f * c + i * tanh(LN(W_c x + U_c h));  h' = o * tanh(c').
    """

    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norms = nn.ModuleList(LayerNorm(size) for _ in range(4))

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        # The norm is over the sum with U h, so that it cannot be applied in `inputs`.
        blocks = (x + self.recurrent(h)).chunk(4, dim=-1)  # [N, D] each
        i, f, o, candidate = (norm(block) for norm, block in zip(self.norms, blocks, strict=True))
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * self.output_activation(c), c)

    @staticmethod
    def output_activation(c: Units) -> Units:
        """Return the vector that the output gate is applied to."""
        return torch.tanh(c)


@implements(RNMTLSTMOptions)
class RNMTLSTM(GateNormLSTM):
    """The LSTM of RNMT+ as its authors train it: like `gate-norm-lstm`, but h' = o * c' without a tanh.

    Chen et al. 2018; the published code has `output_nonlinearity = False`.
    """

    @staticmethod
    def output_activation(c: Units) -> Units:
        return c


@implements(SSRUOptions)
class SSRU(Cell):
    """The simpler simple recurrent unit (Kim et al. 2019, "From research to production and back"); f, candidate.

    f = sigma(W_f x + b_f),  c' = f * c + (1 - f) * (W x + b),  h' = max(0, c').

    The paper's W x has no b, but a cell without inputs needs it.
    """

    blocks = 2
    state = CellOnly

    def start(self, h: Float[Tensor, "N D"]) -> CellOnly:
        # c_0 = h: nothing else of the initial state is read by `next`.
        return CellOnly(h, h)

    def next(self, x: GateInputs, h: Units, state: CellOnly) -> CellOnly:
        f, candidate = x.chunk(2, dim=-1)  # [N, D] each; h is not read
        f = torch.sigmoid(f)
        c = f * state.c + (1 - f) * candidate
        return CellOnly(torch.relu(c), c)


CELLS: Implementations[type[Cell]] = Implementations(cells.CELLS)
"""Class by `cell` of `[model.encoder]`, `[model.decoder]` or `[model.network]`; names are stored in model folders."""
