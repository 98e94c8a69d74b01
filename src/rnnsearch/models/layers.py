"""Linear layers, embeddings, and the initialisation of parameters by their role.

All parameters of `models` are created here, by `Linear`, `Embedding` or `parameter`. Each has a role ("weight",
"recurrent", ...); an `Init` defines how parameters of each role are initialised.

A new role needs a method of `Init` with that name. Tests: tests/models/test_initialise.py, and
tests/properties/test_roles.py, in which every parameter must have a role.

Axes: V vocabulary, E embedding, R readout, D state, A alignment hidden, G outputs of a linear layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from rnnsearch.config import outputs
from rnnsearch.config.data import ArrayConfig
from rnnsearch.config.outputs import GlorotOptions, InitConfig, NormalOptions, UniformOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.ops.linear import linear
from rnnsearch.text.vocabulary import BOS

Role = Literal["weight", "recurrent", "alignment", "alignment_vector", "embedding", "bias", "noise"] | float
"""The method of `Init` that initialises a parameter, or a constant initial value."""


def parameter(role: Role, *shape: int) -> nn.Parameter:
    """Create a parameter with this role, to be filled by `initialise`."""
    # A float is the initial value itself; named roles stay uninitialised until `initialise`.
    created = nn.Parameter(torch.empty(shape) if isinstance(role, str) else torch.full(shape, role))
    set_role(created, role)
    return created


def set_role(parameter: Tensor, role: Role) -> None:
    """Set the role of a parameter that was created elsewhere."""
    parameter.role = role  # type: ignore[attr-defined]


class Linear(nn.Linear):
    """y = W x + b with a role for W; the product may run on a fast kernel (`ops/linear.py`)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, role: Role = "weight") -> None:
        super().__init__(inputs, outputs, bias)
        set_role(self.weight, role)
        if bias:
            set_role(self.bias, "bias")

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return linear(input, self.weight, self.bias)


class Embedding(nn.Module):
    """An embedding table [V, E]. With `zero_bos`, BOS is embedded as zeros."""

    sparse = False
    """True if the gradient is sparse, with only the rows that were looked up."""

    def __init__(self, vocabulary: int, size: int, zero_bos: bool = False) -> None:
        super().__init__()
        self.weight = parameter("embedding", vocabulary, size)
        self.zero_bos = zero_bos

    def forward(self, inputs: EmbeddingInput) -> Float[Tensor, "*rows E"]:
        """Return the embeddings of tokens."""
        x = nn.functional.embedding(inputs.ids, self.weight, sparse=self.sparse)
        return x.masked_fill((inputs.ids == BOS).unsqueeze(-1), 0.0) if self.zero_bos else x


class ArrayProjection(nn.Module):
    """x_j = W v_j + b + p_j for the rows v_j of an array, where p_j is a learned vector per row of a grid.

    Without a grid there is no p_j.
    """

    def __init__(self, options: ArrayConfig, size: int) -> None:
        super().__init__()
        self.features = options.features
        self.projection = Linear(options.features, size)
        self.positions = None if options.rows is None else parameter("embedding", options.rows, size)

    def forward(self, inputs: EmbeddingInput) -> Float[Tensor, "B J E"]:
        """Return the projected rows."""
        assert inputs.values is not None, "the source must be an array"
        x: Tensor = self.projection(inputs.values)
        if self.positions is None:
            return x
        return x + self.positions[: x.shape[1]].to(x.dtype)  # an array is as wide as the grid, also in a padded batch


class Init(ABC):
    """An initialisation scheme: one method per role, all with one seeded generator."""

    component: ClassVar[type[InitConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: InitConfig, generator: Generator) -> None:
        self.options = options
        self.generator = generator

    @abstractmethod
    def weight(self, weight: Tensor) -> None:
        """Fill a feed-forward matrix [out, in]; a vector is passed as [1, in]."""

    def embedding(self, weight: Tensor) -> None:
        """Fill a matrix with one row per token: an embedding table [V, E], or W_o [V, R]."""
        self.weight(weight)

    def bias(self, bias: Tensor) -> None:
        """Fill a bias [1, out] with zeros, or like a weight if `biases` is "same"."""
        if self.options.biases == "same":
            self.weight(bias)
        else:
            bias.zero_()

    def recurrent(self, weight: Tensor) -> None:
        """Fill square recurrent matrices, stacked as [blocks * D, D].

        Each is orthogonal (Bahdanau et al., appendix B.1), or filled like a weight if `recurrent` is "same".
        """
        if self.options.recurrent == "same":
            self.weight(weight)
            return
        # Block by block: the square blocks of one orthogonal [blocks * D, D] matrix would not be orthogonal.
        for block in weight.split(weight.shape[1]):
            nn.init.orthogonal_(block, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        """Fill W_a or U_a of the alignment model."""
        self.weight(weight)

    def noise(self, weight: Tensor) -> None:
        """Fill from N(0, 0.1^2), to make otherwise equal vectors differ (Wang et al. 2016)."""
        nn.init.normal_(weight, std=0.1, generator=self.generator)

    def alignment_vector(self, vector: Tensor) -> None:
        """Fill v_a [1, A] of the alignment model."""
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
    """N(0, scale^2); W_a and U_a from N(0, alignment_scale^2), and v_a = 0.

    Bahdanau et al., appendix B.1, with scales 0.01 and 0.001.
    """

    options: NormalOptions

    def weight(self, weight: Tensor) -> None:
        nn.init.normal_(weight, std=self.options.scale, generator=self.generator)

    def alignment(self, weight: Tensor) -> None:
        scale = self.options.alignment_scale
        assert scale is not None, "`check` requires it for models with alignment matrices"
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
"""Class by `type` of `[model.init]`; names are stored in model folders."""


def generator(seed: int) -> Generator:
    """Return the seeded generator for initialising a model's parameters."""
    # On the CPU, so that initial weights do not depend on the device.
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def initialise(module: nn.Module, init: Init) -> None:
    """Fill all parameters of a module according to their roles.

    Submodules come before the module's own parameters, in order of creation; shared parameters are filled once.
    """
    done = set[Tensor]()
    for path, submodule in _children_first(module):
        for name, param in submodule.named_parameters(recurse=False):
            role: Role | None = getattr(param, "role", None)
            assert role is not None, f"{path}{name} has no role: create it with `parameter` or `Linear`"
            # A tied table, which must advance the generator only once.
            if param in done:
                continue
            done.add(param)
            if isinstance(role, str):
                fill: Callable[[Tensor], None] = getattr(init, role)
                # Fan-in and fan-out need two axes.
                fill(param.data if param.ndim > 1 else param.data[None])
            else:
                param.fill_(role)


def biases(module: nn.Module) -> set[nn.Parameter]:
    """Return the parameters of a module with the role "bias"."""
    return {param for param in module.parameters() if getattr(param, "role", None) == "bias"}


def _children_first(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        yield from _children_first(child, f"{path}{name}.")
    yield path, module
