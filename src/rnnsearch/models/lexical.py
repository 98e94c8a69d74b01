"""The lexical model beside the decoder (Nguyen & Chiang 2018, "Improving lexical choice in NMT", section 4)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.linear import Linear
from rnnsearch.models.memory import Memory


class Lexical(nn.Module):
    """A way from the attended source WORDS to the target word that passes by neither encoder nor decoder:

    f^l_t = tanh(sum_s a_t(s) f_s) (eq. 4),  h^l_t = tanh(W f^l_t + b) + f^l_t (eq. 5),
    p(y_t) = softmax(W_o t_t + b_o + W_l h^l_t + b_l) (eq. 6; the two biases are one here),

    with f_s the source word's embedding. h^l_t [E] stands behind the decoder's readout, W_l behind W_o.
    """

    def __init__(self, embedding: int) -> None:
        super().__init__()
        self.hidden = Linear(embedding, embedding)
        """W and b."""

    def forward(self, alpha: Float[Tensor, "*rows J"], memory: Memory) -> Float[Tensor, "*rows E"]:
        """h^l of [B, I] target positions or N = B * K hypotheses, from their weights over the memory's annotations."""
        assert memory.words is not None
        words = memory.words
        weights = memory.on_source(alpha)
        rows = weights.reshape(words.shape[0], -1, words.shape[1]).to(words.dtype)
        attended = torch.tanh(torch.bmm(rows, words))
        # No size of a batch is a constant here, which a traced graph would keep.
        attended = attended.flatten(0, 1) if weights.ndim == 2 else attended.view(weights.shape[0], -1, words.shape[2])
        return torch.tanh(self.hidden(attended)) + attended
