"""Tensors whose memory is a file, which the system may write out where memory is short."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import torch
from torch import Tensor

LARGE = 64 << 20
"""Bytes from which on a tensor is worth a file."""


def is_large(tensor: Tensor) -> bool:
    """Whether it is worth a file."""
    return tensor.numel() * tensor.element_size() >= LARGE


def zeros(like: Tensor, folder: Path | None) -> Tensor:
    """A tensor of zeros of the same shape, if it is large in a file of this folder, which has no name and goes with it.
    In memory where there is no such file: on a full disk, or a system that cannot say so beforehand."""
    if folder is None or not is_large(like) or not hasattr(os, "posix_fallocate"):
        return torch.zeros_like(like)
    try:
        with NamedTemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, like.numel() * like.element_size())
            mapped = torch.from_file(file.name, shared=True, size=like.numel(), dtype=like.dtype)
    except OSError:
        return torch.zeros_like(like)
    return mapped.view(like.shape)


def moved(tensor: Tensor, folder: Path | None) -> Tensor:
    """A tensor's numbers where `zeros` are."""
    return zeros(tensor, folder).copy_(tensor)
