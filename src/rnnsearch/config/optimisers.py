"""`[training.optimiser]`: an optimiser's options. Imports no torch."""

from __future__ import annotations

from typing import Literal

from rnnsearch.config.choice import Options, by_name
from rnnsearch.config.table import NotNegative, Positive, Share


class OptimiserConfig(Options):
    """`[training.optimiser]`: how a gradient becomes an update."""

    type: str
    """An optimiser: see below."""
    learning_rate: Positive
    """Learning rate."""


class SGDOptions(OptimiserConfig):
    """Stochastic gradient descent."""

    type: Literal["sgd"] = "sgd"
    momentum: Share = 0.0
    """Momentum."""


class AdadeltaOptions(OptimiserConfig):
    """Zeiler 2012; the papers' choice."""

    type: Literal["adadelta"] = "adadelta"
    learning_rate: Positive = 1.0
    rho: Share
    """Decay of the running averages."""
    epsilon: Positive
    """Term in the denominator."""


class AdamOptions(OptimiserConfig):
    """Kingma & Ba 2015."""

    type: Literal["adam"] = "adam"
    beta1: Share = 0.9
    """Decay of the first moment."""
    beta2: Share = 0.999
    """Decay of the second moment."""
    epsilon: Positive = 1e-8


class AdamWOptions(OptimiserConfig):
    """Adam with decoupled weight decay."""

    type: Literal["adamw"] = "adamw"
    beta1: Share = 0.9
    beta2: Share = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative
    """Decoupled weight decay."""


OPTIMISERS: dict[str, type[OptimiserConfig]] = by_name(SGDOptions, AdadeltaOptions, AdamOptions, AdamWOptions)
