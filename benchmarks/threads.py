"""Time of a search and of an update with one and more threads, on idle cores and next to busy processes.

Run it as `python -m benchmarks.threads`; `--output FILE` also writes the table. The model is `rnnsearch` of
`benchmarks.families`, untrained; searches are of one sentence, 8 and 64 sentences, greedy and with beam 5, in each
precision, updates of 64 pairs. A busy process never sleeps and runs at normal priority on any core.

Rounds of the numbers of threads alternate, so that other programs slow them alike. A round is at least `--seconds`
long; its time is the mean per call, pauses included. The table has the lower quartile of the rounds per number of
threads, and the speed of several threads relative to one by the quartiles and by the means of all rounds.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks.families import FAMILIES, VOCABULARY_SIZE, busy_process, make_search, make_update
from benchmarks.harness import argument_parser, build_model, log, machine_line, parse_arguments, publish, table

SEARCHES = [(beam, sentences) for beam in (1, 5) for sentences in (1, 8, 64)]
"""Beam sizes and numbers of sentences."""
SEARCH_PRECISIONS = ("fp32", "bf16", "int8")
UPDATE_PRECISIONS = ("fp32", "bf16")


def make_tasks(args: Namespace) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each measured task and a function that runs it once."""
    config = FAMILIES["rnnsearch"]
    for precision in args.precisions:
        model = build_model(config, VOCABULARY_SIZE).eval()
        for beam, sentences in SEARCHES:
            search = "greedy" if beam == 1 else f"beam {beam}"
            plural = "" if sentences == 1 else "s"
            name = f"{search}, {sentences} sentence{plural}, {precision}"
            yield name, make_search(model, beam, sentences, precision)
        if precision in UPDATE_PRECISIONS:
            yield f"update, {precision}", make_update(build_model(config, VOCABULARY_SIZE), precision)


def round_seconds(function: Callable[[], object], threads: int, min_seconds: float) -> float:
    """Return the mean time per call with some number of threads."""
    import torch

    torch.set_num_threads(threads)
    start = time.perf_counter()
    count = 0
    while True:
        function()
        count += 1
        if (elapsed := time.perf_counter() - start) >= min_seconds:
            return elapsed / count


def rows(args: Namespace) -> Iterator[list[object]]:
    """Yield a row per task and number of busy processes."""
    for name, task in make_tasks(args):
        if args.only not in name:
            continue
        for threads in args.compare:
            round_seconds(task, threads, 0.0)  # warm up
        for busy in args.busy:
            times: dict[int, list[float]] = {threads: [] for threads in args.compare}
            with ExitStack() as processes:
                for _ in range(busy):
                    processes.enter_context(busy_process(0))
                for _ in range(args.rounds):
                    for threads in args.compare:
                        times[threads].append(1000 * round_seconds(task, threads, args.seconds))
            quartiles = [statistics.quantiles(values, n=4)[0] for values in times.values()]
            means = [statistics.fmean(values) for values in times.values()]
            speeds = [measure[0] / value for measure in (quartiles, means) for value in measure[1:]]
            row = [name, busy, *quartiles, *speeds]
            log(" ".join(str(round(cell, 2)) if isinstance(cell, float) else str(cell) for cell in row))
            yield row


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--compare", nargs="+", type=int, default=[1, 2], help="numbers of threads; the first is 1")
    parser.add_argument("--busy", nargs="+", type=int, default=[0, 1, 2], help="numbers of busy processes")
    parser.add_argument("--precisions", nargs="+", choices=SEARCH_PRECISIONS, default=[*SEARCH_PRECISIONS])
    parser.add_argument("--rounds", type=int, default=12, help="rounds per number of threads, at least 2")
    parser.add_argument("--seconds", type=float, default=0.1, help="minimum length of a round")
    parser.add_argument("--only", default="", help="measure only tasks whose name contains this")
    args = parse_arguments(parser)
    times = [f"{threads} thread{'' if threads == 1 else 's'}, ms {{:,.2f}}" for threads in args.compare]
    speeds = [
        f"speed with {threads}, {measure} {{:.2f}}x" for measure in ("quartile", "mean") for threads in args.compare[1:]
    ]
    head = " | ".join(["task", "busy processes", *times, *speeds])
    publish([machine_line(), "", *table(head, rows(args))], args.output)


if __name__ == "__main__":
    main()
