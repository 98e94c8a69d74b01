"""Prepare large corpora and start to train on them: time to the first update, speed, and memory by corpus size.

Run it as `python -m benchmarks.prepare --source TEXT.en --target TEXT.de --pairs 29000 1000000`. Each corpus is used
three times: by `rnnsearch train` from the text to the first update, by `rnnsearch prepare` without an aligner, and by
training on the prepared data. Native code is built and timed before.

The corpora repeat the given texts. In each repetition except the first, a fifth of the words are replaced by others of
the same language and some of these by numbers, so that pairs differ and new words keep appearing, as in real text. The
speed of the tokenizer by itself is measured in the same run. `--output FILE` writes the page.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.harness import (
    CompletedCommand,
    Row,
    argument_parser,
    machine_line,
    parse_arguments,
    publish,
    run,
    table,
    time_call,
)
from benchmarks.speed.child import start

REPLACED_FRACTION = 0.2  # of all words
NUMBER_FRACTION = 0.02  # of the replaced words
RUN_FILE = """
preset = "small"
folder = "run"

[data]
source = "en"
target = "de"
train = ["train.en|train.de"]
dev_size = 1000
test_size = 1000
aligner = false

[text]
vocabulary = 8000

[training]
max_updates = 50
dev_bleu = false
threads = 1
device = "cpu"
"""


def repeat_lines(path: Path, count: int, seed: int) -> Iterator[list[str]]:
    """Yield blocks of lines of a text, repeated with changes, `count` lines in all. They depend only on the seed."""
    rng = np.random.default_rng(seed)
    rows = [line.split(" ") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    all_words = np.array([word for row in rows for word in row], dtype=object)
    ends = np.cumsum([len(row) for row in rows]).tolist()
    num_lines = 0
    while num_lines < count:
        words = all_words.copy()
        if num_lines:
            replaced = np.flatnonzero(rng.random(len(words)) < REPLACED_FRACTION)
            words[replaced] = all_words[rng.integers(0, len(all_words), len(replaced))]
            numbers = replaced[rng.random(len(replaced)) < NUMBER_FRACTION]
            words[numbers] = [str(n) for n in rng.integers(0, 1_000_000, len(numbers)).tolist()]
        word_list = words.tolist()
        lines = []
        start = 0
        for end in ends[: count - num_lines]:
            lines.append(" ".join(word_list[start:end]))
            start = end
        num_lines += len(lines)
        yield lines


def make_corpus(folder: Path, source: Path, target: Path, pairs: int) -> int:
    """Write `train.en`, `train.de` and `run.toml`; return the bytes of text."""
    folder.mkdir(parents=True)
    for seed, (language, path) in enumerate((("en", source), ("de", target))):
        with (folder / f"train.{language}").open("w", encoding="utf-8") as file:
            for lines in repeat_lines(path, pairs, seed):
                file.write("\n".join(lines) + "\n")
    (folder / "run.toml").write_text(RUN_FILE, encoding="utf-8")
    return sum(path.stat().st_size for path in folder.glob("train.*"))


def descendants_memory() -> int:
    """Return the bytes of memory of all descendants of this process, without mapped files."""
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
    while children := {child for child, parent in parents.items() if parent in family} - family:
        family |= children
    return sum(anonymous.get(process, 0) for process in family - {os.getpid()})


def run_with_peak(command: list[str], folder: Path) -> tuple[CompletedCommand, int]:
    """Run a command; also return the peak of the total memory of all its processes."""
    peak = 0
    finished = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not finished.wait(0.05):
            peak = max(peak, descendants_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        completed = run(command, folder / "log", cwd=folder)
    finally:
        finished.set()
        watcher.join()
    return completed, peak


def tokenizer_speed(folder: Path, pairs: int) -> tuple[float, float]:
    """Return the speed of the tokenizer library by itself on the first lines of the corpus.

    Returns:
        Pairs per second on all cores, and pairs per core and second.
    """
    from rnnsearch.data.prepared import Prepared

    tokenizers = Prepared.open(folder / "run" / "data").tokenizers.values()
    wall_seconds = cpu_seconds = 0.0
    for tokenizer, name in zip(tokenizers, ("train.en", "train.de"), strict=True):
        with (folder / name).open(encoding="utf-8") as file:
            for _ in range(0, pairs, 20_000):
                lines = [line.rstrip("\n") for line in islice(file, min(20_000, pairs))]
                _, wall, cpu = time_call(partial(tokenizer.ids, lines))
                wall_seconds += wall
                cpu_seconds += cpu
    return pairs / wall_seconds, pairs / cpu_seconds


def measure(folder: Path, source: Path, target: Path, pairs: int) -> Row:
    """Measure a corpus of one size. The order of the entries is that of the page's columns."""
    size = make_corpus(folder, source, target, pairs)
    # With an aligner to learn later, as by default.
    spec = {"run": str(folder / "run.toml"), "settings": ["data.aligner=true"], "threads": 1}
    first_update = start("first_update", "run", spec, folder)
    shutil.rmtree(folder / "run")
    prepared, peak = run_with_peak([sys.executable, "-m", "rnnsearch", "prepare", "run.toml"], folder)
    tokenizer_pairs, tokenizer_core_pairs = tokenizer_speed(folder, min(pairs, 500_000))
    training = {"settings": [], "threads": 1, "skip": 1, "memory_after": [1]}
    trained = start(
        "train", "run", {"run": str(folder / "run.toml"), "folder": str(folder / "run"), **training}, folder
    )
    facts = json.loads((folder / "run" / "data" / "prepared.json").read_text(encoding="utf-8"))
    return {
        "pairs": pairs,
        "text_bytes": size,
        "first_update_seconds": first_update["seconds"],
        "first_update_core_seconds": first_update["core_seconds"],
        "kept": facts["pairs"],
        "seconds": prepared.seconds,
        "pairs_per_second": pairs / prepared.seconds,
        "pairs_per_core_second": pairs / prepared.cpu_seconds,
        "tokenizer_pairs_per_second": tokenizer_pairs,
        "tokenizer_pairs_per_core_second": tokenizer_core_pairs,
        "peak_bytes": peak,
        "prepared_first_update_seconds": trained["first_update_seconds"],
        "training_bytes": round(trained["own_mib"]["1"] * 2**20),
        "waiting": trained["waiting"],
    }


