"""What every test runs under: shapes and types checked, few threads, no display, CUDA tests skipped."""

from __future__ import annotations

import os

import pytest
from jaxtyping import install_import_hook

# Before anything of the package is imported: beartype checks every annotation, jaxtyping the shapes in them.
install_import_hook("rnnsearch", "beartype.beartype")

os.environ["MPLBACKEND"] = "Agg"
# One thread a process, the commands it starts included: tiny products on two threads of a busy machine crawl.
# torch reads this when it is first imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `cuda`, or `cuda(devices=2)`, where torch finds no CUDA device, or fewer."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("cuda"))]
    if not marked:
        return
    import torch

    here = torch.cuda.device_count()
    for item, mark in marked:
        if here < (needed := mark.kwargs.get("devices", 1)):
            what = "a CUDA device" if needed == 1 else f"{needed} CUDA devices"
            item.add_marker(pytest.mark.skip(reason=f"needs {what}; torch finds {here or 'none'}"))
