"""Which way each kernel goes on this machine: in native code or by a library, whichever was faster when timed.

They are timed at first use, in about two seconds, and the times are kept beside the built library: what is chosen is
read from them, so that a resumed run does what the first did. A processor, a torch, a number of threads or code that
has none yet is timed anew. With `RNNSEARCH_NATIVE=1`, or where that names a variant, native code serves in any case.
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
from rnnsearch.ops.native.building import SWITCH, told
from rnnsearch.ops.native.library import TYPES, library
from rnnsearch.utils.files import atomic_file, default_cache

log = logging.getLogger(__name__)

NATIVE, TORCH, ONEDNN = "native", "torch", "onednn"
"""Ways: ours; PyTorch's own choice; oneDNN, called by us."""
PRODUCT, WEIGHT_GRADIENT, GRU, LSTM, RNNSEARCH = "product", "weight gradient", "GRU", "LSTM", "RNNsearch"
SOFTMAX, PACKED = "softmax loss", "packed product"
"""Kernels."""
BUDGET = {PRODUCT: 0.15, WEIGHT_GRADIENT: 0.15, GRU: 0.1, LSTM: 0.1, RNNSEARCH: 0.1, SOFTMAX: 0.06, PACKED: 0.02}
"""Seconds for each case of a kernel: two in all, on a machine that does nothing else."""
LEAST, MOST = 2, 16
"""Repetitions of each way, after one to warm up; where the first has taken PATIENCE times the budget, one is enough."""
PATIENCE = 3
LEAD = 1.05
"""By which a library must be faster in products: it builds and keeps a kernel for each shape, which times of a few do
not show; whole updates with products of a library that seemed a little faster took a little longer."""
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that hold libraries to some instructions."""


Run = Callable[[int], object]
"""Of the number of the repetition."""


class Case(NamedTuple):
    """operations: multiplications and additions of its products; of a softmax, five a number. calls: of a repetition.
    ways: to do it, by name."""

    kernel: str
    kind: str
    sizes: str
    operations: float
    calls: int
    ways: dict[str, Run]


Cases = Callable[[], Iterator[Case]]
"""Products come first: others are made of them."""


class Timed(NamedTuple):
    """Of a case: seconds of a call, each way's best."""

    kernel: str
    kind: str
    sizes: str
    operations: float
    seconds: dict[str, float]

    def speed(self, way: str) -> float:
        """Operations a second, in thousands of millions."""
        return self.operations / self.seconds[way] / 1e9


class Table(NamedTuple):
    """key: what the times depend on."""

    key: dict[str, Any]
    cases: list[Timed]

    def way(self, kernel: str, kind: str) -> str:
        """The fastest, in the mean over the sizes; `torch` where nothing was timed."""
        means = self.means(kernel, kind)
        if NATIVE in means and kernel in (PRODUCT, WEIGHT_GRADIENT):
            means[NATIVE] /= LEAD
        return min(means, key=lambda way: means[way], default=TORCH)

    def means(self, kernel: str, kind: str) -> dict[str, float]:
        """Each way's seconds: the geometric mean over the sizes."""
        own = [case.seconds for case in self.cases if (case.kernel, case.kind) == (kernel, kind)]
        ways = own[0] if own else {}
        return {way: math.exp(sum(math.log(seconds[way]) for seconds in own) / len(own)) for way in ways}

    def limit(self, kind: str) -> float:
        """The best measured product's speed in a type, by whatever way."""
        products = [case for case in self.cases if case.kernel in (PRODUCT, WEIGHT_GRADIENT, PACKED)]
        return max((case.speed(way) for case in products if case.kind == kind for way in case.seconds), default=0.0)


_cases: Cases | None = None
"""What is timed. Kernels ask here which way they go, so that nothing here can import them."""
_tables: dict[str, Table] = {}
"""Of this process, by library: made for the number of threads at first use. Threads that compute alone later, as those
of search do, must time nothing amid the others' work."""
_ways: dict[tuple[str, str, torch.dtype], str] = {}
"""Of this process, by library, kernel and type: they are asked for at every product."""
_lock = threading.Lock()
_under_way = threading.local()
"""In the thread that times: what it has timed."""


def time_at_first_use(cases: Cases) -> None:
    """Say what is timed when a way is first asked for; without, the library serves."""
    global _cases  # noqa: PLW0603 (of the process, as the tables are)
    if _cases is not cases:
        _cases = cases
        forget()


