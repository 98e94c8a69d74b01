"""The speed benchmark on a GPU: its rows, their order, the time limit and resumption, on a CPU at toy size."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.speed import gpu, worker, workers
from benchmarks.speed.__main__ import main
from benchmarks.speed.gpu import GpuMeasurement, GpuPlan, GpuRow, toy_plan
from benchmarks.speed.limit import average_counts
from benchmarks.speed.tokens import Tokens
from benchmarks.speed.workers import TimeIsUp, Worker, WorkerError


class LocalWorker:
    """A worker that measures in this process."""

    def __init__(self, log_file: Path, threads: int) -> None:
        self.spec = {}
        self.is_dead = False

    def send(self, spec):
        self.spec = spec

    def receive(self, seconds):
        answer = worker.answer({**self.spec, "threads": torch.get_num_threads()})
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def kill(self):
        self.is_dead = True


MACHINE = {"cores": 2, "processor": "P", "instructions": "I", "threads": 1, "torch": "t", "python": "3", "date": "d"}


class Machine:
    """Workers that return fixed rows, and a clock that advances by the seconds of each row."""

    def __init__(self, seconds=10.0):
        self.seconds = seconds
        self.now = 0.0
        self.measured = []
        self.device = "G"

    def connect(self, log_file, threads):
        return FakeWorker(self)


class FakeWorker:
    def __init__(self, machine):
        self.machine = machine
        self.is_dead = False

    def send(self, spec):
        self.spec = spec

    def receive(self, seconds):
        kind = self.spec["measure"]
        if kind == "facts":
            return {**MACHINE, "device": self.machine.device}
        if kind == "corpus":
            folder = Path(self.spec["folder"])
            (folder / "prepared").mkdir(parents=True, exist_ok=True)
            return {"tokens": TOKENS.as_json(), "text": str(folder / "text"), "vocabulary": 40}
        self.machine.now += min(self.machine.seconds, seconds or self.machine.seconds)
        if seconds is not None and seconds < self.machine.seconds:
            raise TimeIsUp
        self.machine.measured.append(self.spec["name"])
        if self.spec["name"] == "limit-rivals-8-bf16-recorded":
            raise WorkerError("out of memory")
        if "folder" in self.spec:
            Path(self.spec["folder"]).mkdir(parents=True, exist_ok=True)
            (Path(self.spec["folder"]) / "model.safetensors").touch()
        values = dict.fromkeys(("tokens_per_second", "sentences_per_second", "first_tokens_per_second", "bleu"), 1.0)
        times = {"update_ms": 1.0, "kernel_ms": 1.0, "kernels": 1.0, "dev_nll": 2.0, "dev_update": 3}
        return {**values, **times, "parameters": 7, "measured_updates": 2}

    def kill(self):
        self.is_dead = True


@pytest.fixture(autouse=True)
def tokens(tmp_path, monkeypatch):
    """Tokens that fake workers report."""
    made = Tokens(tmp_path / "t", tmp_path / "t", test="test")
    made.folder.mkdir()
    for language in ("en", "de"):
        (made.folder / f"train.bpe.{language}").write_text("w1\nw1 w2\n", encoding="utf-8")
        (made.folder / f"vocab.{language}.txt").write_text("w1\nw2\n", encoding="utf-8")
    monkeypatch.setitem(globals(), "TOKENS", made)
    return made


def names(results):
    return [row["name"] for row in results.rows]


def test_useful_rows_come_first_and_kernels_last():
    rows = [row.name for row in GpuPlan(Path(), 1).rows()]
    assert rows[:10] == [
        *("train-rivals-64-bf16-recorded", "limit-rivals-64-bf16-recorded"),
        *("train-rivals-512-bf16-recorded", "limit-rivals-512-bf16-recorded"),
        *("train-paper-80-bf16-recorded", "limit-paper-80-bf16-recorded"),
        *("train-rivals-64-fp32-recorded", "limit-rivals-64-fp32-recorded"),
        *("search-rivals-64-bf16-recorded-greedy", "search-rivals-64-bf16-recorded-beam-5"),
    ]
    assert len(rows) == len(set(rows)) and all("kernels" in row for row in rows[-7:])
    selected = GpuPlan(Path(), 1, scales=gpu.SCALES[1:], batches=(16,), precisions=("fp32",), modes=("recorded",))
    assert [row.name for row in selected.rows()] == [
        *("train-paper-16-fp32-recorded", "limit-paper-16-fp32-recorded", "profile-paper-16-fp32-recorded")
    ]


def test_rows_are_printed_and_stored_one_by_one(tmp_path, capsys):
    machine = Machine()
    plan = toy_plan(tmp_path, 1)
    first = GpuMeasurement(plan, machine.connect, lambda: machine.now).run()
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == names(first)
    assert first.failed == [{"name": "limit-rivals-8-bf16-recorded", "error": "out of memory"}]
    assert len(machine.measured) == len(plan.rows()) == len(first.rows) + 1
    second = GpuMeasurement(plan, machine.connect, lambda: machine.now).run()
    assert second.rows == first.rows
    assert machine.measured[len(plan.rows()) :] == ["limit-rivals-8-bf16-recorded"]
    machine.device = "another GPU"
    GpuMeasurement(plan, machine.connect, lambda: machine.now).run()
    assert len(machine.measured) == 2 * len(plan.rows()) + 1


def test_time_limit_is_kept_and_the_next_call_continues(tmp_path):
    machine = Machine(seconds=10.0)
    plan = replace(toy_plan(tmp_path, 1), minutes=0.9)
    written = []
    results = GpuMeasurement(plan, machine.connect, lambda: machine.now).run(lambda r: written.append(len(r.rows)))
    assert machine.now <= 54 and 4 <= len(results.rows) <= 5
    assert written[-1] == len(results.rows)
    assert set(results.skipped) == {row.name for row in plan.rows()} - set(machine.measured)
    assert "not measured" in "\n".join(results.report())
    count = len(machine.measured)
    GpuMeasurement(plan, machine.connect, lambda: machine.now).run()
    assert not set(machine.measured[count + 1 :]) & set(names(results))


def test_finished_rows_are_reported_after_an_interruption(tmp_path, monkeypatch):
    machine = Machine()
    receive = FakeWorker.receive

    def interrupted(self, seconds):
        if len(machine.measured) == 3:
            raise KeyboardInterrupt
        return receive(self, seconds)

    monkeypatch.setattr(FakeWorker, "receive", interrupted)
    plan = toy_plan(tmp_path, 1)
    results = GpuMeasurement(plan, machine.connect, lambda: machine.now).run()
    assert len(results.rows) + len(results.failed) == 3
    assert len(results.skipped) == len(plan.rows()) - 3


def test_rows_that_do_not_fit_are_not_started(tmp_path):
    machine = Machine(seconds=1.0)
    results = GpuMeasurement(replace(toy_plan(tmp_path, 1), minutes=0.01), machine.connect, lambda: machine.now).run()
    assert (machine.now, results.rows) == (0.0, [])


def test_report_compares_with_limit_targets_and_kernel_by_kernel(tmp_path):
    machine = Machine()
    results = GpuMeasurement(toy_plan(tmp_path, 1), machine.connect, lambda: machine.now).run()
    text = "\n".join(results.report())
    assert "| rivals | 8 | 7 | recorded | fp32 | 1.0 |  |  | 1 | 1 | 100% |  | 2 |" in text
    assert "| greedy | 64 | recorded | 1 | 1.00x | 1 | 1 | 1.00 |" in text
    assert "| rivals | 8 | bf16 | 3 | 2.0000 | 2.0000 | +0.00% |" in text
    assert "difference of recorded passes | at most 0.50% | 0.00% | yes |" in text


def test_window_starts_between_groups_of_reported_updates():
    window = worker.Window(2)
    window.ends = [0.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 7.0, 7.0, 7.0]
    window.tokens = [11] * 10
    assert window.result(1)["measured_updates"] == 6
    assert window.result(1)["tokens_per_second"] == pytest.approx(10.0)


def test_every_kind_of_row_is_measured_on_a_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "PROFILE_UPDATES", 1)
    monkeypatch.setattr(gpu, "PROFILE_MORE", 1)
    plan = toy_plan(tmp_path / "s", 1)
    plan = replace(plan, scales=plan.scales[:1], precisions=("fp32",))
    results = gpu.run(plan, tmp_path / "out", "speed-gpu", "command", LocalWorker)
    assert results.failed == [] and results.skipped == []
    assert names(results) == [row.name for row in plan.rows()]
    for row in results.of("train"):
        assert row["tokens_per_second"] > 0 and row["measured_updates"] == 2
    (quality,) = results.of("quality")
    assert quality["dev_nll"] == results.find("train", quality, mode="kernels")["dev_nll"]
    text = (tmp_path / "out" / "speed-gpu.md").read_text(encoding="utf-8")
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections == ["Targets", "Training RNNsearch", "Search, size of the toolkit comparison", "Quality"]
    assert json.loads((tmp_path / "out" / "speed-gpu.json").read_text(encoding="utf-8"))["rows"] == results.rows
    assert text.rstrip() in capsys.readouterr().out
    assert average_counts(Tokens.from_json(json.loads(json.dumps(Tokens(tmp_path / "t", tmp_path).as_json()))), 2) == (
        *(2, 5, 5, 13),
    )


@pytest.mark.cuda
def test_every_kind_of_row_is_measured_on_a_gpu(tmp_path):
    plan = toy_plan(tmp_path / "s", 1, "cuda")
    plan = replace(plan, scales=plan.scales[:1], rounds=1)
    results = gpu.run(plan, tmp_path / "out", "speed-gpu", "command")
    assert results.failed == [] and results.skipped == []
    assert all(row["device_mib"] > 0 for row in results.of("train"))
    assert all(row["kernel_ms"] > 0 and row["kernels"] > 100 for row in results.of("profile"))
    assert results.machine["device"] == torch.cuda.get_device_name()


def test_worker_answers_in_a_process_and_is_ended_at_the_limit(tmp_path, monkeypatch):
    program = """import sys, time
