"""Choice between native code and libraries, by timing each kernel once per machine.

Kernels are timed when an implementation is first requested, in about two seconds, and the timings are stored next to
the compiled library. Choices are read from that table, so that a resumed run makes the same ones. Another processor,
PyTorch version, number of threads or version of the code is timed again. With `RNNSEARCH_NATIVE=1`, or the name of a
variant, native code is always used and nothing is timed.

The cases that are timed are in `autotune_cases.py`, which imports this module; `accel/registry.py` registers them when
a model is built. `implementation` returns the choice for a kernel, and `rnnsearch inspect --machine` shows the table.

The key of a table (`table_key`) includes the code of the cases, so editing `autotune_cases.py` causes one more timing.
Field names of `Timing` are part of the file. Tests: tests/models/test_choice.py.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from inspect import getfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.ops.native.building import SWITCH, cpuinfo_field
from rnnsearch.ops.native.library import DTYPE_NAMES, library
from rnnsearch.utils.files import JSON_ERRORS, default_cache_folder, temporary_file

log = logging.getLogger(__name__)

# Implementations: native code, the library that PyTorch chooses, and oneDNN.
NATIVE, TORCH, ONEDNN = "native", "torch", "onednn"
# Kernels.
PRODUCT, WEIGHT_GRADIENT, GRU, LSTM, RNNSEARCH = "product", "weight gradient", "GRU", "LSTM", "RNNsearch"
SOFTMAX, PACKED = "softmax loss", "packed product"
# For each case of a kernel; about two seconds in total on an otherwise idle machine.
BUDGET_SECONDS = {
    PRODUCT: 0.15,
    WEIGHT_GRADIENT: 0.15,
    GRU: 0.1,
    LSTM: 0.1,
    RNNSEARCH: 0.1,
    SOFTMAX: 0.06,
    PACKED: 0.02,
}
MAX_BUDGET_FACTOR = 3  # if the first repetition takes this many times the budget, there is no second one
MIN_REPETITIONS = 2  # after one that warms up
MAX_REPETITIONS = 16
"""Limit of the number of timed repetitions per candidate."""
# A library must be faster by this factor in products. It builds and keeps a kernel per shape, which timings of a few
# shapes do not show: whole updates with a library that seemed slightly faster took slightly longer.
LIBRARY_MARGIN = 1.05
INSTRUCTION_SET_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
)
"""Environment variables that limit libraries to some instructions."""

Run = Callable[[int], object]
"""Runs a candidate once, given the number of the repetition."""


class Case(NamedTuple):
    """A kernel at one size, with the candidates to time."""

    kernel: str
    dtype: str  # data type of the products
    sizes: str  # sizes, as shown in the table
    operations: float  # multiplications and additions of its products; for a softmax, five per value
    calls: int  # per repetition
    candidates: dict[str, Run]  # implementation name -> function to time


class Timing(NamedTuple):
    """The best time of each candidate of a case; the field names are stored in the file."""

    kernel: str
    dtype: str  # data type of the products
    sizes: str  # sizes, as shown in the table
    operations: float  # arithmetic operations of one call
    seconds: dict[str, float]  # per call

    def gflops(self, candidate: str) -> float:
        """Return the speed of a candidate in 10^9 operations per second."""
        return self.operations / self.seconds[candidate] / 1e9


class TimingTable(NamedTuple):
    """The timings of a machine."""

    key: dict[str, Any]  # everything that the timings depend on
    timings: list[Timing]  # one entry per case

    def fastest(self, kernel: str, dtype: str) -> str:
        """Return the fastest candidate in the mean over all sizes; TORCH if nothing was timed."""
        means = self.mean_seconds(kernel, dtype)
        # A library is chosen only if it is LIBRARY_MARGIN times as fast.
        if NATIVE in means and kernel in (PRODUCT, WEIGHT_GRADIENT):
            means[NATIVE] /= LIBRARY_MARGIN
        return min(means, key=lambda candidate: means[candidate], default=TORCH)

    def mean_seconds(self, kernel: str, dtype: str) -> dict[str, float]:
        """Return the geometric mean over all sizes of each candidate's seconds."""
        rows = [timing.seconds for timing in self.timings if (timing.kernel, timing.dtype) == (kernel, dtype)]
        candidates = rows[0] if rows else {}
        # The geometric mean weights all sizes equally, although large products take much longer than small ones.
        return {name: math.exp(sum(math.log(seconds[name]) for seconds in rows) / len(rows)) for name in candidates}

    def peak_gflops(self, dtype: str) -> float:
        """Return the speed of the fastest product in a type, by any candidate."""
        peak = 0.0
        for timing in self.timings:
            if timing.dtype == dtype and timing.kernel in (PRODUCT, WEIGHT_GRADIENT, PACKED):
                peak = max([peak, *(timing.gflops(candidate) for candidate in timing.seconds)])
        return peak


