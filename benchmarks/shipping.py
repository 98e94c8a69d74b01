"""A model as one file in each precision: what it weighs, what it finds beside the whole package, and how fast.

Run it as `python benchmarks/shipping.py --model MODEL --source FILE`. Texts and scores are compared with those of the
whole package in the same precision; search is by the model's own beam. Both use one thread, take turns, and the best of
`--rounds` counts. A start is a process of its own, from nothing to the translation of one sentence, the best of three;
its memory is the most that it had, beside that of one that imports NumPy and tokenizers alone.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from harness import machine_line, parsed, parser, publish, table, timed

from rnnsearch.export import KINDS, export
from rnnsearch.loading import load
from rnnsearch.runtime import load as load_file
from rnnsearch.text.spans import words

START = "from rnnsearch.runtime import load; import sys; load(sys.argv[1]).translate('I see the dog.')"
NOTHING = "import numpy, tokenizers"
PEAK = """
import pathlib, re
status = pathlib.Path("/proc/self/status")
found = re.search(r"VmHWM:\\s*(\\d+)", status.read_text()) if status.exists() else None
print(found[1] if found else "")
"""
"""The memory that a process had at most is its own here; what the system counts for it begins with its parent's."""
STARTS = 3


def started(code: str, *arguments: str) -> tuple[float, float]:
    """Seconds of a process, the least, and the MB that it had at most (Linux tells; else 0)."""
    best, most = float("inf"), 0.0
    for _ in range(STARTS):
        begin = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-c", code + PEAK, *arguments], check=True, capture_output=True, text=True
        )
        best, most = min(best, time.perf_counter() - begin), max(most, float(run.stdout or 0) / 1e3)
    return best, most


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--source", type=Path, required=True, help="Source text, one sentence a line.")
    made.add_argument("--sentences", type=int, default=10_000)
    made.add_argument("--rounds", type=int, default=3)
    given = parsed(made)
    torch.set_num_threads(1)
    texts = given.source.read_text(encoding="utf-8").split("\n")[: given.sentences]
    count, rows = sum(len(words(text)) for text in texts), []
    nothing = started(NOTHING)
    with TemporaryDirectory() as folder:
        for precision in KINDS:
            path = Path(folder) / f"{precision}.rnn"
            size = export(given.model, path, precision)
            # No folder has numbers of 4 bits: the whole package reads the file, too.
            whole = load(path) if precision == "int4" else load(given.model, precision=precision)
            alone = load_file(path)
            whole.aligner = None
            found, own = whole.translate(texts), alone.translate(texts)
            same = sum(a.text == b.text for a, b in zip(found, own, strict=True))
            exact = sum(a.token_scores == b.token_scores for a, b in zip(found, own, strict=True))
            ways = {
                "whole": partial(whole.translate, texts),
                "alone": partial(alone.translate, texts),
                "whole, greedy": partial(whole.translate, texts, whole.options(beam=1)),
                "alone, greedy": partial(alone.translate, texts, 1),
                "whole, one": partial(one_by_one, whole.translate, texts[:200]),
                "alone, one": partial(one_by_one, alone.translate, texts[:200]),
            }
            seconds = dict.fromkeys(ways, float("inf"))
            for _ in range(given.rounds):
                for name, search in ways.items():
                    seconds[name] = min(seconds[name], timed(search)[1])
            start, memory = started(START, str(path))
            speed = [count / seconds["alone"], seconds["whole"] / seconds["alone"]]
            speed += [count / seconds["alone, greedy"], seconds["whole, greedy"] / seconds["alone, greedy"]]
            late = seconds["alone, one"] / seconds["whole, one"]
            rows.append([precision, size / 1e6, f"{same}/{exact}", *speed, late, start, memory - nothing[1]])
    head = (
        "precision | MB {:.1f} | same text / scores {} | words/s {:,.0f} | x whole {:.2f} | greedy, words/s {:,.0f} "
        "| x whole, greedy {:.2f} | latency, x whole {:.2f} | start, s {:.2f} | memory, MB {:.0f}"
    )
    said = f"{len(texts):,} sentences; NumPy and tokenizers alone: {nothing[0]:.2f} s, {nothing[1]:.0f} MB"
    publish([machine_line(), said, "", *table(head, rows)], given.output)


def one_by_one(translate: Callable[[str], object], texts: list[str]) -> None:
    """Each sentence by itself."""
    for text in texts:
        translate(text)


if __name__ == "__main__":
    main()
