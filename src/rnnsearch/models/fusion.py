"""Language models inside a translation model: the readout reads them through a gate.

| name | input from the language model | the gate depends on      | trained parameters         | source               |
|------|-------------------------------|--------------------------|----------------------------|----------------------|
| deep | its state s^LM_i              | s^LM_i; a scalar         | readout, output, gate      | Gulcehre et al. 2015 |
| cold | its scores of all tokens      | s_i and h^LM_i; a vector | all but the language model | Sriram et al. 2017   |

L x is added to the readout U s + V E y_{i-1} + C c + b, or to Luong's W_c [c; h], where x is the gated vector (see
`ReadoutLayer`).

`TranslationModel` creates the fusion of `[model.language_model]`, and the language model is stored in the same
checkpoint.

Axes: N hypotheses, R readout, V vocabulary, D decoder state, L gated vector.
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
    """The states of the decoder and of the language model, one row per hypothesis."""

    decoder: Any
    language_model: Any


class Fusion(nn.Module, ABC):
    """A language model, whose parameters are frozen, and its gate."""

    component: ClassVar[type[FusionConfig]]
    """The declaration of the component, set by `@implements`."""
    size: int
    """L, the size of the vector that the readout reads."""

    def __init__(self, model: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.model = LanguageModel(model, vocabulary)

    @abstractmethod
    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows L"]:
        """Return the gated vector, for any number of positions.

        Args:
            h: Readouts of the language model.
            state: States of the decoder, from its readings.
        """


@implements(DeepFusionOptions)
class DeepFusion(Fusion):
    """g_i s^LM_i, g_i = sigma(v_g^T s^LM_i + b_g) (Gulcehre et al. 2015, section 4.2.1).

    s^LM_i has read y_{i-1}: it is the state of the top layer, or the layer of a feed-forward network. b_g is
    initialised to -1, as in the paper, so that the gate starts at 0.26.
    """

    def __init__(self, options: FusionConfig, model: LanguageModelConfig, vocabulary: int, state: int) -> None:
        super().__init__(model, vocabulary)
        self.size = self.model.network.size
        self.vector = parameter("weight", self.size)  # v_g
        self.bias = parameter(-1.0, 1)  # b_g

    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows R"]:
        gate = torch.sigmoid((h * self.vector).sum(-1, keepdim=True) + self.bias)  # [..., 1]
        return gate * h


@implements(ColdFusionOptions)
class ColdFusion(Fusion):
    """g_i * h_i, h_i = relu(W_l l_i + b_l), g_i = sigma(W [s_i; h_i] + b) (Sriram et al. 2017, eq. 4).

    l_i are the language model's scores of all tokens minus their maximum. The paper's "DNN" has any number of layers.
    """

    def __init__(self, options: ColdFusionOptions, model: LanguageModelConfig, vocabulary: int, state: int) -> None:
        super().__init__(model, vocabulary)
        self.size = options.size
        self.scores = Linear(vocabulary, options.size)  # W_l and b_l
        self.gate = Linear(state + options.size, options.size)  # W and b

    def forward(self, h: Float[Tensor, "*rows R"], state: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows L"]:
        scores = self.model.output.logits(h)  # [..., V]
        # Scores are defined up to a constant; relative to the maximum they are comparable between positions.
        hidden = torch.relu(self.scores(scores - scores.amax(-1, keepdim=True)))  # h_i [..., L]
        gate: Tensor = torch.sigmoid(self.gate(torch.cat([state, hidden.to(state.dtype)], dim=-1)))
        return gate * hidden


FUSIONS: Implementations[type[Fusion]] = Implementations(language_model.FUSIONS)
"""Class by `type` of `[model.language_model]`; names are stored in model folders."""
