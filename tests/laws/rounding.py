"""A model whose products have rounded operands: the rounding that a fast way may have, against which it is held."""

import copy

import torch
from torch import nn

from rnnsearch.backend.twins import choose
from rnnsearch.models.outputs import Output


def to_bf16(x):
    """Eight significant bits."""
    return x.to(torch.bfloat16).to(x.dtype)


def to_bytes(x):
    """Each row as a scale and whole numbers from -127 to 127."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (x / scale).round() * scale


class Through(torch.autograd.Function):
    """Rounds; gradients pass as if it did not."""

    @staticmethod
    def forward(_, x, rounding):
        return rounding(x)

    @staticmethod
    def backward(_, grad):
        return grad, None


def rounded(model, rounding):
    """The definitions with what every matrix product reads rounded, weights and inputs, and its sums exact."""
    twin = copy.deepcopy(model)
    choose(twin, fast=False)
    for module in twin.modules():
        if isinstance(module, nn.Linear | Output):
            module.weight.data = rounding(module.weight.data)
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, given: (Through.apply(given[0], rounding),))
    over = twin.output.over
    twin.output.over = lambda rows: lambda readout: over(rows)(Through.apply(readout, rounding))
    return twin