def main() -> None:
    """Measure each corpus size and print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, required=True, help="source text to repeat")
    parser.add_argument("--target", type=Path, required=True, help="target text to repeat")
    parser.add_argument("--pairs", type=int, nargs="+", default=[29_000, 1_000_000], help="sizes of the corpora")
    parser.add_argument("--folder", type=Path, help="folder for temporary corpora (6 GB for 10 million pairs)")
    args = parse_arguments(parser)
    # Builds native code and times it for one thread, which happens once per environment.
    subprocess.run([sys.executable, "-m", "rnnsearch", "inspect", "--machine", "--threads", "1"], check=True)
    rows = []
    load_before = os.getloadavg()[0]
    for pairs in args.pairs:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            rows.append(measure(Path(folder).resolve() / "corpus", args.source, args.target, pairs))
        print(json.dumps(rows[-1]), flush=True)
    load = f"Load average {load_before:.1f} before, {os.getloadavg()[0]:.1f} after."
    publish([f"{machine_line()} {load}", "", *page(rows)], args.output, rows)


def page(rows: Sequence[Row]) -> list[str]:
    """Return a table with a row per corpus size."""
    head = (
        "pairs {:,.0f} | text {:,.0f} MB | text to first update {:.1f} s | processor time of that {:.1f} s"
        " | prepared in {:.1f} s | pairs/s {:,.0f} | pairs/s per core {:,.0f}"
        " | tokenizer only, pairs/s {:,.0f} | tokenizer only, pairs/s per core {:,.0f}"
        " | peak memory, all processes {:,.0f} MiB | prepared data to first update {:.1f} s"
        " | memory in training {:,.0f} MiB | waiting for data {:.2%}"
    )
    units = {"text_bytes": 1e6, "peak_bytes": 2**20, "training_bytes": 2**20}
    return table(head, [[r[key] / units.get(key, 1) for key in r if key != "kept"] for r in rows])


if __name__ == "__main__":
    main()
