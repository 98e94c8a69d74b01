"""Preparing a big corpus and beginning to train on it: pairs a second, memory against the corpus's size, time to the
first update, and the tokenizer alone in the same run.

Run it as `python -m benchmarks.prepare --source TEXT.en --target TEXT.de --pairs 10000000`. The corpus is made of a
given one, repeated; in every repetition but the first, a fifth of the words are others of the same language, and some
of these numbers, so that pairs are different and new words keep coming, as in real text. `--output FILE` writes the
page.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.harness import Ended, Row, machine_line, parsed, parser, publish, run, table, timed
from benchmarks.speed.child import start

CHANGED, NUMBERS = 0.2, 0.02
"""Shares of words that are exchanged, and of these that become numbers."""
RUN = """
preset = "small"
folder = "run"

[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev_size = 1000
test_size = 1000

[text]
vocabulary = 8000

[training]
max_updates = 50
dev_bleu = false
threads = 1
device = "cpu"
"""


def repeated(path: Path, pairs: int, seed: int) -> Iterator[list[str]]:
    """Lines of a text, repeated and changed, until there are so many; the same seed gives the same lines."""
    rng = np.random.default_rng(seed)
    rows = [line.split(" ") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    stream = np.array([word for row in rows for word in row], dtype=object)
    ends = np.cumsum([len(row) for row in rows]).tolist()
    made = 0
    while made < pairs:
        words = stream.copy()
        if made:
            changed = np.flatnonzero(rng.random(len(words)) < CHANGED)
            words[changed] = stream[rng.integers(0, len(stream), len(changed))]
            numbers = changed[rng.random(len(changed)) < NUMBERS]
            words[numbers] = [str(n) for n in rng.integers(0, 1_000_000, len(numbers)).tolist()]
        everything, begin, lines = words.tolist(), 0, []
        for end in ends[: pairs - made]:
            lines.append(" ".join(everything[begin:end]))
            begin = end
        made += len(lines)
        yield lines


def make_corpus(folder: Path, source: Path, target: Path, pairs: int) -> int:
    """Write `train.en`, `train.de` and `run.toml`; returns the bytes of text."""
    folder.mkdir(parents=True)
    for seed, (language, path) in enumerate((("en", source), ("de", target))):
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            for lines in repeated(path, pairs, seed):
                file.write("\n".join(lines) + "\n")
    (folder / "run.toml").write_text(RUN, encoding="utf-8")
    return sum(path.stat().st_size for path in folder.glob("train.*"))


def memory() -> int:
    """Bytes of memory that the processes we started, and those they started, hold, without files they have mapped."""
    anonymous, parents = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(line.split(":", 1) for line in (entry / "status").read_text().splitlines())
        except OSError:
            continue
        if "RssAnon" in status:
            anonymous[int(entry.name)] = 1024 * int(status["RssAnon"].split()[0])
            parents[int(entry.name)] = int(status["PPid"])
    family = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(anonymous.get(process, 0) for process in family - {os.getpid()})


def measured(command: list[str], folder: Path) -> tuple[Ended, int]:
    """Run a command; also the most memory that it and what it started held together."""
    peak, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        found = run(command, folder / "log", cwd=folder)
    finally:
        ended.set()
        watcher.join()
    return found, peak


def tokenizer_alone(folder: Path, pairs: int) -> tuple[float, float]:
    """Pairs a second, and a second of a core, of the tokenizer's library alone, on all cores, over the corpus's first
    lines."""
    from rnnsearch.data.prepared import Prepared

    tokenizers = Prepared.open(folder / "run" / "data").tokenizers.values()
    seconds = used = 0.0
    for tokenizer, name in zip(tokenizers, ("train.en", "train.de"), strict=True):
        with (folder / name).open(encoding="utf-8") as file:
            for _ in range(0, pairs, 20_000):
                lines = [line.rstrip("\n") for line in islice(file, min(20_000, pairs))]
                _, wall, cores = timed(partial(tokenizer.ids, lines))
                seconds, used = seconds + wall, used + cores
    return pairs / seconds, pairs / used


def row(folder: Path, source: Path, target: Path, pairs: int) -> Row:
    """Everything measured of a corpus of one size, in the order of the page."""
    size = make_corpus(folder, source, target, pairs)
    prepared, peak = measured([sys.executable, "-m", "rnnsearch", "prepare", "run.toml"], folder)
    alone, alone_core = tokenizer_alone(folder, min(pairs, 500_000))
    training = {"settings": [], "threads": 1, "skip": 1, "memory_after": [1]}
    trained = start(
        "train", "run", {"run": str(folder / "run.toml"), "folder": str(folder / "run"), **training}, folder
    )
    facts = json.loads((folder / "run" / "data" / "prepared.json").read_text(encoding="utf-8"))
    return {
        "pairs": pairs,
        "text_bytes": size,
        "kept": facts["pairs"],
        "seconds": prepared.seconds,
        "pairs_per_second": pairs / prepared.seconds,
        "pairs_per_core_second": pairs / prepared.core_seconds,
        "tokenizer_pairs_per_second": alone,
        "tokenizer_pairs_per_core_second": alone_core,
        "peak_bytes": peak,
        "first_update_seconds": trained["first_update_seconds"],
        "training_bytes": round(trained["own_mib"]["1"] * 2**20),
        "waiting": trained["waiting"],
    }


def main() -> None:
    """Measure sizes up to `--pairs`, each a tenth of the next, and print the table."""
    made = parser(__doc__)
    made.add_argument("--source", type=Path, required=True)
    made.add_argument("--target", type=Path, required=True)
    made.add_argument("--pairs", type=int, default=1_000_000)
    made.add_argument("--folder", type=Path, help="where the corpora go for the while (6 GB for 10 million pairs)")
    given = parsed(made)
    rows, before = [], os.getloadavg()[0]
    for pairs in (given.pairs // 100, given.pairs // 10, given.pairs):
        if pairs >= 10_000:
            with tempfile.TemporaryDirectory(dir=given.folder) as place:
                rows.append(row(Path(place).resolve() / "corpus", given.source, given.target, pairs))
            print(json.dumps(rows[-1]), flush=True)
    load = f"Load average {before:.1f} before, {os.getloadavg()[0]:.1f} after."
    publish([f"{machine_line()} {load}", "", *page(rows)], given.output, rows)


def page(rows: Sequence[Row]) -> list[str]:
    """A line for each size."""
    head = (
        "pairs {:,.0f} | text {:,.0f} MB | prepared in {:.1f} s | pairs/s {:,.0f} | a core {:,.0f}"
        " | tokenizer alone, pairs/s {:,.0f} | a core of it {:,.0f} | peak memory, all processes {:,.0f} MiB"
        " | first update after {:.1f} s | memory in training {:,.0f} MiB | waiting for data {:.2%}"
    )
    units = {"text_bytes": 1e6, "peak_bytes": 2**20, "training_bytes": 2**20}
    return table(head, [[r[key] / units.get(key, 1) for key in r if key != "kept"] for r in rows])


if __name__ == "__main__":
    main()
