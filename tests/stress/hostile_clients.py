"""Honest clients next to each type of hostile client in turn: their latencies, and the server's memory.

`python -m tests.stress.hostile_clients --seconds 10 [MODEL SENTENCES]` measures 64 honest clients by themselves for
that many seconds, then next to the clients of a type, and prints a table. Without a model, a small untrained one is
served. All honest requests must succeed, the responses to hostile ones must be acceptable, the server must log no
error, and it must stop on SIGTERM. With several `--rounds`, memory after the last one must be at most 10% more than
after the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.serving_load import measure
from tests.stress.attacks import ATTACKS
from tests.stress.http import resident_bytes, running_server

HONEST_KEY = "honest"
HOSTILE_KEY = "hostile"
SENTENCES = ["the dog sees a big bird.", "the small cat sees the dog.", "A bird sees the cat! Is it red?"]
MAX_GROWTH = 1.1
MEBIBYTE = 1 << 20
HEAD = (
    "| hostile clients | requests/s | p50 ms | p99 ms | p99 ms alone | ratio | memory MiB | maximum MiB | responses |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---|",
)


class Latency(NamedTuple):
    """Latencies of honest clients in ms."""

    rate: float
    median: float
    p99: float


class MemorySampler:
    """Maximum of the memory of the server and its child processes while it is a context."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self.max_bytes = 0
        self._server = server
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(0.1):
            total = resident_bytes(self._server.pid)
            for children in Path(f"/proc/{self._server.pid}/task").glob("*/children"):
                try:
                    total += sum(resident_bytes(int(pid)) for pid in children.read_text().split())
                except OSError:  # a thread or process that has just ended
                    continue
            self.max_bytes = max(self.max_bytes, total)


def measure_honest(port: int, sentences: Sequence[str], clients: int, seconds: float) -> Latency:
    """Return the latencies of the honest clients; raise RuntimeError if a request fails."""
    headers = f"X-API-Key: {HONEST_KEY}\r\n"
    latencies, _ = asyncio.run(measure(port, sentences, clients, seconds, headers))
    ordered = sorted(1000 * latency for latency, _ in latencies)
    if not ordered:  # all responses came after a short time of measurement
        return Latency(0.0, math.nan, math.nan)
    return Latency(len(ordered) / seconds, ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))])


def measure_next_to(
    name: str, server: tuple[int, subprocess.Popen[bytes]], sentences: Sequence[str], clients: int, seconds: float
) -> tuple[str, list[str]]:
    """Return a row of the table, and the failures, for hostile clients of a type."""
    port, process = server
    alone = measure_honest(port, sentences, clients, seconds)
    # Until the end of the honest clients' warm-up and measured time.
    attack_seconds = 1.25 * seconds + 0.2
    command = [sys.executable, "-m", "tests.stress.attacks", name, str(port), HOSTILE_KEY, str(attack_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack, MemorySampler(process) as sampler:
        assert attack.stdout is not None
        attack.stdout.readline()
        try:
            honest = measure_honest(port, sentences, clients, seconds)
            output = attack.stdout.read()
        finally:
            attack.kill()
    if attack.wait():
        return f"| {name} |", [f"{name}: the hostile clients failed"]
    result = json.loads(output)
    responses = ", ".join(f"{count:,} {status}" for status, count in sorted(result["responses"].items()))
    cells = [name, f"{honest.rate:,.1f}", f"{honest.median:,.0f}", f"{honest.p99:,.0f}", f"{alone.p99:,.0f}"]
    cells += [f"{honest.p99 / alone.p99:.2f}", f"{resident_bytes(process.pid) / MEBIBYTE:,.0f}"]
    cells += [f"{sampler.max_bytes / MEBIBYTE:,.0f}", responses]
    failures = [f"{name}: {failure}" for failure in result["failures"][:5]]
    if not result["responses"]:
        failures.append(f"{name}: no request was sent")
    return f"| {' | '.join(cells)} |", failures


def write_line(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def stop(process: subprocess.Popen[bytes], log: Path) -> list[str]:
    """Stop the server and return what was wrong with its end or in its log."""
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(120)
    except subprocess.TimeoutExpired:
        return ["the server did not stop"]
    failures = [line for line in log.read_text().splitlines() if '"level": "error"' in line]
    if status:
        failures.append(f"the server stopped with exit status {status}")
    return failures


def main(arguments: list[str] | None = None) -> int:
    """Measure all types of hostile clients and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="model folder")
    parser.add_argument("sentences", nargs="?", type=Path, help="file with one source sentence per line")
    parser.add_argument("--seconds", type=float, default=10.0, help="time per measurement [default: %(default)s]")
    parser.add_argument("--clients", type=int, default=64, help="number of honest clients [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds [default: %(default)s]")
    parser.add_argument("--only", default="", help="only types whose name contains this word")
    options = parser.parse_args(arguments)
    sentences = SENTENCES
    if options.sentences:
        sentences = list(filter(str.strip, options.sentences.read_text(encoding="utf-8").splitlines()))
    failures: list[str] = []
    memory: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text(f"{HONEST_KEY}\n{HOSTILE_KEY}\n")
        with running_server(Path(folder), ("--api-keys", str(keys)), options.model) as (port, process, log):
            for _ in range(options.rounds):
                sys.stdout.write("".join(f"{line}\n" for line in HEAD))
                sys.stdout.flush()
                for name in (name for name in ATTACKS if options.only in name):
                    row, problems = measure_next_to(name, (port, process), sentences, options.clients, options.seconds)
                    write_line(row)
                    failures += problems
                    time.sleep(min(2.0, options.seconds))  # until the server has ended what it still had to do
                memory.append(resident_bytes(process.pid))
            failures += stop(process, log)
    if memory[-1] > MAX_GROWTH * memory[0]:
        failures.append(f"memory grew from {memory[0] / MEBIBYTE:,.0f} to {memory[-1] / MEBIBYTE:,.0f} MiB")
    for failure in failures:
        write_line(failure)
    write_line(f"{options.rounds} rounds, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
