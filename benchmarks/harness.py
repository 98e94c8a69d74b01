"""What the benchmarks are made of: clocks, commands and their memory, the machine, options, tables and result files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from rnnsearch.models.translation_model import TranslationModel

Found = TypeVar("Found")
Item = TypeVar("Item")
Row = dict[str, Any]
"""What one measurement found, as JSON has it."""


def seconds_of(work: Callable[[], object], rounds: int, least: float = 0.02) -> float:
    """The best round's mean time of a call; a round lasts at least `least` seconds. Of no rounds: the time of one call,
    which otherwise comes before them, to warm up."""
    _, best, _ = timed(work)
    for _ in range(rounds):
        began, count = time.perf_counter(), 0
        while (spent := time.perf_counter() - began) < least:
            work()
            count += 1
        best = min(best, spent / count)
    return best


def timed(work: Callable[[], Found]) -> tuple[Found, float, float]:
    """What it gives, and the wall and processor seconds that it takes."""
    began, used = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - began, time.process_time() - used


def milliseconds_of_each(work: Callable[[Item], object], items: Iterable[Item]) -> list[float]:
    """The time of each item by itself."""
    return [1000 * timed(lambda item=item: work(item))[1] for item in items]  # type: ignore[misc]


def spread(milliseconds: Sequence[float]) -> Row:
    """Mean, median and 99th percentile."""
    parts = (
        statistics.quantiles(milliseconds, n=100, method="inclusive") if len(milliseconds) > 1 else [*milliseconds] * 99
    )
    return {"mean_ms": statistics.fmean(milliseconds), "p50_ms": parts[49], "p99_ms": parts[98]}


def say(text: str) -> None:
    """A message, on stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def busy_seconds() -> float:
    """Seconds that the machine's processors have worked, for anyone; 0 where the system does not say."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq = (int(part) for part in file.readline().split()[1:8])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor seconds of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Ended(NamedTuple):
    """A command that ended: wall seconds, processor seconds (of all it started), peak memory in MiB (of its largest
    process), and what it wrote on stdout."""

    seconds: float
    core_seconds: float
    peak_mib: float
    output: str


def run(command: list[str], log: Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> Ended:
    """Run a command; its stderr goes to `log`. Errors: RuntimeError with the log's end where it fails."""
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=cwd, encoding="utf-8"
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    seconds = time.monotonic() - began
    if process.returncode != 0:
        end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} must end without an error; got {process.returncode}:\n{end}")
    return Ended(seconds, usage.ru_utime + usage.ru_stime, peak_mib(usage), output)


def peak_mib(usage: resource.struct_rusage | None = None) -> float:
    """The most memory that a process has held; by default, this one."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20


def machine() -> Row:
    """What the figures depend on: processor, cores, versions."""
    import torch

    from rnnsearch.kernels.native.choice import processor_name

    return {
        "processor": processor_name(),
        "instructions": instructions(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def instructions() -> str:
    """The widest vectors or tiles that are in use here: what the processor has, or what torch is held to."""
    import torch

    from rnnsearch.kernels.native.choice import processor_name

    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "AVX2"
    held = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    if torch.cpu.get_capabilities().get("amx_tile") and (held in ("DEFAULT", "ALL") or "AMX" in held):
        return "AMX"
    return "AVX-512 of AMD" if "AMD" in processor_name() else "AVX-512"


def machine_line(found: Row | None = None) -> str:
    """The same in a sentence."""
    said = found or machine()
    return (
        f"{said['cores']} cores of {said['processor']}, {said['instructions']}, {said['threads']} threads, "
        f"torch {said['torch']}, Python {said['python']}, {said['date']}."
    )


def network(model: Row, source: int, target: int | None = None) -> TranslationModel:
    """The model of a `[model]`, for so many symbols a side (as many on both if one is told)."""
    from rnnsearch.config import resolve
    from rnnsearch.systems.build import build

    data = {"source": "en", "target": "de", "corpus": "none"}
    training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}
    config = resolve({"data": data, "model": model, "training": training}).model
    return build(config, source, source if target is None else target, seed=1)


def table(head: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; nothing without rows. All columns but the first are numbers.

    A column of `head` is a title and how its values are shown, as in `"device | tokens/s {:,.0f} | share {:.0%}"`. Text
    stands as it is, None as an empty cell.
    """
    columns = [column.partition(" {") for column in head.split(" | ")]
    lines = [[title for title, _, _ in columns]]
    for row in rows:
        shown = zip(row, (mark.strip() + form or "{}" for _, mark, form in columns), strict=True)
        lines.append(["" if v is None else v if isinstance(v, str) else form.format(v) for v, form in shown])
    written = [f"| {' | '.join(line)} |" for line in lines]
    return [written[0], f"|---|{'---:|' * (len(columns) - 1)}", *written[1:], ""] if written[1:] else []


def section(title: str, *parts: Sequence[str]) -> list[str]:
    """A heading and what stands under it; nothing where there is nothing."""
    lines = [line for part in parts for line in part]
    return [f"## {title}", "", *lines] if lines else []


def parser(doc: str) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks have in common, to be read by `parsed`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads")
    made.add_argument("--output", type=Path, help="also write the page here, as Markdown")
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; torch computes on so many threads as they say."""
    import torch

    options = made.parse_args()
    torch.set_num_threads(options.threads)
    return options


def publish(lines: Iterable[str], output: Path | None, rows: object = None) -> None:
    """Print a page and, where asked for, write it, with its rows as JSON beside it."""
    page = "\n".join(lines).rstrip() + "\n"
    print(page, end="")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
        if rows is not None:
            output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
