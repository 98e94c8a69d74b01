"""The server under load: requests a second, latency, the batches it forms and its memory, against the same model
offline, measured in the same run on the same machine.

    python benchmarks/serving.py MODEL SENTENCES [--output docs/results/serving.md]
    python benchmarks/serving.py MODEL SENTENCES --soak 10

SENTENCES is a file of source sentences, one a line. `--soak MINUTES` runs mixed load with clients that leave, send
garbage, huge bodies and invalid UTF-8, and fails unless every polite request is answered, the memory after it is
within 10% of that after the warm-up, and a signal loses nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from serving_load import Soak, measure

OFFLINE = """
import json, sys, time
import torch, rnnsearch
folder, threads, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
translator = rnnsearch.load(folder)
lines = json.load(sys.stdin)
translator.n_best(lines[: 2 * size], batch_sentences=size)
rates = []
for _ in range(3):
    begin = time.perf_counter()
    translator.n_best(lines, batch_sentences=size)
    rates.append(len(lines) / (time.perf_counter() - begin))
alone = []
for line in lines[:200]:
    begin = time.perf_counter()
    translator.n_best([line])
    alone.append(time.perf_counter() - begin)
print(json.dumps({"rate": max(rates), "rates": rates, "alone": alone, "search": translator.search.what}))
"""
"""Runs in a process of its own: the plain Translator, all sentences in batches, and then one by one."""


class Served(NamedTuple):
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def served(model: Path, threads: int) -> Iterator[Served]:
    """`rnnsearch serve` in a process of its own, its log in a file."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "log"
        arguments = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", "0", "--preload"]
        with log.open("wb") as file:
            process = subprocess.Popen([*arguments, "--threads", str(threads)], stderr=file)
        try:
            while not (found := re.search(rb'"url": "http://127.0.0.1:(\d+)"', log.read_bytes())):
                if process.poll() is not None:
                    sys.exit(log.read_text())
                time.sleep(0.1)
            yield Served(int(found[1]), process, log)
        finally:
            process.kill()
            process.wait()


