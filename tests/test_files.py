"""Writes are atomic: after failures, full disks and interruptions the old files are unchanged."""

import errno
import fcntl
import os
import pwd
import resource
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from rnnsearch.errors import DataError, ModelError, RnnsearchError
from rnnsearch.ops import autotune
from rnnsearch.ops.autotune import Timing, TimingTable
from rnnsearch.utils import weights
from rnnsearch.utils.files import (
    append_line,
    atomic_file,
    atomic_folder,
    complete_folder,
    default_cache_folder,
    locked,
    read_text,
    recover_folder,
    remove_temporaries,
    write_text,
)
from rnnsearch.utils.weights import read_weights, save_weights

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILURES = [
    (FULL, RnnsearchError, "cannot be written: No space left on device; nothing was changed"),
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (DataError("line 3 is bad"), DataError, "line 3 is bad"),
]
each_failure = pytest.mark.parametrize(("failure", "raised", "message"), FAILURES, ids=["full", "interrupt", "own"])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_user_without_a_home_folder_has_no_cache(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    for name in ("HOME", "XDG_CACHE_HOME", "RNNSEARCH_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(RnnsearchError, match=r"without a home folder, .* set RNNSEARCH_CACHE"):
        default_cache_folder()
    measured = TimingTable({"library": ""}, [Timing("product", "fp32", "", 1.0, {"torch": 1.0})])
    monkeypatch.setattr(autotune, "_measure", lambda: measured.timings)
    assert autotune.load_or_measure({"library": ""}).timings == measured.timings, "this needs no folder"


def test_weights_may_be_in_a_folder_whose_name_is_not_utf8(tmp_path):
    path = tmp_path / os.fsdecode(b"m\xfcnchen") / "model.safetensors"
    save_weights(path, {"a": torch.arange(3.0)})
    assert read_weights(path)["a"].tolist() == [0.0, 1.0, 2.0]
    assert names(path.parent) == ["model.safetensors"]
    with pytest.raises(ModelError, match="no such file"):
        read_weights(path.with_name("other"))


def test_all_unfinished_weights_are_in_a_temporary_folder(tmp_path, monkeypatch):
    def killed(_, path, **__):
        (path.parent / ".tmpA1b2C3").write_text("half")  # as the library does
        shutil.copytree(path.parent, tmp_path / ".folder.0123abcd-1-2.tmp")
        raise KeyboardInterrupt

    monkeypatch.setattr(weights, "save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        save_weights(tmp_path / "model.safetensors", {"a": torch.arange(3.0)})
    assert names(tmp_path) == [".folder.0123abcd-1-2.tmp"]
    remove_temporaries(tmp_path)
    assert names(tmp_path) == []


def test_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\r\n")
    assert read_text(tmp_path / "a").split() == ["one"]


def test_write_text_replaces_the_file(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "ein\nzwei ü\r\n")
    assert path.read_bytes() == "ein\nzwei ü\r\n".encode()
    write_text(path, "x")
    assert path.read_text() == "x"
    assert names(path.parent) == ["a.txt"]


def test_old_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_full_disk_leaves_the_old_file(where, tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def full(*_):
        raise FULL

    monkeypatch.setattr(os if where == "fsync" else Path, where, full)
    with pytest.raises(RnnsearchError) as error:
        write_text(path, "new")
    assert str(error.value) == f"{path}: cannot be written: No space left on device; nothing was changed"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_unwritable_path_is_reported(tmp_path):
    (tmp_path / "file").touch()
    for write in (lambda path: write_text(path, "x"), lambda path: atomic_folder(path).__enter__()):
        path = tmp_path / "file" / "b"
        with pytest.raises(RnnsearchError) as error:
            write(path)
        assert str(error.value).startswith(f"{path}: cannot be written: ")
    assert names(tmp_path) == ["file"]


def test_block_without_output_is_an_error(tmp_path):
    with pytest.raises(RnnsearchError, match="cannot be written: there is no output"), atomic_file(tmp_path / "a"):
        pass
    assert names(tmp_path) == []
    write_text(tmp_path / "a", "")
    assert (tmp_path / "a").read_bytes() == b""


def fill(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text(text)


def test_folder_is_replaced_atomically(tmp_path):
    path = tmp_path / "new" / "run"
    for text in ("one", "two"):
        with atomic_folder(path) as temporary:
            fill(temporary, text)
            (temporary / text).touch()
        assert (path / "deep" / "a.txt").read_text() == text
        assert names(path) == sorted(["deep", text])
    assert names(path.parent) == ["run"]


@each_failure
@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize(("atomic", "write"), [(atomic_file, Path.write_text), (atomic_folder, fill)])
def test_failure_leaves_the_old_folder(atomic, write, existed, failure, raised, message, tmp_path):
    path = tmp_path / "there" / "run"
    path.parent.mkdir()
    if existed:
        write(path, "old")
    before = {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}
    with pytest.raises(raised, match=message), atomic(path) as temporary:
        write(temporary, "half")
        raise failure
    assert {file: file.read_bytes() for file in path.parent.rglob("*") if file.is_file()} == before
    assert names(path.parent) == (["run"] if existed else [])


@each_failure
def test_failure_between_renames_restores_the_old_folder(failure, raised, message, tmp_path, monkeypatch):
    path = tmp_path / "run"
    fill(path, "old")
    rename = Path.rename

    def fails(self, target):
        if self.name.endswith(".tmp"):
            assert not path.exists()
            raise failure
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(raised, match=message), atomic_folder(path) as temporary:
        fill(temporary, "new")
    assert (path / "deep" / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["run"]


def test_leftovers_of_a_killed_writer_do_not_block(tmp_path):
    fill(tmp_path / f".run.{os.getpid()}.tmp", "half")
    with atomic_folder(tmp_path / "run") as temporary:
        assert names(temporary) == []
        fill(temporary, "new")
    assert names(tmp_path) == ["run"]


def test_link_is_followed_and_mode_preserved(tmp_path):
    file, link = tmp_path / "deep" / "a.txt", tmp_path / "link"
    write_text(file, "old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o640
    assert names(file.parent) == ["a.txt"]


@pytest.fixture
def file_size_limit():
    """Return a function that lets writes beyond a size fail, as on a full disk, until the test ends."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_line_is_appended_completely_or_not_at_all(tmp_path, file_size_limit):
    path = tmp_path / "lines"
    append_line(path, "eins ü \ud800")
    before = path.read_bytes()
    assert before == "eins ü \\ud800\n".encode()
    for size in (len(before), len(before) + 2):
        file_size_limit(size)
        with pytest.raises(RnnsearchError, match=f"{path}: cannot be written: .*; nothing was added"):
            append_line(path, "second")
        assert path.read_bytes() == before
    file_size_limit(1 << 20)
    append_line(path, "third")
    assert path.read_bytes() == before + b"third\n"


def test_line_is_not_appended_to_half_a_line(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"one\nha")
    path.chmod(0o600)
    append_line(path, "two")
    append_line(path, "three")
    assert path.read_bytes() == b"one\nha\ntwo\nthree\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_of_several_writers_are_not_mixed(tmp_path):
    lines = [letter * 50_000 for letter in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: append_line(tmp_path / "lines", line), lines))
    assert sorted((tmp_path / "lines").read_text().splitlines()) == lines


def test_lines_can_be_appended_to_devices():
    append_line(Path("/dev/null"), "x")
    with pytest.raises(RnnsearchError, match="/dev/full: cannot be written: No space left on device"):
        append_line(Path("/dev/full"), "x")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o755])
def test_file_is_never_more_accessible_than_the_one_it_replaces(mode, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(mode)
    with atomic_file(path) as temporary:
        assert temporary.stat().st_mode & 0o777 & ~(mode | 0o600) == 0
        temporary.write_text("new")
        assert temporary.stat().st_mode & 0o777 & ~(mode | 0o600) == 0
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == mode


def test_folder_is_never_more_accessible_than_the_one_it_replaces(tmp_path):
    fill(tmp_path / "run", "old")
    (tmp_path / "run").chmod(0o700)
    with atomic_folder(tmp_path / "run") as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o700
        fill(temporary, "new")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_output_for_a_pipe_is_stored_privately(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=(tmp_path / "pipe").read_text)
    reader.start()
    with atomic_file(tmp_path / "pipe") as temporary:
        temporary.write_text("x")
        assert temporary.stat().st_mode & 0o777 == 0o600
    reader.join(20)


def test_new_file_has_the_umask_mode(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("x")
            temporary.chmod(0o600)  # like some libraries
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_pipe_is_written_directly(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(20)
    assert read == ["through"]
    assert pipe.is_fifo()
    write_text(Path("/dev/null"), "nothing")
    assert Path("/dev/null").is_char_device()


def test_too_long_path_is_reported(tmp_path):
    with pytest.raises(RnnsearchError, match="cannot be written: File name too long"):
        write_text(tmp_path / ("a" * 300), "x")


@pytest.mark.parametrize(
    "process",
    [os.getppid(), os.getpid(), 4_000_000, f"0123abcd-{os.getppid()}-3"],
    ids=["parent", "own", "dead", "unique name"],  # workers must collect the same names
)
def test_folder_set_aside_by_a_killed_process_is_restored(process, tmp_path):
    """Its process id may belong to a running process by now."""
    fill(tmp_path / f".run.{process}.old", "old")
    fill(tmp_path / ".run.2020.old.old", "somebody's")
    recover_folder(tmp_path / "run")
    assert (tmp_path / "run" / "deep" / "a.txt").read_text() == "old"
    fill(tmp_path / f".run.{process}.old", "older")
    recover_folder(tmp_path / "run")
    assert (tmp_path / "run" / "deep" / "a.txt").read_text() == "old"
    assert names(tmp_path) == [".run.2020.old.old", "run"]


def test_last_of_several_old_folders_is_restored(tmp_path):
    for number, text in ((3, "first"), (1, "last")):
        fill(tmp_path / f".run.{number}.new", text)
        time.sleep(0.02)  # the resolution of times
        (tmp_path / f".run.{number}.new").rename(tmp_path / f".run.{number}.old")
    recover_folder(tmp_path / "run")
    assert (tmp_path / "run" / "deep" / "a.txt").read_text() == "last"
    assert names(tmp_path) == ["run"]


def test_readers_find_a_complete_folder_and_change_nothing(tmp_path):
    run = tmp_path / "run"
    old = tmp_path / f".run.{os.getppid()}.old"
    assert complete_folder(run) == run
    assert complete_folder(tmp_path / "none" / "run") == tmp_path / "none" / "run"
    (tmp_path / ".run.5.old").symlink_to(tmp_path.parent)
    assert complete_folder(run) == run, "links are not followed"
    fill(old, "old")
    (tmp_path / "link").symlink_to(run)
    assert complete_folder(run) == complete_folder(tmp_path / "link") == old
    assert names(tmp_path) == sorted([".run.5.old", old.name, "link"])
    fill(run, "new")
    assert complete_folder(run) == run
    assert old.is_dir()


def test_old_folder_is_complete_as_long_as_it_has_its_name(tmp_path, monkeypatch):
    removed = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(Path(path).name))
    for text in ("one", "two"):
        with atomic_folder(tmp_path / "run") as temporary:
            fill(temporary, text)
    assert len(removed) == 1
    assert removed[0].startswith(".run.")
    assert removed[0].endswith(".tmp")


def test_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "run").write_text("somebody's")
    with pytest.raises(RnnsearchError, match="cannot be written: Not a directory"), atomic_folder(tmp_path / "run"):
        pass
    assert names(tmp_path) == ["run"]


def test_temporaries_of_running_processes_are_kept(tmp_path):
    with atomic_file(tmp_path / "a.txt") as file, atomic_folder(tmp_path / "run") as folder:
        fill(folder, "new")
        file.write_text("new")
        remove_temporaries(tmp_path)
        recover_folder(tmp_path / "run")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert (tmp_path / "run" / "deep" / "a.txt").read_text() == "new"
    assert names(tmp_path) == ["a.txt", "run"]


def test_writers_of_one_folder_do_not_disturb_each_other(tmp_path):
    with atomic_folder(tmp_path / "run") as first:
        fill(first, "one")
        with atomic_folder(tmp_path / "run") as second:
            fill(second, "two")
    assert (tmp_path / "run" / "deep" / "a.txt").read_text() == "one"
    assert names(tmp_path) == ["run"]


def test_temporaries_are_kept_for_a_day_where_locks_are_not_supported(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    (tmp_path / ".0123abcd-12-3.tmp").touch()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == [".0123abcd-12-3.tmp"]
    os.utime(tmp_path / ".0123abcd-12-3.tmp", (time.time() - 90_000,) * 2)
    remove_temporaries(tmp_path)
    assert names(tmp_path) == []
    write_text(tmp_path / "a", "x")
    with locked(tmp_path):
        pass
    assert names(tmp_path) == ["a"]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    inside = tmp_path / "inside"
    for folder in (tmp_path, inside):
        fill(folder / ".run.1.tmp", "half")
        (folder / ".0123abcd-12-3.tmp").write_text("half")
    remove_temporaries(tmp_path, tmp_path / "none")
    assert names(tmp_path) == ["inside"]
    assert names(inside) == [".0123abcd-12-3.tmp", ".run.1.tmp"], "temporaries in other folders are kept"
    remove_temporaries(inside)
    assert names(inside) == []


def test_other_temporary_files_are_left_alone(tmp_path):
    files = ["a.tmp", ".notes.tmp", ".12-3.tmp", ".run.2.tmp"]
    folders = [".cache.tmp", ".0123abcd-12-4.tmp", "run.1.tmp"]
    for name in files:
        (tmp_path / name).write_text("somebody's")
    for name in folders:
        fill(tmp_path / name, "somebody's")
    remove_temporaries(tmp_path)
    assert names(tmp_path) == sorted(files + folders)


def test_temporary_names_match_the_cleanup_pattern(tmp_path):
    """The files are as after a killed process."""
    with atomic_file(tmp_path / "a.txt") as file, atomic_folder(tmp_path / "run") as folder:
        file.write_text("x")
        left = [file.name, folder.name]
    for name in left:
        fill(tmp_path / name, "half") if name.startswith(".run.") else (tmp_path / name).touch()
    remove_temporaries(tmp_path)
    assert names(tmp_path) == ["a.txt", "run"]


def test_link_to_a_folder_is_followed(tmp_path):
    fill(tmp_path / "real" / "run", "old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "run")
    with atomic_folder(link) as temporary:
        fill(temporary, "new")
    assert link.is_symlink()
    assert (tmp_path / "real" / "run" / "deep" / "a.txt").read_text() == "new"
    assert names(tmp_path / "real") == ["run"]
    (tmp_path / "real" / "run").rename(tmp_path / "real" / f".run.{os.getppid()}.old")
    recover_folder(link)
    assert (link / "deep" / "a.txt").read_text() == "new"


HOLDS = """
import sys, time
from pathlib import Path
from rnnsearch.utils.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_folder_lock_excludes_other_processes(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RnnsearchError, match=rf"run: process {other.pid} on .* works here"), locked(folder):
            pass
        other.kill()
    with locked(folder):
        assert str(os.getpid()) in (folder / ".lock").read_text()
    assert names(folder) == []
