"""Writing that is whole or not at all: a temporary name beside the target, synced, then renamed."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest
from itertools import count
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE
from tempfile import gettempdir
from typing import TextIO

from rnnsearch.errors import RnnsearchError

_NUMBERS, _TOKEN = count(), token_hex(4)
"""Of this process's temporary files, and what tells them from those of another machine's."""
_FILE, _FOLDER = re.compile(r"\.[0-9a-f]{8}-\d+-\d+\.tmp"), re.compile(r"\..+\.\d+\.tmp")
"""What temporary files and folders are called, the number of the process in them."""


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


def require_folder_place(path: Path) -> None:
    """Errors: RnnsearchError where there is no folder to write into and none can be made; nothing is made yet."""
    try:
        there = path.resolve()
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise RnnsearchError(f"{path}: must be a folder, or the name of one to make; {there} is a file")
        writable = os.access(there, os.W_OK | os.X_OK)
    except PermissionError:  # in a folder that cannot even be looked into
        writable = False
    if not writable:
        raise RnnsearchError(f"{path}: must be a folder that can be written to; it is not, or cannot be made")


def require_file_place(path: Path) -> None:
    """Errors: RnnsearchError where no file can be written; nothing is written yet. A device takes from anybody."""
    try:
        through = path.exists() and not path.is_file() and not path.is_dir()
    except PermissionError:
        through = False
    if through:
        return
    require_folder_place(path.resolve().parent)
    if path.is_dir():
        raise RnnsearchError(f"{path}: must be a file to write to; it is a folder")


def require_appendable(path: Path) -> None:
    """Errors: RnnsearchError where nothing can be added to a file; one that is not there yet is made."""
    try:
        path.open("a").close()
    except OSError as error:
        raise RnnsearchError(f"{path}: must be a file that can be added to; got: {error.strerror}") from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to `path` when the block ends, removed if it fails.

    A link is followed; what is there keeps its mode, and a new file has that of the umask, whoever writes it. What is
    no file (a device, a pipe) stays what it is: all is written through it when the block ends. Errors: RnnsearchError
    where the disk is full or the place cannot be written; BrokenPipeError of what else is written meanwhile. `path` is
    as it was.
    """
    temporary, through = None, False
    try:
        through = path.exists() and not path.is_file() and not path.is_dir()
        target = path if through else path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(gettempdir()) if through else target.parent
        temporary = folder / f".{_TOKEN}-{os.getpid()}-{next(_NUMBERS)}.tmp"
        temporary.touch()
        mode = S_IMODE((target if target.is_file() else temporary).stat().st_mode)
        temporary.unlink()
        yield temporary
        if through:
            with temporary.open("rb") as source, target.open("wb", buffering=0) as sink:
                shutil.copyfileobj(source, sink)
            return
        temporary.chmod(mode)
        _sync(temporary)
        temporary.replace(target)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not through:  # of another output: a file has no reader who goes away
            raise
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # which would hide the error above
                temporary.unlink()


def clash(outputs: Mapping[str, Path | None], read: Iterable[Path | None] = ()) -> str | None:
    """What is wrong where two options, by name, have one file to write to, or one of those that are read."""
    seen: dict[Path, str] = {}
    given = {path.resolve() for path in read if path is not None and path.is_file()}
    for option, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):  # a device takes from anybody
            continue
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            return f"{other} and {option} must name different files; got {path} twice"
        if path.resolve() in given:
            return f"{option} must not be a file that is read; got {path}"
    return None


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


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; renamed to `path` (replacing it) when the block ends, removed if it fails.

    A link is followed. What a killed process left half done is undone first. Errors: RnnsearchError where the disk is
    full or the place cannot be written; `path` is as it was.
    """
    target = path.resolve()
    temporary, old = (target.with_name(f".{target.name}.{os.getpid()}.{ending}") for ending in ("tmp", "old"))
    try:
        recover(target)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            recover(target)


def recover(path: Path) -> None:
    """A folder as it was before it was to be replaced, where the process that was about to has been killed; what it has
    put aside goes when the new one is there. What another process that runs puts aside is left to it."""
    path = path.resolve()  # a link is followed, as it was when the folder was to be replaced
    with suppress(FileNotFoundError):
        for old in path.parent.iterdir():
            begin, _, rest = old.name.rpartition(f".{path.name}.")
            process, _, ending = rest.partition(".")
            if begin or ending != "old" or not process.isdecimal() or _runs(int(process)):
                continue
            if not path.exists():
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)


def _runs(process: int) -> bool:
    """Whether another process has this number, as far as can be known."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # where asking would interrupt it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def remove_temporaries(*folders: Path) -> None:
    """What killed processes have left in some folders, where no other process works; not in folders in them."""
    for left in [left for folder in folders if folder.is_dir() for left in folder.iterdir()]:
        if left.is_dir() and not left.is_symlink():
            if _FOLDER.fullmatch(left.name):
                shutil.rmtree(left, ignore_errors=True)
        elif _FILE.fullmatch(left.name):
            left.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time works in a folder, which is made: its number and machine stand in `.lock`. The lock
    of a process that has ended is taken over. Errors: RnnsearchError, naming the process that works there."""
    path = folder / ".lock"
    with _owned(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _owned(path: Path) -> TextIO:
    """The file of a lock, which is now this process's."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            why = error.strerror or error
            raise RnnsearchError(f"{path.parent}: must be a folder that can be written to; got: {why}") from None
        if not _lock(file):
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise RnnsearchError(f"{path.parent}: {owner} works here; wait for its end, or name another folder")
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # who had it has removed it meanwhile


def _lock(file: TextIO) -> bool:
    """Whether the lock of an open file is now this process's, until it ends. True where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
