"""`torchrun -m rnnsearch train` in two processes: restarts of a killed worker, interruption and errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rnnsearch.config import dump
from tests.training.toys import random_sentences, toy_config, write_split


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, seed in (("train", 1), ("dev", 2)):
        write_split(tmp_path, part, random_sentences(seed, 60, 3, 3))
    config = toy_config(tmp_path, {"training": {"max_updates": 1_000_000, "evaluate_every": 10}})
    (tmp_path / "run.toml").write_text(dump(config))
    return tmp_path


def torchrun(folder: Path, *settings: str, restarts: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), "-m", "rnnsearch", "train", "run.toml"]
    command += [part for setting in ("folder=out", *settings) for part in ("--set", setting)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, **pipes)


def workers(agent: int) -> list[int]:
    """Return the process ids of the workers that torchrun started, by rank."""
    workers_by_rank = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (entry / "environ").read_bytes().split(b"\0") if parent == agent else []
        except OSError:
            continue
        workers_by_rank |= {int(v.removeprefix(b"RANK=")): int(entry.name) for v in variables if v.startswith(b"RANK=")}
    return [workers_by_rank[rank] for rank in sorted(workers_by_rank)]


def wait_for_update(folder: Path, updates: int, process: subprocess.Popen[str]) -> None:
    """Wait until a checkpoint has at least this many updates."""
    state, end = folder / "out" / "checkpoints" / "last" / "state.json", time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        try:
            if json.loads(state.read_text())["update"] >= updates:
                return
        except (OSError, ValueError):  # the file is being replaced
            pass
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"no update {updates}: {process.communicate(timeout=10)}")


def devices() -> list[Any]:
    """Return the CPU, and GPUs if there is one per process (gradients are then reduced by NCCL)."""
    return ["cpu", pytest.param("cuda", marks=pytest.mark.cuda(devices=2))]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the workers in /proc")
@pytest.mark.parametrize("device", devices())
def test_killed_worker_is_restarted_and_sigterm_saves_state(folder, device):
    process = torchrun(folder, f"training.device={device}", restarts=1)
    wait_for_update(folder, 20, process)
    _, second = workers(process.pid)
    os.kill(second, signal.SIGKILL)
    before = json.loads((folder / "out" / "checkpoints" / "last" / "state.json").read_text())["update"]
    wait_for_update(folder, before + 40, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert out == ""
    assert err.count("resuming from update ") == 1, err
    assert err.count("training was interrupted at update ") == 1, "only one process prints it"
    assert "it is started" not in err
    messages = [json.loads(line) for line in (folder / "out" / "log.jsonl").read_text().splitlines()]
    history = [row["update"] for row in messages if row["kind"] == "dev"]
    state = json.loads((folder / "out" / "checkpoints" / "last" / "state.json").read_text())
    assert [row["update"] for row in state["history"]] == list(range(10, history[-1] + 1, 10))
    assert f"training was interrupted at update {state['update']}; its state is saved in" in err


def test_run_file_error_is_printed_once(folder):
    process = torchrun(folder, "training.precision=fp16")
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    errors = [line for line in err.splitlines() if line.startswith("rnnsearch: ")]
    assert len(errors) == 1
    assert errors[0].startswith("rnnsearch: run.toml: training.precision: must be")