def metrics(port: int) -> dict[str, float]:
    """What the server counts, by name with labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


class Row(NamedTuple):
    """One number of clients."""

    clients: int
    rate: float
    p50: float
    p99: float
    batch: float
    largest: int
    memory: float
    server: float
    """CPU milliseconds of the server a request."""
    client: float
    """The same of all clients, which are this process."""


def row(port: int, sentences: Sequence[str], clients: int, seconds: float) -> tuple[Row, list[tuple[float, int]]]:
    """Measure so many concurrent clients."""
    before, own = metrics(port), time.process_time()
    times, asked = measure(port, sentences, clients, seconds)
    own, after = time.process_time() - own, metrics(port)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    count = next(v for n, v in grown.items() if n.startswith("rnnsearch_batch_sentences_count"))
    total = next(v for n, v in grown.items() if n.startswith("rnnsearch_batch_sentences_sum"))
    bounds = {n: v for n, v in grown.items() if n.startswith("rnnsearch_batch_sentences_bucket")}
    full = [int(float(m[1])) for n, v in bounds.items() if (m := re.search(r'le="([\d.]+)"', n)) and v >= 0.99 * count]
    latency = sorted(seconds for seconds, _ in times)
    made = Row(
        clients,
        len(times) / seconds,
        1000 * statistics.median(latency),
        1000 * latency[min(len(latency) - 1, int(0.99 * len(latency)))],
        total / count,
        min(full, default=0),
        after["process_resident_memory_bytes"] / 2**20,
        1000 * grown["process_cpu_seconds_total"] / asked,
        1000 * own / asked,
    )
    return made, times


def offline(model: Path, sentences: Sequence[str], threads: int, size: int) -> dict[str, Any]:
    """The plain Translator on the same sentences."""
    arguments = [sys.executable, "-c", OFFLINE, str(model), str(threads), str(size)]
    done = subprocess.run(arguments, input=json.dumps(list(sentences)).encode(), capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def compare(model: Path, sentences: Sequence[str], threads: int, seconds: float) -> str:
    """The whole benchmark; returns the report in Markdown."""
    plain = offline(model, sentences, threads, 64)
    print(f"offline: {plain['rate']:.1f} sentences/s ({plain['search']})", flush=True)
    rows = []
    overhead = 0.0
    with served(model, threads) as server:
        for clients in (1, 8, 64):
            # The lone client goes through the sentences that the Translator was given one by one.
            mine = sentences[: len(plain["alone"])] if clients == 1 else sentences
            made, times = row(server.port, mine, clients, seconds)
            rows.append(made)
            print(made, flush=True)
            if clients == 1:
                overhead = 1000 * statistics.median(spent - plain["alone"][n] for spent, n in times)
    again = offline(model, sentences, threads, 64)
    rate = (plain["rate"] + again["rate"]) / 2
    return report(rows, rate, [plain["rate"], again["rate"]], plain, overhead, threads, seconds, len(sentences))


def report(
    rows: list[Row], rate: float, rates: list[float], plain: dict[str, Any], overhead: float,
    threads: int, seconds: float, count: int,
) -> str:  # fmt: skip
    """The results page."""
    import torch

    machine = f"{os.cpu_count()} cores, {_cpu()}, torch {torch.__version__.partition('+')[0]}, {threads} threads"
    table = [
        f"| {r.clients} | {r.rate:.1f} | {r.rate / rate:.0%} | {r.p50:.1f} | {r.p99:.1f} | {r.batch:.1f} | {r.largest} "
        f"| {r.memory:.0f} | {r.server:.1f} | {r.client:.2f} |"
        for r in rows
    ]
    alone = 1000 * statistics.median(plain["alone"])
    return "\n".join(
        [
            "# The server under load",
            "",
            "Closed-loop clients, one sentence a request (`POST /v1/translate`, alignments and scores in the answer), "
            "the model's own beam. All clients are one process of their own, which shares the machine with the server.",
            "",
            "```text",
            "python benchmarks/serving.py MODEL SENTENCES --output docs/results/serving.md",
            "```",
            "",
            f"Machine: {machine}. {count:,} sentences, {seconds:g} s for each row after a warm-up. "
            f"Search: {plain['search']}.",
            "",
            "| clients | requests/s | of offline | p50 ms | p99 ms | mean batch | 99% of batches up to | memory MiB "
            "| server's CPU ms a request | clients' |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *table,
            "",
            f"Offline, the same sentences through the Translator in batches of 64: {rate:.1f} sentences/s, the mean of "
            f"a run before ({rates[0]:.1f}) and one after ({rates[1]:.1f}).",
            f"One sentence alone: {alone:.1f} ms by the Translator; through the server a lone client waits "
            f"{overhead:.1f} ms longer (median of the differences, sentence by sentence).",
            "",
        ]
    )


def _cpu() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


def soak(model: Path, sentences: Sequence[str], threads: int, minutes: float) -> None:
    """Mixed load; ends the process with a fault where something was lost or the memory has grown."""
    with served(model, threads) as server:
        begin = time.monotonic()
        load = Soak(server.port, sentences, begin + 60 * minutes)
        memory = asyncio.run(_watched(load, server.port, minutes))
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
        stopped = json.loads(server.log.read_text().splitlines()[-1])
        errors = [line for line in server.log.read_text().splitlines() if '"level": "error"' in line]
    warm, last = memory[0], statistics.median(memory[-5:])
    print(f"asked: {load.asked}")
    print(f"memory: {warm:.0f} MiB after the warm-up, {last:.0f} MiB at the end ({last / warm - 1:+.1%})")
    print(f"at the signal: {stopped}, exit {code}, errors logged: {len(errors)}")
    faults = load.faults[:10] + errors[:10]
    if last > 1.1 * warm:
        faults.append("the memory has grown by more than 10%")
    if code or stopped["event"] != "stopped" or stopped["accepted"] != stopped["answered"] + stopped["left"]:
        faults.append("requests were lost")
    if faults:
        sys.exit("\n".join(faults))
    print("passed")


async def _watched(load: Soak, port: int, minutes: float) -> list[float]:
    """Run the load; the server's memory in MiB after the first fifth of the time, and then every few seconds."""
    memory: list[float] = []
    running = asyncio.create_task(load.run())
    await asyncio.sleep(60 * minutes / 5)
    while not running.done():
        now = await asyncio.to_thread(metrics, port)
        memory.append(now["process_resident_memory_bytes"] / 2**20)
        print(f"{memory[-1]:.0f} MiB, {load.asked}", flush=True)
        await asyncio.wait((running,), timeout=60 * minutes / 25)
    await running
    return memory


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--output", type=Path, help="write the report here, too")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured for each number of clients")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads of the model")
    parser.add_argument("--limit", type=int, default=1000, help="sentences used, at most")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="mixed load instead of the measurements")
    options = parser.parse_args()
    lines = [line for line in options.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    sentences = list(dict.fromkeys(lines))[: options.limit]
    if options.soak:
        soak(options.model, sentences, options.threads, options.soak)
        return
    text = compare(options.model, sentences, options.threads, options.seconds)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