def held() -> bool:
    """Whether native code serves whatever a clock says."""
    return os.environ.get(SWITCH, "") not in ("", "0") and library() is not None


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Use one implementation of every kernel in this thread, whatever was measured; nothing is timed."""
    before = getattr(_under_way, "forced", None)
    _under_way.forced = way
    try:
        yield
    finally:
        _under_way.forced = before


def way(kernel: str, kind: torch.dtype) -> str:
    """The way of a kernel for numbers of a type on the CPU."""
    if kind not in TYPES:
        return TORCH
    if (chosen := getattr(_under_way, "forced", None)) is not None:
        return chosen
    if held():
        return NATIVE
    if (begun := _begun()) is not None:
        return begun.way(kernel, TYPES[kind])
    place = _place(), kernel, kind
    if place not in _ways:
        _ways[place] = table().way(kernel, TYPES[kind])
    return _ways[place]


def search_kind(kinds: Iterable[str]) -> str | None:
    """The type of native search that is the fastest of some; None where products in fp32 of the library are faster."""
    if held():
        return next(iter(kinds))
    means = {kind: mean for kind in kinds if NATIVE in (mean := table().means(PACKED, kind))}
    best = min(means, key=lambda kind: means[kind][NATIVE], default=None)
    library_seconds = min((mean[TORCH] for mean in means.values()), default=0.0)  # in fp32 for every kind
    return best if best is not None and means[best][NATIVE] < library_seconds else None


def table() -> Table:
    """The times on this machine, kept or made now."""
    place = _place()
    if place not in _tables:
        with _lock:
            if place not in _tables:
                _tables[place] = kept_or_made(key(Path(place).name))
    return _tables[place]


def forget() -> None:
    """Ask the file again, as a new process does."""
    _tables.clear()
    _ways.clear()


def _place() -> str:
    """Of the library in use; empty where there is none."""
    found = library()
    return "" if found is None else found._name


def _begun() -> Table | None:
    return getattr(_under_way, "table", None)


def key(name: str) -> dict[str, Any]:
    """What times with a library depend on."""
    code = b"" if _cases is None else Path(getfile(_cases)).read_bytes()
    return {
        "library": name,
        "processor": processor_name(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "held to": {name: os.environ[name] for name in LIMITS if name in os.environ},
        "cases": hashlib.sha256(code).hexdigest()[:16],
    }


def processor_name() -> str:
    """The name of the processor's model."""
    return told("model name") or platform.processor() or platform.machine()


def kept_in(key: dict[str, Any]) -> Path:
    """The file of the times."""
    said = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return default_cache() / "native" / f"{Path(key['library']).stem or 'none'}-times-{said}.json"


def kept_or_made(key: dict[str, Any]) -> Table:
    """The times of the file, else measured; of two processes at once the first to end says what both do."""
    path = kept_in(key)
    if (kept := _read(path, key)) is not None:
        return kept
    began = time.perf_counter()
    made = Table(key, _measured())
    if made.cases:
        log.info("native code was timed beside PyTorch in %.1f s: %s", time.perf_counter() - began, path)
        try:
            return _keep(path, made)
        except RnnsearchError as error:
            log.info("%s", error)
    return made


def _read(path: Path, key: dict[str, Any]) -> Table | None:
    """None where there is no file, or one that is damaged or of another key."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        found = Table(said["key"], [Timed(**case) for case in said["cases"]])
        whole = found.key == key and found.cases and all(s > 0 for case in found.cases for s in case.seconds.values())
        for kernel, kind in {(case.kernel, case.kind) for case in found.cases}:
            found.way(kernel, kind)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if whole else None


def _keep(path: Path, made: Table) -> Table:
    """Write the file, unless another process has done so meanwhile: then what that says.

    Errors: RnnsearchError where it cannot be written.
    """
    cases = [case._asdict() for case in made.cases]
    whole = path.with_name(f"{path.name}.{os.getpid()}.new")
    with atomic_file(whole) as temporary:
        temporary.write_text(json.dumps({"key": made.key, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    try:
        os.link(whole, path)  # unlike a renaming, it fails where there is one
    except OSError:
        if (first := _read(path, made.key)) is not None:
            return first
        with suppress(OSError):
            whole.replace(path)
    finally:
        whole.unlink(missing_ok=True)
    return made


def _measured() -> list[Timed]:
    """All times, in a thread of its own: it has no autocast, no modes and no gradients' hooks of the one that asks."""
    table, failed = Table({}, []), []
    threads = torch.get_num_threads()

    def measure() -> None:
        torch.set_num_threads(threads)
        _under_way.table = table
        try:
            for case in () if _cases is None else _cases():
                table.cases.append(times(case, BUDGET[case.kernel]))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=measure, name="timing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return table.cases


def times(case: Case, budget: float) -> Timed:
    """The best time of each way. Ways take turns, so that other work on the machine disturbs all alike."""
    best = dict.fromkeys(case.ways, math.inf)
    began = time.perf_counter()
    for repetition in range(MOST + 1):
        for way, run in case.ways.items():
            for _ in range(case.calls):
                start = time.perf_counter()
                run(repetition)
                if repetition > 0:
                    best[way] = min(best[way], time.perf_counter() - start)
        spent = time.perf_counter() - began
        if (repetition >= LEAST and spent > budget) or (repetition > 0 and spent > PATIENCE * budget):
            break
    return Timed(case.kernel, case.kind, case.sizes, case.operations, best)
