"""The decoder of Cho et al. 2014 (appendix A), with its own cell: the context is inside the reset.

It has no native step: search and training run these equations.

Axes: those of `decoder.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import ChoOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.batch_rng import BatchRng, dropout_mask
from rnnsearch.models.cells import apply_mask
from rnnsearch.models.decoders.bahdanau import ContextState
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Hidden, Memory


@implements(ChoOptions)
class Cho(Decoder):
    """c = tanh(V h_Tx);  h_0 = tanh(V' c);  and, with the embedded previous word E y,

    z = sigma(W_z E y + U_z h + C_z c),  r = sigma(W_r E y + U_r h + C_r c),
    h~ = tanh(W E y + r * (U h + C c)),  h' = z * h + (1 - z) * h~;  the maxout output reads the NEW h'.
    """

    readout_attribute = "deep_output"

    def __init__(self, options: ChoOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        self.size = size = options.size
        self.summary = Linear(encoder.summary_size, size)  # V
        self.initial = Linear(size, size)  # V'
        self.word = Linear(model.embedding, 3 * size)  # [W_z; W_r; W] and the biases
        self.recurrent = Linear(size, 3 * size, bias=False, role="recurrent")  # [U_z; U_r; U]
        self.context = Linear(size, 3 * size, bias=False)  # [C_z; C_r; C]
        self.deep_output = DeepOutput(size, model.embedding, size, options.maxout)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> ContextState:
        c = torch.tanh(self.summary(memory.summary))  # [B, D]
        h_0 = torch.tanh(self.initial(c))  # [B, D]
        recurrent_mask = dropout_mask(rng, self.state_dropout, h_0, self.size)
        return ContextState(Hidden(h_0), c, self.context(c), recurrent_mask)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: ContextState, memory: Memory) -> tuple[ContextState, Reading]:
        h = state.cell.h  # [N, D]
        sizes = [2 * self.size, self.size]
        x_gates, x_candidate = x.split(sizes, dim=-1)  # [N, 2 D], [N, D]
        recurrent = self.recurrent(apply_mask(h, state.recurrent_mask)) + state.context_gates  # U h + C c [N, 3 D]
        recurrent_gates, recurrent_candidate = recurrent.split(sizes, dim=-1)
        z, r = torch.sigmoid(x_gates + recurrent_gates).chunk(2, dim=-1)
        # Unlike in `cho-gru`, r also resets the context.
        candidate = torch.tanh(x_candidate + r * recurrent_candidate)
        new = z * h + (1 - z) * candidate
        return state._replace(cell=Hidden(new)), Reading(state=new, context=state.context, alpha=None)
