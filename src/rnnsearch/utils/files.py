"""Atomic writing of files and folders, and locks.

Content is written to a temporary name next to the target, synced, and renamed, so that a target is
either the old or the new version even after a crash.

Entry points:
- one file: `write_bytes`, `write_text`, `write_json`; `atomic_file` for a writer that needs a path; `append_line`
- one folder: `atomic_folder` to write, `complete_folder` to read, `recover_folder` and `remove_temporaries` to clean up
- reading: `read_text` for files of users, `read_folder_text` and `require_folder_file` for files of folders
- checks before work starts: `require_writable_file`, `require_writable_folder`, `require_appendable`, `path_conflict`
- locks: `locked`, for a folder in which only one process may work

All modules that write a file or folder use it: checkpoints, model folders, prepared data, engine files, reports. Small
files of users are read by `read_text`; `data.corpus.read_lines` reads large ones. One rule holds for all temporary
files and folders: their names are unique, and their writer holds a lock on them, which ends with its process. Whether a
process is alive is never inferred from its id, which another process may have by now. Names of temporary and old
folders are recognised after a crash (`recover_folder`), also those of earlier versions, so they must stay the same.
Tests: tests/test_files.py, and killed processes in tests/stress. This module must not import torch.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import file_digest
from io import FileIO
from itertools import count
from pathlib import Path
from secrets import token_hex
from stat import S_IMODE, S_ISREG
from tempfile import gettempdir
from typing import TextIO

from rnnsearch.errors import RnnsearchError

_file_numbers = count()  # of this process's temporary files
_PROCESS_TOKEN = token_hex(4)  # distinguishes temporary files of processes on different machines
_UNIQUE = r"[0-9a-f]{8}-\d+-\d+"
_UNIQUE_OF_FOLDER = rf"(?:{_UNIQUE}|\d+)"  # earlier versions used the process id only
TEMPORARY_FILE = re.compile(rf"\.{_UNIQUE}\.tmp")
"""Names of the temporary files of `atomic_file`."""
_TEMPORARY_FOLDER = re.compile(rf"\..+\.{_UNIQUE_OF_FOLDER}\.tmp")
_ABANDONED_SECONDS = 24 * 60 * 60  # age of temporary files that are removed where locks are not supported


# Folders and checks before work starts.


def default_cache_folder() -> Path:
    """Return `$RNNSEARCH_CACHE`, else `$XDG_CACHE_HOME/rnnsearch`, else `~/.cache/rnnsearch`.

    Raises:
        RnnsearchError: The user has no home folder, as in some containers.
    """
    own = os.environ.get("RNNSEARCH_CACHE")
    folder = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "rnnsearch"
    try:
        return folder.expanduser()
    except RuntimeError:
        problem = "without a home folder, there is no folder for downloads and compiled code"
        raise RnnsearchError(f"{problem}; set RNNSEARCH_CACHE to one") from None


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


# Appending.


def append_line(path: Path, line: str) -> None:
    """Append a line completely or not at all, also after a line that another program has left unfinished.

    Lines of several processes are not mixed. Lone surrogates are written as escape sequences.

    Raises:
        RnnsearchError: The disk is full, or the file cannot be written; nothing was added.
    """
    content = f"{line}\n".encode("utf-8", "backslashreplace")
    try:
        with path.open("ab", buffering=0) as file:
            _lock(file.fileno(), wait=True)
            status = os.fstat(file.fileno())
            if not S_ISREG(status.st_mode):  # a device or pipe
                file.write(content)
                return
            try:
                _append_after_line(path, file, content, status.st_size)
            except BaseException:
                os.ftruncate(file.fileno(), status.st_size)
                raise
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was added") from error


def _append_after_line(path: Path, file: FileIO, content: bytes, size: int) -> None:
    """Append content to a file of some size in one write, after a line feed if the last line has none.

    Raises:
        OSError: Not everything was written.
    """
    if size > 0:
        with suppress(PermissionError), path.open("rb") as last:  # it may be readable by others only
            last.seek(size - 1)
            if last.read(1) != b"\n":
                content = b"\n" + content
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file.fileno())


# Temporary files and folders, each locked by its writer.


def _unique_name() -> str:
    return f"{_PROCESS_TOKEN}-{os.getpid()}-{next(_file_numbers)}"


@contextmanager
def temporary_file(folder: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new, empty file in a folder, which no other process removes, and remove it if it is still there.

    Args:
        folder: An existing folder.
        mode: Mode of the file, without the bits of the umask.

    Raises:
        OSError: It cannot be created.
    """

    def create(path: Path) -> None:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode))

    with _temporary(folder, "", create) as path:
        yield path


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder in another one, which no other process removes, and remove it at the end.

    Raises:
        OSError: It cannot be created.
    """
    with _temporary(parent, "folder.", Path.mkdir) as path:
        yield path


@contextmanager
def _temporary(folder: Path, prefix: str, create: Callable[[Path], None]) -> Iterator[Path]:
    """Create a temporary file or folder, yield it, locked by this process, and remove it if it is still there."""
    with ExitStack() as stack:
        while True:
            path = folder / f".{prefix}{_unique_name()}.tmp"
            create(path)
            stack.callback(_remove, path)
            if os.name == "nt":  # no locks, and open files cannot be renamed
                break
            with suppress(FileNotFoundError):
                descriptor = _open_to_lock(path)
                stack.callback(os.close, descriptor)
                _lock(descriptor, wait=True)
                if path.exists():  # else another process removed it before it was locked: try again
                    break
        yield path


def _remove(path: Path) -> None:
    """Remove a file or folder, if that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _open_to_lock(path: Path) -> int:
    """Return a descriptor of a file or folder; NFS can lock only files, and only those that are open for writing."""
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR
    return os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)


