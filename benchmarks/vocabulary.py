"""What a large target vocabulary costs: training over all of it, over parts, by noise words and by classes; search over
all and over candidates.

Run it as `python -m benchmarks.vocabulary`; `--output FILE` also writes the table, and beside it the curves. The preset
`small`'s model, untrained, with so many made-up words on the target side, drawn by Zipf's law; batches of 64 pairs of
13 symbols, in fp32, Adam. Each row is a process of its own, for its memory. A part holds the words of `--batches`
batches; candidates are 2,000. Search is over all but in the way `parts`.
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

from benchmarks.harness import Row, machine_line, parsed, parser, peak_mib, publish, run, seconds_of, table
from rnnsearch.plots.figures import LIGHT, fonts, legend, line, paint, save

SIZES = (8_000, 30_000, 100_000, 500_000)
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "parts": {},
    "NCE": {"objective": {"contrast": {"type": "nce"}}},
    "BlackOut": {"objective": {"contrast": {"type": "blackout"}}},
    "hierarchical": {"model": {"output": {"type": "hierarchical"}}},
    "adaptive": {"model": {"output": {"type": "adaptive", "cutoffs": [2_000, 7_000]}}},
}
"""What each says in a run file."""
PAIRS, LENGTH, CANDIDATES = 64, 13, 2_000
PERMISSIONS, RESIDENT = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) ", re.M), re.compile(r"^Rss: +(\d+) kB", re.M)


def measured(size: int, way: str, batches: int, folder: Path) -> Row:
    """Times of an update and of greedy search of a batch, the words of the softmax, and the memory of training; what of
    it is in files in `folder`."""
    import numpy as np
    import torch

    from rnnsearch.config import BatchConfig, merge, resolve
    from rnnsearch.data.batches import Batches
    from rnnsearch.data.noise import Proposal
    from rnnsearch.data.parallel import ParallelIds
    from rnnsearch.models.draws import Draws
    from rnnsearch.objectives.contrast import CONTRASTS
    from rnnsearch.objectives.likelihood import Likelihood
    from rnnsearch.search.constraints import SearchOptions
    from rnnsearch.search.decode import make_sources
    from rnnsearch.search.greedy import greedy
    from rnnsearch.search.model_scorer import ModelScorer
    from rnnsearch.systems.build import build
    from rnnsearch.training.tables import Tables

    untied = {"model": {"tie": "none"}, "text": {"type": "words", "joint": False}, "training": {"label_smoothing": 0.0}}
    data = {"source": "en", "target": "de", "train": ["x.tsv"]}
    config = resolve(merge(merge({"preset": "small", "data": data}, untied), WAYS[way]))
    model = build(config.model, 8_000, size, seed=1)
    draw = np.random.default_rng(1)
    share = 1 / np.arange(1, size - 3)
    words = draw.choice(np.arange(4, size), (batches * PAIRS, LENGTH), p=share / share.sum()).tolist()
    ids = ParallelIds.of({"en": draw.integers(4, 8_000, (batches * PAIRS, LENGTH)).tolist(), "de": words})
    most, told = size if way == "parts" else None, config.objective.contrast
    proposal = None if told is None else Proposal(ids.counts("de", size), told.power, told.samples)
    made = Batches(ids, BatchConfig(sentences=PAIRS), None, 1, partition=most, proposal=proposal)
    batch = next(made.epoch(0))
    contrast = None if told is None else CONTRASTS[told.type](size)
    optimiser, objective = torch.optim.Adam(model.parameters(), fused=True), Likelihood(contrast=contrast)
    tables = Tables() if most is None and told is None else Tables(model, sparse=True, folder=folder)

    def update() -> None:
        objective(model, batch, Draws(1)).total.backward()
        tables.step(optimiser)
        optimiser.zero_grad()

    found: Row = {"update": seconds_of(update, 2, 0.5), "words": size if most is None else len(batch.vocabulary)}
    if told is not None:
        found["words"] = told.samples
    found["mib"], found["files"] = peak_mib(), in_files_mib()
    scorer, options = ModelScorer(model.eval()), SearchOptions(beam=1, max_ratio=0.0, max_extra=LENGTH)
    sources, few = make_sources(ids_of(ids), torch.device("cpu")), torch.arange(min(size, CANDIDATES))
    columns = (lambda _: few) if way == "parts" else None
    made_of = [hypotheses[0] for hypotheses in greedy(scorer, sources, options, columns)]
    found["searched"] = sum(len(one.ids) + one.finished for one in made_of)  # which hangs on what little was learned
    found["search"] = seconds_of(lambda: greedy(scorer, sources, options, columns), 2, 0.5)
    return found


def in_files_mib() -> float:
    """Memory of this process that is of files which it writes (Linux; else 0)."""
    status = Path("/proc/self/smaps")
    rows = status.read_text().split("VmFlags:")[:-1] if status.exists() else []
    own = (row for row in rows if (found := PERMISSIONS.search(row)) and found[1] == "rw-s")
    return sum(int(RESIDENT.search(row)[1]) for row in own) / 1024


def ids_of(ids: Any) -> list[list[int]]:
    """The sources of the first batch."""
    return [ids.row(number)[0].tolist() for number in range(PAIRS)]


def rows(given: Any) -> Iterator[list[object]]:
    """A row a size and way, each by a process of its own."""
    for size in given.sizes:
        for way in given.ways:
            command = [sys.executable, "-m", "benchmarks.vocabulary", "--one", str(size), way]
            ended = run([*command, "--batches", str(given.batches), "--log", str(given.log)], given.log)
            found = json.loads(ended.output)
            speeds = PAIRS * LENGTH / found["update"], found["searched"] / found["search"]
            yield [f"{size:,}", way, found["words"], speeds[0], found["mib"], found["files"], speeds[1]]


def curves(found: Sequence[Sequence[Any]]) -> Figure:
    """Speed of training and of search, and the memory of training that is in no file, against the vocabulary's size."""
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    each: tuple[tuple[str, str, Callable[[Sequence[Any]], float]], ...] = (
        ("training, target symbols/s", "log", lambda row: row[3]),
        ("greedy search, target symbols/s", "log", lambda row: row[6]),
        ("training, MiB in no file", "linear", lambda row: row[4] - row[5]),
    )
    ways = list(dict.fromkeys(row[1] for row in found))
    sizes = {int(row[0].replace(",", "")): row[0].replace(",000", "k") for row in found}
    for axes, (cost, scale, of) in zip(figure.subplots(1, len(each)), each, strict=True):
        paint(figure, axes, LIGHT)
        axes.set_xscale("log")
        axes.set_yscale(scale)
        for number, way in enumerate(ways):
            ys = [of(row) for row in found if row[1] == way]
            axes.plot([*sizes], ys, markersize=5, **line(LIGHT, number))
        axes.set_xticks([*sizes], list(sizes.values()))
        axes.minorticks_off()
        if scale == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel("target words", color=LIGHT.text, fontfamily=fonts())
        axes.set_ylabel(cost, color=LIGHT.text, fontfamily=fonts())
    legend(axes, LIGHT, ways)
    return figure


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--sizes", nargs="+", type=int, default=[*SIZES])
    made.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    made.add_argument("--batches", type=int, default=50, help="of a part")
    made.add_argument("--log", type=Path, default=Path("vocabulary.log"), help="what the rows' processes say on stderr")
    made.add_argument("--one", nargs=2, metavar=("SIZE", "WAY"), help="measure one row alone, as JSON")
    given = parsed(made)
    if given.one:
        with TemporaryDirectory(dir=given.log.absolute().parent) as folder:
            sys.stdout.write(json.dumps(measured(int(given.one[0]), given.one[1], given.batches, Path(folder))))
        return
    head = (
        "target words | training | its words {:,} | training, target symbols/s {:,.0f} | "
        "memory of training, MiB {:,.0f} | of it in files, MiB {:,.0f} | greedy, target symbols/s {:,.0f}"
    )
    found = list(rows(given))
    publish([f"Training and search in fp32. {machine_line()}", "", *table(head, found)], given.output)
    if given.output is not None:
        save(curves(found), given.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
