"""The bi-scale decoder of Chung et al. 2016: a fast layer, and a slow one that changes when the fast one's gate opens.

"A character-level decoder without explicit segmentation for neural machine translation", section 4.2.

`accel/decoder_steps.py` writes its step for native code.

Axes: those of `decoder.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import BiScaleOptions
from rnnsearch.config.registry import implements
from rnnsearch.models.attention.attention import AttentionState
from rnnsearch.models.batch_rng import BatchRng, dropout_mask, masks_per_cell
from rnnsearch.models.cells import apply_mask
from rnnsearch.models.decoders.decoder import Decoder, Reading, initial_state, make_attention, mean_annotation
from rnnsearch.models.decoders.readouts import TanhOutput
from rnnsearch.models.encoders import EncoderSizes
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Memory


class BiScaleState(NamedTuple):
    """The state of the bi-scale decoder.

    hidden: [h^1; h^2] of the fast and the slow layer, [N, 2 D].
    gate: g^1, [N, D].
    retained: (1 - g) h of both layers, [N, 2 D].
    masks: [N, 3, D], dropout masks of the three recurrent products: U, D and T; None without dropout.
    """

    hidden: Tensor
    gate: Tensor
    retained: Tensor
    attention: AttentionState
    masks: Tensor | None = None


@implements(BiScaleOptions)
class BiScale(Decoder):
    """Attends with h^2_{i-1}; then

    g^1_i, h^1_i = sigma, tanh(W E y_{i-1} + U (1 - g^1_{i-1}) h^1_{i-1} + D g^1_{i-1} h^2_{i-1} + C c_i + b);
    g^2_i, h~^2_i = sigma, tanh(V g^1_i h^1_i + T (1 - g^2_{i-1}) h^2_{i-1} + C' c_i + b');
    h^2_i = (1 - g^1_i) h^2_{i-1} + g^1_i h~^2_i.

    Products of vectors are elementwise. The slow layer reads the fast one and changes where the gate g^1 opens; after
    that, the fast one reads it. Both start from a tanh of the mean annotation, with their gates at 0, and a tanh layer
    reads both. The authors' code has the same initial states, and also gives the previous word to attention.
    """

    readout_attribute = "deep_output"

    def __init__(self, options: BiScaleOptions, model: ModelConfig, encoder: EncoderSizes) -> None:
        super().__init__(options, model, encoder)
        D, H = options.size, encoder.annotation_size
        self.size = D
        self.state_size = 2 * D
        self.attention = make_attention(model, encoder, 2 * D)
        self.initial = Linear(H, 2 * D)
        self.word = Linear(model.embedding, 2 * D)  # W and b, of gate and state
        self.fast = Linear(D, 2 * D, bias=False, role="recurrent")  # U
        self.down = Linear(D, 2 * D, bias=False, role="recurrent")  # D
        self.up = Linear(D, 2 * D)  # V and b'
        self.slow = Linear(D, 2 * D, bias=False, role="recurrent")  # T
        self.context = Linear(H, 4 * D, bias=False)  # [C; C']
        self.deep_output = TanhOutput(2 * D, model.embedding, H, options.readout)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BiScaleState:
        hidden = initial_state(self.initial, mean_annotation(memory))  # [B, 2 D]
        gate = hidden.new_zeros(hidden.shape[0], self.size)
        masks = dropout_mask(rng, self.state_dropout, hidden, 3, self.size)
        # Gates of 0 retain all of h.
        return BiScaleState(hidden, gate, hidden, self.attention.start(memory, rng, steps), masks)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: BiScaleState, memory: Memory) -> tuple[BiScaleState, Reading]:
        D = self.size
        masks = masks_per_cell(state.masks)  # for U, D and T, in this order
        _, h2 = state.hidden.split(D, dim=1)
        retained1, retained2 = state.retained.split(D, dim=1)  # [N, D] each
        output, attention = self.attention.step(h2, state.attention, memory, x)
        context1, context2 = self.context(output.context).split(2 * D, dim=1)  # C c_i and C' c_i
        recurrent1 = self.fast(apply_mask(retained1, next(masks)))
        down = self.down(apply_mask(state.gate * h2, next(masks)))  # [N, 2 D]
        gates1 = x + recurrent1 + down + context1  # [N, 2 D]
        g1, h1 = torch.sigmoid(gates1[:, :D]), torch.tanh(gates1[:, D:])
        gates2 = self.up(g1 * h1) + self.slow(apply_mask(retained2, next(masks))) + context2
        g2, candidate = torch.sigmoid(gates2[:, :D]), torch.tanh(gates2[:, D:])
        h2 = (1 - g1) * h2 + g1 * candidate  # h^2 changes only where g^1 opens
        hidden = torch.cat([h1, h2], dim=1)
        # For the recurrent products of the next position.
        retained = torch.cat([(1 - g1) * h1, (1 - g2) * h2], dim=1)
        return BiScaleState(hidden, g1, retained, attention, state.masks), Reading.from_attention(hidden, output)
