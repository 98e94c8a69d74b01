"""`prepare --engine`: the folder of plain preparation, and a killed run goes on where it was."""

import sys

import pytest

from rnnsearch.data import preprocess
from tests.data.toys import contents

SHARDS = ["--engine", "local", "--processes", "1"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK", 60)


def test_a_killed_run_goes_on(cli, corpus, tmp_path, monkeypatch):
    run, encode, calls = corpus / "run.toml", preprocess.encode, []
    plain = ["--set", f'data.prepared="{tmp_path / "one"}"']
    asked = ["prepare", run, "--set", f'data.prepared="{tmp_path / "data"}"', *SHARDS]
    assert cli("prepare", run, *plain, "--processes", "1").code == 0

    def dies(*given):
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(*given)

    with monkeypatch.context() as patched:
        patched.setattr("rnnsearch.data.prepare.encode", dies)
        dies.__name__, dies.__module__ = "encode", "rnnsearch.data.preprocess"
        assert cli(*asked).code == 130
    left = tmp_path / "data.partial"
    assert not (tmp_path / "data").exists()
    done = len(list(left.glob("*.done")))
    shards = (done - 2) // 2
    other = cli(*asked, "--set", "text.vocabulary=20")
    assert other.code == 1
    assert other.err == f"rnnsearch: {left}: holds a run with other [text]; finish that one, or delete it\n"
    result = cli(*asked)
    assert result.code == 0, result.err
    assert f"goes on after {shards} of {shards} shards of cleaning" in result.err
    assert f"goes on after 2 of {shards} shards of segmenting" in result.err
    assert contents(tmp_path / "data") == contents(tmp_path / "one")
    assert not left.exists()


def test_a_run_trains_on_it(cli, corpus, tmp_path):
    given = [corpus / "run.toml", "--set", f'folder="{tmp_path / "run"}"', "--set", "training.max_updates=1"]
    store = tmp_path / "shards"
    result = cli("prepare", *given, *SHARDS, "--rows", "100", "--store", store)
    assert result.code == 0 and "prepared 200 training pairs" in result.err and not store.exists()
    trained = cli("train", *given)
    assert trained.code == 0 and "prepared" not in trained.err.partition("[data]")[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "x"], "--store has no effect without --engine"),
        (["--rows", "5"], "--rows has no effect without --engine"),
        (["--engine", "local", "--actors", "5"], "--actors has no effect without --engine ray"),
        (["--engine", "ray", "--processes", "5"], "--processes has no effect with --engine ray"),
        (["--engine", "slurm"], "'--engine'"),
    ],
)
def test_bad_options(cli, corpus, arguments, said):
    result = cli("prepare", corpus / "run.toml", *arguments)
    assert result.code == 2
    assert said in result.err


def test_faults(fault, corpus, tmp_path, monkeypatch):
    asked = ["prepare", corpus / "run.toml", "--set", f'data.prepared="{tmp_path / "data"}"', "--engine"]
    text = corpus / "train.en"
    assert fault(*asked, "local", "--store", text).startswith(f"{text}: must be a folder that can be written to; got: ")
    assert "nosuch://x: must be a store that" in fault(*asked, "local", "--store", "nosuch://x")
    assert "none: no such file" in fault(*asked, "local", "--set", 'data.train=["none|none"]')
    monkeypatch.setitem(sys.modules, "ray", None)
    assert fault(*asked, "ray").startswith('the engine "ray" needs a library: pip install "ray[data]"; got: ')
    assert list(tmp_path.iterdir()) == []
