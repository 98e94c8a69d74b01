"""Trainings, preparations and evaluations side by side, as processes of `rnnsearch`, until a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from reproduce.queue.plan import Training
from reproduce.queue.results import Progress, read_scores

FACTS_FILE = "prepared.json"  # of a prepared corpus, as in data/prepared.py, which imports torch
PROGRAM = (sys.executable, "-m", "rnnsearch")
POLL_SECONDS = 0.1
SETTLED_SECONDS = 60.0
"""Seconds after which a training without updates counts as settled."""
RESERVE = 1.25
"""Factor of the memory that another training needs, because later batches may be larger."""


@dataclass
class Job:
    """A running process."""

    kind: str
    """prepare, train or evaluate."""
    key: object
    """The corpus, or the training."""
    process: subprocess.Popen[bytes]
    log: Path
    log_file: IO[bytes]
    started: float
    updates_log: Path | None = None
    """Log of a training, which grows with its updates."""
    log_size: int = 0

    def is_settled(self, now: float) -> bool:
        """Return True if a training has made updates, so that its memory is visible."""
        if self.updates_log is None or now - self.started > SETTLED_SECONDS:
            return True
        try:
            return self.updates_log.stat().st_size > self.log_size
        except OSError:
            return False

    def send(self, number: int) -> None:
        """Send a signal to the process, and to those that it started if the signal ends them."""
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def last_line(self) -> str:
        """Return the last line of the log."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit status {self.process.returncode}"


@dataclass
class Memory:
    """Free memory of the device, and the memory that each training takes."""

    free_mib: Callable[[], float | None]
    per_training_mib: float
    """Memory of a training until it has been measured."""
    initial_mib: float | None = field(init=False)
    is_measured: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.initial_mib = self.free_mib()

    def fits(self, running: int, unsettled: int) -> bool:
        """Return True if another training fits next to the running ones, some of which may still grow."""
        free = self.free_mib()
        if free is None or self.initial_mib is None or running == 0:
            return True
        if unsettled == 0:
            measured = (self.initial_mib - free) / running
            self.per_training_mib = max(self.per_training_mib if self.is_measured else 0.0, measured)
            self.is_measured = True
        return free - unsettled * self.per_training_mib >= RESERVE * self.per_training_mib


