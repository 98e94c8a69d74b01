"""The decoder of Cho et al. 2014 (appendix A), with its own cell: the context stands inside the reset."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import ChoOptions
from rnnsearch.models.cell import kept
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.draws import Draws, state_mask
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Memory


class ChoState(NamedTuple):
    """h: the decoder state h' [N, D]; context: c [N, H]; share: C c of z, r and candidate [N, 3 D]; keep: [N, D],
    the sequence's dropout mask on the h that is fed back, None without."""

    h: Tensor
    context: Tensor
    share: Tensor
    keep: Tensor | None = None


class Cho(Decoder):
    """c = tanh(V h_Tx);  h_0 = tanh(V' c);  and, with E y the embedded previous word,

    z = sigma(W_z E y + U_z h + C_z c),  r = sigma(W_r E y + U_r h + C_r c),
    h~ = tanh(W E y + r * (U h + C c)),  h' = z * h + (1 - z) * h~;  the maxout output reads the NEW h'.
    """

    name = "cho"
    attends = False

    def __init__(self, embedding: int, summary: int, size: int, maxout: int, state_dropout: float = 0.0) -> None:
        super().__init__()
        self.size = size
        self.summary = Linear(summary, size)
        """V."""
        self.initial = Linear(size, size)
        """V'."""
        self.word = Linear(embedding, 3 * size)
        """W_z, W_r, W and the biases."""
        self.recurrent = Linear(size, 3 * size, bias=False, role="recurrent")
        """U_z, U_r, U."""
        self.context = Linear(size, 3 * size, bias=False)
        """C_z, C_r, C."""
        self.deep_output = DeepOutput(size, embedding, size, maxout)
        self.readout_size = maxout
        self.state_dropout = state_dropout

    @classmethod
    def make(cls, options: ChoOptions, model: ModelConfig, encoder: Encoder) -> Cho:
        sizes = (model.embedding, encoder.summary_size, options.size, options.maxout)
        return cls(*sizes, model.dropout.state)

    def start(self, memory: Memory, draws: Draws | None = None, steps: int = 0) -> ChoState:
        c = torch.tanh(self.summary(memory.summary))
        h_0 = torch.tanh(self.initial(c))
        return ChoState(h_0, c, self.context(c), state_mask(self.size, h_0, self.state_dropout, draws))

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: ChoState, memory: Memory) -> tuple[ChoState, Reading]:
        D = self.size
        fed_back = self.recurrent(kept(state.h, state.keep)) + state.share
        z, r = torch.sigmoid(x[:, : 2 * D] + fed_back[:, : 2 * D]).chunk(2, dim=-1)
        candidate = torch.tanh(x[:, 2 * D :] + r * fed_back[:, 2 * D :])
        h = z * state.h + (1 - z) * candidate
        return state._replace(h=h), Reading(state=h, context=state.context, alpha=None)

    def readout(self, y_prev: Float[Tensor, "*rows E"], reading: Reading) -> Float[Tensor, "*rows R"]:
        t: Tensor = self.deep_output(reading.state, y_prev, reading.context)
        return t
