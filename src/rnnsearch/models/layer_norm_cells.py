"""Recurrent cells with layer normalisation: LN(a) = g * (a - mean(a)) / std(a) + b over a vector's numbers.

| name            | what is normalised                                                        | source              |
|-----------------|---------------------------------------------------------------------------|---------------------|
| layer-norm-gru  | W x and U h, each for the two gates together and for the candidate        | Ba et al. 2016      |
| layer-norm-lstm | W x and U h, each for all four blocks together; c before the output's tanh | Ba et al. 2016      |
| gate-norm-lstm  | the sum W x + U h of each gate by itself; c is not                        | Chen et al. 2018    |

What a decoder adds to the inputs' share (its context's product) stands outside the norms of Ba et al.'s cells and
inside those of `gate-norm-lstm`, which are taken of the sum.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.cell import Cell, kept
from rnnsearch.models.initialise import parameter
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell
from rnnsearch.tensors import at_least_fp32

EPSILON = 1e-5
"""Added to the variance."""


class Norm(nn.Module):
    """LN over the last axis, in fp32 at least; with a bias b where asked, else b = 0."""

    def __init__(self, size: int, bias: bool = True) -> None:
        super().__init__()
        self.gain = parameter(1.0, size)
        """g."""
        self.bias = parameter(0.0, size) if bias else None
        """b."""

    def forward(self, a: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """LN(a)."""
        return nn.functional.layer_norm(at_least_fp32(a), self.gain.shape, self.gain, self.bias, EPSILON)


def input_norm(inputs_size: int | None, size: int) -> nn.Module:
    """The norm of W x; a cell without inputs has a bias in its place."""
    return nn.Identity() if inputs_size is None else Norm(size)


class NormedCell(Cell):
    """A cell whose biases are those of its norms: W and U have none."""

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        if inputs_size is not None:
            self.input = Linear(inputs_size, self.blocks * size, bias=False)
        """W of every block."""
        self.recurrent = Linear(size, self.blocks * size, bias=False, role="recurrent")
        """U of every block."""


class LayerNormGRU(NormedCell):
    """The layer-normalised GRU (Ba et al. 2016, supplement, eq. 23-25); gates in the order z, r, candidate.

    (z, r) = sigma(LN(U_g h) + LN(W_g x)),  h~ = tanh(LN(W x) + r * LN(U h)),  h' = (1 - z) * h + z * h~.

    Two biases that only add up are one: LN(U_g h) has none.
    """

    name = "layer-norm-gru"
    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input_gates = input_norm(inputs_size, 2 * size)
        self.norm_input = input_norm(inputs_size, size)
        self.norm_gates = Norm(2 * size, bias=False)
        self.norm = Norm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        gates, candidate = self.input(x).split([2 * self.size, self.size], dim=-1)
        return torch.cat([self.norm_input_gates(gates), self.norm_input(candidate)], dim=-1)

    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> Hidden:
        D = self.size
        gates, fed_back = self.recurrent(kept(state.h, keep)).split([2 * D, D], dim=-1)
        z, r = torch.sigmoid(x[:, : 2 * D] + self.norm_gates(gates)).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * self.norm(fed_back))
        return Hidden((1 - z) * state.h + z * candidate)


class LayerNormLSTM(NormedCell):
    """The layer-normalised LSTM (Ba et al. 2016, supplement, eq. 20-22); gates in the order i, f, o, candidate.

    (i, f, o, c~) = LN(U h) + LN(W x),  c' = sigma(f) * c + sigma(i) * tanh(c~),  h' = sigma(o) * tanh(LN(c')).

    Biases that only add up are one: LN(U h) has none, nor have the gates besides LN(W x)'s.
    """

    name = "layer-norm-lstm"
    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norm_input = input_norm(inputs_size, 4 * size)
        self.norm = Norm(4 * size, bias=False)
        self.norm_cell = Norm(size)

    def inputs(self, x: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        share: Tensor = self.norm_input(self.input(x))
        return share

    def step(
        self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None
    ) -> HiddenAndCell:
        assert isinstance(state, HiddenAndCell)
        i, f, o, candidate = (x + self.norm(self.recurrent(kept(state.h, keep)))).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(self.norm_cell(c)), c)


class GateNormLSTM(NormedCell):
    """The LSTM of RNMT+, with "per-gate layer normalization" (Chen et al. 2018, section 3); gates i, f, o, candidate.

    i = sigma(LN(W_i x + U_i h)), f and o alike,  c' = f * c + i * tanh(LN(W_c x + U_c h)),  h' = o * tanh(c').
    """

    name = "gate-norm-lstm"
    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.norms = nn.ModuleList(Norm(size) for _ in range(4))

    def step(
        self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None
    ) -> HiddenAndCell:
        assert isinstance(state, HiddenAndCell)
        blocks = (x + self.recurrent(kept(state.h, keep))).chunk(4, dim=-1)
        i, f, o, candidate = (norm(block) for norm, block in zip(self.norms, blocks, strict=True))
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c), c)
