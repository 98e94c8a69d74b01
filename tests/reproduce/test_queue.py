"""The queue of trainings: its file, the order of processes, interruption, resumption and tables.

Most tests run a program that writes the files of `rnnsearch` in milliseconds; one runs `rnnsearch` itself.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from reproduce.queue import gpu, results, runner
from reproduce.queue.__main__ import main
from reproduce.queue.plan import load_plan
from reproduce.queue.runner import Memory, Runner
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import FACTS_FILE

PROGRAM = '''
"""Writes the files of prepare, train and evaluate; train waits for a signal unless it resumes."""
import json, signal, sys, time, tomllib
from pathlib import Path
command, *arguments = sys.argv[1:]
settings = {}
if "--set" in arguments:
    settings = dict(setting.split("=", 1) for setting in arguments[arguments.index("--set") + 1 :])
with Path(sys.argv[0]).with_name("calls").open("a") as calls:
    calls.write(command + " " + (settings.get("folder") or arguments[0]).strip('"').rpartition("/")[2] + "\\n")
if (command, settings.get("training.seed")) == ("train", "13"):
    sys.exit("rnnsearch: unlucky")
if command == "prepare":
    folder = Path(json.loads(settings["data.prepared"]))
    folder.mkdir(parents=True)
    (folder / "prepared.json").touch()
elif command == "train":
    folder = Path(json.loads(settings["folder"]))
    state = folder / "checkpoints" / "last" / "state.json"
    assert "--resume" in arguments
    is_first = not state.is_file()
    stopped = []
    signal.signal(signal.SIGINT, lambda *_: stopped.append(1))
    state.parent.mkdir(parents=True, exist_ok=True)
    history = [{"epoch": 2.0, "best": True, "dev_nll": 40.0}, {"epoch": 3.0, "best": False, "dev_nll": 41.0}]
    facts = {"parameters": 5000, "epochs": 3.0, "device": "a GPU", "torch": "2", "history": history}
    (folder / "training.json").write_text(json.dumps(facts))
    state.write_text(json.dumps({"update": 10 if is_first else 30, "seconds": 90.0}))
    while is_first and not stopped:
        time.sleep(0.01)
    sys.exit(130 if stopped else 0)
else:
    output = Path(arguments[arguments.index("--output") + 1])
    output.parent.mkdir(exist_ok=True)
    beam = float(arguments[arguments.index("--beam") + 1]) if "--beam" in arguments else 0.0
    scores = [{"name": name, "value": 20 + beam} for name in ("BLEU", "chrF2", "TER")]
    output.write_text(json.dumps({"scores": scores}))
'''
QUEUE = """
set = ["data.aligner=false"]
[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev = "dev.en|dev.de"
[tests]
news = "dev.en|dev.de"
"""
TWO = """
[[training]]
name = "first system"
preset = "small"
beam = 3
[[training]]
name = "second"
preset = "small"
set = ["training.seed=2"]
tests = []
"""
TINY = """
set = ["data.aligner=false", "training.dev_bleu=false", "training.max_updates=150", "training.evaluate_every=20",
       "training.max_epochs=999",
       "training.precision=fp32", "model.embedding=6", "model.encoder.size=4", "model.decoder.size=8",
       "model.decoder.maxout=6", "model.attention.size=5", "training.average=0", "text.type='words'"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a corpus."""
    for part, count in (("train", 80), ("dev", 6)):
        for language in ("en", "de"):
            lines = [f"{language} word{n % 7} word{n % 5}\n" for n in range(count)]
            (tmp_path / f"{part}.{language}").write_text("".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the program above instead of `rnnsearch`, and return the file of its calls."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.setattr(runner, "PROGRAM", (sys.executable, "-S", str(program)))
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    return folder / "calls"


def run(folder: Path, text: str, *options: str) -> int:
    """Write a queue file and run it."""
    path = folder / "queue.toml"
    path.write_text(text, encoding="utf-8")
    return main([str(path), "--output", str(folder / "out"), "--device", "cpu", *options])


def stop_at_checkpoints(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Interrupt the queue when so many trainings have a checkpoint."""

    def must_stop(self: Runner) -> bool:
        folders = [progress.training.folder for progress in self.all_progress]
        return sum((folder / results.CHECKPOINT).is_file() for folder in folders) == count

    monkeypatch.setattr(Runner, "_must_stop", must_stop)


def test_queue_is_interrupted_and_continued(folder, calls, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_checkpoints(patch, 2)
        assert run(folder, QUEUE + TWO) == 3
    table = (folder / "out" / "table.md").read_text(encoding="utf-8")
    assert "| first system | 5,000 | 10 | 3 (2) | 1.5 | 40.0 |  |  | unfinished |" in table
    assert "| second | 5,000 | 10 | 3 (2) | 1.5 | 40.0 |  |  | unfinished |" in table
    assert len(calls.read_text().splitlines()) == 3
    assert run(folder, QUEUE + TWO) == 0
    table = (folder / "out" / "table.md").read_text(encoding="utf-8")
    assert "| first system | 5,000 | 30 | 3 (2) | 1.5 | 40.0 | 23.0 | 23.0 |  |" in table
    assert table in capsys.readouterr().out
    facts = json.loads((folder / "out" / "queue.json").read_text(encoding="utf-8"))
    assert [row["state"] for row in facts] == ["finished", "finished"]
    done = sorted(calls.read_text().splitlines())
    assert [line.partition(" ")[0] for line in done] == ["evaluate", "prepare", *["train"] * 4]
    assert run(folder, QUEUE + TWO) == 0
    assert sorted(calls.read_text().splitlines()) == done


@pytest.mark.usefixtures("calls")
def test_time_limit_saves_the_trainings(folder):
    start = time.monotonic()
    assert run(folder, QUEUE + TWO, "--minutes", "0.03") == 3
    assert time.monotonic() - start < 10
    states = [row["state"] for row in json.loads((folder / "out" / "queue.json").read_text(encoding="utf-8"))]
    assert set(states) <= {"unfinished", "not started"}


def test_failures_are_reported_and_tried_again(folder, calls):
    failing = QUEUE + "[[training]]\nname = 'a'\npreset = 'small'\nset = ['training.seed=13']\n"
    for _ in range(2):
        assert run(folder, failing) == 1
        table = (folder / "out" / "table.md").read_text(encoding="utf-8")
        assert "| a |  |  |  |  |  |  |  | failed: rnnsearch: unlucky |" in table
    assert sorted(calls.read_text().splitlines())[1:] == ["train a", "train a"]


@pytest.mark.usefixtures("calls")
def test_other_settings_of_a_started_training_are_rejected(folder, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        stop_at_checkpoints(patch, 2)
        run(folder, QUEUE + TWO)
    assert run(folder, QUEUE + TWO.replace("seed=2", "seed=3")) == 1
    assert "second had other settings; choose another name or --output" in capsys.readouterr().err


@pytest.mark.usefixtures("calls")
def test_problems_of_a_queue_file_are_reported(folder, capsys):
    invalid = """
[[training]]
name = "a"
[[training]]
name = "b"
preset = "small"
set = ["model.decoder.size=0"]
[[training]]
name = "b"
preset = "smal"
tests = ["old"]
[[training]]
name = "../c"
preset = "small"
[[training]]
name = "d"
preset = "small"
tests = ["old"]
"""
    assert run(folder, QUEUE + invalid) == 1
    errors = capsys.readouterr().err
    assert "a: must have either run or preset" in errors
    assert "b: " in errors and "model.decoder.size" in errors and "smal" in errors
    assert "../c: name: must be words of letters" in errors
    assert "d: tests: must be names of [tests]: news; got old" in errors
    assert run(folder, QUEUE + "[[training]]\nname = 'a'\nepochs = 3") == 1
    assert "training.0.epochs: Extra inputs are not permitted" in capsys.readouterr().err
    assert run(folder, QUEUE + 2 * "[[training]]\nname = 'a'\npreset = 'small'\n") == 1
    assert "a: is the name of two trainings" in capsys.readouterr().err


@pytest.mark.usefixtures("calls")
def test_pairs_are_the_first_of_the_training_text(folder, monkeypatch):
    stop_at_checkpoints(monkeypatch, 1)
    run(folder, QUEUE + "[[training]]\nname = 'a'\npreset = 'small'\npairs = 5\n")
    first = (folder / "out" / "text" / "first-5-train.en").read_text(encoding="utf-8").splitlines()
    assert first == (folder / "train.en").read_text(encoding="utf-8").splitlines()[:5]


def test_queue_files_are_valid(tmp_path):
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a\n", encoding="utf-8")
    queues = Path(__file__).parents[2] / "reproduce" / "queues"
    for path in queues.glob("*.toml"):
        plan = load_plan(path, tmp_path, tmp_path / "out")
        assert len(plan.trainings) > len({training.prepared for training in plan.trainings})


def test_as_many_trainings_start_as_fit_into_memory():
    free = [80_000.0]
    memory = Memory(lambda: free[0], 4_000.0)
    assert memory.fits(0, 0)
    # Those that have just started are expected to take the default.
    assert memory.fits(10, 10) and not memory.fits(19, 19)
    free[0] = 60_000.0  # two trainings take 10,000 each
    assert memory.fits(2, 0)
    assert memory.fits(5, 3) and not memory.fits(7, 5)
    assert Memory(lambda: None, 4_000.0).fits(100, 0)


def test_without_the_service_trainings_take_turns(monkeypatch, tmp_path):
    messages: list[str] = []
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu.shared_gpu(True, messages) as variables:
        assert variables == {}
    assert messages == ["nvidia-cuda-mps-control is not installed: the trainings take turns on the GPU"]
    assert gpu.free_mib() is None


def test_service_is_started_tried_and_ended(monkeypatch, tmp_path):
    daemon = tmp_path / gpu.DAEMON
    daemon.write_text('#!/bin/sh\necho "$@ $CUDA_MPS_PIPE_DIRECTORY" >> "$0.log"\n[ "$1" ] || cat >> "$0.log"\n')
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpu, "PROBE", "")
    messages: list[str] = []
    with gpu.shared_gpu(True, messages) as variables:
        folder = variables["CUDA_MPS_PIPE_DIRECTORY"]
    assert messages == ["the trainings share the GPU by NVIDIA's multi-process service"]
    assert (tmp_path / f"{gpu.DAEMON}.log").read_text().split() == ["-d", folder, folder, "quit"]
    monkeypatch.setattr(gpu, "PROBE", "raise SystemExit(1)")
    with gpu.shared_gpu(True, messages) as variables:
        assert variables == {}
    assert messages[1].endswith("does not work here: the trainings take turns on the GPU")


@pytest.mark.cuda
def test_gpu_is_shared_and_its_memory_is_known():
    messages: list[str] = []
    with gpu.shared_gpu(True, messages):
        assert gpu.free_mib() > 100
    assert len(messages) == 1


def test_trainings_of_rnnsearch_are_interrupted_resumed_and_evaluated(folder, monkeypatch):
    """Takes seconds, because it starts `rnnsearch` five times: only processes can receive signals."""
    monkeypatch.setenv("RNNSEARCH_FAST", "0")
    monkeypatch.setenv("RNNSEARCH_NATIVE", "0")
    text = QUEUE.replace('set = ["data.aligner=false"]', TINY) + TWO
    (folder / "queue.toml").write_text(text, encoding="utf-8")
    plan = load_plan(folder / "queue.toml", folder, folder / "out", ["training.device=cpu"])
    assert plan.trainings[0].prepared == plan.trainings[1].prepared
    prepare(plan.trainings[0].config, plan.trainings[0].prepared)
    with monkeypatch.context() as patch:
        stop_at_checkpoints(patch, 2)
        assert run(folder, text) == 3
    assert run(folder, text) == 0
    facts = json.loads((folder / "out" / "queue.json").read_text(encoding="utf-8"))
    assert [(row["state"], row["updates"]) for row in facts] == [("finished", 150)] * 2
    assert facts[0]["scores"]["news"].keys() == {"BLEU", "chrF2"}
    # One of them may have finished before the other one had a checkpoint.
    logs = [
        (folder / "out" / "models" / name / "log.jsonl").read_text(encoding="utf-8")
        for name in ("first-system", "second")
    ]
    assert any("resuming from update" in log for log in logs)


def test_marker_of_prepared_corpora_is_that_of_the_package():
    assert runner.FACTS_FILE == FACTS_FILE