# Atomic writing of files.


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which is renamed to `path` when the block ends, or removed if it fails.

    Symbolic links are followed. An existing file keeps its mode, which the temporary file has from
    the beginning; a new one has the mode of the umask. To a device or pipe, the content is copied
    when the block ends.

    Raises:
        RnnsearchError: The disk is full, or the file cannot be written; `path` is unchanged.
        BrokenPipeError: Raised by other output inside the block.
    """
    is_device = False
    try:
        is_device = path.exists() and not path.is_file() and not path.is_dir()
        target = path if is_device else path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = S_IMODE(target.stat().st_mode) if target.is_file() else None
        # The owner can write also while a read-only file is replaced.
        created_mode = 0o600 if is_device else 0o666 if mode is None else mode & 0o777 | 0o600
        with temporary_file(Path(gettempdir()) if is_device else target.parent, created_mode) as temporary:
            os.utime(temporary, ns=(0, 0))
            created = temporary.stat()
            yield temporary
            written = temporary.stat()
            if written.st_size == 0 and written.st_mtime_ns == created.st_mtime_ns:
                raise FileNotFoundError(errno.ENOENT, "there is no output")
            if is_device:
                with temporary.open("rb") as source, target.open("wb", buffering=0) as sink:
                    shutil.copyfileobj(source, sink)
                return
            temporary.chmod(S_IMODE(created.st_mode) if mode is None else mode)
            _sync(temporary)
            temporary.replace(target)
    except OSError as error:
        # A file has no reader that can disappear, so the error is that of another output.
        if isinstance(error, BrokenPipeError) and not is_device:
            raise
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error


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


# Reading.

MAX_TEXT_BYTES = 256 << 20
"""Maximum size of a JSON or TOML file in a folder."""
JSON_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Errors of a JSON file that is missing, damaged or nested too deeply, or whose values have other types."""


def require_folder_file(path: Path, folder: Path | None = None, max_bytes: int | None = None) -> None:
    """Raise OSError unless a file of a folder is regular, inside the folder, and not larger than `max_bytes`.

    A folder may come from anyone: a pipe or device in it would be read forever, and a link may lead anywhere. All
    modules that read files of folders call it, or `read_folder_text`, before they open them.

    Args:
        path: The file.
        folder: The folder; by default the one that the file is in.
        max_bytes: Maximum size; None for files whose readers check it.
    """
    require_regular_file(path, max_bytes)
    if not is_inside(path, path.parent if folder is None else folder):
        raise OSError(errno.EINVAL, "is a link to a file outside of its folder")


def require_regular_file(path: Path, max_bytes: int | None = None) -> None:
    """Raise OSError unless a file, possibly behind links, is regular and not larger than `max_bytes`."""
    try:
        information = path.stat()
    except ValueError as error:  # NUL in the path
        raise OSError(errno.EINVAL, str(error)) from None
    if not S_ISREG(information.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    if max_bytes is not None and information.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes:,} bytes")


def read_folder_text(path: Path, folder: Path | None = None) -> str:
    """Return the text of a UTF-8 file of a folder of at most MAX_TEXT_BYTES (see `require_folder_file`).

    Raises:
        OSError: The file cannot be read, or is not inside the folder.
        UnicodeDecodeError: It is not UTF-8.
    """
    require_folder_file(path, folder, MAX_TEXT_BYTES)
    return path.read_text(encoding="utf-8")


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path leads into a folder after all links are followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # links that form a loop, or NUL in the path
        return False


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file from a user, without a byte order mark, which editors on Windows write.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    return path.read_text(encoding="utf-8-sig")


# Files by type, and their hashes.


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