Cases = Callable[[], Iterator[Case]]
_cases: Cases | None = None
_tables: dict[str, TimingTable] = {}  # of this process, by library
_implementations: dict[tuple[str, str, torch.dtype], str] = {}  # by library, kernel and type; read at every product
_lock = threading.Lock()
_local = threading.local()  # `table`: unfinished table of a thread that measures; `forced`: see `forced`


def register_cases(cases: Cases) -> None:
    """Set the cases to time when an implementation is first requested; without cases, libraries are used.

    They are registered from outside because they call the kernels, which themselves use this module. Products come
    first, since other cases contain products.
    """
    global _cases  # noqa: PLW0603 (of the process, like the tables)
    if _cases is not cases:
        _cases = cases
        reset()


def implementation(kernel: str, dtype: torch.dtype) -> str:
    """Return the implementation of a kernel to use for a type on the CPU."""
    if dtype not in DTYPE_NAMES:
        return TORCH
    if (chosen := getattr(_local, "forced", None)) is not None:
        return str(chosen)
    # The environment variable is read at each call, so that a change takes effect at once.
    if native_is_forced():
        return NATIVE
    # This thread is measuring. Cases contain products, which use the timings so far instead of waiting for the table.
    if (unfinished := _unfinished_table()) is not None:
        return unfinished.fastest(kernel, DTYPE_NAMES[dtype])
    key = _library_name(), kernel, dtype
    if key not in _implementations:
        # Without a lock: threads that get here at the same time store the same value.
        _implementations[key] = table().fastest(kernel, DTYPE_NAMES[dtype])
    return _implementations[key]


def fastest_search_dtype(dtypes: Iterable[str]) -> str | None:
    """Return the type in which native search is fastest, or None if the library's products in fp32 are faster."""
    if native_is_forced():
        return next(iter(dtypes))
    means = {dtype: table().mean_seconds(PACKED, dtype) for dtype in dtypes}
    means = {dtype: seconds for dtype, seconds in means.items() if NATIVE in seconds}
    best = min(means, key=lambda dtype: means[dtype][NATIVE], default=None)
    library_seconds = min((seconds[TORCH] for seconds in means.values()), default=0.0)  # in fp32 for every type
    return best if best is not None and means[best][NATIVE] < library_seconds else None


def native_is_forced() -> bool:
    """Return True if native code is used whatever the timings are."""
    return os.environ.get(SWITCH, "") not in ("", "0") and library() is not None


@contextmanager
def forced(implementation: str) -> Iterator[None]:
    """Use one implementation of all kernels in this thread, without any timing."""
    before = getattr(_local, "forced", None)
    _local.forced = implementation
    try:
        yield
    finally:
        _local.forced = before


def table() -> TimingTable:
    """Return the timings on this machine, stored or measured now.

    A process has one table per library, for the number of threads at first use. Threads that later search on one core
    each must not time anything while others work.
    """
    name = _library_name()
    if name not in _tables:
        # Double-checked locking: only one thread measures, and later calls do not take the lock.
        with _lock:
            if name not in _tables:
                _tables[name] = load_or_measure(table_key(Path(name).name))
    return _tables[name]


def reset() -> None:
    """Read the file again at the next request, like a new process."""
    _tables.clear()
    _implementations.clear()


def _library_name() -> str:
    """Return the file name of the library in use; empty if there is none."""
    native = library()
    return "" if native is None else native._name


def _unfinished_table() -> TimingTable | None:
    return getattr(_local, "table", None)


# The file of timings.


