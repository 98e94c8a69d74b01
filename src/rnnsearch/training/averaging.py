"""Checkpoint averaging: the mean of several models' weights, parameter by parameter."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rnnsearch.errors import ModelError
from rnnsearch.weights import read_weights


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several files. Errors: ModelError where they are not of one model."""
    total: dict[str, Tensor] = {}
    for path in paths:
        tensors = read_weights(path)
        if total and {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in total.items()}:
            raise ModelError(f"{path}: its parameters are not those of {paths[0]}; only one model's can be averaged")
        for name, tensor in tensors.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).to(torch.float32) for name, tensor in total.items()}
