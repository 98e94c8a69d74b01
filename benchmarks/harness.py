"""Shared tools of the benchmarks: timing, child processes, machine facts, options, tables and result files."""

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

Result = TypeVar("Result")
Item = TypeVar("Item")
Row = dict[str, Any]
"""The results of one measurement, as they are stored in JSON."""


def best_seconds(function: Callable[[], object], rounds: int, min_round_seconds: float = 0.02) -> float:
    """Return the mean time per call in the fastest round.

    Each round lasts at least `min_round_seconds`. One call before the rounds warms up; with zero rounds, its time is
    returned.
    """
    _, best, _ = time_call(function)
    for _ in range(rounds):
        start = time.perf_counter()
        count = 0
        while (elapsed := time.perf_counter() - start) < min_round_seconds:
            function()
            count += 1
        best = min(best, elapsed / count)
    return best


def time_call(function: Callable[[], Result]) -> tuple[Result, float, float]:
    """Call a function and return its result, the wall time and the CPU time in seconds."""
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    result = function()
    return result, time.perf_counter() - wall_start, time.process_time() - cpu_start


def milliseconds_per_item(function: Callable[[Item], object], items: Iterable[Item]) -> list[float]:
    """Call a function on each item and return the wall time of each call in milliseconds."""
    return [1000 * time_call(lambda item=item: function(item))[1] for item in items]  # type: ignore[misc]


def latency_summary(milliseconds: Sequence[float]) -> Row:
    """Return the mean, the median and the 99th percentile."""
    percentiles = [*milliseconds] * 99
    if len(milliseconds) > 1:
        percentiles = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return {"mean_ms": statistics.fmean(milliseconds), "p50_ms": percentiles[49], "p99_ms": percentiles[98]}


def log(text: str) -> None:
    """Print a message with the time to stderr."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def system_cpu_seconds() -> float:
    """Return the CPU time used by all processes of the machine since it started, or 0 if that is unknown."""
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _, _, irq, softirq = (int(part) for part in file.readline().split()[1:8])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def process_cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class CompletedCommand(NamedTuple):
    """Resources and output of a command that has finished.

    CPU time includes the processes that the command started; peak memory is that of the largest one.
    """

    seconds: float
    cpu_seconds: float
    peak_mib: float
    output: str


def run(
    command: list[str], log_file: Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> CompletedCommand:
    """Run a command and return its resources and its stdout; its stderr goes to `log_file`.

    Raises:
        RuntimeError: The command failed. The message contains the end of the log.
    """
    start = time.monotonic()
    with log_file.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=cwd, encoding="utf-8"
        )
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
    seconds = time.monotonic() - start
    if process.returncode != 0:
        end = log_file.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} failed with exit status {process.returncode}:\n{end}")
    return CompletedCommand(seconds, usage.ru_utime + usage.ru_stime, peak_mib(usage), output)


def peak_mib(usage: resource.struct_rusage | None = None) -> float:
    """Return the peak memory in MiB of a usage record, by default that of this process."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20


def machine_facts() -> Row:
    """Return the facts that results depend on: processor, cores, threads and versions."""
    import torch

    from rnnsearch.ops.autotune import processor_name

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
    """Return the widest instruction set in use: that of the processor, unless torch is restricted to a narrower one."""
    import torch

    from rnnsearch.ops.autotune import processor_name

    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "AVX2"
    max_isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    if torch.cpu.get_capabilities().get("amx_tile") and (max_isa in ("DEFAULT", "ALL") or "AMX" in max_isa):
        return "AMX"
    return "AVX-512 of AMD" if "AMD" in processor_name() else "AVX-512"


def machine_line(facts: Row | None = None) -> str:
    """Return the machine facts as a sentence."""
    facts = facts or machine_facts()
    return (
        f"{facts['cores']} cores of {facts['processor']}, {facts['instructions']}, {facts['threads']} threads, "
        f"torch {facts['torch']}, Python {facts['python']}, {facts['date']}."
    )


def build_model(options: Row, source_size: int, target_size: int | None = None) -> TranslationModel:
    """Build a model from a `[model]` table. The target vocabulary is as large as the source's by default."""
    from rnnsearch.config import resolve
    from rnnsearch.systems.translation import build

    data = {"source": "en", "target": "de", "corpus": "none"}
    training = {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}}
    config = resolve({"data": data, "model": options, "training": training}).model
    return build(config, source_size, source_size if target_size is None else target_size, seed=1)


def table(head: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table, or none if there are no rows. The first column is left-aligned.

    Args:
        head: Column titles with optional formats, such as `"device | tokens/s {:,.0f} | fraction {:.0%}"`.
        rows: Cells per column. Strings are copied unchanged, None is an empty cell.
    """
    columns = [column.partition(" {") for column in head.split(" | ")]
    titles = [title for title, _, _ in columns]
    formats = [brace.strip() + rest or "{}" for _, brace, rest in columns]
    lines = [f"| {' | '.join(cells)} |" for cells in (_format_row(row, formats) for row in rows)]
    return [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(columns) - 1)}", *lines, ""] if lines else []


def _format_row(row: Sequence[object], formats: Sequence[str]) -> list[str]:
    cells = []
    for value, form in zip(row, formats, strict=True):
        if value is None:
            cells.append("")
        else:
            cells.append(value if isinstance(value, str) else form.format(value))
    return cells


def section(title: str, *parts: Sequence[str]) -> list[str]:
    """Return a heading followed by the lines of all parts, or no lines if the parts are empty."""
    lines = [line for part in parts for line in part]
    return [f"## {title}", "", *lines] if lines else []


def argument_parser(doc: str) -> argparse.ArgumentParser:
    """Create a parser with the options common to all benchmarks; pass it to `parse_arguments`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="number of CPU threads")
    parser.add_argument("--output", type=Path, help="also write the page to this Markdown file")
    return parser


def parse_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line and set torch's number of threads."""
    import torch

    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def publish(lines: Iterable[str], output: Path | None, rows: object = None) -> None:
    """Print a page and, with `output`, also write it there, with its rows in a JSON file next to it."""
    page = "\n".join(lines).rstrip() + "\n"
    print(page, end="")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
        if rows is not None:
            output.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
