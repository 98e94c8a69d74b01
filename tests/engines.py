"""Skip tests whose native code cannot be built on this machine."""

from pathlib import Path

import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops.native.building import web_engine_path
from rnnsearch.ops.native.library import library


def require_native_code() -> None:
    """Skip the test if there is no native library."""
    if library() is None:
        pytest.skip("native code cannot be built here: there is no C++ compiler")


def require_web_engine() -> Path:
    """Return the path of the WebAssembly engine, or skip the test if it cannot be built."""
    try:
        return web_engine_path()
    except RnnsearchError as error:
        pytest.skip(str(error))
