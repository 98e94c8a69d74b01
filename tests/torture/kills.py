"""Kills training runs before every call that changes their folder, resumes them, and compares where they end.

`python -m tests.torture.kills` tries all points, `--every 5` each fifth. Python tells of every such call (audit
events); a forked child ends at one of them as by SIGKILL, with no clean-up. A resumed run must hold the same files, bit
for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["RNNSEARCH_NATIVE"] = "0"  # nothing is to be built or timed

import torch

from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.training.run import train
from tests.training.toys import Recorder, sentences, toy_config, write_part

CHANGES = {"open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
KILLED = 9
"""The exit status."""
TRAINING: list[dict[str, Any]] = [
    {"max_updates": 6, "evaluate_every": 2, "checkpoint_every": 3, "average": 2, "threads": 1},
    {"max_updates": 6, "evaluate_every": 3, "checkpoint_every": 1, "average": 0, "threads": 1},
    {"max_updates": 8, "evaluate_every": 1, "checkpoint_every": 4, "average": 3, "threads": 1},
]


class Killer:
    """Ends this process before change number `at` (from 1) in a folder."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = str(folder), at, 0

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Of an audit event."""
        if event not in CHANGES or not isinstance(given[0], str | os.PathLike):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        path = os.fspath(given[0])
        if path.startswith(self.folder) or not path.startswith("/"):  # relative: to an open folder, in shutil.rmtree
            self.count += 1
            if self.count == self.at:
                os._exit(KILLED)


def forked(work: Callable[[], None]) -> int:
    """The exit status of a child that does some work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Runs:
    """Runs of one config on one corpus, a folder each."""

    def __init__(self, place: Path, training: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.place = place
        place.mkdir()
        drawn = sentences(1, 100, 2, 6)
        write_part(place, "train", drawn[:24])
        write_part(place, "dev", drawn[44:50])
        self.config = toy_config(place, {"training": training})
        prepare(self.config, place / "data", processes=1)
        self.train("first")  # what is imported on the way then need not be by each child

    def train(self, name: str, resume: bool = False) -> None:
        """Train, to the end."""
        train(
            self.config, Prepared.open(self.place / "data", self.config), self.place / name, Recorder(), resume=resume
        )

    def points(self) -> int:
        """Calls that change the folder in a whole run, which is `straight`."""
        counter = Killer(self.place / "straight", 0)

        def counted() -> None:
            sys.addaudithook(counter)
            self.train("straight")
            (self.place / "count").write_text(str(counter.count))

        assert forked(counted) == 0
        return int((self.place / "count").read_text())

    def killed(self, at: int) -> str | None:
        """What is wrong with a run that was killed at a point and resumed; None: nothing."""
        folder = self.place / "broken"
        shutil.rmtree(folder, ignore_errors=True)

        def killed() -> None:
            sys.addaudithook(Killer(folder, at))
            self.train("broken")

        status = forked(killed)
        if status not in (KILLED, 0):
            return f"the run ended with {status} before point {at}"
        if forked(lambda: self.train("broken", resume=True)) != 0:
            return f"killed at point {at}, it could not be resumed"
        straight, broken = standing(self.place / "straight"), standing(folder)
        other = sorted(name for name in straight.keys() | broken.keys() if straight.get(name) != broken.get(name))
        return f"killed at point {at}, the resumed run has others: {', '.join(other)}" if other else None


def standing(folder: Path) -> dict[str, object]:
    """What a folder holds, by name, but for the time it took."""
    found: dict[str, object] = {}
    for file in folder.rglob("*"):
        name = str(file.relative_to(folder))
        if file.is_dir() or name in ("log.jsonl", "training.json", "README.md"):  # these tell of seconds
            found[name] = None
        elif file.name == "state.json":
            state = json.loads(file.read_text())
            rows = [{key: value for key, value in row.items() if key != "seconds"} for row in state.pop("history")]
            found[name] = [rows, {key: value for key, value in state.items() if key not in ("seconds", "waited")}]
        else:
            found[name] = file.read_bytes()
    return found


def main(given: list[str] | None = None) -> int:
    """Kill and resume; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="try each so many points")
    options = parser.parse_args(given)
    kills, faults = 0, list[str]()
    for number, training in enumerate(TRAINING):
        with tempfile.TemporaryDirectory() as folder:
            runs = Runs(Path(folder) / "runs", training)
            points = range(1 + number, runs.points() + 1, options.every)
            found = [fault for at in points if (fault := runs.killed(at)) is not None]
        kills, faults = kills + len(points), [*faults, *(f"settings {number}: {fault}" for fault in found)]
    sys.stdout.write("\n".join([*faults, f"{kills:,} kills, {len(faults):,} faults\n"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
