"""How parameters begin. A parameter says what it is, its role; an `Init` says how each role is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from rnnsearch.config import outputs
from rnnsearch.config.outputs import GlorotOptions, InitConfig, NormalOptions, UniformOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import Symbols
from rnnsearch.ops.linear import linear
from rnnsearch.text.vocabulary import BOS

Role = Literal["weight", "recurrent", "alignment", "alignment_vector", "embedding", "bias", "noise"] | float
"""What a parameter is: the method of `Init` that draws it, or a number that it begins with whatever the `Init`."""


def parameter(role: Role, *shape: int) -> nn.Parameter:
    """A parameter of a role, to be drawn by `initialise`."""
    made = nn.Parameter(torch.empty(shape) if isinstance(role, str) else torch.full(shape, role))
    set_role(made, role)
    return made


def set_role(parameter: Tensor, role: Role) -> None:
    """Say what a parameter is that another class made."""
    parameter.role = role  # type: ignore[attr-defined]


class Init(ABC):
    """The kinds of parameters and how each is drawn, from one seeded generator."""

    component: ClassVar[type[InitConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: InitConfig, generator: Generator) -> None:
        self.options = options
        self.generator = generator

    @abstractmethod
    def weight(self, weight: Tensor) -> None:
        """A feed-forward matrix [out, in]; a vector counts as [1, in]."""

    def embedding(self, weight: Tensor) -> None:
        """A vector of each word: an embedding table [V, E], or W_o [V, R]."""
        self.weight(weight)

    def bias(self, bias: Tensor) -> None:
        """A bias [1, out]: zero, or drawn like any weight where the config says `same`."""
        if self.options.biases == "same":
            self.weight(bias)
        else:
            bias.zero_()

    def recurrent(self, weight: Tensor) -> None:
        """Square recurrent matrices [blocks * D, D], one below the other, each orthogonal by itself
        (Bahdanau et al., appendix B.1), or drawn like any weight where the config says `same`."""
        if self.options.recurrent == "same":
            self.weight(weight)
            return
        for block in weight.split(weight.shape[1]):
            nn.init.orthogonal_(block, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        """W_a or U_a of the alignment model."""
        self.weight(weight)

    def noise(self, weight: Tensor) -> None:
        """What tells like things apart: N(0, 0.1^2), whatever the kind (Wang et al. 2016)."""
        nn.init.normal_(weight, std=0.1, generator=self.generator)

    def alignment_vector(self, vector: Tensor) -> None:
        """v_a [1, A] of the alignment model."""
        self.weight(vector)


@implements(GlorotOptions)
class Glorot(Init):
    """Uniform in +-sqrt(6 / (in + out)); embeddings from N(0, 1/E), so that a word's vector has length 1."""

    def weight(self, weight: Tensor) -> None:
        nn.init.xavier_uniform_(weight, generator=self.generator)

    def embedding(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=self.generator)


@implements(NormalOptions)
class Normal(Init):
    """N(0, scale^2); W_a and U_a from N(0, alignment_scale^2) and v_a zero
    (Bahdanau et al., appendix B.1: 0.01 and 0.001)."""

    options: NormalOptions

    def weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.options.scale, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        scale = self.options.alignment_scale
        assert scale is not None  # as `check` says of a model with alignment matrices
        nn.init.normal_(weight, std=scale, generator=self.generator)

    def alignment_vector(self, vector: Tensor) -> None:
        vector.zero_()


@implements(UniformOptions)
class Uniform(Init):
    """Uniform in [-scale, scale] (Luong et al.: 0.1; Sutskever et al.: 0.08)."""

    options: UniformOptions

    def weight(self, weight: Tensor) -> None:
        nn.init.uniform_(weight, -self.options.scale, self.options.scale, generator=self.generator)


INITS: Implementations[type[Init]] = Implementations(outputs.INITS)


@torch.no_grad()
def initialise(module: nn.Module, init: Init) -> None:
    """Draw all parameters, a module's parts before its own, in the order in which they were made; a shared one once."""
    drawn = set[Tensor]()
    for path, part in _children_first(module):
        for name, own in part.named_parameters(recurse=False):
            role: Role | None = getattr(own, "role", None)
            assert role is not None, f"{path}{name} has no role: make it by `parameter` or `Linear`"
            if own in drawn:
                continue
            drawn.add(own)
            if isinstance(role, str):
                draw: Callable[[Tensor], None] = getattr(init, role)
                draw(own.data if own.ndim > 1 else own.data[None])
            else:
                own.fill_(role)


def _children_first(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_children():
        yield from _children_first(part, f"{path}{name}.")
    yield path, module


def generator(seed: int) -> Generator:
    """The generator that a model's parameters are drawn from."""
    return torch.Generator().manual_seed(seed)


# Word embeddings: one table a language, or one for both.


class Embedding(nn.Module):
    """A table of V rows of E numbers. With `zero_bos` the symbol before the first word is all zeros."""

    sparse = False
    """Whether its gradient is of the rows alone that were read."""

    def __init__(self, vocabulary: int, size: int, zero_bos: bool = False) -> None:
        super().__init__()
        self.weight = parameter("embedding", vocabulary, size)
        self.zero_bos = zero_bos

    def forward(self, symbols: Symbols) -> Float[Tensor, "*rows E"]:
        """The vectors of symbols."""
        x = nn.functional.embedding(symbols.ids, self.weight, sparse=self.sparse)
        return x.masked_fill((symbols.ids == BOS).unsqueeze(-1), 0.0) if self.zero_bos else x


# The linear layer of every part.


class Linear(nn.Linear):
    """y = W x + b: PyTorch's, which is its plain twin; the role of its weight is `role`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, role: Role = "weight") -> None:
        super().__init__(inputs, outputs, bias)
        set_role(self.weight, role)
        if bias:
            set_role(self.bias, "bias")

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return linear(input, self.weight, self.bias)
