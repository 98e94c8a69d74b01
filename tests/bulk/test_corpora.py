"""Preparation in shards: for any engine, shard size and kill, the folder is byte for byte that of ordinary
preparation, and no finished shard is repeated."""

import io
import json
import pickle
import random
import re
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import save

from rnnsearch import bulk
from rnnsearch.bulk.encoding import to_bytes
from rnnsearch.data import preprocess
from rnnsearch.data.prepare import prepare
from rnnsearch.errors import DataError, RnnsearchError
from tests.data.toys import PAIRS, config, contents, write

NOISY = [
    *PAIRS[:40],
    *PAIRS[30:35],
    ("", "leer"),
    *PAIRS,
    ("bell \x07", "x"),
    ("same two", "same two"),
    ("a", "b " * 99),
]
SPLIT = {"dev_size": 7, "test_size": 5, "aligner": False}
LINKED = {**SPLIT, "aligner": True}
TEXT = {"type": "words", "vocabulary": 200}


class Killed(BaseException):
    """Nothing catches it."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", 25)


def dying(calls, dies_at=-1, seed=0):
    """An engine that does pieces in any order, and is killed when all its calls have done so many."""

    def engine(job, missing):
        order, work = list(missing), job.make()
        random.Random(seed).shuffle(order)
        for number in order:
            if calls.total() == dies_at:
                raise Killed
            job.do(work, number)
            calls[job.key, number] += 1
            yield number

    return engine


def kept(run, tmp_path, engine, rows=1, **more):
    return bulk.prepare(run, tmp_path / "kept", bulk.store_at(str(tmp_path / "store")), engine, rows, **more)


def runs(tmp_path):
    """Runs of several settings, by name."""
    spec = write(tmp_path, "train", NOISY)
    rows = [(source, target, "0-0 1-1") for source, target in PAIRS]
    aligned = write(tmp_path, "aligned", rows)
    given = {part: write(tmp_path, part, PAIRS[n : n + 6]) for n, part in ((10, "dev"), (20, "test"))}
    documents = write(tmp_path, "documents", [pair for n in range(0, 90, 6) for pair in (*PAIRS[n : n + 6], ("", ""))])
    three = tmp_path / "three.tsv"
    three.write_text("".join(f"{s}\t{'' if n % 3 else t}\t{t} x{n}\n" for n, (s, t) in enumerate(PAIRS)))
    bpe = {"type": "bpe", "vocabulary": 400}
    copied = [spec, "|aligned.de"]
    return {
        "subwords of one vocabulary": config(tmp_path, {**bpe, "joint": True}, train=[spec], **SPLIT),
        "words, languages told": config(
            tmp_path, {"type": "words", "vocabulary": 9}, train=[spec], cleaning={"language_id": True}, **SPLIT
        ),
        "links found": config(tmp_path, bpe, train=[spec], alignments="aligner", **LINKED),
        "links given": config(tmp_path, TEXT, train=[aligned], alignments=["aligned.align"], **SPLIT),
        "dev and test given": config(tmp_path, TEXT, train=[spec], aligner=False, **given),
        "documents": config(tmp_path, TEXT, train=[documents], documents=True, **SPLIT),
        "three languages": config(tmp_path, bpe, train=["three.tsv"], source=["en", "fr"], **SPLIT),
        "copied": config(tmp_path, {**bpe, "joint": True}, train=copied, target_only="copied", **SPLIT),
        "annotated": config(tmp_path, {**TEXT, "annotation": {"type": "copyable"}}, train=[spec], **LINKED),
    }


@pytest.mark.parametrize(
    ("name", "rows", "dies_at"),
    [
        ("subwords of one vocabulary", 1, 14),
        ("words, languages told", 1, 8),
        ("links found", 1, 16),
        ("links found", 60, 4),
        ("links given", 60, 3),
        ("dev and test given", 60, 1),
        ("documents", 1, 3),
        ("three languages", 10_000, 1),
        ("copied", 1, 20),
        ("annotated", 60, 4),
    ],
)
def test_result_equals_ordinary_preparation_after_a_kill(tmp_path, name, rows, dies_at):
    """Pieces of one chunk and more; killed once, and gone on with in another order."""
    if name == "words, languages told":
        pytest.importorskip("py3langid")
    run = runs(tmp_path)[name]
    one = contents(prepare(run, tmp_path / "one", processes=1).folder)
    place = bulk.store_at(f"memory://{tmp_path.name}/store")
    calls = Counter()
    with pytest.raises(Killed):
        bulk.prepare(run, tmp_path / "kept", place, dying(calls, dies_at), rows)
    assert not (tmp_path / "kept").exists()
    assert contents(bulk.prepare(run, tmp_path / "kept", place, dying(calls, seed=5), rows).folder) == one
    assert calls.total() > dies_at and set(calls.values()) == {1}
    assert place.names() == set()


def test_preparation_resumes_after_repeated_kills(tmp_path):
    run, draw, calls, died = runs(tmp_path)["links found"], random.Random(4), Counter(), 0
    one = contents(prepare(run, tmp_path / "one", processes=1).folder)
    seen = []
    while True:
        try:
            seen.clear()
            engine = dying(calls, calls.total() + draw.randrange(1, 7), died)
            found = kept(run, tmp_path, engine, progress=lambda *told: seen.append(told))
        except Killed:
            died += 1
            continue
        break
    assert died > 3
    assert set(calls.values()) == {1}
    assert contents(found.folder) == one
    assert seen[0] == ("clean", 6, 6), "what was finished before is told"
    assert seen[-1] == ("encode", 6, 6)
    assert [name for name, done, total in seen if done == total][-3:] == [
        "clean",
        "count",
        "encode",
    ]


def test_preparation_resumes_after_a_kill_while_inputs_are_written(tmp_path, monkeypatch):
    """Kill the second pass: neither the first pass nor the reading of the corpus is repeated."""
    run, calls = runs(tmp_path)["links given"], Counter()
    one = contents(prepare(run, tmp_path / "one", processes=1).folder)
    chunks = preprocess.CleanedText.chunks

    def torn(self, parts):
        for number, chunk in enumerate(chunks(self, parts)):
            if number == 2:
                raise Killed
            yield chunk

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(preprocess.CleanedText, "chunks", torn)
        kept(run, tmp_path, dying(calls))
    assert calls.total() == 4
    with monkeypatch.context() as patched:
        patched.setattr(preprocess, "read_chunks", lambda *_, **__: iter([(Killed,)]))
        assert contents(kept(run, tmp_path, dying(calls)).folder) == one
    assert set(calls.values()) == {1} and calls.total() == 12


def test_preparation_on_cores_equals_ordinary_preparation(tmp_path):
    run = runs(tmp_path)["links found"]
    one = contents(prepare(run, tmp_path / "one", processes=1).folder)
    with bulk.OnCores(2) as engine:
        assert contents(kept(run, tmp_path, engine).folder) == one


def test_store_of_another_run_is_rejected(tmp_path):
    spec = write(tmp_path, "train", NOISY)
    run = config(tmp_path, TEXT, train=[spec], **SPLIT)
    with pytest.raises(Killed):
        kept(run, tmp_path, dying(Counter(), 9))
    held = contents(tmp_path / "store")
    others = {
        r"\[data\]": config(tmp_path, TEXT, train=[spec], **{**SPLIT, "dev_size": 8}),
        r"\[text\]": config(tmp_path, {"type": "words", "vocabulary": 10}, train=[spec], **SPLIT),
    }
    for named, other in others.items():
        with pytest.raises(DataError, match=f"store: holds a run with other {named}; finish that one, or delete it"):
            kept(other, tmp_path, bulk.local)
    with pytest.raises(DataError, match="holds a run with other rows"):
        kept(run, tmp_path, bulk.local, rows=50)
    write(tmp_path, "train", NOISY[::-1])
    with pytest.raises(DataError, match="holds a run with other files"):
        kept(run, tmp_path, bulk.local)
    assert contents(tmp_path / "store") == held
    write(tmp_path, "train", NOISY)
    kept(run, tmp_path, bulk.local)
    assert not (tmp_path / "store").exists()


def test_store_is_cleared_after_errors_of_text_and_options(tmp_path):
    """Faults of options and text are found on the way, too, and mended; what others keep in the folder stays."""
    spec = write(tmp_path, "train", NOISY)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="must have enough distinct sentences"):
        kept(config(tmp_path, TEXT, train=[spec], dev_size=300), tmp_path, bulk.local)
    (tmp_path / "train.de").write_text("one line\n")
    with pytest.raises(DataError, match="must have the same number of lines"):
        kept(config(tmp_path, TEXT, train=[spec]), tmp_path, bulk.local)
    assert contents(tmp_path / "store") == {"mine.txt": b"mine"}
    with pytest.raises(DataError, match="no such file"):
        kept(config(tmp_path, TEXT, train=["none|none"]), tmp_path, bulk.local)


class Evil:
    """An object whose unpickling creates a file."""

    def __reduce__(self):
        return exec, ("open('executed', 'w').close()",)


def npy_of_objects():
    """Return the bytes of a NumPy file whose elements are pickled objects."""
    file = io.BytesIO()
    np.save(file, np.array([Evil()], dtype=object), allow_pickle=True)
    return file.getvalue()


PLANTED = {
    "pickle": lambda: pickle.dumps(Evil()),
    "pickle in the format of earlier versions": lambda: pickle.dumps([np.dtype("O"), ("clean", Evil())]),
    "NumPy objects": npy_of_objects,
    "safetensors of another type": lambda: to_bytes(["x"], list[str]),
    "safetensors with a pickle as JSON": lambda: save({"json": np.frombuffer(pickle.dumps(Evil()), np.uint8)}),
    "deep JSON": lambda: save({"json": np.frombuffer(b"[" * 200_000, np.uint8)}),
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("suffix", ["done", "given", "common", "cut"])
@pytest.mark.parametrize("planted", PLANTED)
def test_files_planted_in_a_store_are_rejected_and_never_executed(tmp_path, monkeypatch, planted, suffix):
    monkeypatch.chdir(tmp_path)
    run = config(tmp_path, TEXT, train=[write(tmp_path, "train", NOISY)], **SPLIT)
    with pytest.raises(Killed):
        kept(run, tmp_path, dying(Counter(), 9))
    paths = sorted((tmp_path / "store").glob(f"*.{suffix}"))
    assert paths
    for path in paths:
        path.write_bytes(PLANTED[planted]())
    with pytest.raises(RnnsearchError) as raised:
        kept(run, tmp_path, bulk.local)
    message = str(raised.value)
    assert "\n" not in message
    wanted = r"must be as rnnsearch stored it \(delete the store to start again\)"
    assert re.fullmatch(rf"{tmp_path}/store/[0-9a-f]{{16}}.*\.{suffix}: {wanted}; got: .+", message)
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "kept").exists()


def test_store_of_an_earlier_format_is_rejected(tmp_path):
    run = config(tmp_path, TEXT, train=[write(tmp_path, "train", NOISY)], **SPLIT)
    with pytest.raises(Killed):
        kept(run, tmp_path, dying(Counter(), 9))
    path = tmp_path / "store" / "run.json"
    manifest = json.loads(path.read_text())
    del manifest["about"]["format"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"store: holds a run of another version, .*; delete it to start again"):
        kept(run, tmp_path, bulk.local)
    path.write_text("{}")
    with pytest.raises(RnnsearchError, match=r"store/run\.json: must be as rnnsearch stored it"):
        kept(run, tmp_path, bulk.local)
