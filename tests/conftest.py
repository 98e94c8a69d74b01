"""Test configuration: runtime checks of types and shapes, one thread, no display, and skipped CUDA tests."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial, wraps
from inspect import isclass
from pathlib import Path
from typing import Any, get_type_hints

import jaxtyping
import pytest
from beartype.roar import BeartypeCallHintViolation

shape_context = jaxtyping.jaxtyped

CHECKED_CALLS = 200
"""Calls of a function in which its types and shapes are always checked."""
CHECK_EVERY = 17
"""After that, one call in this many is checked; a prime, so that loops over a few cases check all of them."""


def check(decorated: Any = None, *, typechecker: Callable[[Any], Any]) -> Any:
    """Decorate a function or dataclass with type and shape checks.

    jaxtyping's import hook applies this decorator instead of its default. Types are checked once instead of twice,
    and dimension names are tracked only in functions with shapes, which takes a third of the time. The error does not
    name the wrong argument.
    """
    if decorated is None:
        return partial(check, typechecker=typechecker)
    if isinstance(decorated, classmethod | staticmethod):
        return type(decorated)(check(decorated.__func__, typechecker=typechecker))
    if isinstance(decorated, property):
        if decorated.fget is None:
            return decorated
        return decorated.getter(check(decorated.fget, typechecker=typechecker))
    if not isclass(decorated):
        return check_lazily(decorated, decorated, typechecker)
    if is_dataclass(decorated):
        decorated.__init__ = check_lazily(decorated.__init__, decorated, typechecker)
    return decorated


def check_lazily(function: Any, annotated: Any, typechecker: Callable[[Any], Any]) -> Any:
    """Return a function that resolves its annotations on the first call and checks them from then on.

    By then all types have been imported, except those that are imported only for type checkers; functions whose
    annotations use such types are not checked. Functions that are called often are checked in part of the calls only,
    because the checks would take half of the time of the whole suite.
    """
    checked = None
    has_shapes = False
    num_calls = 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, has_shapes, num_calls
        num_calls += 1
        if num_calls > CHECKED_CALLS and num_calls % CHECK_EVERY:
            return function(*args, **kwargs)
        if checked is None:
            checked = function
            with suppress(NameError):
                hints = get_type_hints(annotated, include_extras=True)
                resolved = {name: hint for name, hint in hints.items() if name in function.__annotations__}
                function.__annotations__ = resolved
                has_shapes = any("jaxtyping." in str(hint) for hint in resolved.values())
                checked = typechecker(function)
        try:
            if not has_shapes:
                return checked(*args, **kwargs)
            with shape_context("context"):
                return checked(*args, **kwargs)
        except BeartypeCallHintViolation as error:
            from torch.jit import is_tracing

            if is_tracing():  # sizes are tensors during tracing
                return function(*args, **kwargs)
            raise jaxtyping.TypeCheckError(str(error)) from error

    return run


# This must precede every import of the package. beartype checks all annotations, jaxtyping the shapes in them.
jaxtyping.jaxtyped = check
jaxtyping.install_import_hook("rnnsearch", "beartype.beartype")

os.environ["MPLBACKEND"] = "Agg"
# One thread per process, also in commands that tests start: tiny products are very slow on two threads of a busy
# machine. torch reads these variables when it is imported.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
# Use native code wherever it can be built, even if the library is faster.
os.environ.setdefault("RNNSEARCH_NATIVE", "1")
# Without a GPU, Triton's kernels are interpreted. Triton reads the variable when it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


LONG_FILES = {
    "test_building.py",
    "test_docs.py",
    "test_interrupt.py",
    "test_scripts.py",
    "test_slices.py",
    "test_torchrun.py",
    "test_web.py",
}
"""Files of tests that take many seconds each."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Plan the tests for several workers, and skip those that need more CUDA devices.

    Long tests start first: at the end they would leave other cores idle. Tests that share a fixture of their module run
    in one worker, so that it is made once.
    """
    items.sort(key=lambda item: item.path.name not in LONG_FILES)
    for item in items:
        is_long = item.path.name in LONG_FILES
        if not is_long and item.get_closest_marker("xdist_group") is None and _has_module_fixture(item):
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    _skip_without_cuda(items)


def _has_module_fixture(item: Any) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    return any(fixture.scope == "module" for fixtures in definitions for fixture in fixtures)


def _skip_without_cuda(items: list[pytest.Item]) -> None:
    """Skip tests marked `cuda` or `cuda(devices=2)` if torch finds fewer CUDA devices."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("cuda"))]
    if not marked:
        return
    import torch

    available = torch.cuda.device_count()
    for item, mark in marked:
        required = mark.kwargs.get("devices", 1)
        if available < required:
            devices = "a CUDA device" if required == 1 else f"{required} CUDA devices"
            item.add_marker(pytest.mark.skip(reason=f"needs {devices}; torch finds {available or 'none'}"))


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Undo what a server that a test starts in this process does to the loggers."""
    loggers = [logging.getLogger(name) for name in ("rnnsearch", "rnnsearch.serve", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.propagate = propagate
        logger.setLevel(level)


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
            return error.problems

    return check_tables


@pytest.fixture
def empty_library_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return the empty folder of native libraries of a new user.

    Instead of compiling for many seconds, each build copies the library that the other tests use.
    """
    from rnnsearch.ops.native import building, library

    chosen, compiler = library.chosen_variant(), building.find_compiler()
    if chosen is None or compiler is None:
        pytest.skip(library.unavailable_reason() or "no C++ compiler was found")
    compiled = building.build_if_missing(chosen, compiler)
    monkeypatch.setattr(building, "build", lambda _variant, _command, target, _flags: shutil.copy(compiled, target))
    monkeypatch.setenv("RNNSEARCH_CACHE", str(tmp_path / "cache"))
    library._library.cache_clear()
    yield tmp_path / "cache" / "native"
    library._library.cache_clear()