@dataclass
class Runner:
    """Runs the trainings of a queue.

    Attributes:
        all_progress: The trainings.
        output: Folder of the logs.
        slots: Maximum number of processes at a time.
        memory: Memory of the device.
        minutes: Time limit, or None.
        margin: Seconds before the limit at which trainings are asked to save their state.
        environment: Additional variables of the processes.
        changed: Called when a result has changed.
        report: Receives messages.
    """

    all_progress: Sequence[Progress]
    output: Path
    slots: int
    memory: Memory
    minutes: float | None
    margin: float
    environment: dict[str, str]
    changed: Callable[[], None]
    report: Callable[[str], None]
    jobs: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        self.is_interrupted = False

    def run(self) -> None:
        """Run everything until it is done, the time limit is reached or the process receives a signal."""
        handlers = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not self._must_stop():
                self._collect()
                self._start_jobs()
                if not self.jobs:
                    return
                time.sleep(POLL_SECONDS)
            self._stop()
        finally:
            for job in self.jobs:
                job.send(signal.SIGKILL)
                job.process.wait()
                job.log_file.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _interrupt(self, *_: object) -> None:
        self.is_interrupted = True

    def _seconds_left(self) -> float:
        return float("inf") if self.minutes is None else self.start + 60 * self.minutes - time.monotonic()

    def _must_stop(self) -> bool:
        return self.is_interrupted or self._seconds_left() < self.margin

    def _stop(self) -> None:
        """Let the trainings save their state; evaluations continue until the limit."""
        self.report("interrupted" if self.is_interrupted else "the time limit is near: saving the trainings")
        end = time.monotonic() + min(self.margin, max(0.0, self._seconds_left()))
        for job in self.jobs:
            if job.kind == "train":
                job.send(signal.SIGINT)
        while self.jobs and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self._collect()

    def _start_jobs(self) -> None:
        """Start as many processes as fit: evaluations first, then preparations, then trainings."""
        for start in (self._start_evaluation, self._start_preparation, self._start_training):
            for progress in self.all_progress:
                if len(self.jobs) >= self.slots:
                    return
                if not progress.error and not progress.is_done:
                    start(progress)

    def _start_evaluation(self, progress: Progress) -> None:
        training = progress.training
        if not progress.finished or self._has_job("evaluate", training):
            return
        (test, *_) = [test for test in training.tests if test.name in progress.missing_tests]
        output = self._scores_file(training, test.name)
        beam = [] if training.beam is None else ["--beam", str(training.beam)]
        device = ["--device", training.config.training.device]
        files = [str(test.source), str(test.reference)]
        command = ["evaluate", str(training.folder), *files, "--output", str(output), *beam, *device]
        self._start("evaluate", training, command, f"{training.folder.name}-{test.name}")

    def _start_preparation(self, progress: Progress) -> None:
        training = progress.training
        corpus = training.prepared
        if progress.finished or (corpus / FACTS_FILE).is_file() or self._has_job("prepare", corpus):
            return
        command = ["prepare", str(training.run_file), "--set", *training.all_settings]
        self._start("prepare", corpus, command, corpus.name)

    def _start_training(self, progress: Progress) -> None:
        training = progress.training
        is_ready = (training.prepared / FACTS_FILE).is_file() and not self._has_job("prepare", training.prepared)
        if progress.finished or not is_ready or self._has_job("train", training):
            return
        now = time.monotonic()
        trainings = [job for job in self.jobs if job.kind == "train"]
        if not self.memory.fits(len(trainings), sum(not job.is_settled(now) for job in trainings)):
            return
        command = ["train", str(training.run_file), "--resume", "--set", *training.all_settings]
        job = self._start("train", training, command, training.folder.name)
        job.updates_log = training.folder / "log.jsonl"
        job.log_size = job.updates_log.stat().st_size if job.updates_log.is_file() else 0

    def _has_job(self, kind: str, key: object) -> bool:
        return any(job.kind == kind and job.key == key for job in self.jobs)

    def _start(self, kind: str, key: object, arguments: Sequence[str], name: str) -> Job:
        """Start a process of `rnnsearch`; a signal to this process does not reach it."""
        log = self.output / "logs" / f"{kind}-{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log_file = log.open("wb")
        limits = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            env={**limits, **os.environ, **self.environment},
            start_new_session=True,
        )
        self.report(f"{kind} {name}")
        job = Job(kind, key, process, log, log_file, time.monotonic())
        self.jobs.append(job)
        return job

    def _collect(self) -> None:
        """Process the ends of processes."""
        for job in [job for job in self.jobs if job.process.poll() is not None]:
            self.jobs.remove(job)
            job.log_file.close()
            for progress in self.all_progress:
                if job.key in (progress.training, progress.training.prepared):
                    self._finish(job, progress)
            self.changed()

    def _finish(self, job: Job, progress: Progress) -> None:
        """Record the end of a process in a training that it belongs to."""
        status = job.process.returncode
        training = progress.training
        if status == 0 and job.kind == "train":
            progress.finished = True
        elif status == 0 and job.kind == "evaluate":
            for test in progress.missing_tests:
                path = self._scores_file(training, test)
                if path.is_file():
                    progress.scores[test] = read_scores(path)
        elif status != 0 and not (job.kind == "train" and self._must_stop()):
            progress.error = job.last_line()
        progress.save()
        if status != 0 or job.kind != "prepare":
            self.report(f"{training.name}: {progress.state or 'done'}")

    def _scores_file(self, training: Training, test: str) -> Path:
        return self.output / "scores" / f"{training.folder.name}-{test}.json"
