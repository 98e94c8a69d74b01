"""Processing of lines in shards: for any engine, order and kill, outputs are those of one process, and no finished
shard is repeated."""

import json
import random
from collections import Counter

import pytest

from rnnsearch.bulk import Done, FolderStore, UrlStore, local, run, store_at
from rnnsearch.errors import DataError, RnnsearchError
from rnnsearch.utils.files import locked

LINES = [f"line {n}  \N{LINE SEPARATOR}ä\r" for n in range(53)]
PORTIONS = [LINES[begin : begin + 4] for begin in range(0, len(LINES), 4)]
UPPER = "".join(f"{n} {line.upper()}\n" for n, line in enumerate(LINES))
LENGTHS = "".join(f"{len(line)}\n" for line in LINES)


class Killed(BaseException):
    """Nothing catches it."""


class Upper:
    """Numbers lines and puts them in capitals; remembers which it has done, in all processes' place."""

    def __init__(self, dies_at=None):
        self.calls, self.dies_at = Counter(), dies_at

    def __call__(self):
        return self.work

    def work(self, lines, first):
        if self.dies_at == len(self.calls):
            raise Killed
        self.calls[first] += 1
        return Done(
            {
                "upper": "".join(f"{n} {line.upper()}\n" for n, line in enumerate(lines, first)),
                "lengths": "".join(f"{len(line)}\n" for line in lines),
            },
            [f"{first} done"],
            {"lines": len(lines)},
        )


def shuffled(seed):
    """An engine that does ranges in any order, some of them by two workers."""

    def engine(job, missing):
        order = list(missing)
        random.Random(seed).shuffle(order)
        first, second = job.make(), job.make()
        for number in order:
            job.do(first, number)
            job.do(second, number)
            yield number

    return engine


@pytest.fixture(params=["folder", "file URL", "memory"])
def store(request, tmp_path):
    if request.param == "memory":
        return store_at(f"memory://{tmp_path.name}/shards")
    return store_at(f"{'file://' if request.param == 'file URL' else ''}{tmp_path}/shards")


def bulk(tmp_path, store, upper, engine=local, rows=1, about="x", seen=None):
    outputs = {"upper": tmp_path / "upper", "lengths": tmp_path / "lengths"}
    return run(PORTIONS, {"about": about}, upper, outputs, store, engine, rows, seen)


@pytest.mark.parametrize("rows", [1, 4, 5, 30, 1000])
def test_outputs_are_joined_for_shards_of_any_size_in_any_order(tmp_path, store, rows):
    upper, seen = Upper(), []
    told = bulk(tmp_path, store, upper, shuffled(rows), rows, seen=lambda *numbers: seen.append(numbers))
    assert (tmp_path / "upper").read_bytes() == UPPER.encode()
    assert (tmp_path / "lengths").read_bytes() == LENGTHS.encode()
    assert set(upper.calls.values()) == {1}
    assert told == Done({}, [f"{first} done" for first in sorted(upper.calls)], {"lines": 53})
    assert seen[0] == (0, 53) and seen[-1] == (53, 53) and len(seen) == len(upper.calls) + 1
    assert store.names() == set()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lengths", "upper"]


@pytest.mark.parametrize("seed", range(6))
def test_run_resumes_after_repeated_kills(tmp_path, store, seed):
    draw, calls, runs = random.Random(seed), Counter(), 0
    while True:
        upper = Upper(dies_at=draw.randrange(6))
        runs += 1
        try:
            told = bulk(tmp_path, store, upper, shuffled(runs), rows=5)
        except Killed:
            calls += upper.calls
            assert not (tmp_path / "upper").exists()
            continue
        calls += upper.calls
        break
    assert runs > 1
    assert set(calls.values()) == {1}, "what was finished is not done again"
    assert (tmp_path / "upper").read_bytes() == UPPER.encode()
    assert told.counts == {"lines": 53}, "of all lines, whichever run has done them"
    assert len(told.messages) == len(calls)


