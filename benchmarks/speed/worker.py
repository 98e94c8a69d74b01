"""Measurements on a GPU, one request after another in one process: `python -m benchmarks.speed.worker`.

Each line of stdin is a JSON object whose `measure` names a function of this module; its result is one line of JSON on
stdout. `workers.py` starts this program.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from torch._C._autograd import DeviceType

from benchmarks.harness import Row, machine_facts, time_call
from benchmarks.speed import limit as products
from benchmarks.speed import rivals, tokens
from benchmarks.speed.model import Sizes, run_file
from benchmarks.speed.tokens import Tokens
from rnnsearch.accel.cuda_graphs import SWITCH


def facts(spec: Row) -> Row:
    """Return the facts about the machine and its GPU."""
    device = torch.device(spec["device"])
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {spec['device']} needs a CUDA device; torch finds none")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else spec["device"]
    return {**machine_facts(), "threads": spec["threads"], "device": name, "cuda": torch.version.cuda}


def corpus(spec: Row) -> Row:
    """Write the text of a scale and prepare it. An aligner is not learned."""
    from rnnsearch.config import resolve
    from rnnsearch.data.prepare import prepare

    folder = Path(spec["folder"])
    text = spec["text"]
    if text is None:
        peers, data = (None if spec[name] is None else Path(spec[name]) for name in ("peers", "data"))
        made = rivals.load_tokens(peers, data, folder / "tokens")
    else:
        words = [f"w{number}" for number in range(text["words"])]
        made = tokens.synthetic(folder / "tokens", words, tuple(text["length"]), text["pairs"])
    made.write(folder / "text")
    tables = run_file(made, folder / "text", Sizes(**spec["sizes"]))
    tables["data"] |= {"aligner": False, "prepared": str(folder / "prepared")}
    prepared = prepare(resolve(tables), folder / "prepared")
    return {
        "tokens": made.as_json(),
        "text": str(folder / "text"),
        "pairs": len(prepared.train),
        "vocabulary": len(prepared.target),
    }


def limit(spec: Row) -> Row:
    """Measure the matrix products of an average update in one precision."""
    sizes = Sizes(**spec["sizes"])
    counts = products.average_counts(Tokens.from_json(spec["tokens"]), sizes.batch)
    precision = spec["precision"]
    row = products.measure(sizes, spec["vocabulary"], counts, spec["device"], [precision], spec["rounds"])
    return {"flops": row["flops"], **row[precision]}


class Window:
    """A reporter that measures the updates after the first `skip`."""

    def __init__(self, skip: int) -> None:
        self.skip = skip
        self.ends: list[float] = []
        self.tokens: list[int] = []
        self.dev: Row = {}

    def update(self, row: dict[str, Any]) -> None:
        """Record the time and the target tokens of an update."""
        self.ends.append(time.perf_counter())
        self.tokens.append(row["tokens"])

    def evaluated(self, row: dict[str, Any]) -> None:
        """Record the dev NLL."""
        self.dev = {"dev_nll": row["dev_nll_per_word"], "dev_update": row["update"]}

    def message(self, text: str) -> None:
        """Write a message to the log."""
        sys.stderr.write(f"{text}\n")

    def result(self, sentences: int) -> Row:
        """Return the speed in target tokens without end tokens and the time per update."""
        first = self._first()
        count = len(self.ends) - first
        seconds = self.ends[-1] - self.ends[first - 1]
        return {
            "tokens_per_second": (sum(self.tokens[first:]) - sentences * count) / seconds,
            "update_ms": 1000 * seconds / count,
            "measured_updates": count,
            **self.dev,
        }

    def _first(self) -> int:
        """Return the number of updates before the measured ones.

        The loop may report several updates at once, after the last of them: the clock starts between two such groups.
        """
        mean = (self.ends[-1] - self.ends[self.skip - 1]) / (len(self.ends) - self.skip)
        first = self.skip
        while self.ends[first] - self.ends[first - 1] < mean / 4:
            first += 1
        return first


class KernelTimer(Window):
    """A reporter that profiles so many updates after the first `skip`."""

    def __init__(self, skip: int, updates: int, device: torch.device) -> None:
        super().__init__(skip)
        self.device = device
        self.updates = updates
        self.kernel_ms = 0.0
        self.kernels = 0.0
        cuda = torch.profiler.ProfilerActivity.CUDA
        activity = cuda if device.type == "cuda" else torch.profiler.ProfilerActivity.CPU
        self.profiler = torch.profiler.profile(activities=[activity])

    def update(self, row: dict[str, Any]) -> None:
        """Start or stop the profiler."""
        if row["update"] == self.skip:
            self._synchronize()
            self.profiler.start()
        elif row["update"] == self.skip + self.updates:
            self._synchronize()
            self.profiler.stop()
            self._read()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _read(self) -> None:
        """Sum the kernels; copies are not counted."""
        events = [event for event in self.profiler.events() or () if event.device_type == DeviceType.CUDA]
        kernels = [event for event in events if not event.name.startswith(("Memcpy", "Memset"))]
        self.kernel_ms = sum(event.time_range.elapsed_us() for event in kernels) / 1000 / self.updates
        self.kernels = len(kernels) / self.updates


def train(spec: Row) -> Row:
    """Train with a run file and return the speed, the dev NLL at the end and the peak memory of the device."""
    device = torch.device(spec["device"])
    window = Window(spec["skip"])
    with _memory(device) as peak, _recording(spec["recorded"]):
        parameters = _train(spec, window)
    return {**window.result(spec["batch"]), **peak, "parameters": parameters}


def profile(spec: Row) -> Row:
    """Train with a run file and return the milliseconds and the number of kernels per update."""
    updates = spec["profiled"]
    # Finishing CUPTI and starting it again breaks CUDA graphs (torch/profiler/profiler.py).
    os.environ.update(DISABLE_CUPTI_LAZY_REINIT="1", TEARDOWN_CUPTI="0")
    device = torch.device(spec["device"])
    timer = KernelTimer(spec["skip"], updates, device)
    with _memory(device), _recording(spec["recorded"]):
        _train(spec, timer)
    return {"kernel_ms": timer.kernel_ms, "kernels": timer.kernels, "profiled_updates": updates}


def _train(spec: Row, reporter: Window) -> int:
    """Train in an empty folder and return the number of parameters."""
    from rnnsearch import config as run_config
    from rnnsearch.data.prepared import Prepared
    from rnnsearch.training.run import train as train_run

    config = run_config.load(Path(spec["run"]), spec["settings"])
    folder = Path(spec["folder"])
    shutil.rmtree(folder, ignore_errors=True)
    assert config.data.prepared is not None
    prepared = Prepared.open(Path(config.data.prepared), config)
    train_run(config, prepared, folder, reporter)
    parameters: int = json.loads((folder / "training.json").read_text(encoding="utf-8"))["parameters"]
    return parameters


def search(spec: Row) -> Row:
    """Translate the test set and return the speed of the fastest pass after the first, and BLEU."""
    from rnnsearch.translator.loading import load

    lines = Path(spec["source"]).read_text(encoding="utf-8").splitlines()
    device = torch.device(spec["device"])
    with _memory(device) as peak, _recording(spec["recorded"]):
        translator = load(spec["model"], spec["device"])
        options = translator.options(beam=spec["beam"])
        translate = partial(translator.n_best, lines, options, spec["batch"])
        passes = [time_call(translate) for _ in range(1 + spec["passes"])]
    texts = [n_best[0].text for n_best in passes[-1][0]]
    count = sum(len(text.split()) for text in texts)
    seconds = [wall for _, wall, _ in passes]
    best = min(seconds[1:])
    return {
        "tokens_per_second": count / best,
        "sentences_per_second": len(lines) / best,
        "first_tokens_per_second": count / seconds[0],
        "passes": spec["passes"],
        "bleu": Tokens.from_json(spec["tokens"]).bleu(texts),
        **peak,
    }


@contextmanager
def _memory(device: torch.device) -> Iterator[Row]:
    """Free cached memory, and add the peak of the block to the yielded row."""
    peak: Row = {}
    if device.type != "cuda":
        yield peak
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    earlier = torch.cuda.memory_reserved(device)  # by libraries, or by recordings that are still referenced
    yield peak
    peak["device_mib"] = (torch.cuda.max_memory_reserved(device) - earlier) / 2**20


@contextmanager
def _recording(recorded: bool) -> Iterator[None]:
    """Record passes as CUDA graphs in the block, or launch kernels one by one."""
    before = os.environ.pop(SWITCH, None)
    if not recorded:
        os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH, None)
        if before is not None:
            os.environ[SWITCH] = before


MEASUREMENTS: dict[str, Callable[[Row], Row]] = {
    function.__name__: function for function in (facts, corpus, limit, train, profile, search)
}


def answer(spec: Row) -> Row:
    """Return the result of a request, or its error."""
    torch.set_num_threads(spec["threads"])
    try:
        row: Row = json.loads(json.dumps(MEASUREMENTS[spec["measure"]](spec)))
    except Exception as error:  # the next request may succeed
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return row


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer the requests."""
    for line in requests:
        answers.write(f"{json.dumps(answer(json.loads(line)))}\n")
        answers.flush()


if __name__ == "__main__":
    # Anything else that is printed goes to the log.
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, stdout)
