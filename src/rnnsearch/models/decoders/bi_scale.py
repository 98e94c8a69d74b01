"""The bi-scale decoder (Chung et al. 2016, "A character-level decoder without explicit segmentation for neural machine
translation", section 4.2): a layer that changes with every character, and above it one that changes where that says."""

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
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Linear
from rnnsearch.models.memory import Memory


class BiScaleState(NamedTuple):
    """both: [h^1; h^2] [N, 2 D], of the faster and the slower layer; gate: g^1 [N, D]; left: (1 - g) h of either
    [N, 2 D]; masks: [N, 3, D], dropout's on what is fed back: what is left of the one, what the slower hands down, what
    is left of the other; None without."""

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
    h^2_i = (1 - g^1_i) h^2_{i-1} + g^1_i h~^2_i;

    so the slower layer reads the faster one, and changes, where the gate g^1 opens, and is read by it afterwards. Both
    begin at a tanh of the mean annotation, their gates at 0; a tanh layer reads both (products of vectors are by
    element; the authors' code also asks attention by the word before, and has these first states).
    """

    readout_attribute = "deep_output"

    def __init__(self, options: BiScaleOptions, model: ModelConfig, encoder: Encoder) -> None:
        super().__init__(options, model, encoder)
        D, H = options.size, encoder.annotation_size
        self.size, self.state_size = D, 2 * D
        self.attention = make_attention(model, encoder, 2 * D)
        self.initial = Linear(H, 2 * D)
        self.word = Linear(model.embedding, 2 * D)
        """W and b, of gate and state."""
        self.fast = Linear(D, 2 * D, bias=False, role="recurrent")
        """U."""
        self.down = Linear(D, 2 * D, bias=False, role="recurrent")
        """D."""
        self.up = Linear(D, 2 * D)
        """V and b'."""
        self.slow = Linear(D, 2 * D, bias=False, role="recurrent")
        """T."""
        self.context = Linear(H, 4 * D, bias=False)
        """C above C'."""
        self.deep_output = TanhOutput(2 * D, model.embedding, H, options.readout)

    def start(self, memory: Memory, rng: BatchRng | None = None, steps: int = 0) -> BiScaleState:
        both = initial_state(self.initial, mean_annotation(memory))
        gate = both.new_zeros(both.shape[0], self.size)
        masks = dropout_mask(rng, self.state_dropout, both, 3, self.size)
        return BiScaleState(both, gate, both, self.attention.start(memory, rng, steps), masks)

    def inputs(self, y_prev: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        x: Tensor = self.word(y_prev)
        return x

    def step(self, x: Float[Tensor, "N G"], state: BiScaleState, memory: Memory) -> tuple[BiScaleState, Reading]:
        keeps, D = masks_per_cell(state.masks), self.size
        (_, h2), (left1, left2) = (pair.split(D, dim=1) for pair in (state.hidden, state.retained))
        attended, attention = self.attention.step(h2, state.attention, memory, x)
        for_fast, for_slow = self.context(attended.context).split(2 * D, dim=1)
        fast = (
            x
            + self.fast(apply_mask(left1, next(keeps)))
            + self.down(apply_mask(state.gate * h2, next(keeps)))
            + for_fast
        )
        g1, h1 = torch.sigmoid(fast[:, :D]), torch.tanh(fast[:, D:])
        slow = self.up(g1 * h1) + self.slow(apply_mask(left2, next(keeps))) + for_slow
        g2, candidate = torch.sigmoid(slow[:, :D]), torch.tanh(slow[:, D:])
        h2 = (1 - g1) * h2 + g1 * candidate
        both, left = torch.cat([h1, h2], dim=1), torch.cat([(1 - g1) * h1, (1 - g2) * h2], dim=1)
        return BiScaleState(both, g1, left, attention, state.masks), Reading.from_attention(both, attended)
