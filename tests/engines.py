"""What tests need that is built on the machine: it is there, or they are skipped."""

from pathlib import Path

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops.native.building import web_engine
from rnnsearch.ops.native.library import library


def require_native_code() -> None:
    """Search in native code on the processor."""
    if library() is None:
        pytest.skip("native code cannot be built here: there is no C++ compiler")


def engine_for_browsers() -> Path:
    """The engine as WebAssembly."""
    try:
        return web_engine()
    except RnnsearchError as error:
        pytest.skip(str(error))