for line in sys.stdin:
    if "2" in line:
        time.sleep(60)
    print(line.replace("a", "b"), end="", flush=True)
"""
    monkeypatch.setattr(workers, "START", [sys.executable, "-c", program])
    process = Worker(tmp_path / "logs" / "w.log", 1)
    process.send({"a": 1})
    assert process.receive(60.0) == {"b": 1}
    process.send({"error": "s"})
    with pytest.raises(WorkerError, match=r"s \(see .*w\.log\)"):
        process.receive(60.0)
    process.send({"a": 2})
    with pytest.raises(TimeIsUp):
        process.receive(0.05)
    assert process.is_dead
    process.send({"a": 3})
    with pytest.raises(WorkerError, match="the process ended"):
        process.receive(60.0)


def test_invalid_gpu_options_are_reported_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "has_cuda", lambda: False)
    (tmp_path / "train.en").touch()
    common = ["--device", "cuda", "--data", str(tmp_path), "--scratch", str(tmp_path / "s")]
    none = [*common, "--rivals", "none"]
    for options in (common, none, [*none, "--batches", "64,x"], [*none, "--precisions", "int8"]):
        assert main(options) == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith("--rivals must be none with --device cuda; got onmt,joeynmt,eole")
    assert errors[1].endswith("--device cuda needs a CUDA device; torch finds none")
    assert errors[2].endswith("--batches must be positive numbers, such as 64,512; got 64,x")
    assert errors[3].endswith("--precisions must be some of bf16, fp32; got int8")


def test_row_names_are_file_names():
    assert GpuRow("search", "rivals", 64, "fp32", "recorded", "beam 5").name == "search-rivals-64-fp32-recorded-beam-5"
