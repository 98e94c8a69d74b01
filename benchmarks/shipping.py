"""Engine files in each precision: size, agreement with the full package, and speed of the runtime.

Run it as `python benchmarks/shipping.py --model MODEL --source FILE`. Texts and scores are compared with those of the
full package in the same precision and with the model's default beam. Both use one thread and take turns; the best of
`--rounds` counts. Start time is that of a new process that translates one sentence, the best of three; its memory is
the peak in excess of a process that only imports NumPy and tokenizers.
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
from harness import argument_parser, machine_line, parse_arguments, publish, table, time_call

from rnnsearch.export.engine_file import MATRIX_TYPES, export
from rnnsearch.runtime import load as load_file
from rnnsearch.text.alignments import words
from rnnsearch.translator.loading import load

START = "from rnnsearch.runtime import load; import sys; load(sys.argv[1]).translate('I see the dog.')"
IMPORTS_ONLY = "import numpy, tokenizers"
# The kernel's counter of a child starts with its parent's memory, so the child reads its own peak.
PRINT_PEAK = """
import pathlib, re
status = pathlib.Path("/proc/self/status")
peak = re.search(r"VmHWM:\\s*(\\d+)", status.read_text()) if status.exists() else None
print(peak[1] if peak else "")
"""
STARTS = 3


def measure_start(code: str, *arguments: str) -> tuple[float, float]:
    """Run code in a new process several times; return the shortest time in seconds and the peak memory in MB.

    The memory is 0 except on Linux.
    """
    best_time = float("inf")
    peak_memory = 0.0
    for _ in range(STARTS):
        start = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-c", code + PRINT_PEAK, *arguments], check=True, capture_output=True, text=True
        )
        best_time = min(best_time, time.perf_counter() - start)
        peak_memory = max(peak_memory, float(run.stdout or 0) / 1e3)
    return best_time, peak_memory


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence per line")
    parser.add_argument("--sentences", type=int, default=10_000, help="sentences to translate")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    args = parse_arguments(parser)
    torch.set_num_threads(1)
    texts = args.source.read_text(encoding="utf-8").split("\n")[: args.sentences]
    num_words = sum(len(words(text)) for text in texts)
    rows = []
    base_time, base_memory = measure_start(IMPORTS_ONLY)
    with TemporaryDirectory() as folder:
        for precision in MATRIX_TYPES:
            path = Path(folder) / f"{precision}.rnn"
            size = export(args.model, path, precision)
            # Model folders have no 4-bit weights: the full package reads the engine file, too.
            package = load(path) if precision == "int4" else load(args.model, precision=precision)
            runtime = load_file(path)
            package.aligner = None
            expected = package.translate(texts)
            translations = runtime.translate(texts)
            same_text = sum(a.text == b.text for a, b in zip(expected, translations, strict=True))
            same_scores = sum(a.token_scores == b.token_scores for a, b in zip(expected, translations, strict=True))
            searches = {
                "package": partial(package.translate, texts),
                "runtime": partial(runtime.translate, texts),
                "package, greedy": partial(package.translate, texts, package.options(beam=1)),
                "runtime, greedy": partial(runtime.translate, texts, 1),
                "package, one by one": partial(translate_one_by_one, package.translate, texts[:200]),
                "runtime, one by one": partial(translate_one_by_one, runtime.translate, texts[:200]),
            }
            seconds = dict.fromkeys(searches, float("inf"))
            for _ in range(args.rounds):
                for name, search in searches.items():
                    seconds[name] = min(seconds[name], time_call(search)[1])
            start, memory = measure_start(START, str(path))
            speed = [num_words / seconds["runtime"], seconds["package"] / seconds["runtime"]]
            speed += [num_words / seconds["runtime, greedy"], seconds["package, greedy"] / seconds["runtime, greedy"]]
            latency = seconds["runtime, one by one"] / seconds["package, one by one"]
            rows.append(
                [precision, size / 1e6, f"{same_text}/{same_scores}", *speed, latency, start, memory - base_memory]
            )
    head = (
        "precision | MB {:.1f} | same text / scores {} | words/s {:,.0f} | x full package {:.2f} "
        "| greedy, words/s {:,.0f} | x full package, greedy {:.2f} | latency, x full package {:.2f} "
        "| start, s {:.2f} | memory, MB {:.0f}"
    )
    note = f"{len(texts):,} sentences; importing NumPy and tokenizers: {base_time:.2f} s, {base_memory:.0f} MB"
    publish([machine_line(), note, "", *table(head, rows)], args.output)


def translate_one_by_one(translate: Callable[[str], object], texts: list[str]) -> None:
    """Translate one sentence per call."""
    for text in texts:
        translate(text)


if __name__ == "__main__":
    main()
