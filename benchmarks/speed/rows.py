"""Rows of the benchmark: each measured once, kept in a file, and not measured again while its settings stay."""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
"""What one measurement found, as JSON has it."""


class Rows:
    """The finished rows of a scratch folder, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rows"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all: dict[str, Row] = {}

    def get(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Row]) -> Row:
        """The row as it is kept, or measured now and kept."""
        path = self.folder / f"{name}.json"
        key = json.loads(json.dumps(settings, default=str))
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["settings"] == key:
                say(f"{name}: kept from an earlier call")
                self.all[name] = kept["row"]
                return self.all[name]
        row = self._measure(name, measure)
        path.write_text(json.dumps({"settings": key, "row": row}, indent=1), encoding="utf-8")
        self.all[name] = row
        return row

    def _measure(self, name: str, measure: Callable[[], Row]) -> Row:
        """The row with its own time, and what share of a core others took meanwhile."""
        say(f"{name} ...")
        began, busy, own = time.monotonic(), busy_seconds(), children_seconds()
        row: Row = json.loads(json.dumps(measure()))
        seconds = time.monotonic() - began
        foreign = busy_seconds() - busy - (children_seconds() - own)
        row |= {"row_seconds": round(seconds, 1), "foreign_cpu": round(max(0.0, foreign) / max(seconds, 1e-9), 3)}
        say(f"{name}: {seconds:.0f} s, {row['foreign_cpu']:.0%} of a core taken by others")
        return row


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


def children_seconds() -> float:
    """Processor seconds of this process and of its ended children."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


class Ended(NamedTuple):
    """A command that ended: wall seconds, peak memory in MiB (of it alone), and what it wrote on stdout."""

    seconds: float
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
    return Ended(seconds, peak_mib(usage), output)


def peak_mib(usage: resource.struct_rusage | None = None) -> float:
    """The most memory that a process has held; by default, this one."""
    usage = usage or resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**20


def machine() -> Row:
    """What the figures depend on: processor, cores, versions."""
    import torch

    names = [platform.processor() or platform.machine()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")] or names
    return {
        "processor": names[0],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
