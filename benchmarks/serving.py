"""The server under load: throughput, latency, batch sizes and memory, compared with the same model used offline.

    python benchmarks/serving.py MODEL SENTENCES [--output docs/results/serving.md]
    python benchmarks/serving.py MODEL SENTENCES --soak 10
    python benchmarks/serving.py MODEL SENTENCES --neighbours 10

SENTENCES is a file with one source sentence per line. Server and offline model are measured in the same run on the same
machine. `--soak MINUTES` runs mixed load that includes clients which disconnect, or send garbage, huge bodies and
invalid UTF-8. It fails unless every well-behaved request is answered, memory at the end is within 10% of that after the
warm-up, and no request is lost when the server is stopped by a signal. `--neighbours MINUTES` measures the latency of
well-behaved clients by themselves and next to hostile ones, which do the same and also send texts that are hard to
split, the maximum number of texts, the longest sentences, and bytes very slowly.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from harness import (
    Row,
    argument_parser,
    latency_summary,
    machine_line,
    milliseconds_per_item,
    parse_arguments,
    publish,
    table,
    time_call,
)
from serving_load import Latencies, Soak, measure


class Server(NamedTuple):
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def running_server(model: Path, threads: int) -> Iterator[Server]:
    """Run `rnnsearch serve` in a child process, with its log in a file."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        arguments = [sys.executable, "-m", "rnnsearch", "serve", str(model), "--port", "0", "--preload"]
        with log.open("wb") as file:
            process = subprocess.Popen([*arguments, "--threads", str(threads)], stderr=file)
        try:
            while not (port := re.search(rb'"url": "http://127.0.0.1:(\d+)"', log.read_bytes())):
                if process.poll() is not None:
                    sys.exit(log.read_text())
                time.sleep(0.1)
            yield Server(int(port[1]), process, log)
        finally:
            process.kill()
            process.wait()


def metrics(port: int) -> dict[str, float]:
    """Return the server's metrics by name with labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


HEAD = (
    "clients | requests/s {:,.1f} | of offline {:.0%} | p50 ms {:,.1f} | p99 ms {:,.1f} | mean batch {:,.1f}"
    " | 99% of batches up to | memory MiB {:,.0f} | server's CPU ms per request {:,.1f}"
    " | clients' CPU ms per request {:,.2f}"
)
OFFLINE_BATCH_SENTENCES = 64


def measure_clients(port: int, sentences: Sequence[str], clients: int, seconds: float) -> tuple[list[Any], Latencies]:
    """Measure concurrent clients, which run in this process; return the page's cells except "of offline"."""
    before = metrics(port)
    cpu_start = time.process_time()
    latencies, num_requests = asyncio.run(measure(port, sentences, clients, seconds))
    client_cpu = time.process_time() - cpu_start
    after = metrics(port)
    growth = {name: value - before.get(name, 0) for name, value in after.items()}
    batches = "rnnsearch_batch_sentences"
    count, total = (
        next(value for name, value in growth.items() if name.startswith(f"{batches}_{suffix}"))
        for suffix in ("count", "sum")
    )
    # The smallest histogram bound that 99% of the batches do not exceed.
    bounds = []
    for name, value in growth.items():
        bound = re.search(r'le="([\d.]+)"', name)
        if name.startswith(f"{batches}_bucket") and bound and value >= 0.99 * count:
            bounds.append(int(float(bound[1])))
    summary = latency_summary([1000 * latency for latency, _ in latencies])
    cells = [str(clients), len(latencies) / seconds, summary["p50_ms"], summary["p99_ms"]]
    cells += [total / count, min(bounds, default=0), after["process_resident_memory_bytes"] / 2**20]
    cells += [1000 * growth["process_cpu_seconds_total"] / num_requests, 1000 * client_cpu / num_requests]
    return cells, latencies


