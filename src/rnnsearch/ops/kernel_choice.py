"""Choice between Triton kernels and PyTorch's operations.

`torch_recurrences.py` asks for the operations of a recurrence, and `loss.py` and `rows.py` ask if Triton runs. Tests:
tests/models/test_recurrent_kernels.py.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

from rnnsearch.ops.recurrent_kernels import TorchKernels

SWITCH = "RNNSEARCH_TRITON"
"""Environment variable; 0 uses PyTorch's operations on a GPU, too."""
TORCH = TorchKernels()


def kernels_for(states: Tensor, dtype: torch.dtype, source_positions: int = 1) -> TorchKernels:
    """Return the operations for recurrences with fp32 states, and products in a type.

    Args:
        states: A tensor on the device, of the type of the states.
        dtype: Type of the matrix products.
        source_positions: J.
    """
    if not runs_triton(states.device, states.dtype, dtype):
        return TORCH
    # Triton may not be installed.
    from rnnsearch.ops.triton_kernels import MAX_SOURCE_POSITIONS, TritonKernels

    return TritonKernels() if source_positions <= MAX_SOURCE_POSITIONS else TORCH


def runs_triton(device: torch.device, dtype: torch.dtype, product_dtype: torch.dtype) -> bool:
    """Return True if Triton kernels run for values and matrix products of these types."""
    is_supported = dtype == torch.float32 and product_dtype in (torch.float32, torch.bfloat16)
    return device.type == "cuda" and is_supported and os.environ.get(SWITCH) != "0" and _has_triton()


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
