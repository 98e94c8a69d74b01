"""SIGINT and SIGTERM during `rnnsearch train`: the state is saved and the exit status is 130."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rnnsearch import config as run_config
from rnnsearch.data.prepared import Prepared
from rnnsearch.training.checkpoint import interruptible


def start(config: Any, corpus: Path, folder: Path) -> subprocess.Popen[str]:
    """Start the command on a run that would take hours."""
    folder.mkdir()
    (folder / "run.toml").write_text(run_config.dump(config))
    for path in corpus.glob("*.??"):
        (folder / path.name).write_bytes(path.read_bytes())
    return subprocess.Popen(
        [sys.executable, "-m", "rnnsearch", "train", "run.toml", "--set", "folder=out"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_updates(log: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        if log.is_file() and '"kind": "update"' in log.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"no update was logged: {process.communicate(timeout=10)}")


def test_signal_saves_and_exits_130_and_run_resumes_identically(
    configure, learn, corpus, read_checkpoint, assert_same, tmp_path
):
    signals = (signal.SIGINT, signal.SIGTERM)
    config = configure(max_updates=1_000_000, evaluate_every=50)
    started = {number: start(config, corpus, tmp_path / number.name) for number in signals}
    try:
        for number, process in started.items():
            wait_for_updates(tmp_path / number.name / "out" / "log.jsonl", process)
            process.send_signal(number)
        done = {number: (*process.communicate(timeout=200), process.returncode) for number, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    for number, (out, err, code) in done.items():
        run, straight = f"{number.name}/out", f"straight-{number.name}"
        update = read_checkpoint(run)[1]["update"]
        assert code == 130, err
        assert out == ""
        assert err.splitlines()[-1] == (
            f"training was interrupted at update {update}; its state is saved in out/checkpoints/last; "
            "continue with --resume"
        )
        assert "Traceback" not in err
        assert update >= 20
        end = {"max_updates": update + 3, "evaluate_every": 50}
        learn(run, resume=True, data=Prepared.open(tmp_path / run / "data"), **end)
        learn(straight, **end)
        assert_same(run, straight)
        rows = [json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()]
        evaluated = [row["update"] for row in read_checkpoint(straight)[1]["history"]]
        assert [row["update"] for row in rows if row["kind"] == "dev"] == evaluated


@pytest.fixture
def default_sigint_handler() -> Iterator[None]:
    """Restore Python's handler: a process that a shell started in the background ignores SIGINT."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("default_sigint_handler")
def test_second_signal_has_default_effect_and_handlers_are_restored():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible() as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_signals_are_not_caught_outside_main_thread():
    handler = signal.getsignal(signal.SIGINT)
    observed = []

    def work() -> None:
        with interruptible() as interrupted:
            observed.append((interrupted(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert observed == [(False, handler)]
