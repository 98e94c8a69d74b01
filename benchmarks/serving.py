"""The server under load: requests a second, latency, the batches it forms and its memory, against the same model
offline, measured in the same run on the same machine.

    python benchmarks/serving.py MODEL SENTENCES [--output docs/results/serving.md]
    python benchmarks/serving.py MODEL SENTENCES --soak 10
    python benchmarks/serving.py MODEL SENTENCES --neighbours 10 [--output docs/results/neighbours.md]

SENTENCES is a file of source sentences, one a line. `--soak MINUTES` runs mixed load with clients that leave, send
garbage, huge bodies and invalid UTF-8, and fails unless every polite request is answered, the memory after it is
within 10% of that after the warm-up, and a signal loses nothing. `--neighbours MINUTES` compares what clients wait
alone with what they wait beside hostile ones, who send those and texts that are hard to split, as many texts and as
long sentences as they may, and bytes that come slowly.
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

from harness import Row, machine_line, milliseconds_of_each, parsed, parser, publish, spread, table, timed
from serving_load import Soak, Times, measure


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


HEAD = (
    "clients | requests/s {:,.1f} | of offline {:.0%} | p50 ms {:,.1f} | p99 ms {:,.1f} | mean batch {:,.1f}"
    " | 99% of batches up to | memory MiB {:,.0f} | server's CPU ms a request {:,.1f} | clients' {:,.2f}"
)
OFFLINE_BATCH = 64
"""Sentences of a batch of the plain Translator."""


def row(port: int, sentences: Sequence[str], clients: int, seconds: float) -> tuple[list[Any], Times]:
    """Measure so many concurrent clients, which are this process: the cells of the page but "of offline"."""
    before, own = metrics(port), time.process_time()
    times, asked = asyncio.run(measure(port, sentences, clients, seconds))
    own, after = time.process_time() - own, metrics(port)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    batches = "rnnsearch_batch_sentences"
    count, total = (next(v for n, v in grown.items() if n.startswith(f"{batches}_{of}")) for of in ("count", "sum"))
    bounds = {n: v for n, v in grown.items() if n.startswith(f"{batches}_bucket")}
    full = [int(float(m[1])) for n, v in bounds.items() if (m := re.search(r'le="([\d.]+)"', n)) and v >= 0.99 * count]
    latency = spread([1000 * spent for spent, _ in times])
    cells = [str(clients), len(times) / seconds, latency["p50_ms"], latency["p99_ms"]]
    cells += [total / count, min(full, default=0), after["process_resident_memory_bytes"] / 2**20]
    return [*cells, 1000 * grown["process_cpu_seconds_total"] / asked, 1000 * own / asked], times


def offline(model: Path, sentences: Sequence[str], threads: int) -> Row:
    """The plain Translator: sentences a second in batches, milliseconds of the first 200 one by one, and its search."""
    import torch

    import rnnsearch

    torch.set_num_threads(threads)
    translator = rnnsearch.load(model)
    lines = list(sentences)
    translator.n_best(lines[: 2 * OFFLINE_BATCH], batch_sentences=OFFLINE_BATCH)
    rounds = [timed(lambda: translator.n_best(lines, batch_sentences=OFFLINE_BATCH))[1] for _ in range(3)]
    alone = milliseconds_of_each(lambda line: translator.n_best([line]), lines[:200])
    return {"rate": len(lines) / min(rounds), "alone": alone, "search": translator.search.what}


def compare(model: Path, sentences: Sequence[str], threads: int, seconds: float) -> list[str]:
    """The whole benchmark; returns the report in Markdown."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        plain, rows, overhead = pool.submit(offline, model, sentences, threads).result(), [], 0.0
        print(f"offline: {plain['rate']:.1f} sentences/s ({plain['search']})", flush=True)
        with served(model, threads) as server:
            for clients in (1, 8, 64):
                # The lone client goes through the sentences that the Translator was given one by one.
                mine = sentences[: len(plain["alone"])] if clients == 1 else sentences
                cells, times = row(server.port, mine, clients, seconds)
                rows.append(cells)
                print(cells, flush=True)
                if clients == 1:
                    overhead = statistics.median(1000 * spent - plain["alone"][n] for spent, n in times)
        rates = [plain["rate"], pool.submit(offline, model, sentences, threads).result()["rate"]]
    rate = statistics.fmean(rates)
    return [
        "# The server under load",
        "",
        "Closed-loop clients, one sentence a request (`POST /v1/translate`, alignments and scores in the answer), "
        "the model's own beam. All clients are one process of their own, which shares the machine with the server.",
        "",
        "```text",
        "python benchmarks/serving.py MODEL SENTENCES --output docs/results/serving.md",
        "```",
        "",
        f"Machine: {machine_line()} {len(sentences):,} sentences, {seconds:g} s for each row after a warm-up. "
        f"Search: {plain['search']}.",
        "",
        *table(HEAD, [[clients, mine, mine / rate, *rest] for clients, mine, *rest in rows]),
        f"Offline, the same sentences through the Translator in batches of {OFFLINE_BATCH}: {rate:.1f} sentences/s, "
        f"the mean of a run before ({rates[0]:.1f}) and one after ({rates[1]:.1f}).",
        f"One sentence alone: {statistics.median(plain['alone']):.1f} ms by the Translator; through the server a lone "
        f"client waits {overhead:.1f} ms longer (median of the differences, sentence by sentence).",
    ]


