"""One measurement of rnnsearch in a process of its own: `python -m benchmarks.speed.child KIND FILE`, its settings
in a JSON file, what it found as JSON on standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, milliseconds_of_each, spread, timed


class Clock:
    """A reporter that notes when each update ended, and how much memory there then was."""

    def __init__(self, memory_after: list[int]) -> None:
        self.memory_after = set(memory_after)
        self.ends: list[float] = []
        self.tokens: list[int] = []
        self.memory: dict[int, float] = {}
        self.padding = 0.0
        self.dev: Row = {}
        self._seconds = 0.0

    def update(self, row: dict[str, Any]) -> None:
        """Of one update; its real target symbols are its speed times its time."""
        self.ends.append(time.perf_counter())
        spent, self._seconds = row["seconds"] - self._seconds, row["seconds"]
        self.tokens.append(round(row["tokens_per_second"] * spent))
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
        seconds = self.ends[-1] - self.ends[skip - 1]
        tokens = sum(self.tokens[skip:]) - sentences * (len(self.ends) - skip)
        return {"tokens_per_second": tokens / seconds, "seconds": seconds, "measured_updates": len(self.ends) - skip}


def resident_mib() -> float:
    """This process's memory now; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    import resource

    return pages * resource.getpagesize() / 2**20


def prepare(spec: dict[str, Any]) -> Row:
    """Prepare the corpus of a run file, `run`."""
    from rnnsearch import config as run_config
    from rnnsearch.data.prepare import prepare as make

    began = time.perf_counter()
    config = run_config.load(Path(spec["run"]))
    assert config.data.prepared is not None
    make(config, Path(config.data.prepared))
    return {"seconds": time.perf_counter() - began}


def train(spec: dict[str, Any]) -> Row:
    """Train by a run file: `run`, `settings`, `folder`, `skip`, `memory_after`."""
    began = time.perf_counter()
    from rnnsearch import config as run_config
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.training.run import train as train_run

    config = run_config.load(Path(spec["run"]), spec["settings"])
    if config.training.threads is None:
        _threads(spec)
    if spec["plain"]:
        by_definition()
    assert config.data.prepared is not None
    prepared = Prepared.open(Path(config.data.prepared), config)
    clock = Clock(spec["memory_after"])
    train_run(config, prepared, Path(spec["folder"]), clock)
    facts = json.loads((Path(spec["folder"]) / "training.json").read_text(encoding="utf-8"))
    return {
        **clock.speed(min(spec["skip"], len(clock.ends) - 1), config.training.batch.sentences or 0),
        "first_update_seconds": clock.ends[0] - began,
        "ends": {n: end - began for n, end in enumerate(clock.ends, 1) if n in set(spec.get("ends", []))},
        "memory_mib": clock.memory,
        "padding": clock.padding,
        "parameters": facts["parameters"],
        **clock.dev,
    }


def by_definition() -> None:
    """From here on this process repeats the step wherever a faster twin would run."""
    from rnnsearch.backend.twins import TWINS
    from rnnsearch.models.cells import GRU
    from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauTanh

    for kind in (Bahdanau, BahdanauTanh, GRU):
        TWINS.pop(kind, None)


def decode(spec: dict[str, Any]) -> Row:
    """Translate `source` by `model` in each of `cases` (name, beam, batch): the first pass after one sentence, as the
    rivals are timed, and `passes` more; translations of the first go to `output`/NAME."""
    translator, lines = _translator(spec)
    row: Row = {}
    for case in spec["cases"]:
        options = translator.options(beam=case["beam"], **case.get("options", {}))

        def once(options: Any = options, batch: int = case["batch"]) -> list[str]:
            return [best[0].text for best in translator.n_best(lines, options, batch)]

        translator.n_best(lines[:1], options, case["batch"])
        passes = [timed(once) for _ in range(1 + spec["passes"])]
        found, seconds = passes[-1][0], [wall for _, wall, _ in passes]
        (Path(spec["output"]) / case["name"]).write_text("".join(f"{t}\n" for t in found), encoding="utf-8")
        tokens = sum(len(text.split()) for text in found)
        best = min(seconds[1:] or seconds)
        row[case["name"]] = {
            "beam": case["beam"],
            "batch": case["batch"],
            "tokens": tokens,
            "first_seconds": seconds[0],
            "seconds": best,
            "tokens_per_second": tokens / seconds[0],
            "sentences_per_second": len(lines) / seconds[0],
            "warm_tokens_per_second": tokens / best,
            "warm_sentences_per_second": len(lines) / best,
        }
    return row


def one_by_one(spec: dict[str, Any]) -> Row:
    """Greedy translation of one sentence at a time: milliseconds, mean, p50 and p99."""
    translator, lines = _translator(spec)
    options = translator.options(beam=1)
    for line in lines[: spec["warm"]]:
        translator.n_best([line], options, 1)
    times = milliseconds_of_each(lambda line: translator.n_best([line], options, 1), lines)
    return {**spread(times), "sentences": len(times)}


def _translator(spec: dict[str, Any]) -> tuple[Any, list[str]]:
    _threads(spec)
    from rnnsearch.translate import load

    lines = Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    translator = load(spec["model"], spec["device"], candidates=spec["candidates"])
    search = translator.config.search.model_copy(update={"precision": spec["precision"]})
    translator.config = translator.config.model_copy(update={"search": search})
    return translator, lines[: spec.get("sentences") or None]


def limit(spec: dict[str, Any]) -> Row:
    """The limit of a mean update of the training set."""
    _threads(spec)
    import torch

    from benchmarks.speed.limit import Counts, measure
    from benchmarks.speed.model import Sizes

    device = torch.device(spec.get("device", "cpu"))
    sizes, counts = Sizes(**spec["sizes"]), Counts(*spec["counts"])
    return measure(sizes, spec["vocabulary"], counts, device, tuple(spec["precisions"]), spec["rounds"])


def phases(spec: dict[str, Any]) -> Row:
    """Where an update's time goes."""
    _threads(spec)
    if spec["plain"]:
        by_definition()
    from benchmarks.speed.phases import measure

    return measure(Path(spec["run"]), spec["settings"], spec["updates"])


def _threads(spec: dict[str, Any]) -> None:
    import torch

    if spec.get("threads"):
        torch.set_num_threads(spec["threads"])


KINDS: dict[str, Callable[[dict[str, Any]], Row]] = {
    kind.__name__: kind for kind in (prepare, train, decode, one_by_one, limit, phases)
}


def main() -> None:
    """Read the settings, measure, print."""
    row = KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    print(json.dumps(row))


if __name__ == "__main__":
    main()
