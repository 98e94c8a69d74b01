"""`prepare`: progress; with `--engine`, output identical to ordinary preparation, and resumption of a killed run."""

import io
import sys
from functools import wraps

import pytest
from rich.console import Console

from rnnsearch.cli.io import preparation_progress
from rnnsearch.data import preprocess
from rnnsearch.data.progress import amount
from tests.data.toys import contents

SHARDS = ["--engine", "local", "--processes", "1"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(preprocess, "CHUNK_ROWS", 60)


@pytest.mark.parametrize("engine", [[], SHARDS])
def test_each_stage_has_one_line(cli, corpus, tmp_path, engine):
    result = cli(
        "prepare", corpus / "run.toml", "--set", f'data.prepared="{tmp_path / "data"}"', "data.aligner=true", *engine
    )
    assert result.code == 0, result.err
    lines = result.err.splitlines()
    assert lines[0] == "reading and cleaning"
    assert [line.partition(":")[0] for line in lines[1:6]] == [
        "counting words",
        "learning the tokenizers",
        "learning the word aligner",
        "writing ids",
        "checking the languages",
    ]
    assert lines[1].endswith(" pairs")
    assert lines[6].startswith("prepared ")


def test_terminal_shows_live_lines(monkeypatch):
    """The clock of a stage stops when the next one starts."""
    screen = io.StringIO()
    now = 0.0
    console = Console(file=screen, force_terminal=True, width=80, color_system=None, get_time=lambda: now)
    monkeypatch.setattr("rnnsearch.cli.io.error_console", lambda: console)
    with preparation_progress() as show:
        show("reading and cleaning", 0, None, "pairs")
        show("reading and cleaning", 120_000, None, "pairs")
        now = 10.0
        show("learning the word aligner", 0, None, "")
        now = 15.0
        show("writing ids", 45_000, 100_000, "pairs")
    final = screen.getvalue().rpartition("reading and cleaning")[2].splitlines()
    assert final[0].split() == ["120,000", "pairs", "0:00:10"]
    assert final[1].split() == ["learning", "the", "word", "aligner", "0:00:05"]
    assert final[2].split() == ["writing", "ids", "45%", "of", "100,000", "pairs", "0:00:00"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, None, "pairs"), ""),
        ((20_000, None, "pairs"), "20,000 pairs"),
        ((0, 0, "pairs"), "0% of 0 pairs"),
        ((3, 7, "shards"), "3 of 7 shards"),
        ((1_500_000, None, "bytes"), "1.5 MB"),
        ((1_500_000, 3_000_000, "bytes"), "1.5 of 3.0 MB"),
    ],
)
def test_amounts(arguments, text):
    assert amount(*arguments) == text


def test_killed_run_is_resumed(cli, corpus, tmp_path, monkeypatch):
    run = corpus / "run.toml"
    encode = preprocess.encode
    calls = []
    plain = ["--set", f'data.prepared="{tmp_path / "one"}"']
    command = ["prepare", run, "--set", f'data.prepared="{tmp_path / "data"}"', *SHARDS]
    assert cli("prepare", run, *plain, "--processes", "1").code == 0

    @wraps(encode)  # its name and types are those of the pass
    def interrupt(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("rnnsearch.data.prepare.encode", interrupt)
        assert cli(*command).code == 130
    store = tmp_path / "data.partial"
    assert not (tmp_path / "data").exists()
    done = len(list(store.glob("*.done")))
    shards = (done - 2) // 2
    other = cli(*command, "--set", "text.vocabulary=20")
    assert other.code == 1
    problem = f"{store}: holds a run with other [text]; finish that one, or delete it"
    assert other.err == f"reading and cleaning\nrnnsearch: {problem}\n"
    result = cli(*command)
    assert result.code == 0, result.err
    assert f"resuming after {shards} of {shards} shards of cleaning" in result.err
    assert f"resuming after 2 of {shards} shards of segmenting" in result.err
    assert contents(tmp_path / "data") == contents(tmp_path / "one")
    assert not store.exists()


def test_training_uses_the_data_of_shards(cli, corpus, tmp_path):
    arguments = [corpus / "run.toml", "--set", f'folder="{tmp_path / "run"}"', "--set", "training.max_updates=1"]
    store = tmp_path / "shards"
    result = cli("prepare", *arguments, *SHARDS, "--rows", "100", "--store", store)
    assert result.code == 0 and "prepared 200 training pairs" in result.err and not store.exists()
    trained = cli("train", *arguments)
    assert trained.code == 0 and "prepared" not in trained.err.partition("[data]")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "x"], "--store has no effect without --engine"),
        (["--rows", "5"], "--rows has no effect without --engine"),
        (["--engine", "local", "--actors", "5"], "--actors has no effect without --engine ray"),
        (["--engine", "ray", "--processes", "5"], "--processes has no effect with --engine ray"),
        (["--engine", "slurm"], "'--engine'"),
    ],
)
def test_wrong_usage(cli, corpus, arguments, message):
    result = cli("prepare", corpus / "run.toml", *arguments)
    assert result.code == 2
    assert message in result.err


def test_errors(user_error, corpus, tmp_path, monkeypatch):
    command = ["prepare", corpus / "run.toml", "--set", f'data.prepared="{tmp_path / "data"}"', "--engine"]
    text = corpus / "train.en"
    assert user_error(*command, "local", "--store", text).startswith(
        f"{text}: must be a folder that can be written to; got: "
    )
    assert "nosuch://x: must be a store that" in user_error(*command, "local", "--store", "nosuch://x")
    assert "none: no such file" in user_error(*command, "local", "--set", 'data.train=["none|none"]')
    monkeypatch.setitem(sys.modules, "ray", None)
    assert user_error(*command, "ray").startswith('the engine "ray" needs a library: pip install "ray[data]"; got: ')
    assert list(tmp_path.iterdir()) == []