def test_run_resumes_after_a_kill_while_inputs_are_written_or_outputs_joined(tmp_path, store, monkeypatch):
    def torn():
        yield from PORTIONS[:3]
        raise Killed

    with pytest.raises(Killed):
        run(torn(), {"about": "y"}, Upper(), {}, store, local)
    assert len(store.names()) == 3
    cut, given = Upper(), type(store).read
    reads = []

    def dies(self, name):
        reads.append(name)
        if sum(name.endswith(".done") for name in reads) == 5:
            raise Killed
        return given(self, name)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(type(store), "read", dies)
        bulk(tmp_path, store, cut)
    assert len(cut.calls) == 14 and not (tmp_path / "upper").exists()
    again = Upper()
    bulk(tmp_path, store, again)
    assert again.calls == Counter()
    assert (tmp_path / "upper").read_bytes() == UPPER.encode()
    assert store.names() == set()


def test_store_of_another_run_is_rejected(tmp_path, store):
    with pytest.raises(Killed):
        bulk(tmp_path, store, Upper(dies_at=2))
    done = {name for name in store.names() if name.endswith(".done")}
    assert len(done) == 2
    for named, given in {"about": {"about": "z"}, "rows": {"rows": 9}}.items():
        with pytest.raises(DataError, match=f"holds a run with other {named}; finish that one, or delete it"):
            bulk(tmp_path, store, Upper(), **given)
    assert {name for name in store.names() if name.endswith(".done")} == done
    bulk(tmp_path, store, Upper())
    assert store.names() == set()


def test_other_files_in_the_store_stay(tmp_path):
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    (folder / ".mine.tmp").write_text("mine")
    (folder / ".0a1b2c3d-9-9.tmp").write_text("what a killed writer has left")
    bulk(tmp_path, FolderStore(folder), Upper())
    assert sorted(path.name for path in folder.iterdir()) == [".mine.tmp", "mine.txt"]


def test_no_lines_give_empty_outputs(tmp_path, store):
    told = run([], {}, Upper(), {"upper": tmp_path / "upper"}, store, local)
    assert (tmp_path / "upper").read_bytes() == b""
    assert told == Done({}, [], {})


def test_unusable_stores_are_reported(tmp_path):
    (tmp_path / "file").write_text("")
    for place, said in {
        tmp_path / "file": "file: must be a folder that can be written to; got: ",
        "nosuch://bucket/x": "nosuch://bucket/x: must be a store that can be read and written; got: ",
        f"file://{tmp_path}/file/x": "must be a store that can be read and written; got: ",
    }.items():
        with pytest.raises(RnnsearchError, match=said) as caught:
            bulk(tmp_path, store_at(str(place)), Upper())
        assert "\n" not in str(caught.value)
    with pytest.raises(RnnsearchError, match="must be a folder that all machines can read and write; got: No such"):
        FolderStore(tmp_path / "elsewhere").read("x")
    (tmp_path / "elsewhere" / "x").mkdir(parents=True)
    with pytest.raises(RnnsearchError, match="elsewhere: must be a folder that all machines can read and write"):
        FolderStore(tmp_path / "elsewhere").remove({"x"})
    assert isinstance(store_at("s3://bucket/x"), UrlStore)
    assert isinstance(store_at("C:/bucket/x"), FolderStore)


def test_concurrent_run_is_rejected(tmp_path):
    with locked(tmp_path / "shards"), pytest.raises(RnnsearchError, match="works here; wait for its end"):
        bulk(tmp_path, FolderStore(tmp_path / "shards"), Upper())


def test_manifest_describes_the_run(tmp_path, store):
    with pytest.raises(Killed):
        bulk(tmp_path, store, Upper(dies_at=1), rows=20)
    manifest = json.loads(store.read("run.json"))
    assert manifest == {"about": {"about": "x", "rows": 20}, "ends": [20, 40, 53]}
    assert len(store.names()) == 1 + 3 + 1


@pytest.mark.parametrize("name", ["run.json", "*.given", "*.done"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"{}", b"[1]", b"[" * 100_000])
def test_damaged_files_are_reported_by_name(tmp_path, name, content):
    with pytest.raises(Killed):
        bulk(tmp_path, FolderStore(tmp_path / "shards"), Upper(dies_at=1), rows=20)
    for path in (tmp_path / "shards").glob(name):
        path.write_bytes(content)
    with pytest.raises(RnnsearchError, match=rf"^{tmp_path}/shards/\S+: must be as rnnsearch stored it .*; got: .+$"):
        bulk(tmp_path, FolderStore(tmp_path / "shards"), Upper(), rows=20)
    assert not (tmp_path / "upper").exists()
