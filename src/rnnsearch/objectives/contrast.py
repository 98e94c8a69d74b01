"""Words of the text told from noise: losses for large vocabularies that need the scores of few symbols.

Both are of unnormalised scores s(y) = W_o[y] t + b[y] - log V (so that a model which knows nothing yet is normalised);
noise words are shared by a batch (Zoph et al. 2016). What is trained so is normalised in search, like any model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from rnnsearch.config import objective
from rnnsearch.config.objective import BlackOutOptions, ContrastConfig, NCEOptions
from rnnsearch.config.registry import Implementations, implements


@dataclass(frozen=True)
class Contrast(ABC):
    """The loss of each target symbol, from its score and those of K noise words, and all of their probabilities q under
    the distribution that noise is drawn from."""

    vocabulary: int
    """V."""

    component: ClassVar[type[ContrastConfig]]
    """The declaration of the component, set by `@implements`."""

    def __call__(
        self,
        own: Float[Tensor, "M"],
        others: Float[Tensor, "M K"],
        log_q: Float[Tensor, "M"],
        log_q_others: Float[Tensor, "K"],
        same: Bool[Tensor, "M K"],
    ) -> Float[Tensor, "M"]:
        """`same`: where the noise word is the target symbol."""
        return self.losses(own - log(self.vocabulary) - log_q, others - log(self.vocabulary) - log_q_others, same)

    @abstractmethod
    def losses(
        self, own: Float[Tensor, "M"], others: Float[Tensor, "M K"], same: Bool[Tensor, "M K"]
    ) -> Float[Tensor, "M"]:
        """From s - log q."""


@implements(NCEOptions)
class NCE(Contrast):
    """Noise-contrastive estimation (Gutmann & Hyvarinen 2010; Mnih & Teh 2012): is a word of the text, or one of K of
    the noise? p(text | y) = sigma(s(y) - log(K q(y)))."""


    def losses(self, own: Tensor, others: Tensor, same: Tensor) -> Tensor:
        samples = log(others.shape[1])
        return -functional.logsigmoid(own - samples) - functional.logsigmoid(samples - others).sum(1)


@implements(BlackOutOptions)
class BlackOut(Contrast):
    """BlackOut (Ji et al. 2016, eq. 5-8): p~, the softmax of s - log q over the target symbol and the noise words that
    are another, with the noise words' log(1 - p~) beside it."""


    def losses(self, own: Tensor, others: Tensor, same: Tensor) -> Tensor:
        both = torch.cat([own[:, None], others.masked_fill(same, -torch.inf)], dim=1)
        log_p = torch.log_softmax(both, dim=1)
        not_noise = torch.log1p(-log_p[:, 1:].exp().clamp_max(1 - 1e-6))
        return -log_p[:, 0] - not_noise.sum(1)


CONTRASTS: Implementations[type[Contrast]] = Implementations(objective.CONTRASTS)
