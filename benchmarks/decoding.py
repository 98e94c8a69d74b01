"""Decoding of one model by every path: the plain model, native code in fp32 and bf16, and candidate lists.

Run it as `python benchmarks/decoding.py --model MODEL --source FILE --reference FILE`. For each path: greedy and beam
search at several batch sizes (sentences and target tokens a second, end symbols not counted, with the ratio to the
plain path and BLEU of the text), and greedy search sentence by sentence (milliseconds a sentence: mean, median and 99th
percentile). Text is split into symbols before the clock starts, and joined after it stops. Wall time is the best of
`--rounds`; `cpu` is the processor time of all threads in that round. Candidate lists need
`rnnsearch candidates MODEL ...` first.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import machine_line, milliseconds_of_each, parsed, parser, publish, spread, table, timed

from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.search.candidates import FILE, read
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, fastest
from rnnsearch.search.scorer import Scorer
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System

WARM = 64
"""Sentences translated before the clock starts."""
Sources = list[list[int]]
Way = tuple[Scorer, ColumnChooser | None]
"""A scorer, and what chooses its columns."""


def paths(system: System[Any], given: Namespace) -> dict[str, Way]:
    """Every way to decode that is asked for, by name."""
    symbols = len(system.source), len(system.target)
    made: dict[str, Callable[[], Way]] = {
        "plain": lambda: (ModelScorer(system.model), None),
        "fp32": lambda: (fastest(system.model, "fp32").scorer, None),
        "bf16": lambda: (fastest(system.model, "bf16").scorer, None),
    }
    for count in given.candidates if (given.model / FILE).is_file() else ():
        lists = partial(read, given.model, count, *symbols)
        made[f"bf16, {count} candidates"] = lambda lists=lists: (fastest(system.model, "bf16").scorer, lists())  # type: ignore[misc]
    return {name: make() for name, make in made.items() if not given.paths or name in given.paths}


def decode(way: Way, sources: Sources, beam: int, batch: int) -> list[Hypothesis]:
    """The best translation of each."""
    scorer, columns = way
    return [best[0] for best in decode_all(scorer, sources, SearchOptions(beam=beam), batch, columns=columns)]


def batched(given: Namespace, system: System[Any], ways: dict[str, Way], sources: Sources) -> Iterator[list[object]]:
    """A row for each beam, size of batch and path: the best of the rounds."""
    references = given.reference.read_text(encoding="utf-8").splitlines()[: len(sources)]
    for beam in given.beams:
        for batch in given.batches:
            plain = None
            for name, way in ways.items():
                decode(way, sources[:WARM], beam, batch)
                rounds = [timed(partial(decode, way, sources, beam, batch)) for _ in range(given.rounds)]
                found, wall, cpu = min(rounds, key=lambda one: one[1])
                speed = sum(len(hypothesis.ids) for hypothesis in found) / wall
                plain = plain or speed
                bleu = corpus_bleu([system.target.join(h.ids) for h in found], references)
                search = "greedy" if beam == 1 else f"beam {beam}"
                yield [search, batch, name, wall, cpu, len(sources) / wall, speed, speed / plain, bleu]


def alone(ways: dict[str, Way], sources: Sources) -> Iterator[list[object]]:
    """A row for each path: greedy search of one sentence at a time."""
    for name, way in ways.items():
        decode(way, sources[:5], 1, 1)
        times = milliseconds_of_each(lambda source, way=way: decode(way, [source], 1, 1), sources)  # type: ignore[misc]
        yield [name, *spread(times).values()]


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--source", type=Path, required=True, help="Source text, one sentence a line.")
    made.add_argument("--reference", type=Path, required=True, help="Its translations.")
    made.add_argument("--paths", nargs="*", default=[], help="Some paths alone, by name.")
    made.add_argument("--batches", type=int, nargs="*", default=[64, 256])
    made.add_argument("--beams", type=int, nargs="*", default=[1, 5])
    made.add_argument("--candidates", type=int, nargs="*", default=[20, 50])
    made.add_argument("--sentences", type=int, default=1000)
    made.add_argument("--alone", type=int, default=200, help="Sentences translated one at a time.")
    made.add_argument("--rounds", type=int, default=3)
    given = parsed(made)
    system = load_system(given.model)
    sources = system.source.ids(given.source.read_text(encoding="utf-8").splitlines()[: given.sentences])
    ways = paths(system, given)
    head = "search | batch | path | wall s {:,.2f} | cpu s {:,.2f} | sentences/s {:,.0f} | tokens/s {:,.0f}"
    lines = table(f"{head} | x plain {{:,.2f}} | BLEU {{:,.2f}}", batched(given, system, ways, sources))
    head = "path | greedy, one sentence at a time: mean ms {:,.2f} | p50 {:,.2f} | p99 {:,.2f}"
    publish([machine_line(), "", *lines, *table(head, alone(ways, sources[: given.alone]))], given.output)


if __name__ == "__main__":
    main()