def measure_offline(model: Path, sentences: Sequence[str], threads: int) -> Row:
    """Measure the Translator: sentences per second in batches, and the latency of the first 200 one by one."""
    import torch

    import rnnsearch

    torch.set_num_threads(threads)
    translator = rnnsearch.load(model)
    lines = list(sentences)
    translator.n_best(lines[: 2 * OFFLINE_BATCH_SENTENCES], batch_sentences=OFFLINE_BATCH_SENTENCES)
    rounds = [time_call(lambda: translator.n_best(lines, batch_sentences=OFFLINE_BATCH_SENTENCES))[1] for _ in range(3)]
    one_by_one = milliseconds_per_item(lambda line: translator.n_best([line]), lines[:200])
    return {"rate": len(lines) / min(rounds), "one_by_one_ms": one_by_one, "search": translator.search.description}


def compare(model: Path, sentences: Sequence[str], threads: int, seconds: float) -> list[str]:
    """Compare the server with the offline Translator and return the report in Markdown."""
    rows = []
    overhead = 0.0
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        offline = pool.submit(measure_offline, model, sentences, threads).result()
        print(f"offline: {offline['rate']:.1f} sentences/s ({offline['search']})", flush=True)
        with running_server(model, threads) as server:
            for clients in (1, 8, 64):
                # A single client sends the sentences that were also translated one by one offline.
                sent = sentences[: len(offline["one_by_one_ms"])] if clients == 1 else sentences
                cells, latencies = measure_clients(server.port, sent, clients, seconds)
                rows.append(cells)
                print(cells, flush=True)
                if clients == 1:
                    differences = [1000 * latency - offline["one_by_one_ms"][n] for latency, n in latencies]
                    overhead = statistics.median(differences)
        rates = [offline["rate"], pool.submit(measure_offline, model, sentences, threads).result()["rate"]]
    rate = statistics.fmean(rates)
    return [
        "# The server under load",
        "",
        "Closed-loop clients send one sentence per request (`POST /v1/translate`, with alignments and scores in the "
        "response) and use the model's default beam. All clients run in one separate process on the server's machine.",
        "",
        "```text",
        "python benchmarks/serving.py MODEL SENTENCES --output docs/results/serving.md",
        "```",
        "",
        f"Machine: {machine_line()} {len(sentences):,} sentences, {seconds:g} s per row after a warm-up. "
        f"Search: {offline['search']}.",
        "",
        *table(HEAD, [[clients, speed, speed / rate, *rest] for clients, speed, *rest in rows]),
        f"Offline, the Translator translates the same sentences in batches of {OFFLINE_BATCH_SENTENCES} at {rate:.1f} "
        f"sentences/s, the mean of a run before ({rates[0]:.1f}) and one after ({rates[1]:.1f}).",
        f"A single sentence takes {statistics.median(offline['one_by_one_ms']):.1f} ms in the Translator; through the "
        f"server a single client waits {overhead:.1f} ms longer (median of the differences per sentence).",
    ]


