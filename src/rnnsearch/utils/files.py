"""Atomic writing of files and folders, and locks.

Content is written to a temporary name next to the target, synced, and renamed, so that a target is
either the old or the new version even after a crash.

All modules that write a file or folder use it: checkpoints, model folders, prepared data, engine files, reports. Small
files of users are read by `read_text`; `data.corpus.read_lines` reads large ones.
Names of temporary and old folders are recognised after a crash (`recover_folder`), so they must stay the same. Tests:
tests/test_files.py, and killed processes in tests/stress. This module must not import torch.
"""

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

_file_numbers = count()  # of this process's temporary files
_PROCESS_TOKEN = token_hex(4)  # distinguishes temporary files of processes on different machines
TEMPORARY_FILE = re.compile(r"\.[0-9a-f]{8}-\d+-\d+\.tmp")
"""Names of the temporary files of `atomic_file`."""
_TEMPORARY_FOLDER = re.compile(r"\..+\.\d+\.tmp")


def default_cache_folder() -> Path:
    """Return `$RNNSEARCH_CACHE`, else `$XDG_CACHE_HOME/rnnsearch`, else `~/.cache/rnnsearch`."""
    if folder := os.environ.get("RNNSEARCH_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rnnsearch"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_writable_folder(path: Path) -> None:
    """Raise RnnsearchError unless the folder exists and is writable, or can be created. Creates nothing."""
    try:
        existing = path.resolve()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise RnnsearchError(f"{path}: must be a folder, or the name of one to make; {existing} is a file")
        writable = os.access(existing, os.W_OK | os.X_OK)
    except PermissionError:  # in a folder that cannot even be listed
        writable = False
    if not writable:
        raise RnnsearchError(f"{path}: must be a folder that can be written to; it is not, or cannot be made")


def require_writable_file(path: Path) -> None:
    """Raise RnnsearchError unless the file can be written. Writes nothing; devices and pipes are always accepted."""
    try:
        is_device = path.exists() and not path.is_file() and not path.is_dir()
    except PermissionError:
        is_device = False
    if is_device:
        return
    require_writable_folder(path.resolve().parent)
    if path.is_dir():
        raise RnnsearchError(f"{path}: must be a file to write to; it is a folder")


def require_appendable(path: Path) -> None:
    """Raise RnnsearchError unless the file can be appended to; creates it if it does not exist."""
    try:
        path.open("a").close()
    except OSError as error:
        raise RnnsearchError(f"{path}: must be a file that can be added to; got: {error.strerror}") from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which is renamed to `path` when the block ends, or removed if it fails.

    Symbolic links are followed. An existing file keeps its mode; a new one has the mode of the
    umask. To a device or pipe, the content is copied when the block ends.

    Raises:
        RnnsearchError: The disk is full, or the file cannot be written; `path` is unchanged.
        BrokenPipeError: Raised by other output inside the block.
    """
    temporary = None
    is_device = False
    try:
        is_device = path.exists() and not path.is_file() and not path.is_dir()
        target = path if is_device else path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(gettempdir()) if is_device else target.parent
        temporary = folder / f".{_PROCESS_TOKEN}-{os.getpid()}-{next(_file_numbers)}.tmp"
        temporary.touch()
        mode = S_IMODE((target if target.is_file() else temporary).stat().st_mode)
        temporary.unlink()
        yield temporary
        if is_device:
            with temporary.open("rb") as source, target.open("wb", buffering=0) as sink:
                shutil.copyfileobj(source, sink)
            return
        temporary.chmod(mode)
        _sync(temporary)
        temporary.replace(target)
    except OSError as error:
        # A file has no reader that can disappear, so the error is that of another output.
        if isinstance(error, BrokenPipeError) and not is_device:
            raise
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # it would hide the error above
                temporary.unlink()


def path_conflict(outputs: Mapping[str, Path | None], read: Iterable[Path | None] = ()) -> str | None:
    """Return an error message if two options name the same output file, or an output is also read, else None.

    Args:
        outputs: Output files by option name.
        read: Files that are read.
    """
    options: dict[Path, str] = {}
    inputs = {path.resolve() for path in read if path is not None and path.is_file()}
    for option, path in outputs.items():
        if path is None or (path.exists() and not path.is_file()):  # a device may have several writers
            continue
        other = options.setdefault(path.resolve(), option)
        if other != option:
            return f"{other} and {option} must name different files; got {path} twice"
        if path.resolve() in inputs:
            return f"{option} must not be a file that is read; got {path}"
    return None


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file from a user, without a byte order mark, which editors on Windows write.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    return path.read_text(encoding="utf-8-sig")


def write_text(path: Path, text: str) -> None:
    """Write text to a file as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: object) -> None:
    """Write a value to a file as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which replaces `path` when the block ends, or is removed if it fails.

    Symbolic links are followed. An unfinished replacement by a killed process is undone first.

    Raises:
        RnnsearchError: The disk is full, or the folder cannot be written; `path` is unchanged.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        recover_folder(target)
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
            recover_folder(target)


def recover_folder(path: Path) -> None:
    """Undo the replacement of a folder by a process that was killed.

    The old version is restored if the new one is not in place yet, else removed. Replacements by
    running processes are left alone.
    """
    path = path.resolve()  # as in `atomic_folder`
    with suppress(FileNotFoundError):
        for old in path.parent.iterdir():
            before, _, after = old.name.rpartition(f".{path.name}.")
            process, _, ending = after.partition(".")
            if before or ending != "old" or not process.isdecimal() or _is_running(int(process)):
                continue
            if not path.exists():
                old.rename(path)
            shutil.rmtree(old, ignore_errors=True)


def _is_running(process: int) -> bool:
    """Return True if another process with this id may be running."""
    if process == os.getpid():
        return False
    if os.name == "nt":  # where `os.kill` would terminate it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True


def remove_temporaries(*folders: Path) -> None:
    """Remove temporary files and folders that killed processes left directly in these folders.

    No other process may be writing there.
    """
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in list(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                if _TEMPORARY_FOLDER.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)
            elif TEMPORARY_FILE.fullmatch(path.name):
                path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which is created if necessary, so that only one process at a time works in it.

    The file `.lock` contains the process id and the machine. The lock of a process that has ended
    is taken over.

    Raises:
        RnnsearchError: Another process works in the folder; the message names it.
    """
    path = folder / ".lock"
    with _acquire(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _acquire(path: Path) -> TextIO:
    """Return the open lock file, locked by this process."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            why = error.strerror or error
            raise RnnsearchError(f"{path.parent}: must be a folder that can be written to; got: {why}") from None
        if not _try_lock(file):
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise RnnsearchError(f"{path.parent}: {owner} works here; wait for its end, or name another folder")
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # its owner removed it in the meantime: try again


def _try_lock(file: TextIO) -> bool:
    """Lock an open file until this process ends; return False if another process holds the lock.

    Returns True where locks are not supported.
    """
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
