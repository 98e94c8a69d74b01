"""Speed of RNNsearch on a GPU: training, search, the matrix product limit and the quality of recorded passes.

`run` measures the rows of a `GpuPlan` in the order of their usefulness, prints each row when it is done and stores it,
so that the next call continues. The measurements run in one process for all rows (`worker.py`), which imports torch
while others prepare the corpora. This process imports no torch: it keeps the time limit by ending the workers.

A row is measured again if the package's code, the GPU or a setting of the row has changed.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import tomli_w

from benchmarks.harness import Row, log
from benchmarks.speed.gpu_table import GpuResults, describe
from benchmarks.speed.model import PAPER, RIVALS_SIZE, Sizes, run_file
from benchmarks.speed.rows import StoredRows, version
from benchmarks.speed.tokens import Tokens
from benchmarks.speed.workers import Connect, TimeIsUp, Worker, WorkerError

QUALITY_UPDATES = 150
"""Updates kernel by kernel, and before the dev NLLs of both kinds of passes are compared."""
KERNEL_SKIP = 20
"""Updates kernel by kernel before the measured ones; they have the same speed from the start."""
PROFILE_SKIP = 100
PROFILE_UPDATES = 40
PROFILE_MORE = 40
"""Updates after the profiled ones, because the loop may launch updates before it reports earlier ones."""
SEARCHES = {"greedy": 1, "beam 5": 5}
SEARCH_BATCH = 64
PRECISIONS = ("bf16", "fp32")
MODES = ("recorded", "kernels")
"""Passes recorded as CUDA graphs, and passes kernel by kernel."""


@dataclass(frozen=True)
class RandomText:
    """Random sentences over `words` words."""

    words: int
    pairs: int
    length: tuple[int, int]
    """Minimum and maximum sentence length."""


@dataclass(frozen=True)
class Scale:
    """A size of the model and how to train it.

    Updates before the measured ones last an epoch, within limits, because a shape is recorded when it occurs again.
    """

    name: str
    sizes: Sizes
    batches: tuple[int, ...]
    """Batch sizes in sentences."""
    text: RandomText | None = None
    """Text to train on; None for Multi30k."""
    pairs: int = 29_000
    skip: tuple[int, int] = (171, 454)
    """Minimum and maximum number of updates before the measured ones."""
    measured: tuple[int, int] = (114, 454)
    """Minimum and maximum number of measured updates; an epoch within these limits."""
    is_searched: bool = False
    """True if search is measured, with the model of the first row of training."""
    milliseconds: float = 15.0
    """Expected time of a recorded update of 64 sentences, to decide if a row still fits."""

    def updates(self, batch: int) -> tuple[int, int]:
        """Return the numbers of updates before the measured ones and in total."""
        epoch = -(-self.pairs // batch)
        skip = min(max(epoch, self.skip[0]), self.skip[1])
        return skip, skip + min(max(epoch, self.measured[0]), self.measured[1])


SCALES = (
    Scale("rivals", RIVALS_SIZE, (64, 512), is_searched=True),
    Scale(
        "paper",
        PAPER,
        (80, 512),
        RandomText(29_996, 20_000, (20, 30)),
        pairs=20_000,
        skip=(40, 40),
        measured=(100, 100),
        milliseconds=25.0,
    ),
)
USEFUL = (("rivals", 64), ("rivals", 512), ("paper", 80))
"""Scales and batches that are measured before all others."""


@dataclass(frozen=True)
class GpuRow:
    """One row to measure.

    `kind` is train, limit (of the matrix products), search, quality (dev NLL after as many updates as kernel by kernel)
    or profile (time of the kernels).
    """

    kind: str
    scale: str
    batch: int
    precision: str
    mode: str = "recorded"
    search: str = ""

    @property
    def name(self) -> str:
        """Name of the row and of its file."""
        parts = [self.kind, self.scale, str(self.batch), self.precision, self.mode, self.search.replace(" ", "-")]
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class GpuPlan:
    """Settings of one run of the benchmark on a GPU."""

    scratch: Path
    threads: int
    peers: Path | None = None
    data: Path | None = None
    scales: Sequence[Scale] = SCALES
    batches: Sequence[int] | None = None
    """Batch sizes of all scales; None for those of each scale."""
    precisions: Sequence[str] = PRECISIONS
    modes: Sequence[str] = MODES
    minutes: float | None = None
    device: str = "cuda"
    quality_updates: int = QUALITY_UPDATES
    rounds: int = 3
    """Rounds of timing of each matrix product."""

    def rows(self) -> list[GpuRow]:
        """Return the rows in the order of measurement: the most useful ones first, kernel by kernel last."""
        sizes = [(scale.name, batch) for scale in self.scales for batch in self.batches or scale.batches]
        sizes.sort(key=lambda size: USEFUL.index(size) if size in USEFUL else len(USEFUL))
        useful = [size for size in sizes if size in USEFUL] or sizes[:1]
        best, *other_precisions = self.precisions
        rows: list[GpuRow] = []
        if "recorded" in self.modes:
            for size in useful:
                rows += [GpuRow(kind, *size, best) for kind in ("train", "limit")]
            rows += [GpuRow(kind, *useful[0], other) for other in other_precisions for kind in ("train", "limit")]
        rows += self._searches(best)
        if set(self.modes) == set(MODES):
            rows += [GpuRow("quality", *useful[0], best), GpuRow("train", *useful[0], best, "kernels")]
        if "recorded" in self.modes:
            rows += [GpuRow("profile", *size, best) for size in useful]
        for mode in self.modes:
            for precision in self.precisions:
                for size in sizes:
                    rows += [GpuRow("train", *size, precision, mode), GpuRow("limit", *size, precision)]
        return list(dict.fromkeys(rows))

    def _searches(self, precision: str) -> Iterator[GpuRow]:
        """Yield the rows of search."""
        for scale in self.scales:
            if scale.is_searched:
                for mode in self.modes:
                    for search in SEARCHES:
                        yield GpuRow("search", scale.name, SEARCH_BATCH, precision, mode, search)


class GpuMeasurement:
    """The measurement of a plan."""

    def __init__(self, plan: GpuPlan, connect: Connect = Worker, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan = plan
        self.connect = connect
        self.clock = clock
        self.start = clock()
        self.stored = StoredRows(plan.scratch)
        self.results = GpuResults()
        self.scales = {scale.name: scale for scale in plan.scales}
        self.workers: dict[str, Worker] = {}
        self.corpora: dict[str, Row] = {}
        self.pace = Pace()

    @property
    def deadline(self) -> float | None:
        """Time on the clock at which the measurement ends, or None."""
        return None if self.plan.minutes is None else self.start + 60 * self.plan.minutes

    def run(self, done: Callable[[GpuResults], None] = lambda _: None) -> GpuResults:
        """Measure all rows within the time limit and return the results.

        Args:
            done: Called after each row.

        Raises:
            WorkerError: The device does not work.
        """
        try:
            self._prepare_corpora()
            self.results.machine.update(self._request("rows", {"measure": "facts"}))
            for row in self.plan.rows():
                self._add(row)
                done(self.results)
        except (TimeIsUp, KeyboardInterrupt) as reason:
            log("interrupted" if isinstance(reason, KeyboardInterrupt) else "the time limit is reached")
        finally:
            for worker in self.workers.values():
                worker.kill()
        measured = {row["name"] for row in self.results.rows}
        failed = {row["name"] for row in self.results.failed}
        left = [row.name for row in self.plan.rows() if row.name not in measured | failed]
        self.results.skipped.extend(left)
        done(self.results)
        return self.results

    def _prepare_corpora(self) -> None:
        """Start to prepare the corpora that no earlier call has prepared, at the same time."""
        for scale in self.plan.scales:
            self._worker("rows")
            folder = self._folder(scale)
            spec = {
                "measure": "corpus",
                "folder": str(folder),
                "peers": None if self.plan.peers is None else str(self.plan.peers),
                "data": None if self.plan.data is None else str(self.plan.data),
                "text": None if scale.text is None else asdict(scale.text),
                "sizes": asdict(scale.sizes),
                "threads": self.plan.threads,
            }
            corpus = self.stored.get(f"corpus-{scale.name}", [spec, version()])
            if corpus is not None and (folder / "prepared").is_dir():
                self.corpora[scale.name] = corpus
            else:
                log(f"preparing the corpus of {scale.name} ...")
                self._worker(f"corpus-{scale.name}").send(spec)

    def _corpus(self, scale: Scale) -> Row:
        """Return the facts about a corpus; wait until it is prepared."""
        if scale.name not in self.corpora:
            name = f"corpus-{scale.name}"
            worker = self.workers[name]
            try:
                corpus = worker.receive(self._seconds_left())
                self.stored.put(name, [worker.spec, version()], corpus)
            except WorkerError as error:
                corpus = {"error": str(error)}
            worker.kill()
            self.corpora[scale.name] = corpus
        if "error" in (corpus := self.corpora[scale.name]):
            raise WorkerError(corpus["error"])
        return corpus

    def _add(self, row: GpuRow) -> None:
        """Add a stored row to the results, or measure, print and store it if it is expected to fit."""
        settings = [asdict(row), asdict(self.scales[row.scale]), self.plan.quality_updates, self.plan.threads]
        settings += [self.results.machine.get("device"), version()]
        result = self.stored.get(row.name, settings)
        if result is None or self._model_is_missing(row):
            result = self._measure(row)
            if result is None:
                return
            self.stored.put(row.name, settings, result)
        result = {**asdict(row), "name": row.name, **result}
        self.results.rows.append(result)
        print(describe(result), flush=True)

    def _measure(self, row: GpuRow) -> Row | None:
        """Measure a row in a worker and return it, or None if it failed or is not expected to fit."""
        # CUPTI stays attached to a process and may slow down or break later rows there.
        worker = "profile" if row.kind == "profile" else "rows"
        try:
            spec = self._spec(row)
            expected = self.pace.expected(row, self.scales[row.scale], self.plan.quality_updates)
            left = self._seconds_left()
            if left is not None and expected > left:
                log(f"{row.name}: left out; it is expected to take {expected:.0f} s, and {left:.0f} s are left")
                return None
            start = self.clock()
            result = self._request(worker, spec)
        except WorkerError as error:
            log(f"{row.name}: failed: {error}")
            self.results.failed.append({"name": row.name, "error": str(error)})
            return None
        seconds = self.clock() - start
        self.pace.add(expected, seconds)
        return {**result, "row_seconds": round(seconds, 1)}

    def _request(self, worker: str, spec: Row) -> Row:
        """Send a request to a worker and return the answer."""
        self._worker(worker).send({"device": self.plan.device, "threads": self.plan.threads, **spec})
        return self.workers[worker].receive(self._seconds_left())

    def _worker(self, name: str) -> Worker:
        """Return a running worker."""
        if name not in self.workers or self.workers[name].is_dead:
            self.workers[name] = self.connect(self.plan.scratch / "logs" / f"{name}.log", self.plan.threads)
        return self.workers[name]

    def _seconds_left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - self.clock())

    def _folder(self, scale: Scale) -> Path:
        return (self.plan.scratch / scale.name).resolve()

    def _model(self, row: GpuRow) -> Path:
        """Return the model folder of a training row."""
        return self._folder(self.scales[row.scale]) / "runs" / row.name

    def _model_is_missing(self, row: GpuRow) -> bool:
        """Return True for a row of training without its model, if search needs it."""
        searched = row == self._training_for_search(row)
        return searched and not (self._model(row) / "model.safetensors").is_file()

    def _training_for_search(self, row: GpuRow) -> GpuRow | None:
        """Return the row of training whose model search uses: the first of the row's scale."""
        rows = [other for other in self.plan.rows() if other.kind == "train" and other.scale == row.scale]
        return rows[0] if rows else None

    def _spec(self, row: GpuRow) -> Row:
        """Return the request to a worker."""
        scale = self.scales[row.scale]
        corpus = self._corpus(scale)
        tokens = corpus["tokens"]
        spec: Row = {"recorded": row.mode == "recorded", "tokens": tokens, "name": row.name}
        sizes = Sizes(**{**asdict(scale.sizes), "batch": row.batch})
        if row.kind == "limit":
            spec |= {"measure": "limit", "sizes": asdict(sizes), "precision": row.precision}
            return spec | {"vocabulary": corpus["vocabulary"], "rounds": self.plan.rounds}
        if row.kind == "search":
            return spec | self._search_spec(row, corpus)
        skip, updates = scale.updates(row.batch)
        if row.kind == "quality" or row.mode == "kernels":
            updates = min(updates, self.plan.quality_updates)
            skip = min(skip, updates // 2, KERNEL_SKIP)
        if row.kind == "profile":
            skip = min(skip, PROFILE_SKIP)
            updates = skip + PROFILE_UPDATES + PROFILE_MORE
        folder = self._model(row)
        settings = {"max_updates": updates, "device": self.plan.device, "precision": row.precision}
        return spec | {
            "measure": "profile" if row.kind == "profile" else "train",
            "run": str(self._run_file(scale, sizes)),
            "folder": str(folder),
            "settings": [f"training.{name}={value}" for name, value in settings.items()],
            "skip": skip,
            "profiled": PROFILE_UPDATES,
            "batch": row.batch,
        }

    def _search_spec(self, row: GpuRow, corpus: Row) -> Row:
        training = self._training_for_search(row)
        if training is None or self._model_is_missing(training):
            raise WorkerError("there is no trained model")
        return {
            "measure": "search",
            "model": str(self._model(training)),
            "source": f"{corpus['text']}/test.{corpus['tokens']['source']}",
            "beam": SEARCHES[row.search],
            "batch": row.batch,
            "passes": 3 if row.mode == "recorded" else 1,
        }

    def _run_file(self, scale: Scale, sizes: Sizes) -> Path:
        """Write and return the run file of a batch size; all share the prepared corpus."""
        folder = self._folder(scale)
        tokens = Tokens.from_json(self.corpora[scale.name]["tokens"])
        path = folder / f"run-{sizes.batch}.toml"
        tables = run_file(tokens, folder / "text", sizes)
        tables["data"] |= {"aligner": False, "prepared": str(folder / "prepared")}
        path.write_text(tomli_w.dumps(tables), encoding="utf-8")
        return path


@dataclass
class Pace:
    """The expected seconds of rows, corrected by those of the rows that were measured."""

    expected_seconds: float = 0.0
    measured_seconds: float = 0.0
    fixed_seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 4.0, "limit": 4.0, "search": 6.0, "quality": 4.0, "profile": 12.0}
    )

    def expected(self, row: GpuRow, scale: Scale, quality_updates: int) -> float:
        """Return the expected seconds of a row."""
        seconds = self.fixed_seconds[row.kind]
        milliseconds = scale.milliseconds * max(1.0, row.batch / 256)
        if row.kind in ("train", "quality"):
            # Recorded passes start kernel by kernel.
            kernels = min(scale.updates(row.batch)[1], quality_updates)
            seconds += 4 * milliseconds * kernels / 1000
            if row.kind == "train" and row.mode == "recorded":
                seconds += milliseconds * max(0, scale.updates(row.batch)[1] - kernels) / 1000
        return seconds * self.correction

    @property
    def correction(self) -> float:
        """Ratio of measured to expected seconds, within limits."""
        if not self.expected_seconds:
            return 1.0
        return min(max(self.measured_seconds / self.expected_seconds, 0.5), 20.0)

    def add(self, expected: float, measured: float) -> None:
        """Add a measured row with its expected seconds."""
        self.expected_seconds += expected / self.correction
        self.measured_seconds += measured


