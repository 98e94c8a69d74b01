"""Any model with its matrix products in native code: what search runs on a CPU where a family has no whole native twin
of its own."""

from __future__ import annotations

import copy
import ctypes
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.engine.packed import Kind
from rnnsearch.kernels.native.library import library
from rnnsearch.kernels.native.packed import Packed
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.linear import Linear
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel

Model = TypeVar("Model", TranslationModel, LanguageModel)


class PackedLinear(nn.Linear):
    """The twin of a linear layer, without gradients; it has the same parameters."""

    def __init__(self, native: ctypes.CDLL, layer: nn.Linear, kind: Kind) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.packed = Packed(native, layer.weight, layer.bias, kind)

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return self.packed(input)


class PackedOutput(Output):
    """The twin of an output layer, W_l beside W_o where there is one."""

    def __init__(self, native: ctypes.CDLL, layer: Output, kind: Kind) -> None:
        nn.Module.__init__(self)
        self.vocabulary, self.lexical = layer.vocabulary, layer.lexical
        self.weight, self.bias = layer.weight, layer.bias
        self._native, self._kind = native, kind
        self._packed = self._of(layer.weight, layer.lexical, layer.bias)

    def _of(self, weight: Tensor, lexical: Tensor | None, bias: Tensor) -> Packed:
        both = weight if lexical is None else torch.cat([weight, lexical], dim=1)
        return Packed(self._native, both, bias, self._kind)

    def over(self, rows: Int[Tensor, "C"] | None) -> Packed:
        if rows is None:
            return self._packed
        return self._of(self.weight[rows], None if self.lexical is None else self.lexical[rows], self.bias[rows])


def packed(model: Model, kind: Kind) -> Model | None:
    """A model of the same parameters whose linear layers are `PackedLinear`; None where nothing can be built here.

    The weights are laid out now: what becomes of the parameters later is not seen.
    """
    native = library() if model.device.type == "cpu" else None
    if native is None:
        return None
    twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    for module in list(twin.modules()):
        for name, child in module.named_children():
            if type(child) is Linear:
                setattr(module, name, PackedLinear(native, child, kind))
            elif type(child) is Output:
                setattr(module, name, PackedOutput(native, child, kind))
    return twin
