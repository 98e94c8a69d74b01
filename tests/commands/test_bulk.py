"""`translate --engine`: output identical to a single run, and resumption of a killed run."""

import json
import signal
import subprocess
import sys
import time

import pytest

from rnnsearch.cli.translate_lines import LineTranslator

LINES = ["the small cat sees the dog.", "", "the old bird finds the tree.", "the red dog hears the child."] * 60
LINES[17] = "the " * 80
LINES[101] = "the \N{LINE SEPARATOR} bird | sees\tthe 2 dogs at www.dog.de."


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.en"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.translate_lines.BATCHES_PER_CHUNK", 1)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--format", "nbest", "--n-best", "2", "--rows", "1"],
        ["--format", "json", "--max-source", "50", "--rows", "70"],
        ["--sample", "--temperature", "2", "--rows", "1000"],
        ["--protect", "all", "--batch", "7"],
    ],
)
def test_output_is_that_of_a_single_run(cli, model, text, tmp_path, options):
    shards = options[options.index("--rows") :] if "--rows" in options else []
    shared = ["translate", model, "-i", text, *options[: len(options) - len(shards)]]
    one = cli(*shared, "-o", tmp_path / "one", "--alignments", tmp_path / "one.links")
    many = cli(
        *(*shared, "-o", tmp_path / "many", "--alignments", tmp_path / "many.links"),
        *("--engine", "local", *shards),
    )
    assert one.code == many.code == 0, many.err
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "many.links").read_bytes() == (tmp_path / "one.links").read_bytes()
    assert set(one.err.splitlines()) <= set(many.err.splitlines())
    names = ["in.en", "many", "many.links", "one", "one.links"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_killed_run_is_resumed(cli, model, text, tmp_path, monkeypatch):
    """Finished shards are not translated again, even if their stored results have been edited."""
    options = ["translate", model, "-i", text, "--batch", "20", "-o"]
    assert cli(*options, tmp_path / "one").code == 0
    translate = LineTranslator.translate
    chunks = []

    def interrupt(self, lines, first):
        chunks.append(first)
        if len(chunks) == 5:
            raise KeyboardInterrupt
        return translate(self, lines, first)

    with monkeypatch.context() as patched:
        patched.setattr(LineTranslator, "translate", interrupt)
        assert cli(*options, tmp_path / "many", "--engine", "local").code == 130
    store = tmp_path / "many.partial"
    assert not (tmp_path / "many").exists()
    assert len(list(store.glob("*.done"))) == 4
    for path in store.glob("*.done"):
        done = json.loads(path.read_text())
        path.write_text(json.dumps({**done, "outputs": {"output": "kept\n" * 20}}))
    other = cli(*options, tmp_path / "many", "--engine", "local", "--beam", "2")
    assert other.err.endswith(f"{store}: holds a run with other beam; finish that one, or delete it\n")
    content = text.read_text()
    text.write_text(content.replace("cat", "dog"))
    assert "holds a run with other input" in cli(*options, tmp_path / "many", "--engine", "local").err
    text.write_text(content)
    result = cli(*options, tmp_path / "many", "--engine", "local")
    assert result.code == 0, result.err
    assert "resuming after 80 of 240 lines" in result.err
    assert (tmp_path / "many").read_text().split("\n") == (
        ["kept"] * 80 + (tmp_path / "one").read_text().split("\n")[80:]
    )
    assert not store.exists()


def test_process_killed_by_sigkill_is_resumed(model, text, tmp_path, cli):
    options = ["translate", model, "-i", text, "--batch", "1", "--beam", "4", "-o"]
    arguments = [sys.executable, "-m", "rnnsearch", *map(str, options), str(tmp_path / "many"), "--engine", "local"]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("many.partial/*.done")) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("many.partial/*.done")}
    assert done and not (tmp_path / "many").exists()
    result = cli(*options, tmp_path / "many", "--engine", "local")
    assert result.code == 0, result.err
    assert f"resuming after {16 * len(done):,} of 240 lines" in result.err
    assert cli(*options, tmp_path / "one").code == 0
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()


def test_changed_model_is_not_resumed(cli, model_copy, text, tmp_path, monkeypatch):
    options = [
        "translate",
        model_copy,
        "-i",
        text,
        "-o",
        tmp_path / "out",
        "--engine",
        "local",
        "--store",
        tmp_path / "kept",
    ]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LineTranslator, "translate", interrupt)
        assert cli(*options).code == 130
        (model_copy / "log.jsonl").write_text("not read by translation")
        assert cli(*options).code == 130
    changed = (model_copy / "config.toml").read_text().replace("beam = 3", "beam = 2")
    (model_copy / "config.toml").write_text(changed)
    assert "kept: holds a run with other models" in cli(*options).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "local", "-o", "x"], "--engine needs -i, --input"),
        (["--engine", "ray", "-i", "x"], "--engine needs -o, --output"),
        (["--store", "x"], "--store has no effect without --engine"),
        (["--rows", "5"], "--rows has no effect without --engine"),
        (["--engine", "local", "--actors", "5"], "--actors has no effect without --engine ray"),
        (["--engine", "slurm"], "'--engine'"),
    ],
)
def test_wrong_usage(cli, model, arguments, message):
    result = cli("translate", model, *arguments)
    assert result.code == 2
    assert message in result.err


def test_errors(user_error, model, text, tmp_path, monkeypatch):
    options = ["translate", model, "-i", text, "-o", tmp_path / "out", "--engine"]
    assert "no.en" in user_error(
        "translate", model, "-i", tmp_path / "no.en", "-o", tmp_path / "out", "--engine", "local"
    )
    assert user_error(*options, "local", "--store", text).startswith(
        f"{text}: must be a folder that can be written to; got: "
    )
    assert "nosuch://x: must be a store that" in user_error(*options, "local", "--store", "nosuch://x")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert user_error(*options, "ray").startswith('the engine "ray" needs a library: pip install "ray[data]"; got: ')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.en"]
