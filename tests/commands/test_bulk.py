"""`translate --engine`: byte for byte what one pass writes, and a killed run goes on where it was."""

import json
import signal
import subprocess
import sys
import time

import pytest

from rnnsearch.cli.translate_lines import Translating

LINES = ["the small cat sees the dog.", "", "the old bird finds the tree.", "the red dog hears the child."] * 60
LINES[17] = "the " * 80
LINES[101] = "the \N{LINE SEPARATOR} bird | sees\tthe 2 dogs at www.dog.de."


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.en"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def small_portions(monkeypatch):
    monkeypatch.setattr("rnnsearch.cli.translate_lines.CHUNK_BATCHES", 1)


@pytest.mark.parametrize(
    "asked",
    [
        [],
        ["--format", "nbest", "--n-best", "2", "--rows", "1"],
        ["--format", "json", "--max-source", "50", "--rows", "70"],
        ["--sample", "--temperature", "2", "--rows", "1000"],
        ["--protect", "all", "--batch", "7"],
    ],
)
def test_it_is_what_one_pass_writes(cli, model, text, tmp_path, asked):
    shards = asked[asked.index("--rows") :] if "--rows" in asked else []
    plain = [*asked[: len(asked) - len(shards)], "--alignments"]
    one = cli("translate", model, "-i", text, "-o", tmp_path / "one", *plain, tmp_path / "one.links")
    many = cli(
        *("translate", model, "-i", text, "-o", tmp_path / "many", *plain, tmp_path / "many.links"),
        *("--engine", "local", *shards),
    )
    assert one.code == many.code == 0, many.err
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "many.links").read_bytes() == (tmp_path / "one.links").read_bytes()
    told = many.err.splitlines()
    assert set(one.err.splitlines()) <= set(told)
    names = ["in.en", "many", "many.links", "one", "one.links"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_killed_run_goes_on(cli, model, text, tmp_path, monkeypatch):
    """What has been finished is not looked at again, whatever is there by now."""
    asked = ["translate", model, "-i", text, "--batch", "20", "-o"]
    assert cli(*asked, tmp_path / "one").code == 0
    translate, portions = Translating.translate, []

    def dies(self, lines, first):
        portions.append(first)
        if len(portions) == 5:
            raise KeyboardInterrupt
        return translate(self, lines, first)

    with monkeypatch.context() as patched:
        patched.setattr(Translating, "translate", dies)
        assert cli(*asked, tmp_path / "many", "--engine", "local").code == 130
    left = tmp_path / "many.partial"
    assert not (tmp_path / "many").exists()
    assert len(list(left.glob("*.done"))) == 4
    for path in left.glob("*.done"):
        done = json.loads(path.read_text())
        path.write_text(json.dumps({**done, "outputs": {"output": "kept\n" * 20}}))
    other = cli(*asked, tmp_path / "many", "--engine", "local", "--beam", "2")
    assert other.err.endswith(f"{left}: holds a run with other beam; finish that one, or delete it\n")
    text_now = text.read_text()
    text.write_text(text_now.replace("cat", "dog"))
    assert "holds a run with other input" in cli(*asked, tmp_path / "many", "--engine", "local").err
    text.write_text(text_now)
    result = cli(*asked, tmp_path / "many", "--engine", "local")
    assert result.code == 0, result.err
    assert "goes on after 80 of 240 lines" in result.err
    assert (tmp_path / "many").read_text().split("\n") == (
        ["kept"] * 80 + (tmp_path / "one").read_text().split("\n")[80:]
    )
    assert not left.exists()


def test_a_program_killed_for_good(model, text, tmp_path, cli):
    """By a signal that nothing hears, in processes of their own."""
    asked = ["translate", model, "-i", text, "--batch", "1", "--beam", "4", "-o"]
    arguments = [sys.executable, "-m", "rnnsearch", *map(str, asked), str(tmp_path / "many"), "--engine", "local"]
    with subprocess.Popen(arguments, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("many.partial/*.done")) and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    done = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("many.partial/*.done")}
    assert done and not (tmp_path / "many").exists()
    result = cli(*asked, tmp_path / "many", "--engine", "local")
    assert result.code == 0, result.err
    assert f"goes on after {16 * len(done):,} of 240 lines" in result.err
    assert cli(*asked, tmp_path / "one").code == 0
    assert (tmp_path / "many").read_bytes() == (tmp_path / "one").read_bytes()


def test_another_model_under_the_same_name(cli, own, text, tmp_path, monkeypatch):
    asked = ["translate", own, "-i", text, "-o", tmp_path / "out", "--engine", "local", "--store", tmp_path / "kept"]

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Translating, "translate", dies)
        assert cli(*asked).code == 130
        (own / "log.jsonl").write_text("not read by translation")
        assert cli(*asked).code == 130
    changed = (own / "config.toml").read_text().replace("beam = 3", "beam = 2")
    (own / "config.toml").write_text(changed)
    assert "kept: holds a run with other models" in cli(*asked).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "local", "-o", "x"], "--engine needs -i, --input"),
        (["--engine", "ray", "-i", "x"], "--engine needs -o, --output"),
        (["--store", "x"], "--store has no effect without --engine"),
        (["--rows", "5"], "--rows has no effect without --engine"),
        (["--engine", "local", "--actors", "5"], "--actors has no effect without --engine ray"),
        (["--engine", "slurm"], "'--engine'"),
    ],
)
def test_bad_options(cli, model, arguments, said):
    result = cli("translate", model, *arguments)
    assert result.code == 2
    assert said in result.err


def test_faults(fault, model, text, tmp_path, monkeypatch):
    asked = ["translate", model, "-i", text, "-o", tmp_path / "out", "--engine"]
    assert "no.en" in fault("translate", model, "-i", tmp_path / "no.en", "-o", tmp_path / "out", "--engine", "local")
    assert fault(*asked, "local", "--store", text).startswith(f"{text}: must be a folder that can be written to; got: ")
    assert "nosuch://x: must be a store that" in fault(*asked, "local", "--store", "nosuch://x")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert fault(*asked, "ray").startswith('the engine "ray" needs a library: pip install "ray[data]"; got: ')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.en"]
