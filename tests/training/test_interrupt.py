"""Ctrl-C and SIGTERM on the real command: saved, exit status 130, and nothing is lost."""

from __future__ import annotations

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
import torch

from rnnsearch import config as run_config
from rnnsearch.data.prepared import Prepared
from rnnsearch.training.interrupt import interruptible
from rnnsearch.training.run import train

ADAM = {"type": "adam", "learning_rate": 0.01}


def start(config: Any, corpus: Path, folder: Path) -> subprocess.Popen[str]:
    """The command on a run that would last for hours."""
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


def test_a_signal_saves_exits_130_and_the_resumed_run_is_the_straight_one(
    configure: Any, prepared: Prepared, corpus: Path, recorder: Any, standing: Any, tmp_path: Path
) -> None:
    def config(updates: int) -> Any:
        return configure(optimiser=ADAM, max_updates=updates, evaluate_every=50)

    signals = (signal.SIGINT, signal.SIGTERM)
    started = {number: start(config(1_000_000), corpus, tmp_path / number.name) for number in signals}
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
        folder = tmp_path / number.name / "out"
        update = standing(folder)[1]["update"]
        assert code == 130, err
        assert out == ""
        assert err.splitlines()[-1] == (
            f"training was interrupted at update {update}; its state is saved in out/checkpoints/last: "
            "go on with --resume"
        )
        assert "Traceback" not in err
        assert update >= 20
        again = Prepared.open(folder / "data")
        train(config(update + 3), again, folder, recorder(), resume=True)
        train(config(update + 3), prepared, tmp_path / f"straight-{number.name}", recorder())
        resumed, straight = standing(folder), standing(tmp_path / f"straight-{number.name}")
        assert resumed[1] == straight[1]
        assert all(torch.equal(tensor, straight[0][name]) for name, tensor in resumed[0].items())
        rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        assert [row["update"] for row in rows if row["kind"] == "dev"] == [
            row["update"] for row in straight[1]["history"]
        ]


@pytest.fixture
def python_s_handler() -> Iterator[None]:
    """A process that was started in the background of a shell ignores SIGINT, and so would this test's."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("python_s_handler")
def test_the_second_signal_stops_at_once_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_outside_the_main_thread_nothing_is_caught() -> None:
    handler, found = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interruptible() as asked:
            found.append((asked(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, handler)]
