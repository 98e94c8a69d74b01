"""What every test runs under: shapes and types checked, few threads, no display, CUDA tests skipped."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import isclass
from typing import Any, get_type_hints

import jaxtyping
import pytest
from beartype.roar import BeartypeCallHintViolation

in_context = jaxtyping.jaxtyped


def check(made: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """What jaxtyping's import hook lays over each function and dataclass, in the place of its own decorator: types are
    checked once, not twice, and names of sizes are kept in mind only where there are shapes. It takes a third of the
    time; what is lost is who was at fault, in the words of the error."""
    if made is None:
        return partial(check, typechecker=typechecker)
    if isinstance(made, classmethod | staticmethod):
        return type(made)(check(made.__func__, typechecker=typechecker))
    if isinstance(made, property):
        return made if made.fget is None else made.getter(check(made.fget, typechecker=typechecker))
    if not isclass(made):
        return checked_from_its_first_call(made, made, typechecker)
    if is_dataclass(made):
        made.__init__ = checked_from_its_first_call(made.__init__, made, typechecker)
    return made


def checked_from_its_first_call(function: Any, annotated: Any, typechecker: Callable[[Any], Any]) -> Any:
    """All names of types are there then, but those that only type checkers import: such a function is not checked."""
    checked, has_shapes = None, False

    @wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        nonlocal checked, has_shapes
        if checked is None:
            checked = function
            with suppress(NameError):
                hints = get_type_hints(annotated, include_extras=True)
                found = {name: hint for name, hint in hints.items() if name in function.__annotations__}
                function.__annotations__ = found
                has_shapes = any("jaxtyping." in str(hint) for hint in found.values())
                checked = typechecker(function)
        try:
            if not has_shapes:
                return checked(*given, **named)
            with in_context("context"):
                return checked(*given, **named)
        except BeartypeCallHintViolation as error:
            from torch.jit import is_tracing

            if is_tracing():  # where sizes are tensors
                return function(*given, **named)
            raise jaxtyping.TypeCheckError(str(error)) from error

    return run


# Before anything of the package is imported: beartype checks every annotation, jaxtyping the shapes in them.
jaxtyping.jaxtyped = check
jaxtyping.install_import_hook("rnnsearch", "beartype.beartype")

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
def problems() -> Callable[..., list[str]]:
    """Return a function that lists every problem of a run file's tables, which may omit `[data]` and `[training]`."""
    from rnnsearch.config import resolve
    from rnnsearch.errors import ConfigError
    from rnnsearch.systems.validation import check

    defaults = {
        "data": {"source": "en", "target": "de", "corpus": "x"},
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }

    def check_tables(tables: dict[str, Any], *settings: str) -> list[str]:
        try:
            return check(resolve({**defaults, **tables} if "preset" not in tables else tables, settings))
        except ConfigError as error:
            return error.faults

    return check_tables
