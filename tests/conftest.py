"""What every test runs under: shapes and types checked, few threads, no display, CUDA tests skipped."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from jaxtyping import install_import_hook

# Before anything of the package is imported: beartype checks every annotation, jaxtyping the shapes in them.
install_import_hook("rnnsearch", "beartype.beartype")

os.environ["MPLBACKEND"] = "Agg"
# One thread a process, the commands it starts included: tiny products on two threads of a busy machine crawl.
# torch reads this when it is first imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
# Native code serves wherever it can be built, whatever a clock says.
os.environ.setdefault("RNNSEARCH_NATIVE", "1")


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


@pytest.fixture
def faults() -> Callable[..., list[str]]:
    """Every fault of a run file's tables, of options and of combinations; what is not given is of no account."""
    from rnnsearch.config import resolve
    from rnnsearch.errors import ConfigError
    from rnnsearch.systems.checks import check

    plain = {
        "data": {"source": "en", "target": "de", "corpus": "x"},
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }

    def found(tables: dict[str, Any], *settings: str) -> list[str]:
        try:
            return check(resolve({**plain, **tables} if "preset" not in tables else tables, settings))
        except ConfigError as error:
            return error.faults

    return found
