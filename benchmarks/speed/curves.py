"""How time grows: of an update with sentence length, vocabulary, hidden size and batch; of a translation with beam and
batch; of preparation and of the start of training with the corpus."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.harness import network, say, seconds_of, section
from benchmarks.speed.model import RIVALS_SIZE, Sizes, model
from benchmarks.speed.tokens import write_lines
from rnnsearch.config import resolve
from rnnsearch.data.batches import Batches, make_batch
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.plots.figures import LIGHT, fonts, legend, line, paint, save
from rnnsearch.models.batch_rng import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import precision
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import fastest
from rnnsearch.text.vocabulary import SPECIALS
from rnnsearch.utils.files import write_json

Lines = dict[str, list[tuple[float, float]]]
"""Points (value, cost) by name."""


@dataclass(frozen=True)
class Case:
    """One update: sizes, symbols of both vocabularies, sentences and their length."""

    width: int = RIVALS_SIZE.decoder
    vocabulary: int = 5760
    batch: int = 64
    length: int = 15


@dataclass(frozen=True)
class Curve:
    """One figure."""

    name: str
    axis: str
    cost: str
    lines: Lines


LENGTHS, VOCABULARIES, WIDTHS = (10, 20, 40, 80), (2_000, 8_000, 32_000), (128, 256, 512, 1024)
BATCHES, BEAMS, DECODED_BATCHES = (16, 32, 64, 128, 256), (1, 2, 5, 10, 20), (1, 8, 64, 256)
PAIRS = (3_000, 10_000, 30_000, 100_000)
TOY = 8
"""Divides all values, for a run that only shows that it runs."""


def draw(folder: Path, scratch: Path, threads: int, toy: bool = False) -> list[str]:
    """Measure all curves; write curves.json and a figure each into `folder`. Returns their section of the report."""
    torch.set_num_threads(threads)
    scale = TOY if toy else 1
    curves = [*update_curves(scale), *search_curves(scale), corpus_curve(scratch / "curves", scale)]
    folder.mkdir(parents=True, exist_ok=True)
    rows = {curve.name: asdict(curve) for curve in curves}
    write_json(folder / "curves.json", rows)
    lines = ["Both axes begin at zero, so a straight line is a cost in proportion.", ""]
    for curve in curves:
        say(f"curve {curve.name}: {curve.lines}")
        save(plot(curve), folder / f"curve-{curve.name}.png")
        lines += [f"![{curve.cost} against {curve.axis}](curve-{curve.name}.png)", ""]
    return section("Cost curves", lines)


def made(case: Case) -> TranslationModel:
    """The rivals' model, all of its widths scaled with the decoder's."""
    half = max(2, case.width // 2)
    return network(model(Sizes(half, half, case.width, case.width, case.width)), case.vocabulary)


def sentences(case: Case) -> list[list[int]]:
    """Random symbols."""
    shape, generator = (case.batch, case.length - 1), torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(len(SPECIALS), case.vocabulary, shape, generator=generator).tolist()
    return rows


def update_milliseconds(case: Case, kind: str) -> float:
    """Of forward and backward of one batch; the best of a few."""
    network_, objective, device = made(case), Likelihood(), torch.device("cpu")
    ids = sentences(case)
    batch = make_batch(list(zip(ids, ids, strict=True)), range(case.batch))

    def once() -> None:
        network_.zero_grad(set_to_none=True)
        with precision(device, kind):
            loss = objective(network_, batch, Draws(1, device))
        loss.total.backward()  # type: ignore[no-untyped-call]

    return 1000 * seconds_of(once, 3)


def update_curves(scale: int) -> list[Curve]:
    """One update, by precision."""
    axes = {
        "length": ("symbols a sentence", LENGTHS),
        "vocabulary": ("symbols of each vocabulary", VOCABULARIES),
        "width": ("units of the decoder", WIDTHS),
        "batch": ("sentences a batch", BATCHES),
    }
    plain = Case(RIVALS_SIZE.decoder // scale, 5760 // scale, 64 // scale)
    curves = []
    for name, (axis, values) in axes.items():
        cases = {max(2, n // scale): replace(plain, **{name: max(2, n // scale)}) for n in values}
        lines: Lines = {
            kind: [(n, update_milliseconds(case, kind)) for n, case in cases.items()] for kind in ("fp32", "bf16")
        }
        curves.append(Curve(name, axis, "ms an update", lines))
    return curves


def search_curves(scale: int) -> list[Curve]:
    """Search, by beam and by batch; each translation is as long as its source, for no end is allowed before."""
    case = Case(RIVALS_SIZE.decoder // scale, 5760 // scale, 256 // scale)
    ids, scorer = sentences(case), fastest(made(case).eval()).scorer

    def milliseconds(beam: int, batch: int, least: int) -> float:
        some = ids[: max(least, batch)]
        options = SearchOptions(beam=beam, min_length=len(ids[0]), max_ratio=1.0, max_extra=0)
        return 1000 * seconds_of(lambda: decode_all(scorer, some, options, batch), 2) / len(some)

    by_beam: Lines = {"search": [(beam, milliseconds(beam, 64, 64)) for beam in BEAMS]}
    by_batch: Lines = {
        f"beam {beam}": [(batch, milliseconds(beam, batch, 8)) for batch in DECODED_BATCHES] for beam in (1, 5)
    }
    return [
        Curve("beam", "hypotheses a sentence", "ms a sentence, 64 a batch", by_beam),
        Curve("search-batch", "sentences a batch", "ms a sentence", by_batch),
    ]


def corpus_curve(folder: Path, scale: int) -> Curve:
    """Preparing a corpus of random words, and opening it to the first batch."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out = {"dev_size": 20, "test_size": 20, "cleaning": {"drop_identical": False}}
    tables = {
        "data": {"source": "en", "target": "de", "train": ["train.en|train.de"], **held_out},
        "text": {"type": "words", "vocabulary": 6_000},
        "model": model(RIVALS_SIZE),
        "training": {"batch": {"sentences": 64}, "max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    config = resolve(tables, base=folder)
    lines: Lines = {"prepare": [], "open, to the first batch": []}
    counts = [max(200, pairs // scale) for pairs in PAIRS]
    for count in [counts[0], *counts]:  # the first one only to warm up
        words = torch.randint(0, 5_000, (count, 14), generator=torch.Generator().manual_seed(count)).tolist()
        for language in ("en", "de"):
            write_lines(folder / f"train.{language}", (" ".join(f"w{word}" for word in line) for line in words))
        times = [time.perf_counter()]
        prepare(config, folder / "prepared")
        times.append(time.perf_counter())
        batches = Batches(Prepared.open(folder / "prepared", config).train, config.training.batch, None, 1)
        next(iter(batches.epoch(0)))
        times.append(time.perf_counter())
        for points, begin, end in zip(lines.values(), times, times[1:], strict=False):
            points.append((count, end - begin))
    return Curve("corpus", "sentence pairs", "seconds", {name: points[1:] for name, points in lines.items()})


def plot(curve: Curve) -> Figure:
    """Cost against value, both from zero, so that a straight line is a cost in proportion."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    paint(figure, axes, LIGHT)
    for number, points in enumerate(curve.lines.values()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, markersize=5, **line(LIGHT, number))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.axis, color=LIGHT.text, fontfamily=fonts())
    axes.set_ylabel(curve.cost, color=LIGHT.text, fontfamily=fonts())
    legend(axes, LIGHT, list(curve.lines))
    return figure
