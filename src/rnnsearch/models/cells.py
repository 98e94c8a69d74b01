"""Recurrent cells, one class an equation. "The GRU" is several cells; they differ so:

| name      | old state is carried by | reset acts on              | source                                   |
|-----------|-------------------------|----------------------------|------------------------------------------|
| gru       | 1 - z                   | the state, before U        | Bahdanau et al. 2015, appendix A.1.1     |
| cho-gru   | z                       | the state, before U        | Cho et al. 2014, eq. 5-8                 |
| torch-gru | z                       | the product, after U       | PyTorch's `nn.GRU` (and cuDNN)           |

Cho et al.'s decoder has one more, with the context inside the reset: `decoders/cho.py`.

Those with layer normalisation: `layer_norm_cells.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.models.cell import Cell, kept
from rnnsearch.models.layer_norm_cells import GateNormLSTM, LayerNormGRU, LayerNormLSTM
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell


class Tanh(Cell):
    """The plain recurrent cell: h' = tanh(W x + b + U h)."""

    name = "tanh"
    blocks = 1

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, size, bias=False, role="recurrent")

    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> Hidden:
        return Hidden(torch.tanh(x + self.recurrent(kept(state.h, keep))))


class GRU(Cell):
    """The GRU of Bahdanau et al. 2015 (appendix A.1.1); gates in the order z, r, candidate.

    z = sigma(W_z x + U_z h),  r = sigma(W_r x + U_r h),  h~ = tanh(W x + U [r * h]),
    h' = (1 - z) * h + z * h~.
    """

    name = "gru"
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

    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> Hidden:
        z, candidate = self._gates(x, kept(state.h, keep))
        return Hidden((1 - z) * state.h + z * candidate)


class ChoGRU(GRU):
    """The hidden unit of Cho et al. 2014 (eq. 5-8): as `gru`, but z carries the OLD state:
    h' = z * h + (1 - z) * h~."""

    name = "cho-gru"

    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> Hidden:
        z, candidate = self._gates(x, kept(state.h, keep))
        return Hidden(z * state.h + (1 - z) * candidate)


class TorchGRU(Cell):
    """PyTorch's `nn.GRU`; gates in its order r, z, candidate.

    r = sigma(W_r x + U_r h),  z = sigma(W_z x + U_z h),  h~ = tanh(W x + r * (U h + b_U)),
    h' = (1 - z) * h~ + z * h.
    """

    name = "torch-gru"
    blocks = 3

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, 3 * size, role="recurrent")

    def step(self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None) -> Hidden:
        D = self.size
        fed_back = self.recurrent(kept(state.h, keep))
        r, z = torch.sigmoid(x[:, : 2 * D] + fed_back[:, : 2 * D]).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * fed_back[:, 2 * D :])
        return Hidden((1 - z) * candidate + z * state.h)


class LSTM(Cell):
    """Long short-term memory (tutorial, part 2b; Gers et al. 2000, no peepholes); gates i, f, o, candidate.

    c' = f * c + i * tanh(W_c x + U_c h),  h' = o * tanh(c').
    """

    name = "lstm"
    blocks = 4
    state = HiddenAndCell

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.recurrent = Linear(size, 4 * size, bias=False, role="recurrent")

    def step(
        self, x: Float[Tensor, "N G"], state: CellState, keep: Float[Tensor, "N D"] | None = None
    ) -> HiddenAndCell:
        assert isinstance(state, HiddenAndCell)
        i, f, o, candidate = (x + self.recurrent(kept(state.h, keep))).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c), c)


CELLS: dict[str, type[Cell]] = {
    c.name: c for c in (GRU, ChoGRU, TorchGRU, LSTM, Tanh, LayerNormGRU, LayerNormLSTM, GateNormLSTM)
}

__all__ = ["CELLS", "GRU", "LSTM", "Cell", "ChoGRU", "Hidden", "HiddenAndCell", "Tanh", "TorchGRU", "kept"]
