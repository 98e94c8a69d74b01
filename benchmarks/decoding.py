"""Decoding speed of one model by each path: PyTorch, native code in fp32 and bf16, and candidate lists.

Run it as `python benchmarks/decoding.py --model MODEL --source FILE --reference FILE`. Each path is measured with
greedy and beam search at several batch sizes (sentences and target tokens per second without end tokens, the speed
relative to the path `plain`, and BLEU) and with greedy search of one sentence at a time (milliseconds per sentence:
mean, median and 99th percentile). Tokenization is not timed. Wall time is the best of `--rounds`; `cpu` is the CPU time
of all threads in that round. Candidate lists require `rnnsearch candidates MODEL ...` first.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import (
    argument_parser,
    latency_summary,
    machine_line,
    milliseconds_per_item,
    parse_arguments,
    publish,
    table,
    time_call,
)

from rnnsearch.metrics.scores import corpus_bleu
from rnnsearch.search.candidates import CANDIDATES_FILE, ColumnChooser, load_candidates
from rnnsearch.search.decode import decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.scorer import Scorer
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.system import System

WARMUP_SENTENCES = 64
Sources = list[list[int]]
DecodingPath = tuple[Scorer, ColumnChooser | None]


def make_paths(system: System[Any], args: Namespace) -> dict[str, DecodingPath]:
    """Create the requested decoding paths, by name."""
    sizes = len(system.source), len(system.target)
    factories: dict[str, Callable[[], DecodingPath]] = {
        "plain": lambda: (ModelScorer(system.model), None),
        "fp32": lambda: (fastest_scorer(system.model, "fp32").scorer, None),
        "bf16": lambda: (fastest_scorer(system.model, "bf16").scorer, None),
    }
    for count in args.candidates if (args.model / CANDIDATES_FILE).is_file() else ():
        lists = partial(load_candidates, args.model, count, *sizes)
        factories[f"bf16, {count} candidates"] = lambda lists=lists: (
            fastest_scorer(system.model, "bf16").scorer,
            lists(),
        )  # type: ignore[misc]
    return {name: make() for name, make in factories.items() if not args.paths or name in args.paths}


def decode(path: DecodingPath, sources: Sources, beam: int, batch: int) -> list[Hypothesis]:
    """Return the best hypothesis per source."""
    scorer, columns = path
    return [best[0] for best in decode_all(scorer, sources, SearchOptions(beam=beam), batch, candidates=columns)]


def batch_rows(
    args: Namespace, system: System[Any], paths: dict[str, DecodingPath], sources: Sources
) -> Iterator[list[object]]:
    """Yield a row per beam, batch size and path."""
    references = args.reference.read_text(encoding="utf-8").splitlines()[: len(sources)]
    for beam in args.beams:
        for batch in args.batches:
            first_speed = None
            for name, path in paths.items():
                decode(path, sources[:WARMUP_SENTENCES], beam, batch)
                rounds = [time_call(partial(decode, path, sources, beam, batch)) for _ in range(args.rounds)]
                hypotheses, wall, cpu = min(rounds, key=lambda result: result[1])
                speed = sum(len(hypothesis.ids) for hypothesis in hypotheses) / wall
                first_speed = first_speed or speed
                bleu = corpus_bleu([system.target.join(h.ids) for h in hypotheses], references)
                search = "greedy" if beam == 1 else f"beam {beam}"
                yield [search, batch, name, wall, cpu, len(sources) / wall, speed, speed / first_speed, bleu]


def latency_rows(paths: dict[str, DecodingPath], sources: Sources) -> Iterator[list[object]]:
    """Yield a row per path: greedy search of one sentence at a time."""
    for name, path in paths.items():
        decode(path, sources[:5], 1, 1)
        times = milliseconds_per_item(lambda source, path=path: decode(path, [source], 1, 1), sources)  # type: ignore[misc]
        yield [name, *latency_summary(times).values()]


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence per line")
    parser.add_argument("--reference", type=Path, required=True, help="reference translations")
    parser.add_argument("--paths", nargs="*", default=[], help="names of the paths to measure [default: all]")
    parser.add_argument("--batches", type=int, nargs="*", default=[64, 256], help="batch sizes")
    parser.add_argument("--beams", type=int, nargs="*", default=[1, 5], help="beam sizes")
    parser.add_argument("--candidates", type=int, nargs="*", default=[20, 50], help="sizes of the candidate lists")
    parser.add_argument("--sentences", type=int, default=1000, help="sentences to translate in batches")
    parser.add_argument("--alone", type=int, default=200, help="sentences to translate one at a time")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    args = parse_arguments(parser)
    system = load_system(args.model)
    sources = system.source.ids(args.source.read_text(encoding="utf-8").splitlines()[: args.sentences])
    paths = make_paths(system, args)
    head = "search | batch | path | wall s {:,.2f} | cpu s {:,.2f} | sentences/s {:,.0f} | tokens/s {:,.0f}"
    lines = table(f"{head} | x plain {{:,.2f}} | BLEU {{:,.2f}}", batch_rows(args, system, paths, sources))
    head = "path | greedy, one sentence at a time: mean ms {:,.2f} | p50 {:,.2f} | p99 {:,.2f}"
    publish([machine_line(), "", *lines, *table(head, latency_rows(paths, sources[: args.alone]))], args.output)


if __name__ == "__main__":
    main()
