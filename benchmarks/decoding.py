"""Decoding of one model by every path: the plain model, native code in fp32 and bf16, and candidate lists.

Run it as `python benchmarks/decoding.py --model MODEL --source FILE --reference FILE`. For each path: greedy and beam
search at several batch sizes (sentences and target tokens a second, end symbols not counted, with the ratio to the
plain path and BLEU of the text), and greedy search sentence by sentence (milliseconds a sentence: mean, median and 99th
percentile). Text is split into symbols before the clock starts, and joined after it stops. Wall time is the best of
`--rounds`; `cpu` is the processor time of all threads in that round. Candidate lists need
`rnnsearch candidates MODEL ...` first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.search.candidates import FILE, read
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, fastest
from rnnsearch.search.scorer import Scorer
from rnnsearch.systems.folder import Loaded, load_model

WARM = 64
"""Sentences translated before the clock starts."""


class Run(NamedTuple):
    """One decoding of all sentences: the best round's wall and processor seconds, and what was found."""

    wall: float
    cpu: float
    found: list[Hypothesis]

    @property
    def tokens(self) -> int:
        """Target symbols, end symbols left out."""
        return sum(len(hypothesis.ids) for hypothesis in self.found)


Way = tuple[Scorer, ColumnChooser | None]
"""A scorer, and what chooses its columns."""


def paths(loaded: Loaded, folder: Path, candidates: list[int]) -> dict[str, Callable[[], Way]]:
    """Every way to decode, by name; each is made when it is its turn."""
    model = loaded.model
    made: dict[str, Callable[[], Way]] = {
        "plain": lambda: (ModelScorer(model), None),
        "fp32": lambda: (fastest(model, "fp32").scorer, None),
        "bf16": lambda: (fastest(model, "bf16").scorer, None),
    }
    if (folder / FILE).is_file():
        for count in candidates:
            lists = read(folder, count, len(loaded.source), len(loaded.target))
            made[f"bf16, {count} candidates"] = lambda lists=lists: (fastest(model, "bf16").scorer, lists)
    return made


def decode(way: Way, sources: list[list[int]], beam: int, batch: int, rounds: int) -> Run:
    """The best round."""
    (scorer, columns), options = way, SearchOptions(beam=beam)
    decode_all(scorer, sources[:WARM], options, batch, columns=columns)
    runs = []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        found = decode_all(scorer, sources, options, batch, columns=columns)
        runs.append(Run(time.perf_counter() - wall, time.process_time() - cpu, [best[0] for best in found]))
    return min(runs, key=lambda run: run.wall)


def latencies(way: Way, sources: list[list[int]]) -> np.ndarray:
    """Milliseconds of greedy search of each sentence by itself."""
    (scorer, columns), options, times = way, SearchOptions(beam=1), []
    decode_all(scorer, sources[:5], options, 1, columns=columns)
    for source in sources:
        begin = time.perf_counter()
        decode_all(scorer, [source], options, 1, columns=columns)
        times.append(1e3 * (time.perf_counter() - begin))
    return np.array(times)


def table(arguments: argparse.Namespace) -> list[str]:
    """The results in Markdown."""
    loaded = load_model(arguments.model)
    lines = arguments.source.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    references = arguments.reference.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
    sources = loaded.source.ids(lines)
    made = paths(loaded, arguments.model, arguments.candidates)
    wanted = {name: make() for name, make in made.items() if not arguments.paths or name in arguments.paths}
    rows = ["| search | batch | path | wall s | cpu s | sentences/s | tokens/s | x plain | BLEU |"]
    rows += ["|---|---|---|---|---|---|---|---|---|"]
    for beam in arguments.beams:
        for batch in arguments.batches:
            first = None
            for name, way in wanted.items():
                run = decode(way, sources, beam, batch, arguments.rounds)
                speed = run.tokens / run.wall
                first = first or speed
                bleu = corpus_bleu([loaded.target.join(h.ids) for h in run.found], references)
                search = "greedy" if beam == 1 else f"beam {beam}"
                cells = (f"{run.wall:.2f}", f"{run.cpu:.2f}", f"{len(lines) / run.wall:,.0f}", f"{speed:,.0f}")
                rows.append(f"| {search} | {batch} | {name} | {' | '.join(cells)} | {speed / first:.2f} | {bleu:.2f} |")
                print(rows[-1], flush=True)
    rows += ["", "| path | greedy, one sentence at a time: mean ms | p50 | p99 |", "|---|---|---|---|"]
    for name, way in wanted.items():
        times = latencies(way, sources[: arguments.alone])
        p50, p99 = np.percentile(times, [50, 99])
        rows.append(f"| {name} | {times.mean():.2f} | {p50:.2f} | {p99:.2f} |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, help="Source text, one sentence a line.")
    parser.add_argument("--reference", type=Path, required=True, help="Its translations.")
    parser.add_argument("--paths", nargs="*", default=[], help="Some paths alone, by name.")
    parser.add_argument("--batches", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 5])
    parser.add_argument("--candidates", type=int, nargs="*", default=[20, 50])
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=200, help="Sentences translated one at a time.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
    rows = table(arguments)
    if arguments.output:
        arguments.output.write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
