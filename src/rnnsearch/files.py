"""Writing that is whole or not at all: a temporary name beside the target, synced, then renamed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rnnsearch.errors import RnnsearchError


def default_cache() -> Path:
    """`$RNNSEARCH_CACHE`, else `$XDG_CACHE_HOME/rnnsearch`, else `~/.cache/rnnsearch`."""
    if own := os.environ.get("RNNSEARCH_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rnnsearch"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to `path` when the block ends, removed if it fails.

    Errors: RnnsearchError where the disk is full or the place cannot be written; `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error
    finally:
        with suppress(OSError):  # which would hide the error above
            temporary.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """`content` in `path`, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """`text` as UTF-8 in `path`, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """`value` as JSON that people can read, too, in `path`, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; renamed to `path` (replacing it) when the block ends, removed if it fails.

    Errors: RnnsearchError where the disk is full or the place cannot be written; `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)
