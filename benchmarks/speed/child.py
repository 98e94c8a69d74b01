"""One measurement of rnnsearch in a process of its own: `python -m benchmarks.speed.child KIND FILE`, its settings
in a JSON file, what it found as JSON on standard output. What is heavy is imported when the clock runs."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, milliseconds_of_each, run, spread, timed
from benchmarks.speed.tokens import write_lines

ROOT = Path(__file__).resolve().parents[2]


def environment(threads: int, native: bool = True, recorded: bool = True) -> dict[str, str]:
    """Of children and commands: the code of this checkout, and what the command line sets before torch is imported."""
    from rnnsearch.cli import PRIMITIVES

    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    caches = dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), PRIMITIVES)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    off = {name: "0" for name, on in (("RNNSEARCH_NATIVE", native), ("RNNSEARCH_GRAPHS", recorded)) if not on}
    return {**os.environ, **limits, **caches, **off, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def start(kind: str, name: str, spec: Row, folder: Path) -> Row:
    """A measurement in a process of its own, with its peak memory; `folder` gets its settings and its log.

    Errors: RuntimeError where it fails.
    """
    path = folder / f"{kind}-{name}.json"
    path.write_text(json.dumps(spec, indent=1), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.speed.child", kind, str(path)]
    variables = environment(spec["threads"], spec.get("native", True), spec.get("recorded", True))
    ended = run(command, path.with_suffix(".log"), variables, cwd=ROOT)
    return {**json.loads(ended.output), "peak_mib": ended.peak_mib}


class Clock:
    """A reporter that notes when each update ended, and how much memory there then was."""

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
        """Of one update; its real target symbols are its speed times its time."""
        self.ends.append(time.perf_counter())
        spent, self._seconds = row["seconds"] - self._seconds, row["seconds"]
        self.tokens.append(round(row["tokens_per_second"] * spent))
        self.waiting.append(row["waiting"])
        self.padding = row["padding"]
        if row["update"] in self.memory_after:
            self.memory[row["update"]] = resident_mib()

    def evaluated(self, row: dict[str, Any]) -> None:
        """The dev scores."""
        self.dev = {key: row[key] for key in ("update", "dev_nll_per_word", "dev_bleu")}

    def message(self, text: str) -> None:
        """To the log."""
        sys.stderr.write(f"{text}\n")

    def speed(self, skip: int, sentences: int) -> Row:
        """Target symbols a second, end symbols not counted, from the end of update `skip` to the last one's."""
        seconds, count = self.ends[-1] - self.ends[skip - 1], len(self.ends) - skip
        speed = (sum(self.tokens[skip:]) - sentences * count) / seconds
        waiting = sum(self.waiting[skip:]) / count
        return {"tokens_per_second": speed, "seconds": seconds, "measured_updates": count, "waiting": waiting}


def resident_mib() -> tuple[float, float]:
    """This process's memory now, and that without files mapped into it; 0 where the system does not say."""
    try:
        resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    except OSError:
        return 0.0, 0.0
    page = resource.getpagesize() / 2**20
    return int(resident) * page, (int(resident) - int(shared)) * page


def prepare(spec: Row) -> Row:
    """Prepare the corpus of a run file, `run`."""
    from rnnsearch import config as run_config
    from rnnsearch.data.prepare import prepare as make

    began = time.perf_counter()
    config = run_config.load(Path(spec["run"]))
    assert config.data.prepared is not None
    make(config, Path(config.data.prepared))
    return {"seconds": time.perf_counter() - began}


def train(spec: Row) -> Row:
    """Train by a run file: `run`, `settings`, `folder`, `skip`, `memory_after`."""
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
        "first_update_seconds": clock.ends[0] - spec["began"],
        "ends": {n: end - spec["began"] for n, end in enumerate(clock.ends, 1) if n in set(spec.get("ends", []))},
        "memory_mib": {update: resident for update, (resident, _) in clock.memory.items()},
        "own_mib": {update: own for update, (_, own) in clock.memory.items()},
        "padding": clock.padding,
        "parameters": facts["parameters"],
        **clock.dev,
    }


def by_definition() -> None:
    """From here on this process repeats the step wherever a faster twin would run."""
    from rnnsearch.accel.registry import TWINS
    from rnnsearch.models.cells import GRU
    from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh

    for kind in (Bahdanau, BahdanauTanh, GRU):
        TWINS.pop(kind, None)


def decode(spec: Row) -> Row:
    """Translate `source` by `model` in each of `cases` (name, beam, batch): the first pass after one sentence, as the
    rivals are timed, and `passes` more; translations of the first go to `output`/NAME."""
    translator, lines = _translator(spec)
    row: Row = {}
    for case in spec["cases"]:
        options, batch = translator.options(beam=case["beam"]), case["batch"]
        translator.n_best(lines[:1], options, batch)
        passes = [
            timed(lambda options=options, batch=batch: translator.n_best(lines, options, batch))  # type: ignore[misc]
            for _ in range(1 + spec["passes"])
        ]
        found, seconds = [best[0].text for best in passes[-1][0]], [wall for _, wall, _ in passes]
        write_lines(Path(spec["output"]) / case["name"], found)
        tokens, best = sum(len(text.split()) for text in found), min(seconds[1:] or seconds)
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
    """Greedy translation of one sentence at a time: milliseconds, mean, p50 and p99."""
    translator, lines = _translator(spec)
    options = translator.options(beam=1)
    milliseconds_of_each(lambda line: translator.n_best([line], options, 1), lines[: spec["warm"]])
    times = milliseconds_of_each(lambda line: translator.n_best([line], options, 1), lines)
    return {**spread(times), "sentences": len(times)}


def _translator(spec: Row) -> tuple[Any, list[str]]:
    from rnnsearch.translator.loading import load

    lines = Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    translator = load(spec["model"], spec["device"], candidates=spec["candidates"])
    search = translator.config.search.model_copy(update={"precision": spec["precision"]})
    translator.config = translator.config.model_copy(update={"search": search})
    return translator, lines[: spec.get("sentences")]


def limit(spec: Row) -> Row:
    """The limit of a mean update of the training set."""
    from benchmarks.speed.limit import Counts, measure
    from benchmarks.speed.model import Sizes

    sizes, counts = Sizes(**spec["sizes"]), Counts(*spec["counts"])
    return measure(sizes, spec["vocabulary"], counts, spec["device"], spec["precisions"], spec["rounds"])


def phases(spec: Row) -> Row:
    """Where an update's time goes."""
    from benchmarks.speed.phases import measure

    return measure(Path(spec["run"]), spec["settings"], spec["updates"])


KINDS: dict[str, Callable[[Row], Row]] = {
    kind.__name__: kind for kind in (prepare, train, decode, one_by_one, limit, phases)
}


def measure(kind: str, spec: Row) -> Row:
    """One measurement in this process; `threads` and `plain` are of all kinds, and the clock begins here."""
    began = time.perf_counter()
    import torch

    torch.set_num_threads(spec["threads"])
    if spec.get("plain"):
        by_definition()
    row: Row = json.loads(json.dumps(KINDS[kind]({**spec, "began": began})))
    return row


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))))
