"""How parameters begin. Each module says what each of its parameters is; a table here says what that means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from rnnsearch.config import InitConfig


class Init(ABC):
    """The kinds of parameters and how each is drawn, from one seeded generator."""

    name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()
    """Options of `[model.init]` that this class needs."""
    attention_options: ClassVar[frozenset[str]] = frozenset()
    """Options that it needs besides for a model with attention."""

    def __init__(self, config: InitConfig, generator: Generator) -> None:
        self.config = config
        self.generator = generator

    @abstractmethod
    def weight(self, weight: Tensor) -> None:
        """A feed-forward matrix [out, in]."""

    def embedding(self, weight: Tensor) -> None:
        """A vector of each word: an embedding table [V, E], or W_o [V, R]."""
        self.weight(weight)

    def bias(self, bias: Tensor) -> None:
        """A bias: zero."""
        bias.data.zero_()

    def recurrent(self, weight: Tensor) -> None:
        """Square recurrent matrices [blocks * D, D], one below the other, each orthogonal by itself
        (Bahdanau et al., appendix B.1), or drawn like any weight where the config says `same`."""
        if self.config.recurrent == "same":
            self.weight(weight)
            return
        for block in weight.data.split(weight.shape[1]):
            nn.init.orthogonal_(block, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        """W_a or U_a of the alignment model."""
        self.weight(weight)

    def alignment_vector(self, vector: Tensor) -> None:
        """v_a [A] of the alignment model."""
        self.weight(vector.data[None, :])


class Glorot(Init):
    """Uniform in +-sqrt(6 / (in + out)); embeddings from N(0, 1/E), so that a word's vector has length 1."""

    name = "glorot"

    def weight(self, weight: Tensor) -> None:
        nn.init.xavier_uniform_(weight.data, generator=self.generator)

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight.data, std=weight.shape[1] ** -0.5, generator=self.generator)


class Normal(Init):
    """N(0, scale^2); W_a and U_a from N(0, alignment_scale^2) and v_a zero
    (Bahdanau et al., appendix B.1: 0.01 and 0.001)."""

    name = "normal"
    options = frozenset({"scale"})
    attention_options = frozenset({"alignment_scale"})

    def weight(self, weight: Tensor) -> None:
        assert self.config.scale is not None
        nn.init.normal_(weight.data, std=self.config.scale, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        assert self.config.alignment_scale is not None
        nn.init.normal_(weight.data, std=self.config.alignment_scale, generator=self.generator)

    def alignment_vector(self, vector: Tensor) -> None:
        vector.data.zero_()


class Uniform(Init):
    """Uniform in [-scale, scale] (Luong et al.: 0.1; Sutskever et al.: 0.08)."""

    name = "uniform"
    options = frozenset({"scale"})

    def weight(self, weight: Tensor) -> None:
        assert self.config.scale is not None
        nn.init.uniform_(weight.data, -self.config.scale, self.config.scale, generator=self.generator)


INITS: dict[str, type[Init]] = {c.name: c for c in (Glorot, Normal, Uniform)}


def linear(init: Init, layer: nn.Linear) -> None:
    """A feed-forward layer: weight, and bias where it has one."""
    init.weight(layer.weight)
    if layer.bias is not None:
        init.bias(layer.bias)


def generator(seed: int) -> Generator:
    """The generator that a model's parameters are drawn from."""
    return torch.Generator().manual_seed(seed)
