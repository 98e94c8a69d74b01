"""One measurement of rnnsearch in a separate process: `python -m benchmarks.speed.child MEASUREMENT FILE`.

The settings are read from a JSON file, and the results are printed as JSON. Heavy modules are imported after the clock
has started.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, latency_summary, milliseconds_per_item, run, time_call
from benchmarks.speed.tokens import write_lines

ROOT = Path(__file__).resolve().parents[2]


def environment(threads: int, native: bool = True, recorded: bool = True) -> dict[str, str]:
    """Return the environment of child processes: the code of this checkout, and variables of the command line.

    The command line sets these variables before torch is imported.
    """
    from rnnsearch.cli import ONEDNN_CACHE_PRIMITIVES

    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    caches = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), ONEDNN_CACHE_PRIMITIVES)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    switches = {}
    if not native:
        switches["RNNSEARCH_NATIVE"] = "0"
    if not recorded:
        switches["RNNSEARCH_GRAPHS"] = "0"
    return {**os.environ, **limits, **caches, **switches, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def start(measurement: str, name: str, spec: Row, folder: Path) -> Row:
    """Run a measurement in a child process; return its results and peak memory. Settings and log go to `folder`.

    Raises:
        RuntimeError: The measurement failed.
    """
    path = folder / f"{measurement}-{name}.json"
    path.write_text(json.dumps(spec, indent=1), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.speed.child", measurement, str(path)]
    variables = environment(spec["threads"], spec.get("native", True), spec.get("recorded", True))
    completed = run(command, path.with_suffix(".log"), variables, cwd=ROOT)
    return {**json.loads(completed.output), "peak_mib": completed.peak_mib}


class Clock:
    """A reporter that records the end time of each update and the memory after some of them."""

    def __init__(self, memory_after: list[int]) -> None:
        self.memory_after = set(memory_after)
        self.ends: list[float] = []
        self.tokens: list[int] = []
        self.waiting: list[float] = []
        self.memory: dict[int, tuple[float, float]] = {}
        self.padding = 0.0
        self.dev: Row = {}
        self._seconds = 0.0

    def update(self, row: dict[str, Any]) -> None:
        """Record an update. Its number of target tokens is computed from its speed and duration."""
        self.ends.append(time.perf_counter())
        duration = row["seconds"] - self._seconds
        self._seconds = row["seconds"]
        self.tokens.append(round(row["tokens_per_second"] * duration))
        self.waiting.append(row["waiting"])
        self.padding = row["padding"]
        if row["update"] in self.memory_after:
            self.memory[row["update"]] = resident_mib()

    def evaluated(self, row: dict[str, Any]) -> None:
        """Record the dev scores."""
        self.dev = {key: row[key] for key in ("update", "dev_nll_per_word", "dev_bleu")}

    def message(self, text: str) -> None:
        """Write a message to the log."""
        sys.stderr.write(f"{text}\n")

    def speed(self, skip: int, sentences: int) -> Row:
        """Return the target tokens per second, without end tokens, of the updates after the first `skip`."""
        seconds = self.ends[-1] - self.ends[skip - 1]
        count = len(self.ends) - skip
        speed = (sum(self.tokens[skip:]) - sentences * count) / seconds
        waiting = sum(self.waiting[skip:]) / count
        return {"tokens_per_second": speed, "seconds": seconds, "measured_updates": count, "waiting": waiting}


def resident_mib() -> tuple[float, float]:
    """Return the current memory of this process with and without mapped files, or zeros if it is unknown."""
    try:
        resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    except OSError:
        return 0.0, 0.0
    page = resource.getpagesize() / 2**20
    return int(resident) * page, (int(resident) - int(shared)) * page


def prepare(spec: Row) -> Row:
    """Prepare the corpus of the run file `run`."""
    from rnnsearch import config as run_config
    from rnnsearch.data.prepare import prepare as make

    start = time.perf_counter()
    config = run_config.load(Path(spec["run"]))
    assert config.data.prepared is not None
    make(config, Path(config.data.prepared))
    return {"seconds": time.perf_counter() - start}


def train(spec: Row) -> Row:
    """Train with a run file.

    `spec` has `run`, `settings`, `folder`, `skip`, `memory_after`, and optionally `ends`.
    """
    from rnnsearch import config as run_config
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.training.run import train as train_run

    config = run_config.load(Path(spec["run"]), spec["settings"])
    folder = Path(spec["folder"])
    prepared = Prepared.open(Path(config.data.prepared or folder / "data"), config)
    clock = Clock(spec["memory_after"])
    train_run(config, prepared, folder, clock)
    facts = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return {
        **clock.speed(min(spec["skip"], len(clock.ends) - 1), config.training.batch.sentences or 0),
        "first_update_seconds": clock.ends[0] - spec["start_time"],
        "ends": {n: end - spec["start_time"] for n, end in enumerate(clock.ends, 1) if n in set(spec.get("ends", []))},
        "memory_mib": {update: resident for update, (resident, _) in clock.memory.items()},
        "own_mib": {update: own for update, (_, own) in clock.memory.items()},
        "padding": clock.padding,
        "parameters": facts["parameters"],
        **clock.dev,
    }


class _FirstUpdateError(Exception):
    """Ends a training after its first update."""


def first_update(spec: Row) -> Row:
    """Run `rnnsearch train` on the run file `run` with `settings`, from the text until the first update."""
    from rnnsearch.cli import train as command
    from rnnsearch.training.progress import Screen

    def stop(_screen: Screen, _row: Row) -> None:
        raise _FirstUpdateError

    Screen.update = stop  # type: ignore[assignment, method-assign]
    try:
        command.train(Path(spec["run"]), settings=spec["settings"])
    except _FirstUpdateError:
        seconds = time.perf_counter() - spec["start_time"]
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return {"seconds": seconds, "core_seconds": sum(usage.ru_utime + usage.ru_stime for usage in usages)}
    raise RuntimeError("the run ended without an update")


def use_definitions() -> None:
    """Make this process repeat the decoder's step instead of using fast implementations."""
    from rnnsearch.accel.registry import FAST_IMPLEMENTATIONS
    from rnnsearch.models.cells import GRU
    from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh

    for kind in (Bahdanau, BahdanauTanh, GRU):
        FAST_IMPLEMENTATIONS.pop(kind, None)


