"""Kill training runs before every system call that changes their files, resume them and compare the results.

`python -m tests.stress.kills` tries every such call, `--every 5` every fifth, and `--minutes 5` stops after that time.
Python's audit events report the calls; a forked child exits at one of them without any clean-up, as if by SIGKILL. The
resumed run must end with the same files, bit for bit, as an uninterrupted one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["RNNSEARCH_NATIVE"] = "0"  # do not build or time native code

import torch

from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.training.run import train
from tests.training.toys import Recorder, random_sentences, toy_config, write_split

FILE_CALLS = ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate")
CHANGE_EVENTS = {"open", *(f"os.{call}" for call in FILE_CALLS)}
KILLED_STATUS = 9  # exit status of a killed child
TRAINING: list[dict[str, Any]] = [
    {"max_updates": 6, "evaluate_every": 2, "checkpoint_every": 3, "average": 2, "threads": 1},
    {"max_updates": 6, "evaluate_every": 3, "checkpoint_every": 1, "average": 0, "threads": 1},
    {"max_updates": 8, "evaluate_every": 1, "checkpoint_every": 4, "average": 3, "threads": 1},
]


class Killer:
    """Audit hook that exits this process before change number `at` (from 1) in a folder."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder = str(folder)
        self.at = at
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an audit event if it changes the folder, and exit if it is the chosen one."""
        if event not in CHANGE_EVENTS or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = os.fspath(arguments[0])
        # Relative paths come from shutil.rmtree, which works relative to an open folder.
        if path.startswith(self.folder) or not path.startswith("/"):
            self.count += 1
            if self.count == self.at:
                os._exit(KILLED_STATUS)


def exit_status_of_child(function: Callable[[], None]) -> int:
    """Call a function in a forked child and return the child's exit status."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Runs:
    """Training runs of one config on one corpus, one folder per run."""

    def __init__(self, folder: Path, training: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        folder.mkdir()
        corpus = random_sentences(1, 100, 2, 6)
        write_split(folder, "train", corpus[:24])
        write_split(folder, "dev", corpus[44:50])
        self.config = toy_config(folder, {"training": training})
        prepare(self.config, folder / "data", processes=1, learn_aligner=False)
        self.copy_data("first")
        self.train("first")  # imports every module before the first fork

    def copy_data(self, name: str) -> None:
        """Give a run its own copy of the prepared data."""
        copy = self.folder / f"{name}-data"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder / "data", copy)

    def train(self, name: str, resume: bool = False) -> None:
        """Train to the end, and then learn the aligner."""
        data = Prepared.open(self.folder / f"{name}-data", self.config)
        train(self.config, data, self.folder / name, Recorder(), resume=resume)

    def count_changes(self) -> int:
        """Train the run `uninterrupted` and return how many calls change its folder or its data."""
        counter = Killer(self.folder / "uninterrupted", 0)

        self.copy_data("uninterrupted")

        def train_and_count() -> None:
            sys.addaudithook(counter)
            self.train("uninterrupted")
            (self.folder / "count").write_text(str(counter.count))

        assert exit_status_of_child(train_and_count) == 0
        return int((self.folder / "count").read_text())

    def failure_when_killed(self, at: int) -> str | None:
        """Kill a run before a change and resume it; return an error message if the result differs, else None."""
        folder = self.folder / "resumed"
        shutil.rmtree(folder, ignore_errors=True)
        self.copy_data("resumed")

        def train_until_killed() -> None:
            # As after a reboot or in a container, the id of the killed process is in use when the run is resumed.
            os.getpid = os.getppid
            sys.addaudithook(Killer(folder, at))
            self.train("resumed")

        status = exit_status_of_child(train_until_killed)
        if status not in (KILLED_STATUS, 0):
            return f"the run exited with status {status} before change {at}"
        if exit_status_of_child(lambda: self.train("resumed", resume=True)) != 0:
            return f"the run killed before change {at} could not be resumed"
        expected = self.contents("uninterrupted")
        resumed = self.contents("resumed")
        different = sorted(name for name in expected.keys() | resumed.keys() if expected.get(name) != resumed.get(name))
        if different:
            return f"the run killed before change {at} and resumed has different files: {', '.join(different)}"
        return None

    def contents(self, name: str) -> dict[str, object]:
        """Return the contents of a run's folder and of its prepared data by file name."""
        data = contents(self.folder / f"{name}-data")
        return contents(self.folder / name) | {f"data/{path}": content for path, content in data.items()}


def contents(folder: Path) -> dict[str, object]:
    """Return the contents of a run folder by file name, without timings."""
    by_name: dict[str, object] = {}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        if file.is_dir() or name in ("log.jsonl", "training.json", "README.md"):  # these files hold timings
            by_name[name] = None
        elif file.name == "state.json":
            state = json.loads(file.read_text())
            history = [{key: value for key, value in row.items() if key != "seconds"} for row in state.pop("history")]
            by_name[name] = [history, {key: value for key, value in state.items() if key not in ("seconds", "waited")}]
        else:
            by_name[name] = file.read_bytes()
    return by_name


def main(arguments: list[str] | None = None) -> int:
    """Kill and resume runs; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="kill at every N-th change only")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time [default: no limit]")
    options = parser.parse_args(arguments)
    kills = 0
    failures = list[str]()
    deadline = time.monotonic() + 60 * options.minutes
    for number, training in enumerate(TRAINING):
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder) / "runs", training)
            for at in range(1 + number, runs.count_changes() + 1, options.every):
                if time.monotonic() > deadline:
                    break
                kills += 1
                failure = runs.failure_when_killed(at)
                if failure is not None:
                    failures.append(f"settings {number}: {failure}")
    sys.stdout.write("\n".join([*failures, f"{kills:,} kills, {len(failures):,} failures\n"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
