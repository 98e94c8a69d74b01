"""A language model inside a translation model: what the readout reads of it, through a gate.

| name | reads of the language model | the gate is of        | what is trained               | source                |
|------|-----------------------------|-----------------------|-------------------------------|-----------------------|
| deep | its state s^LM_i            | s^LM_i, one number    | readout, output and this gate | Gulcehre et al. 2015  |
| cold | its scores of all symbols   | s_i and h^LM_i, units | all but the language model    | Sriram et al. 2017    |

The readout U s + V E y_{i-1} + C c + b, or Luong's W_c [c; h], has L x in its sums, too, x being what is gated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.config import language_model
from rnnsearch.config.language_model import ColdFusionOptions, DeepFusionOptions, FusionConfig, LanguageModelConfig
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.layers import Linear, parameter


class FusedState(NamedTuple):
    """decoder: the decoder's own state; language: the language model's. One row a hypothesis each."""

    decoder: Any
    language_model: Any


class Fusion(nn.Module, ABC):
    """A language model, which stays as it is, and its gate."""

    component: ClassVar[type[FusionConfig]]
    """The declaration of the component, set by `@implements`."""
    size: int
    """L, of what the readout reads."""

    def __init__(self, model: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.model = LanguageModel(model, vocabulary)

    @abstractmethod
    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows L"]:
        """What the readout reads, of any number of positions: of what the language model's output reads there, and of
        what the readout reads of the decoder."""


@implements(DeepFusionOptions)
class DeepFusion(Fusion):
    """g_i s^LM_i, g_i = sigma(v_g^T s^LM_i + b_g) (Gulcehre et al. 2015, section 4.2.1). b_g begins at -1, as theirs,
    so that the gate is at 0.26 first. s^LM_i has read y_{i-1}: the top layer's state, or a feed-forward network's
    layer."""

    def __init__(self, options: FusionConfig, model: LanguageModelConfig, vocabulary: int, state: int) -> None:
        super().__init__(model, vocabulary)
        self.size = self.model.network.size
        self.vector = parameter("weight", self.size)
        """v_g."""
        self.bias = parameter(-1.0, 1)
        """b_g."""

    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows R"]:
        gate = torch.sigmoid((h * self.vector).sum(-1, keepdim=True) + self.bias)
        return gate * h


@implements(ColdFusionOptions)
class ColdFusion(Fusion):
    """g_i * h_i, h_i = relu(W_l l_i + b_l), g_i = sigma(W [s_i; h_i] + b), l_i the language model's scores of all
    symbols less the highest (Sriram et al. 2017, eq. 4, where "DNN" is any number of layers)."""

    def __init__(self, options: ColdFusionOptions, model: LanguageModelConfig, vocabulary: int, state: int) -> None:
        super().__init__(model, vocabulary)
        self.size = options.size
        self.scores = Linear(vocabulary, options.size)
        """W_l and b_l."""
        self.gate = Linear(state + options.size, options.size)
        """W and b."""

    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows L"]:
        scores = self.model.output.logits(h)
        read = torch.relu(self.scores(scores - scores.amax(-1, keepdim=True)))
        gate: Tensor = torch.sigmoid(self.gate(torch.cat([state, read.to(state.dtype)], dim=-1)))
        return gate * read


FUSIONS: Implementations[type[Fusion]] = Implementations(language_model.FUSIONS)
