"""Where shards are kept: a folder, or a place that fsspec knows by a URL (s3://, gs://, file://)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from rnnsearch.errors import RnnsearchError
from rnnsearch.utils.files import locked, write_bytes

_TEMPORARY = re.compile(r"\.[0-9a-f]{8}-\d+-\d+\.tmp|\.[0-9a-f]{32}\.tmp")
"""Names of files that are being written, in a folder and elsewhere."""


@runtime_checkable
class Store(Protocol):
    """Small files by name, each there whole or not at all. It can be sent to other processes.

    Errors: RnnsearchError, one sentence that names the place, where it cannot be read or written.
    """

    def locked(self) -> AbstractContextManager[None]:
        """Only one run at a time works in it, as far as that can be seen to. When it ends, so does a place that nothing
        is left in."""

    def has(self, name: str) -> bool:
        """Whether a file is there."""

    def names(self) -> set[str]:
        """Of the files that are there."""

    def read(self, name: str) -> bytes:
        """What a file holds."""

    def write(self, name: str, content: bytes) -> None:
        """A file under a temporary name, then renamed."""

    def remove(self, names: set[str]) -> None:
        """These files are no longer needed, nor is what killed writers have left."""


class FolderStore:
    """A folder, which all who work see by the same path."""

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
            with suppress(OSError):  # something is left in it
                self.folder.rmdir()

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def names(self) -> set[str]:
        with self._reached():
            return {entry.name for entry in os.scandir(self.folder)} if self.folder.exists() else set()

    def read(self, name: str) -> bytes:
        with self._reached():
            return (self.folder / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        write_bytes(self.folder / name, content)

    def remove(self, names: set[str]) -> None:
        for name in self.names():
            if name in names or _TEMPORARY.fullmatch(name):
                (self.folder / name).unlink(missing_ok=True)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RnnsearchError(
                f"{self.folder}: must be a folder that every machine at work can read; got: {error.strerror or error}"
            ) from None


class UrlStore:
    """A place that fsspec knows by its URL; what is needed for S3, say, is another package (s3fs)."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __str__(self) -> str:
        return self.url

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield  # such places have no locks: two runs of one key write the same
        if not self.names():
            with self._reached() as (files, root), suppress(Exception):  # some have no folders
                files.rmdir(root)

    def has(self, name: str) -> bool:
        with self._reached() as (files, root):
            files.invalidate_cache()
            return bool(files.isfile(f"{root}/{name}"))

    def names(self) -> set[str]:
        with self._reached() as (files, root):
            files.invalidate_cache()
            found = files.ls(root, detail=False) if files.exists(root) else []
            return {name.rstrip("/").rpartition("/")[2] for name in found}

    def read(self, name: str) -> bytes:
        with self._reached() as (files, root):
            content: bytes = files.cat_file(f"{root}/{name}")
            return content

    def write(self, name: str, content: bytes) -> None:
        with self._reached() as (files, root):
            files.makedirs(root, exist_ok=True)
            temporary = f"{root}/.{uuid4().hex}.tmp"
            files.pipe_file(temporary, content)
            files.mv(temporary, f"{root}/{name}")

    def remove(self, names: set[str]) -> None:
        gone = [name for name in self.names() if name in names or _TEMPORARY.fullmatch(name)]
        with self._reached() as (files, root):
            if gone:
                files.rm([f"{root}/{name}" for name in gone])

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, str]]:
        """The file system and the path in it. Whatever a cloud's library raises is about the place."""
        try:
            import fsspec

            yield fsspec.core.url_to_fs(self.url)
        except Exception as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise RnnsearchError(f"{self.url}: must be a store that can be read and written; got: {why[0]}") from None


def store_at(place: str) -> Store:
    """The store of a folder's path, or of a URL."""
    return UrlStore(place) if re.match(r"[a-z][a-z0-9+.-]*://", place) else FolderStore(Path(place))
