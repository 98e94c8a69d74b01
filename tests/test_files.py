"""Writing is whole or not at all: failures, full disks and interruptions leave what was there."""

import errno
import os
from pathlib import Path

import pytest

from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.files import atomic_file, atomic_folder, write_text

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILURES = [
    (FULL, RnnsearchError, "cannot be written: No space left on device; nothing was changed"),
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (DataError("line 3 is bad"), DataError, "line 3 is bad"),
]
each_failure = pytest.mark.parametrize(("failure", "raised", "message"), FAILURES, ids=["full", "interrupt", "own"])


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_text(tmp_path):
    path = tmp_path / "new" / "a.txt"
    write_text(path, "ein\nzwei ü\r\n")
    assert path.read_bytes() == "ein\nzwei ü\r\n".encode()
    write_text(path, "x")
    assert path.read_text() == "x"
    assert names(path.parent) == ["a.txt"]


def test_the_old_file_is_there_until_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == path.parent
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_disk_that_is_full_at_the_last_moment(where, tmp_path, monkeypatch):
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


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for write in (lambda path: write_text(path, "x"), lambda path: atomic_folder(path).__enter__()):
        path = tmp_path / "file" / "b"
        with pytest.raises(RnnsearchError) as error:
            write(path)
        assert str(error.value).startswith(f"{path}: cannot be written: ")
    assert names(tmp_path) == ["file"]


def test_a_block_that_writes_nothing_is_a_failure(tmp_path):
    with pytest.raises(RnnsearchError, match="cannot be written"), atomic_file(tmp_path / "a"):
        pass
    assert names(tmp_path) == []


def fill(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text(text)


def test_a_folder_is_replaced_whole(tmp_path):
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
def test_a_failure_leaves_what_was_there(atomic, write, existed, failure, raised, message, tmp_path):
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
def test_a_failure_between_the_two_renames_brings_the_old_folder_back(failure, raised, message, tmp_path, monkeypatch):
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


def test_a_killed_writers_leavings_are_no_hindrance(tmp_path):
    fill(tmp_path / f".run.{os.getpid()}.tmp", "half")
    with atomic_folder(tmp_path / "run") as temporary:
        assert names(temporary) == []
        fill(temporary, "new")
    assert names(tmp_path) == ["run"]