# Atomic replacement of folders, and recovery after a crash.


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which replaces `path` when the block ends, or is removed if it fails.

    Symbolic links are followed, and the mode of an existing folder is preserved. An unfinished
    replacement by a killed process is undone first.

    Raises:
        RnnsearchError: The disk is full, or the folder cannot be written; `path` is unchanged.
    """
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        recover_folder(target)
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        mode = S_IMODE(target.stat().st_mode) | 0o700 if target.exists() else None

        def create(temporary: Path) -> None:
            temporary.mkdir(0o777 if mode is None else mode & 0o777)

        with _temporary(target.parent, f"{target.name}.", create) as temporary:
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            if mode is not None:
                temporary.chmod(mode)
            _replace_folder(target, temporary)
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}; nothing was changed") from error


def _replace_folder(target: Path, new: Path) -> None:
    """Rename a folder to `target`, whose old version is removed, or restored if it fails."""
    with replacing(target):
        try:
            if target.exists():
                target.rename(_sibling(target, "old"))
            new.rename(target)
        finally:
            _recover(target)


def recover_folder(path: Path) -> None:
    """Finish or undo the replacement of a folder by a process that was killed.

    The old version is restored if the new one is not in place yet, else removed. Only writers call
    this, and no other process can be replacing the folder meanwhile. Readers use `complete_folder`.

    Raises:
        OSError: The parent folder cannot be written.
    """
    path = path.resolve()  # as in `atomic_folder`
    if not path.parent.is_dir():
        return
    with replacing(path):
        _recover(path)
        for temporary in _siblings(path, "tmp"):
            _remove_if_abandoned(temporary)


def complete_folder(path: Path) -> Path:
    """Return the folder to read: `path`, or the old version if a killed process has set it aside. Changes nothing."""
    if not path.is_dir():
        with suppress(OSError):
            for old in _siblings(path.resolve(), "old"):
                return old
    return path


def _recover(path: Path) -> None:
    """Restore or remove the old versions of a folder; the caller holds the lock of `_replacing`."""
    for old in _siblings(path, "old"):
        if not path.exists():
            old.rename(path)
        else:
            # Renamed first, so that an old version is complete as long as it has its name.
            removed = old.rename(_sibling(path, "tmp"))
            shutil.rmtree(removed, ignore_errors=True)


def _sibling(path: Path, ending: str) -> Path:
    """Return a new temporary or old name of a folder."""
    return path.with_name(f".{path.name}.{_unique_name()}.{ending}")


def _siblings(path: Path, ending: str) -> list[Path]:
    """Return the temporary or old versions of a folder, the last renamed first."""
    name = re.compile(rf"\.{re.escape(path.name)}\.{_UNIQUE_OF_FOLDER}\.{ending}")
    found = [other for other in path.parent.iterdir() if name.fullmatch(other.name)]
    # A stranger's model folder must not refer to other folders.
    folders = [(other.stat().st_ctime_ns, other) for other in found if other.is_dir() and not other.is_symlink()]
    return [other for _, other in sorted(folders, reverse=True)]


@contextmanager
def replacing(path: Path) -> Iterator[None]:
    """Hold the lock under which `path` is created or replaced; wait for other processes."""
    lock = path.with_name(f".{path.name}.lock")
    file = _acquire(lock, wait=True)
    assert file is not None
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def remove_temporaries(*folders: Path) -> None:
    """Remove temporary files and folders that killed processes left directly in these folders.

    Those of running processes are kept, in which a lock is held. Where locks are not supported, they are removed when
    they are a day old.
    """
    for folder in folders:
        if not folder.is_dir():
            continue
        for path in list(folder.iterdir()):
            is_folder = path.is_dir() and not path.is_symlink()
            if (_TEMPORARY_FOLDER if is_folder else TEMPORARY_FILE).fullmatch(path.name):
                _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file or folder unless its writer is running."""
    with suppress(OSError), ExitStack() as stack:
        is_locked = None
        if os.name != "nt":
            descriptor = _open_to_lock(path)
            stack.callback(os.close, descriptor)
            is_locked = _lock(descriptor)
        if is_locked or (is_locked is None and time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS):
            _remove(path)


# Locks.


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which is created if necessary, so that only one process at a time works in it.

    The file `.lock` contains the process id and the machine. The lock of a process that has ended
    is taken over.

    Raises:
        RnnsearchError: Another process works in the folder; the message names it.
    """
    path = folder / ".lock"
    try:
        file = _acquire(path)
        owner = "another process"
        if file is None:
            with suppress(FileNotFoundError):
                owner = path.read_text(encoding="utf-8").strip() or owner
    except OSError as error:
        why = error.strerror or error
        raise RnnsearchError(f"{folder}: must be a folder that can be written to; got: {why}") from None
    if file is None:
        raise RnnsearchError(f"{folder}: {owner} works here; wait for its end, or name another folder")
    with file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _acquire(path: Path, wait: bool = False) -> TextIO | None:
    """Return the open lock file, locked by this process, or None if another process holds the lock."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        if _lock(file.fileno(), wait) is False:
            file.close()
            return None
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()  # its owner removed it in the meantime: try again


def _lock(descriptor: int, wait: bool = False) -> bool | None:
    """Lock an open file until it is closed.

    Returns:
        True; False if another process holds the lock; None where locks are not supported.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True