def compare_neighbours(model: Path, sentences: Sequence[str], threads: int, minutes: float) -> list[str]:
    """Measure 1 and 64 well-behaved clients with and without hostile ones; return the report in Markdown.

    Each of the four measurements takes a quarter of the time.
    """
    seconds = 15 * minutes
    hostile_requests = Counter[str]()
    failures = list[str]()

    async def measure_with_hostile_clients(port: int, clients: int) -> Latencies:
        load = Soak(port, sentences, time.monotonic() + seconds * 1.3)
        hostile = asyncio.create_task(load.run_hostile())
        latencies, _ = await measure(port, sentences, clients, seconds)
        await hostile
        hostile_requests.update(load.requests)
        failures.extend(load.failures)
        return latencies

    rows = []
    ratios = []
    with running_server(model, threads) as server:
        for clients in (1, 64):
            quiet, _ = asyncio.run(measure(server.port, sentences, clients, seconds))
            hostile = asyncio.run(measure_with_hostile_clients(server.port, clients))
            for name, latencies in {"no others": quiet, "with hostile clients": hostile}.items():
                milliseconds = [1000 * latency for latency, _ in latencies]
                summary = latency_summary(milliseconds)
                cells = [len(latencies) / seconds, summary["p50_ms"], summary["p99_ms"], max(milliseconds)]
                rows.append([f"{clients}, {name}", *cells])
            ratios.append(rows[-1][3] / rows[-2][3])
    command = "python benchmarks/serving.py MODEL SENTENCES"
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(hostile_requests.items()))
    return [
        "# Service under hostile traffic",
        "",
        f"Closed-loop clients send one sentence per request for {seconds:g} s, first by themselves, then next to "
        "hostile clients, which disconnect or send garbage, huge bodies, 49,000 characters that are hard to "
        "split, 49,000 texts, the longest sentences with the largest beam, and headers one byte at a time, each as "
        "soon as its previous request is answered. All processes share one machine.",
        "",
        "```text",
        f"{command} --neighbours {minutes:g}",
        "```",
        "",
        f"Machine: {machine_line()} {len(sentences):,} sentences.",
        "",
        *table("clients | requests/s {:,.1f} | p50 ms {:,.0f} | p99 ms {:,.0f} | max ms {:,.0f}", rows),
        f"With hostile clients, the 99th percentiles are {ratios[0]:.2f} and {ratios[1]:.2f} times as high. Hostile "
        f"requests: {counts}. Failures: {len(failures)}{''.join(f'; {failure}' for failure in failures[:5])}.",
    ]


def soak(model: Path, sentences: Sequence[str], threads: int, minutes: float) -> None:
    """Run mixed load; exit with an error if requests were lost or memory has grown."""
    with running_server(model, threads) as server:
        load = Soak(server.port, sentences, time.monotonic() + 60 * minutes)
        memory = asyncio.run(_run_and_sample_memory(load, server.port, minutes))
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
        stopped = json.loads(server.log.read_text().splitlines()[-1])
        errors = [line for line in server.log.read_text().splitlines() if '"level": "error"' in line]
    warm = memory[0]
    final = statistics.median(memory[-5:])
    print(f"requests: {dict(load.requests)}")
    print(f"memory: {warm:.0f} MiB after the warm-up, {final:.0f} MiB at the end ({final / warm - 1:+.1%})")
    print(f"at the signal: {stopped}, exit status {code}, errors in the log: {len(errors)}")
    failures = load.failures[:10] + errors[:10]
    if final > 1.1 * warm:
        failures.append("memory has grown by more than 10%")
    if code or stopped["event"] != "stopped" or stopped["accepted"] != stopped["answered"] + stopped["left"]:
        failures.append("requests were lost")
    if failures:
        sys.exit("\n".join(failures))
    print("passed")


async def _run_and_sample_memory(load: Soak, port: int, minutes: float) -> list[float]:
    """Run the load; return the server's memory in MiB after the first fifth of the time and 20 times after that."""
    memory: list[float] = []
    running = asyncio.create_task(load.run())
    await asyncio.sleep(60 * minutes / 5)
    while not running.done():
        current = await asyncio.to_thread(metrics, port)
        memory.append(current["process_resident_memory_bytes"] / 2**20)
        print(f"{memory[-1]:.0f} MiB, {dict(load.requests)}", flush=True)
        await asyncio.wait((running,), timeout=60 * minutes / 25)
    await running
    return memory


def main() -> None:
    """Parse the options and run the measurement."""
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("sentences", type=Path, help="file with one source sentence per line")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration per number of clients")
    parser.add_argument("--limit", type=int, default=1000, help="maximum number of sentences")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="run mixed load instead")
    parser.add_argument("--neighbours", type=float, metavar="MINUTES", help="measure next to hostile clients instead")
    args = parse_arguments(parser)
    lines = [line for line in args.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    sentences = list(dict.fromkeys(lines))[: args.limit]
    if args.soak:
        soak(args.model, sentences, args.threads, args.soak)
    elif args.neighbours:
        publish(compare_neighbours(args.model, sentences, args.threads, args.neighbours), args.output)
    else:
        publish(compare(args.model, sentences, args.threads, args.seconds), args.output)


if __name__ == "__main__":
    main()
