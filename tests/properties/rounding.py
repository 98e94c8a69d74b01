"""Reference models with rounded operands of products, and detection of rounding that crosses a discontinuity.

Reduced-precision results are compared with such a model. Where rounding moves a value across a discontinuity, the
gradients are not comparable, and another seed is taken.
"""

import copy
from contextlib import contextmanager

import torch
from torch import nn

from rnnsearch.accel.registry import choose
from rnnsearch.models.attention.normalisers import Sparsemax
from rnnsearch.models.attention.windows import LocalPredictive
from rnnsearch.models.decoders.readouts import DeepOutput
from rnnsearch.models.outputs import Output


def to_bf16(x):
    """Round to eight significant bits."""
    return x.to(torch.bfloat16).to(x.dtype)


def to_bytes(x):
    """Round each row to a scale and integers from -127 to 127."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (x / scale).round() * scale


class Through(torch.autograd.Function):
    """Rounding with a straight-through gradient."""

    @staticmethod
    def forward(_, x, rounding):
        return rounding(x)

    @staticmethod
    def backward(_, grad):
        return grad, None


def rounded(model, rounding):
    """Return a copy of the definitions that rounds weights and inputs of each matrix product and sums exactly."""
    reference = copy.deepcopy(model)
    choose(reference, fast=False)
    for module in reference.modules():
        if isinstance(module, nn.Linear | Output):
            module.weight.data = rounding(module.weight.data)
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, given: (Through.apply(given[0], rounding),))
    logits_function = reference.output.logits_function
    reference.output.logits_function = lambda rows: (
        lambda readout: logits_function(rows)(Through.apply(readout, rounding))
    )
    return reference


CORNERS = (DeepOutput, Sparsemax)
"""Modules with a discontinuous gradient: the larger unit of a pair or the support of the weights changes."""
KINKED = (*CORNERS, LocalPredictive)
"""Modules with a discontinuous gradient or output; a predicted window includes or excludes whole annotations."""
SEEDS = range(1, 13)
"""Seeds that are tried until rounding crosses no discontinuity of the model."""


def has_kinks(model):
    """Return True if the model contains a discontinuity that rounding may cross."""
    return any(isinstance(part, KINKED) for part in model.modules())


@contextmanager
def sides(model, kinds=KINKED):
    """Return a list to which a forward pass adds the side of each discontinuity that its values are on."""
    found, hooks = [], []

    def maxout(part, given, _):
        state, word, context, beside = given
        sums = part.with_fusion(part.state(state) + part.word(word) + part.context(context), beside)
        found.append(sums[..., 0::2] > sums[..., 1::2])

    def sparsemax(_, __, weights):
        found.append(weights.alpha > 0)

    def windows(part, centre):
        def ends(*given):
            p = centre(*given)
            found.append(torch.stack([(p - part.reach).ceil(), (p + part.reach).floor()]))
            return p

        return ends

    local = [part for part in model.modules() if isinstance(part, kinds) and isinstance(part, LocalPredictive)]
    for part in local:
        part.centre = windows(part, part.centre)
    for part in model.modules():
        if isinstance(part, kinds) and part not in local:
            hooks.append(part.register_forward_hook(maxout if isinstance(part, DeepOutput) else sparsemax))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        for part in local:
            del part.centre


def same_sides(one, other):
    """Return True if two forward passes are on the same side of every discontinuity."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
