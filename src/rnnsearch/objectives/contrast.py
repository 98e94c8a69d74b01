"""Sampled losses for large vocabularies: a classifier of target tokens versus noise words, without a softmax.

Both losses use unnormalised scores s(y) = W_o[y] t + b[y] - log V (so that an untrained model is normalised). A batch
has one set of noise words (Zoph et al. 2016). Search normalises the scores like those of other models.
`likelihood.contrastive_losses` calls them.

Names in `CONTRASTS` are options of run files (`config/objective.py`); `systems/translation.py` and
`systems/language.py` create a contrast by name. Tests: benchmarks/vocabulary.py.

Axes: M target tokens of a batch, K noise words, V vocabulary.
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
    """The loss of M target tokens against K noise words, given their log-probabilities under the noise distribution."""

    vocabulary: int
    """Vocabulary size V."""

    component: ClassVar[type[ContrastConfig]]
    """The declaration of the component, set by `@implements`."""

    def __call__(
        self,
        target_scores: Float[Tensor, "M"],
        noise_scores: Float[Tensor, "M K"],
        target_log_q: Float[Tensor, "M"],
        noise_log_q: Float[Tensor, "K"],
        is_target: Bool[Tensor, "M K"],
    ) -> Float[Tensor, "M"]:
        """Return the loss of each target token.

        Args:
            target_scores: Output layer's scores of the target tokens.
            noise_scores: Its scores of the noise words.
            target_log_q: Log-probability of the target tokens under the noise distribution.
            noise_log_q: Log-probability of the noise words under it.
            is_target: True where the noise word is the target token.
        """
        # -log V makes the scores of an untrained model log-probabilities. target: [M], noise: [M, K] - [K].
        target = target_scores - log(self.vocabulary) - target_log_q
        noise = noise_scores - log(self.vocabulary) - noise_log_q  # [M, K] - [K]
        return self.losses(target, noise, is_target)

    @abstractmethod
    def losses(
        self, target: Float[Tensor, "M"], noise: Float[Tensor, "M K"], is_target: Bool[Tensor, "M K"]
    ) -> Float[Tensor, "M"]:
        """Return the loss of each target token from s - log q of the target tokens and the noise words."""


@implements(NCEOptions)
class NCE(Contrast):
    """Noise-contrastive estimation (Gutmann & Hyvarinen 2010; Mnih & Teh 2012).

    A classifier of words from the text versus K noise words: p(text | y) = sigma(s(y) - log(K q(y))).
    """

    def losses(self, target: Tensor, noise: Tensor, is_target: Tensor) -> Tensor:
        log_k = log(noise.shape[1])  # of K
        # logsigmoid(-a) = log(1 - sigmoid(a)), the log-probability of noise.
        return -functional.logsigmoid(target - log_k) - functional.logsigmoid(log_k - noise).sum(1)


@implements(BlackOutOptions)
class BlackOut(Contrast):
    """BlackOut (Ji et al. 2016, eq. 5-8): -log p~ of the target token and -log(1 - p~) of the noise words.

    p~ is the softmax of s - log q over the target token and the noise words other than it.
    """

    def losses(self, target: Tensor, noise: Tensor, is_target: Tensor) -> Tensor:
        scores = torch.cat([target[:, None], noise.masked_fill(is_target, -torch.inf)], dim=1)  # [M, 1 + K]
        log_p = torch.log_softmax(scores, dim=1)
        # The clamp keeps the logarithm finite if a noise word gets all the probability.
        log_not_noise = torch.log1p(-log_p[:, 1:].exp().clamp_max(1 - 1e-6))
        return -log_p[:, 0] - log_not_noise.sum(1)


CONTRASTS: Implementations[type[Contrast]] = Implementations(objective.CONTRASTS)
"""Class by `type` of `[objective.contrast]`; names are stored in model folders."""