def neighbours(model: Path, sentences: Sequence[str], threads: int, minutes: float) -> list[str]:
    """Honest clients, one and 64, alone and beside hostile ones, a quarter of the time each; the report in Markdown."""
    quarter, asked, faults = 15 * minutes, Counter[str](), list[str]()

    async def beside(port: int, clients: int) -> Times:
        rude = Soak(port, sentences, time.monotonic() + quarter * 1.3)
        hostile = asyncio.create_task(rude.rude())
        times, _ = await measure(port, sentences, clients, quarter)
        await hostile
        asked.update(rude.asked)
        faults.extend(rude.faults)
        return times

    rows, ratios = [], []
    with served(model, threads) as server:
        for clients in (1, 64):
            alone, _ = asyncio.run(measure(server.port, sentences, clients, quarter))
            both = {"alone": alone, "beside hostile ones": asyncio.run(beside(server.port, clients))}
            for name, times in both.items():
                waited = [1000 * seconds for seconds, _ in times]
                latency = spread(waited)
                rows.append(
                    [f"{clients}, {name}", len(times) / quarter, latency["p50_ms"], latency["p99_ms"], max(waited)]
                )
            ratios.append(rows[-1][3] / rows[-2][3])
    did = ", ".join(f"{name} {count:,}" for name, count in sorted(asked.items()))
    return [
        "# Honest clients and hostile neighbours",
        "",
        f"Closed-loop clients, one sentence a request, {quarter:g} s each: alone, and beside others who leave, send "
        "garbage, huge bodies, 49,000 characters that are hard to split, 49,000 texts, the longest sentences with the "
        "widest beam, and heads a byte at a time, each as soon as the one before is answered. All share one machine.",
        "",
        "```text",
        f"python benchmarks/serving.py MODEL SENTENCES --neighbours {minutes:g} --output docs/results/neighbours.md",
        "```",
        "",
        f"Machine: {machine_line()} {len(sentences):,} sentences.",
        "",
        *table("clients | requests/s {:,.1f} | p50 ms {:,.0f} | p99 ms {:,.0f} | longest ms {:,.0f}", rows),
        f"The 99th percentiles beside them are {ratios[0]:.2f} and {ratios[1]:.2f} times those alone. What they did: "
        f"{did}. Faults: {len(faults)}{''.join(f'; {fault}' for fault in faults[:5])}.",
    ]


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
    print(f"asked: {dict(load.asked)}")
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
        print(f"{memory[-1]:.0f} MiB, {dict(load.asked)}", flush=True)
        await asyncio.wait((running,), timeout=60 * minutes / 25)
    await running
    return memory


def main() -> None:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("model", type=Path)
    made.add_argument("sentences", type=Path)
    made.add_argument("--seconds", type=float, default=30.0, help="measured for each number of clients")
    made.add_argument("--limit", type=int, default=1000, help="sentences used, at most")
    made.add_argument("--soak", type=float, metavar="MINUTES", help="mixed load instead of the measurements")
    made.add_argument("--neighbours", type=float, metavar="MINUTES", help="honest clients beside hostile ones instead")
    given = parsed(made)
    lines = [line for line in given.sentences.read_text(encoding="utf-8").splitlines() if line.strip()]
    sentences = list(dict.fromkeys(lines))[: given.limit]
    if given.soak:
        soak(given.model, sentences, given.threads, given.soak)
    elif given.neighbours:
        publish(neighbours(given.model, sentences, given.threads, given.neighbours), given.output)
    else:
        publish(compare(given.model, sentences, given.threads, given.seconds), given.output)


if __name__ == "__main__":
    main()
