"""Stores of shards: a folder, or a location that fsspec knows by a URL (s3://, gs://, file://).

`store_at` chooses between them. `jobs.py` and `prepare.py` use only the methods of `Store`.

A file must never be visible before it is complete, since other machines read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from rnnsearch.errors import RnnsearchError
from rnnsearch.utils.files import locked, remove_temporaries, write_bytes

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
"""Names of unfinished files of `UrlStore`."""


def store_at(location: str) -> Store:
    """Return the store at the path of a folder or at a URL."""
    return UrlStore(location) if re.match(r"[a-z][a-z0-9+.-]*://", location) else FolderStore(Path(location))


@runtime_checkable
class Store(Protocol):
    """Small files by name, each of which appears only when it is complete; picklable, for workers.

    All methods raise RnnsearchError, with the location, if the store cannot be read or written.
    """

    def locked(self) -> AbstractContextManager[None]:
        """Return a context in which no other run uses the store, as far as that can be ensured.

        At its end, the location is removed if it is empty.
        """

    def has(self, name: str) -> bool:
        """Return True if a file exists."""

    def names(self) -> set[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file under a temporary name, then rename it."""

    def remove(self, names: set[str]) -> None:
        """Remove some files and unfinished files of killed writers."""


class FolderStore:
    """A folder that all machines see under the same path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def __str__(self) -> str:
        return str(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            with locked(self.folder):
                yield
        finally:
            with suppress(OSError):  # it is not empty
                self.folder.rmdir()

    def has(self, name: str) -> bool:
        with self._translate_errors():
            return (self.folder / name).is_file()

    def names(self) -> set[str]:
        with self._translate_errors():
            return {entry.name for entry in os.scandir(self.folder)} if self.folder.exists() else set()

    def read(self, name: str) -> bytes:
        with self._translate_errors():
            return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        write_bytes(self.folder / name, content)

    def remove(self, names: set[str]) -> None:
        removed = self.names() & names
        with self._translate_errors():
            for name in removed:
                (self.folder / name).unlink(missing_ok=True)
            remove_temporaries(self.folder)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise RnnsearchError for errors of the file system."""
        try:
            yield
        except OSError as error:
            wanted = "must be a folder that all machines can read and write"
            raise RnnsearchError(f"{self.folder}: {wanted}; got: {error.strerror or error}") from None


class UrlStore:
    """A location that fsspec knows by its URL; some need another package (S3 needs s3fs)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield  # such locations have no locks, but two runs with the same key write the same files
        if not self.names():
            with self._file_system() as (files, root), suppress(Exception):  # some have no folders
                files.rmdir(root)

    def has(self, name: str) -> bool:
        with self._file_system() as (files, root):
            files.invalidate_cache()  # other processes write, too
            return bool(files.isfile(f"{root}/{name}"))

    def names(self) -> set[str]:
        with self._file_system() as (files, root):
            files.invalidate_cache()
            paths = files.ls(root, detail=False) if files.exists(root) else []
            return {path.rstrip("/").rpartition("/")[2] for path in paths}

    def read(self, name: str) -> bytes:
        with self._file_system() as (files, root):
            content: bytes = files.cat_file(f"{root}/{name}")
            return content

    def write(self, name: str, content: bytes) -> None:
        with self._file_system() as (files, root):
            files.makedirs(root, exist_ok=True)
            temporary = f"{root}/.{uuid4().hex}.tmp"
            files.pipe_file(temporary, content)
            files.mv(temporary, f"{root}/{name}")

    def remove(self, names: set[str]) -> None:
        removed = [name for name in self.names() if name in names or _TEMPORARY.fullmatch(name)]
        with self._file_system() as (files, root):
            if removed:
                files.rm([f"{root}/{name}" for name in removed])

    @contextmanager
    def _file_system(self) -> Iterator[tuple[Any, str]]:
        """Provide the file system and the path in it; raise RnnsearchError for any exception of its library."""
        try:
            import fsspec

            yield fsspec.core.url_to_fs(self.url)
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            wanted = "must be a store that can be read and written"
            raise RnnsearchError(f"{self.url}: {wanted}; got: {lines[0]}") from None