def has_cuda() -> bool:
    """Return True if the driver finds a GPU, without importing torch."""
    try:
        return bool(ctypes.CDLL("libcuda.so.1").cuInit(0) == 0)
    except OSError:
        return False


def toy_plan(scratch: Path, threads: int, device: str = "cpu") -> GpuPlan:
    """Return a plan at toy size, which takes seconds and says nothing about speed."""
    sizes = Sizes(embedding=6, encoder=4, decoder=6, attention=4, readout=5, batch=4, pool=2)
    text = RandomText(36, 40, (3, 7))
    rivals = Scale("rivals", sizes, (8,), text, pairs=40, skip=(2, 2), measured=(2, 2), is_searched=True)
    scales = (rivals, replace(rivals, name="paper", batches=(4, 8), is_searched=False))
    return GpuPlan(scratch, threads, scales=scales, device=device, quality_updates=3, rounds=0)


def run(plan: GpuPlan, output: Path, name: str, command: str, connect: Connect = Worker) -> GpuResults:
    """Measure, print the report, and write it with its rows after each row.

    Raises:
        ValueError: The machine has no GPU.
    """
    if plan.device != "cpu" and connect is Worker and not has_cuda():
        raise ValueError(f"--device {plan.device} needs a CUDA device; torch finds none")
    measurement = GpuMeasurement(plan, connect)
    measurement.results.machine["command"] = command
    output.mkdir(parents=True, exist_ok=True)

    def write(results: GpuResults) -> None:
        text = "\n".join(results.report()).rstrip() + "\n"
        (output / f"{name}.md").write_text(text, encoding="utf-8")
        (output / f"{name}.json").write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")

    results = measurement.run(write)
    print("\n".join(["", *results.report()]).rstrip(), flush=True)
    return results