def table_key(library_name: str) -> dict[str, Any]:
    """Return everything that timings with a library depend on."""
    code = b"" if _cases is None else Path(getfile(_cases)).read_bytes()
    return {
        "library": library_name,
        "processor": processor_name(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "instruction sets": {name: os.environ[name] for name in INSTRUCTION_SET_VARIABLES if name in os.environ},
        "cases": hashlib.sha256(code).hexdigest()[:16],
    }


def processor_name() -> str:
    """Return the model name of the processor."""
    return cpuinfo_field("model name") or platform.processor() or platform.machine()


def table_path(key: dict[str, Any]) -> Path:
    """Return the path of the file for a key.

    Raises:
        RnnsearchError: There is no cache folder.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return default_cache_folder() / "native" / f"{Path(key['library']).stem or 'none'}-times-{digest}.json"


def load_or_measure(key: dict[str, Any]) -> TimingTable:
    """Return the stored timings, or measure and store them."""
    with suppress(RnnsearchError):
        if (stored := _read(table_path(key), key)) is not None:
            return stored
    start = time.perf_counter()
    measured = TimingTable(key, _measure())
    if not measured.timings:
        return measured
    log.info("native code was compared with libraries in %.1f s", time.perf_counter() - start)
    try:
        return _store(table_path(key), measured)
    # A cache folder that cannot be written costs each process a new measurement, but is no error.
    except RnnsearchError as error:
        log.info("%s", error)
        return measured


def _read(path: Path, key: dict[str, Any]) -> TimingTable | None:
    """Return the table in a file, or None if the file is missing, damaged or for another key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        # The content is checked completely: another version or an interrupted write may have left anything.
        found = TimingTable(data["key"], [Timing(**timing) for timing in data["cases"]])
        is_valid = found.key == key and bool(found.timings)
        for timing in found.timings:
            is_valid &= all(seconds > 0 for seconds in timing.seconds.values())
            found.fastest(timing.kernel, timing.dtype)  # called for its check: raises if candidates differ
    except JSON_ERRORS:
        return None
    return found if is_valid else None


def _store(path: Path, measured: TimingTable) -> TimingTable:
    """Write the file and return its table; if another process was first, return that process's table.

    Raises:
        RnnsearchError: The file cannot be written.
    """
    timings = [timing._asdict() for timing in measured.timings]
    text = json.dumps({"key": measured.key, "cases": timings}, indent=1) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path.parent) as own_file:
            own_file.write_text(text, encoding="utf-8")
            try:
                os.link(own_file, path)  # fails if the file exists, unlike a renaming
            except OSError:
                # Processes that started together use the table of the first, so that they make the same choices.
                if (first := _read(path, measured.key)) is not None:
                    return first
                # The existing file is damaged, or the file system has no hard links.
                own_file.replace(path)
    except OSError as error:
        raise RnnsearchError(f"{path}: cannot be written: {error.strerror or error}") from error
    return measured


# Measurement.


def _measure() -> list[Timing]:
    """Time all cases in a new thread, which has none of the caller's autocast, modes or hooks."""
    table = TimingTable({}, [])
    errors: list[BaseException] = []
    threads = torch.get_num_threads()

    def run() -> None:
        # With OpenMP, the number of threads is a setting of each thread.
        torch.set_num_threads(threads)
        _local.table = table
        try:
            for case in () if _cases is None else _cases():
                table.timings.append(time_case(case, BUDGET_SECONDS[case.kernel]))
        # An exception would end this thread only; the caller raises it again.
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="timing")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return table.timings


def time_case(case: Case, budget: float) -> Timing:
    """Return the best time of each candidate; they take turns, so that other work on the machine affects all alike."""
    best = dict.fromkeys(case.candidates, math.inf)
    start = time.perf_counter()
    for repetition in range(MAX_REPETITIONS + 1):
        for name, run in case.candidates.items():
            for _ in range(case.calls):
                call_start = time.perf_counter()
                run(repetition)
                # The first repetition warms up: libraries build their kernels and caches are filled.
                if repetition > 0:
                    best[name] = min(best[name], time.perf_counter() - call_start)
        elapsed = time.perf_counter() - start
        if repetition >= MIN_REPETITIONS and elapsed > budget:
            break
        if repetition > 0 and elapsed > MAX_BUDGET_FACTOR * budget:
            break
    return Timing(case.kernel, case.dtype, case.sizes, case.operations, best)
