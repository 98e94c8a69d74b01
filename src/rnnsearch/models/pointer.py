"""The pointer softmax: a switch between saying a word of the vocabulary and pointing at a source word (Gulcehre et al.
2016, "Pointing the unknown words")."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.models.embeddings import Embedding
from rnnsearch.models.linear import Linear
from rnnsearch.models.outputs import Logits, Losses, Output, OutputLayer
from rnnsearch.tensors import at_least_fp32
from rnnsearch.text.vocabulary import UNK

LEAST = 1e-9
"""Of the weight of what is pointed at."""


class Switch(nn.Module):
    """p(z_t = 1) = sigmoid(v^T tanh(W [s; c; E y_{t-1}] + b) + b_z): that the next word is said, and not pointed at
    (eq. 4; one hidden layer, where the paper has two)."""

    def __init__(self, state: int, context: int, embedding: int, size: int) -> None:
        super().__init__()
        self.hidden = Linear(state + context + embedding, size)
        self.choice = Linear(size, 1)

    def forward(
        self, state: Float[Tensor, "*rows D"], context: Float[Tensor, "*rows H"], y_prev: Float[Tensor, "*rows E"]
    ) -> Float[Tensor, "*rows 1"]:
        """The sigmoid's argument."""
        read = torch.cat([part.to(state.dtype) for part in (state, context, y_prev)], dim=-1)
        chosen: Tensor = self.choice(torch.tanh(self.hidden(read)))
        return chosen


class PointerOutput(OutputLayer):
    """The output layer under a switch, whose number stands behind each readout:

    p(y_t = w) = p(z_t = 1) p_vocabulary(w) of a word of the vocabulary; p(z_t = 0) alpha_t(j) of source word j (eq. 5).

    In search <unk> has, beside its own, all the probability of pointing: where it points is what attention then says.
    """

    def __init__(self, readout: int, vocabulary: int, tied: Embedding | None = None, lexical: int = 0) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.words = Output(readout, vocabulary, tied, lexical)

    def over(self, rows: Int[Tensor, "C"] | None) -> Logits:
        words = self.words.over(rows)

        def logits(readout: Tensor) -> Tensor:
            said = at_least_fp32(readout[..., -1:])
            scores = torch.log_softmax(at_least_fp32(words(readout[..., :-1])), dim=-1) + functional.logsigmoid(said)
            unknown = torch.arange(scores.shape[-1], device=scores.device) == UNK if rows is None else rows == UNK
            return torch.where(unknown, torch.logaddexp(scores, functional.logsigmoid(-said)), scores)

        return logits

    def losses(
        self,
        readout: Float[Tensor, "M R"],
        target: Int[Tensor, "M"],
        smoothing: float,
        copied: Float[Tensor, "M"],
        rows: Int[Tensor, "C"] | None = None,
    ) -> Losses:
        """As `Output.losses`, where a target symbol that `copied` gives attention (the sum of the weights of the source
        words that it is a copy of) is pointed at, and every other said: z_t is known in training (eq. 6)."""
        points = copied > 0
        said, pointed = (~points).nonzero()[:, 0], points.nonzero()[:, 0]
        total, of_words = self.words.losses(readout[said, :-1], target[said], smoothing, rows)
        z = at_least_fp32(readout[:, -1])
        of_switch = -functional.logsigmoid(torch.where(points, -z, z))
        of_place = -at_least_fp32(copied[pointed]).clamp_min(LEAST).log()
        nll = of_switch.detach().index_add(0, said, of_words.to(of_switch.dtype))
        nll = nll.index_add(0, pointed, of_place.detach())
        return total + of_switch.sum() + of_place.sum(), nll
