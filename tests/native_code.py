"""Native code in new caches, for tests that set RNNSEARCH_CACHE and start processes."""

import shutil
from pathlib import Path

from rnnsearch.ops.native import building, library


def copy_native_code(cache: Path) -> None:
    """Copy the library that the other tests use to another cache, where each process would wait for the compiler."""
    chosen, compiler = library.chosen_variant(), building.find_compiler()
    if chosen is not None and compiler is not None:
        _copy(building.build_if_missing(chosen, compiler), cache)


def copy_web_engine(cache: Path) -> None:
    """Copy the engine for browsers to another cache, if it can be built."""
    if building.find_zig() is not None:
        _copy(building.web_engine_path(), cache)


def _copy(compiled: Path, cache: Path) -> None:
    (cache / "native").mkdir(parents=True, exist_ok=True)
    shutil.copy(compiled, cache / "native")
