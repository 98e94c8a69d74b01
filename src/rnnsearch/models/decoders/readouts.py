"""Readouts: the layers between a decoder's state and the output layer.

Decoders create one; `accel/readout_steps.py` and `accel/rnnsearch_search.py` have fast versions by exact class (a
derived class runs its definition), and `systems/pruning.py` reads its layers. Tests: tests/models/test_decoders.py,
tests/properties/test_native_search.py. With a language model inside (`models/fusion.py`), `add_fusion` adds a term
before the activation. Output [N, R]: N = B * K hypotheses, R the size of the readout.

Arguments of `__init__` are sizes: `state`, `embedding` and `context` of the inputs, `width`, `maxout` or `size` of the
readout. Decoders that use each class:

- `DeepOutput`: `bahdanau`, `rnnencdec`, `cho`, `memdec` and `memory`
- `TanhOutput`: `bahdanau-tanh`, `bi-scale`, `cgru`, `deep-transition` and `bideep`
- `StateOutput`: `cohn`
- `StateReadout`: `copynet`
- `Attentional` and the classes derived from it: `luong` and `luong-input-feeding`, by their option `attentional`

`StateOutput` and `StateReadout` need a readout of the state's size: `readout_option` of `CohnOptions` and of
`CopyNetOptions` (`config/decoders.py`) is "size", so no config can violate their assertions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.layers import Linear


class ReadoutLayer(nn.Module):
    """A layer of `width` units over the decoder's state and the context.

    With a language model inside the translation model (`models/fusion.py`), it also reads that model's vector x: L x is
    added before the activation.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.beside: Linear | None = None
        """L, if there is a language model; model folders store this name."""

    def add_fusion(self, size: int) -> None:
        """Create L, for a language model's vector of this size."""
        self.beside = Linear(size, self.width, bias=False)

    def with_fusion(self, hidden: Float[Tensor, "*rows W"], fusion: Float[Tensor, "*rows L"] | None) -> Tensor:
        """Return `hidden` plus L x, or `hidden` without a language model."""
        if self.beside is None:
            return hidden
        assert fusion is not None
        projected: Tensor = self.beside(fusion)
        return hidden + projected


class Readout(ReadoutLayer, ABC):
    """An activation of U s + V E y_{i-1} + C c + b, a vector of size `width`."""

    def __init__(self, state: int, embedding: int, context: int, width: int) -> None:
        """Create the layers.

        Args:
            state: Size of the decoder's state.
            embedding: Size of the word embedding.
            context: Size of the context.
            width: Number of units.
        """
        super().__init__(width)
        self.state = Linear(state, width)  # U and b
        self.word = Linear(embedding, width, bias=False)  # V
        self.context = Linear(context, width, bias=False)  # C

    def forward(
        self,
        state: Float[Tensor, "*rows D"],
        word: Float[Tensor, "*rows E"],
        context: Float[Tensor, "*rows H"],
        fusion: Float[Tensor, "*rows L"] | None = None,
    ) -> Float[Tensor, "*rows R"]:
        """Return the readout for any number of positions."""
        hidden = self.state(state) + self.word(word) + self.context(context)  # [..., W]
        return self.activation(self.with_fusion(hidden, fusion))

    @abstractmethod
    def activation(self, hidden: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows R"]:
        """Return the activation of the hidden layer."""


class DeepOutput(Readout):
    """Maxout: t = [max(t~_{2j-1}, t~_{2j})]_{j=1..l},  t~ = U_o s + V_o E y_{i-1} + C_o c + b, l = `maxout`.

    Bahdanau et al., appendix A.2.2; Cho et al. 2014, appendix A, whose equations omit the biases "to increase
    readability".
    """

    def __init__(self, state: int, embedding: int, context: int, maxout: int) -> None:
        super().__init__(state, embedding, context, 2 * maxout)

    def activation(self, hidden: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows R"]:
        return torch.maximum(hidden[..., 0::2], hidden[..., 1::2])  # [..., 2 l] -> [..., l]


class TanhOutput(Readout):
    """t_i = tanh(W_t1 s_i + W_t2 E y_{i-1} + W_t3 c_i + b) (Nematus: Sennrich et al. 2017, section 3)."""

    def activation(self, hidden: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows R"]:
        return torch.tanh(hidden)


class IdentityLinear(Linear):
    """W x + b with W = I and b = 0, without parameters: returns x."""

    def __init__(self, size: int) -> None:
        # Not that of Linear: identity and zeros must not become parameters.
        nn.Module.__init__(self)
        self.in_features = self.out_features = size
        self.weight = torch.eye(size)
        self.bias = torch.zeros(size)  # type: ignore[assignment]

    def forward(self, input: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        return input


class StateOutput(TanhOutput):
    """t_i = tanh(s_i + Q c_i + P E y_{i-1}), without a bias (Cohn et al. 2016, section 2)."""

    def __init__(self, state: int, embedding: int, context: int, width: int) -> None:
        assert width == state  # see the module docstring
        super().__init__(state, embedding, context, width)
        self.state = IdentityLinear(state)  # in place of U and b


class StateReadout(nn.Module):
    """t_i = s_i (Gu et al. 2016, eq. 7).

    Not a `ReadoutLayer`: it has no layer, so a language model cannot be added.
    """

    def __init__(self, state: int, embedding: int, context: int, width: int) -> None:
        assert width == state  # see the module docstring
        super().__init__()

    def forward(
        self,
        state: Float[Tensor, "*rows D"],
        word: Float[Tensor, "*rows E"],
        context: Float[Tensor, "*rows H"],
        fusion: None = None,
    ) -> Float[Tensor, "*rows R"]:
        return state


class Attentional(ReadoutLayer):
    """h~_t = tanh(W_c [c_t; h_t]), without a bias (Luong et al. 2015, eq. 5)."""

    has_bias: ClassVar[bool] = False

    def __init__(self, context: int, state: int, size: int) -> None:
        super().__init__(size)
        self.combine = Linear(context + state, size, bias=self.has_bias)  # W_c and b

    def forward(
        self,
        context: Float[Tensor, "*rows H"],
        h: Float[Tensor, "*rows D"],
        fusion: Float[Tensor, "*rows L"] | None = None,
    ) -> Float[Tensor, "*rows R"]:
        """Return h~ for any number of positions."""
        hidden = self.combine(torch.cat([context.to(h.dtype), h], dim=-1))
        return self.activation(self.with_fusion(hidden, fusion))

    def activation(self, hidden: Float[Tensor, "*rows R"]) -> Float[Tensor, "*rows R"]:
        """Return the activation of the hidden layer."""
        return torch.tanh(hidden)


class BiasedAttentional(Attentional):
    """h~_t = tanh(W_c [c_t; h_t] + b) (JoeyNMT's)."""

    has_bias = True


class LinearAttentional(Attentional):
    """h~_t = W_c [c_t; h_t] + b, without the tanh (OpenNMT-py's, with its `mlp` attention)."""

    has_bias = True

    def activation(self, hidden: Float[Tensor, "*rows R"]) -> Float[Tensor, "*rows R"]:
        return hidden


ATTENTIONALS: dict[str, type[Attentional]] = {
    "tanh": Attentional,
    "tanh-bias": BiasedAttentional,
    "linear": LinearAttentional,
}
"""Class by `attentional` of `[model.decoder]`; names are stored in model folders."""
