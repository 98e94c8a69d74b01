"""Cost of a large target vocabulary: training with the full softmax, vocabulary parts, noise samples or classes.

Run it as `python -m benchmarks.vocabulary`; `--output FILE` also writes the table and a figure of its curves. The model
is that of the preset `small`, untrained. The target vocabulary has as many synthetic words as the row says, sampled by
Zipf's law; batches have 64 pairs of 13 tokens; training is in fp32 with Adam. Each row runs in its own process, so that
its memory can be measured. A part holds the words of `--batches` batches. Search is over the full vocabulary, or with
`parts` over 2,000 candidates.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from benchmarks.harness import (
    Row,
    argument_parser,
    best_seconds,
    machine_line,
    parse_arguments,
    peak_mib,
    publish,
    run,
    table,
)
from rnnsearch.metrics.plots.figures import LIGHT, fonts, legend, line_style, save, style_axes

SIZES = (8_000, 30_000, 100_000, 500_000)
METHODS: dict[str, dict[str, Any]] = {
    "all": {},
    "parts": {},
    "NCE": {"objective": {"contrast": {"type": "nce"}}},
    "BlackOut": {"objective": {"contrast": {"type": "blackout"}}},
    "hierarchical": {"model": {"output": {"type": "hierarchical"}}},
    "tree": {"model": {"output": {"type": "tree"}}},
    "adaptive": {"model": {"output": {"type": "adaptive", "cutoffs": [2_000, 7_000]}}},
}
"""Settings of the run file by method."""
PAIRS = 64
LENGTH = 13
CANDIDATES = 2_000
PERMISSIONS = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) ", re.M)
RESIDENT = re.compile(r"^Rss: +(\d+) kB", re.M)


def measure(size: int, method: str, batches: int, folder: Path) -> Row:
    """Measure training updates, their memory and the number of words in the softmax, and greedy search.

    `folder` holds the files of sparsely updated tables.
    """
    import numpy as np
    import torch

    from rnnsearch.config import BatchConfig, merge, resolve
    from rnnsearch.data.batch import NoiseDistribution
    from rnnsearch.data.batches import Batches
    from rnnsearch.data.id_store import ParallelIds
    from rnnsearch.models.batch_rng import BatchRng
    from rnnsearch.objectives.contrast import CONTRASTS
    from rnnsearch.objectives.likelihood import Likelihood
    from rnnsearch.systems.translation import build
    from rnnsearch.training.sparse_tables import SparseTables

    untied = {"model": {"tie": "none"}, "text": {"type": "words", "joint": False}, "training": {"label_smoothing": 0.0}}
    data = {"source": "en", "target": "de", "train": ["x.tsv"]}
    config = resolve(merge(merge({"preset": "small", "data": data}, untied), METHODS[method]))
    model = build(config.model, 8_000, size, seed=1)
    rng = np.random.default_rng(1)
    frequencies = 1 / np.arange(1, size - 3)
    words = rng.choice(np.arange(4, size), (batches * PAIRS, LENGTH), p=frequencies / frequencies.sum()).tolist()
    ids = ParallelIds.from_rows({"en": rng.integers(4, 8_000, (batches * PAIRS, LENGTH)).tolist(), "de": words})
    partition = size if method == "parts" else None
    options = config.objective.contrast
    proposal = None if options is None else NoiseDistribution(ids.counts("de", size), options.power, options.samples)
    batch = next(Batches(ids, BatchConfig(sentences=PAIRS), None, 1, partition=partition, proposal=proposal).epoch(0))
    contrast = None if options is None else CONTRASTS[options.type](size)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    objective = Likelihood(contrast=contrast)
    tables = (
        SparseTables() if partition is None and options is None else SparseTables(model, sparse=True, folder=folder)
    )

    def update() -> None:
        objective(model, batch, BatchRng(1)).total.backward()
        tables.step(optimiser)
        optimiser.zero_grad()

    row: Row = {"update": best_seconds(update, 2, 0.5)}
    if options is not None:
        row["words"] = options.samples
    else:
        row["words"] = size if partition is None else len(batch.vocabulary)
    row["mib"] = peak_mib()
    row["files"] = mapped_files_mib()
    sources = [ids.row(number)[0].tolist() for number in range(PAIRS)]
    return row | measure_search(model.eval(), sources, size, method)


def measure_search(model: Any, ids: list[list[int]], size: int, method: str) -> Row:
    """Measure greedy search of a batch, with `parts` over a candidate list."""
    import torch

    from rnnsearch.search.beam import greedy_search
    from rnnsearch.search.decode import make_sources
    from rnnsearch.search.model_scorer import ModelScorer
    from rnnsearch.search.options import SearchOptions

    scorer = ModelScorer(model)
    options = SearchOptions(beam=1, max_ratio=0.0, max_extra=LENGTH)
    sources = make_sources(ids, torch.device("cpu"))
    candidates = torch.arange(min(size, CANDIDATES))
    columns = (lambda _: candidates) if method == "parts" else None
    hypotheses = [n_best[0] for n_best in greedy_search(scorer, sources, options, columns)]
    # The lengths depend on the little that the model has learned.
    return {
        "searched": sum(len(hypothesis.ids) + hypothesis.finished for hypothesis in hypotheses),
        "search": best_seconds(lambda: greedy_search(scorer, sources, options, columns), 2, 0.5),
    }


def mapped_files_mib() -> float:
    """Return the resident memory of this process that belongs to writable shared files (Linux; 0 elsewhere)."""
    smaps = Path("/proc/self/smaps")
    mappings = smaps.read_text().split("VmFlags:")[:-1] if smaps.exists() else []
    kib = 0
    for mapping in mappings:
        permissions = PERMISSIONS.search(mapping)
        resident = RESIDENT.search(mapping)
        if permissions and permissions[1] == "rw-s" and resident:
            kib += int(resident[1])
    return kib / 1024


def rows(args: Any) -> Iterator[list[object]]:
    """Yield a row per size and method, each measured in its own process."""
    for size in args.sizes:
        for method in args.ways:
            command = [sys.executable, "-m", "benchmarks.vocabulary", "--one", str(size), method]
            completed = run([*command, "--batches", str(args.batches), "--log", str(args.log)], args.log)
            row = json.loads(completed.output)
            training_speed = PAIRS * LENGTH / row["update"]
            search_speed = row["searched"] / row["search"]
            yield [f"{size:,}", method, row["words"], training_speed, row["mib"], row["files"], search_speed]


def plot(rows: Sequence[Sequence[Any]]) -> Figure:
    """Plot the speed of training and search, and the training memory outside files, against the vocabulary size."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    panels: tuple[tuple[str, str, Callable[[Sequence[Any]], float]], ...] = (
        ("training, target tokens/s", "log", lambda row: row[3]),
        ("greedy search, target tokens/s", "log", lambda row: row[6]),
        ("training, MiB outside files", "linear", lambda row: row[4] - row[5]),
    )
    methods = list(dict.fromkeys(row[1] for row in rows))
    sizes = {int(row[0].replace(",", "")): row[0].replace(",000", "k") for row in rows}
    for axes, (cost, scale, value_of) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        style_axes(figure, axes, LIGHT)
        axes.set_xscale("log")
        axes.set_yscale(scale)
        for number, method in enumerate(methods):
            ys = [value_of(row) for row in rows if row[1] == method]
            axes.plot([*sizes], ys, markersize=5, **line_style(LIGHT, number))
        axes.set_xticks([*sizes], list(sizes.values()))
        axes.minorticks_off()
        if scale == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel("target words", color=LIGHT.text, fontfamily=fonts())
        axes.set_ylabel(cost, color=LIGHT.text, fontfamily=fonts())
    legend(axes, LIGHT, methods)
    return figure


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[*SIZES], help="sizes of the target vocabulary")
    parser.add_argument("--ways", nargs="+", choices=[*METHODS], default=[*METHODS], help="training methods")
    parser.add_argument("--batches", type=int, default=50, help="batches per vocabulary part")
    parser.add_argument(
        "--log", type=Path, default=Path("vocabulary.log"), help="file for stderr of the rows' processes"
    )
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "WAY"), help="measure only one row and print it as JSON")
    args = parse_arguments(parser)
    if args.one:
        with TemporaryDirectory(dir=args.log.absolute().parent) as folder:
            sys.stdout.write(json.dumps(measure(int(args.one[0]), args.one[1], args.batches, Path(folder))))
        return
    head = (
        "target words | training | words in the softmax {:,} | training, target tokens/s {:,.0f} | "
        "training memory, MiB {:,.0f} | of which in files, MiB {:,.0f} | greedy, target tokens/s {:,.0f}"
    )
    all_rows = list(rows(args))
    publish([f"Training and search in fp32. {machine_line()}", "", *table(head, all_rows)], args.output)
    if args.output is not None:
        save(plot(all_rows), args.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
