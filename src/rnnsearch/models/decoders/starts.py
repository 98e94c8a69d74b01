"""What the decoders have in common: their stacks and bridges, first states, and dropout masks on what feeds back."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import ModelConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.bridges import BRIDGES, Bridge
from rnnsearch.models.cells import CELLS
from rnnsearch.models.draws import Draws
from rnnsearch.models.encoder import Encoder
from rnnsearch.models.memory import Memory
from rnnsearch.models.stack import Stack
from rnnsearch.tensors import at_least_fp32


def mean_annotation(memory: Memory) -> Float[Tensor, "B H"]:
    """(1 / Tx) sum_j h_j over the real source positions (Nematus: Sennrich et al. 2017, section 3)."""
    real = memory.mask.unsqueeze(-1)
    total = memory.annotations.masked_fill(~real, 0.0).sum(1)
    return total / real.sum(1)


def first_state(initial: nn.Linear, summary: Float[Tensor, "B S"]) -> Float[Tensor, "B D"]:
    """s_0 = tanh(W summary + b), in fp32 at least, so that what the recurrence carries is, too."""
    return at_least_fp32(torch.tanh(initial(summary)))


def make_stack(options: StackOptions, model: ModelConfig, context_size: int = 0) -> Stack:
    """The decoder's stack over embedded words; `context_size`: see `Stack`."""
    sizes = (model.embedding, options.size, options.layers)
    return Stack(CELLS[options.cell], *sizes, options.residual_from, model.dropout, context_size)


def make_bridge(options: StackOptions, encoder: Encoder, stack: Stack) -> Bridge:
    """The bridge from the encoder's last states to the stack's first ones."""
    return BRIDGES[options.bridge](encoder.shapes, stack.shapes)


def make_attention(model: ModelConfig, encoder: Encoder) -> Attention:
    """The attention that the decoder's states ask; `check` has seen that there is one."""
    assert model.attention is not None
    return Attention.make(model.attention, model.decoder.size, model.decoder.attended_size(encoder.annotation_size))


def state_masks(draws: Draws | None, share: float, h: Float[Tensor, "N D"], cells: int) -> Tensor | None:
    """One dropout mask a sequence for what each of several cells feeds back [N, cells, D]; None without dropout."""
    if draws is None or share == 0.0:
        return None
    return draws.mask((h.shape[0], cells, h.shape[1]), share, h)


def mask_of(masks: Tensor | None, cell: int) -> Float[Tensor, "N D"] | None:
    """One cell's mask."""
    return None if masks is None else masks[:, cell]