def decode(spec: Row) -> Row:
    """Translate `source` with `model` in each of `cases` (name, beam, batch).

    One sentence warms up. The first pass after it is timed like the rivals; `passes` more follow. The translations are
    written to `output`/NAME.
    """
    translator, lines = _load(spec)
    row: Row = {}
    for case in spec["cases"]:
        options = translator.options(beam=case["beam"])
        batch = case["batch"]
        translator.n_best(lines[:1], options, batch)
        seconds = []
        for _ in range(1 + spec["passes"]):
            translate = partial(translator.n_best, lines, options, batch)
            n_best_lists, wall, _ = time_call(translate)
            seconds.append(wall)
        texts = [n_best[0].text for n_best in n_best_lists]
        write_lines(Path(spec["output"]) / case["name"], texts)
        tokens = sum(len(text.split()) for text in texts)
        best = min(seconds[1:] or seconds)
        row[case["name"]] = {
            "beam": case["beam"],
            "batch": batch,
            "tokens": tokens,
            "first_seconds": seconds[0],
            "seconds": best,
            "tokens_per_second": tokens / seconds[0],
            "sentences_per_second": len(lines) / seconds[0],
            "warm_tokens_per_second": tokens / best,
            "warm_sentences_per_second": len(lines) / best,
        }
    return row


def one_by_one(spec: Row) -> Row:
    """Measure the latency of greedy translation of one sentence at a time."""
    translator, lines = _load(spec)
    options = translator.options(beam=1)
    milliseconds_per_item(lambda line: translator.n_best([line], options, 1), lines[: spec["warm"]])
    times = milliseconds_per_item(lambda line: translator.n_best([line], options, 1), lines)
    return {**latency_summary(times), "sentences": len(times)}


def _load(spec: Row) -> tuple[Any, list[str]]:
    """Load the model and the source lines."""
    from rnnsearch.translator.loading import load

    lines = Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    translator = load(spec["model"], spec["device"], candidates=spec["candidates"])
    search = translator.config.search.model_copy(update={"precision": spec["precision"]})
    translator.config = translator.config.model_copy(update={"search": search})
    return translator, lines[: spec.get("sentences")]


def limit(spec: Row) -> Row:
    """Measure the limit of an average update on the training set."""
    from benchmarks.speed.limit import Counts, measure
    from benchmarks.speed.model import Sizes

    sizes = Sizes(**spec["sizes"])
    counts = Counts(*spec["counts"])
    return measure(sizes, spec["vocabulary"], counts, spec["device"], spec["precisions"], spec["rounds"])


def phases(spec: Row) -> Row:
    """Measure the phases of an update."""
    from benchmarks.speed.phases import measure

    return measure(Path(spec["run"]), spec["settings"], spec["updates"])


MEASUREMENTS: dict[str, Callable[[Row], Row]] = {
    function.__name__: function for function in (prepare, first_update, train, decode, one_by_one, limit, phases)
}


def measure(measurement: str, spec: Row) -> Row:
    """Run one measurement in this process. The clock starts here; every `spec` has `threads` and may have `plain`."""
    start_time = time.perf_counter()
    import torch

    torch.set_num_threads(spec["threads"])
    if spec.get("plain"):
        use_definitions()
    row: Row = json.loads(json.dumps(MEASUREMENTS[measurement]({**spec, "start_time": start_time})))
    return row


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))))
