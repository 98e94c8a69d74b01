"""Softmax, loss and gradient of a chunk of logits in C++ (`softmax_loss.cpp`)."""

from __future__ import annotations

import torch
from torch import Tensor

from rnnsearch.kernels.native.library import function
from rnnsearch.tensors import product_type


def can_run(readout: Tensor, weight: Tensor) -> bool:
    """Whether the compiled function is there for logits of these: on the CPU, over fp32 weights."""
    if readout.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    return function("softmax_loss", product_type(readout)) is not None


def softmax_loss(
    logits: Tensor, bias: Tensor, target: Tensor, eps: float, d_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """NLL [M] of each row of logits [M, V] (without the bias), and its loss with label smoothing eps [M].

    With `d_bias`, which is added to, the logits become d(sum of losses) / dlogits.
    """
    M, V = logits.shape
    run = function("softmax_loss", logits.dtype)
    assert run is not None
    nll, smoothed = bias.new_empty(M), bias.new_empty(M)
    wanted = d_bias is not None
    run(M, V, logits, bias, target, float(eps), int(wanted), nll, smoothed, d_bias if wanted else nll)
    return nll, smoothed
