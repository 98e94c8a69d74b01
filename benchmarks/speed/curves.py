"""Cost curves.

The time of an update by sentence length, vocabulary, hidden size and batch; of a translation by beam and batch; and of
preparation and the start of training by corpus size.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.harness import best_seconds, build_model, log, section
from benchmarks.speed.model import RIVALS_SIZE, Sizes, model
from benchmarks.speed.tokens import write_lines
from rnnsearch.config import resolve
from rnnsearch.data.batches import Batches, make_batch
from rnnsearch.data.prepare import prepare
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.plots.figures import LIGHT, fonts, legend, line_style, save, style_axes
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.ops.device import precision
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.vocabulary import SPECIALS
from rnnsearch.utils.files import write_json

Lines = dict[str, list[tuple[float, float]]]
"""Points (value, cost) by line."""


@dataclass(frozen=True)
class Case:
    """Sizes of one measured update; `vocabulary` is the size of both vocabularies."""

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


LENGTHS = (10, 20, 40, 80)
VOCABULARIES = (2_000, 8_000, 32_000)
WIDTHS = (128, 256, 512, 1024)
BATCHES = (16, 32, 64, 128, 256)
BEAMS = (1, 2, 5, 10, 20)
DECODED_BATCHES = (1, 8, 64, 256)
PAIRS = (3_000, 10_000, 30_000, 100_000)
TOY_DIVISOR = 8  # of all sizes, for a smoke test


def measure_curves(folder: Path, scratch: Path, threads: int, toy: bool = False) -> list[str]:
    """Measure all curves, write curves.json and a figure per curve, and return the section of the report."""
    torch.set_num_threads(threads)
    scale = TOY_DIVISOR if toy else 1
    curves = [*update_curves(scale), *search_curves(scale), corpus_curve(scratch / "curves", scale)]
    folder.mkdir(parents=True, exist_ok=True)
    rows = {curve.name: asdict(curve) for curve in curves}
    write_json(folder / "curves.json", rows)
    lines = ["Both axes start at zero, so a straight line through the origin is a proportional cost.", ""]
    for curve in curves:
        log(f"curve {curve.name}: {curve.lines}")
        save(plot(curve), folder / f"curve-{curve.name}.png")
        lines += [f"![{curve.cost} against {curve.axis}](curve-{curve.name}.png)", ""]
    return section("Cost curves", lines)


def build(case: Case) -> TranslationModel:
    """Build the rivals' model with all widths scaled to that of the decoder."""
    half = max(2, case.width // 2)
    return build_model(model(Sizes(half, half, case.width, case.width, case.width)), case.vocabulary)


def sentences(case: Case) -> list[list[int]]:
    """Return random sentences of token ids."""
    shape = (case.batch, case.length - 1)
    generator = torch.Generator().manual_seed(1)
    rows: list[list[int]] = torch.randint(len(SPECIALS), case.vocabulary, shape, generator=generator).tolist()
    return rows


def update_milliseconds(case: Case, dtype: str) -> float:
    """Return the best time of several forward and backward passes of one batch."""
    translation_model = build(case)
    objective = Likelihood()
    device = torch.device("cpu")
    ids = sentences(case)
    batch = make_batch(list(zip(ids, ids, strict=True)), range(case.batch))

    def update() -> None:
        translation_model.zero_grad(set_to_none=True)
        with precision(device, dtype):
            loss = objective(translation_model, batch, BatchRng(1, device))
        loss.total.backward()  # type: ignore[no-untyped-call]

    return 1000 * best_seconds(update, 3)


def update_curves(scale: int) -> list[Curve]:
    """Measure the curves of an update, with a line per precision."""
    axes = {
        "length": ("tokens per sentence", LENGTHS),
        "vocabulary": ("tokens in each vocabulary", VOCABULARIES),
        "width": ("units of the decoder", WIDTHS),
        "batch": ("sentences per batch", BATCHES),
    }
    base = Case(RIVALS_SIZE.decoder // scale, 5760 // scale, 64 // scale)
    curves = []
    for name, (axis, values) in axes.items():
        lines: Lines = {}
        for dtype in ("fp32", "bf16"):
            lines[dtype] = []
            for value in dict.fromkeys(max(2, value // scale) for value in values):
                case = replace(base, **{name: value})
                lines[dtype].append((value, update_milliseconds(case, dtype)))
        curves.append(Curve(name, axis, "ms per update", lines))
    return curves


def search_curves(scale: int) -> list[Curve]:
    """Measure the curves of search by beam and by batch. Translations are forced to the length of their sources."""
    case = Case(RIVALS_SIZE.decoder // scale, 5760 // scale, 256 // scale)
    ids = sentences(case)
    scorer = fastest_scorer(build(case).eval()).scorer

    def milliseconds(beam: int, batch: int, min_sentences: int) -> float:
        sources = ids[: max(min_sentences, batch)]
        options = SearchOptions(beam=beam, min_length=len(ids[0]), max_ratio=1.0, max_extra=0)
        return 1000 * best_seconds(lambda: decode_all(scorer, sources, options, batch), 2) / len(sources)

    by_beam: Lines = {"search": [(beam, milliseconds(beam, 64, 64)) for beam in BEAMS]}
    by_batch: Lines = {}
    for beam in (1, 5):
        by_batch[f"beam {beam}"] = [(batch, milliseconds(beam, batch, 8)) for batch in DECODED_BATCHES]
    return [
        Curve("beam", "hypotheses per sentence", "ms per sentence, 64 per batch", by_beam),
        Curve("search-batch", "sentences per batch", "ms per sentence", by_batch),
    ]


def corpus_curve(folder: Path, scale: int) -> Curve:
    """Measure preparing a corpus of random words, and opening it up to the first batch."""
    folder.mkdir(parents=True, exist_ok=True)
    held_out = {"dev_size": 20, "test_size": 20, "cleaning": {"drop_identical": False}}
    tables = {
        "data": {"source": "en", "target": "de", "train": ["train.en|train.de"], **held_out},
        "text": {"type": "words", "vocabulary": 6_000},
        "model": model(RIVALS_SIZE),
        "training": {"batch": {"sentences": 64}, "max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    config = resolve(tables, base=folder)
    lines: Lines = {"prepare": [], "open, up to the first batch": []}
    counts = [max(200, pairs // scale) for pairs in PAIRS]
    for count in [counts[0], *counts]:  # the first one warms up
        words = torch.randint(0, 5_000, (count, 14), generator=torch.Generator().manual_seed(count)).tolist()
        for language in ("en", "de"):
            write_lines(folder / f"train.{language}", (" ".join(f"w{word}" for word in line) for line in words))
        times = [time.perf_counter()]
        prepare(config, folder / "prepared")
        times.append(time.perf_counter())
        batches = Batches(Prepared.open(folder / "prepared", config).train, config.training.batch, None, 1)
        next(iter(batches.epoch(0)))
        times.append(time.perf_counter())
        for points, start, end in zip(lines.values(), times, times[1:], strict=False):
            points.append((count, end - start))
    return Curve("corpus", "sentence pairs", "seconds", {name: points[1:] for name, points in lines.items()})


def plot(curve: Curve) -> Figure:
    """Plot cost against value. Both axes start at zero, so that a proportional cost is a straight line."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    style_axes(figure, axes, LIGHT)
    for number, points in enumerate(curve.lines.values()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, markersize=5, **line_style(LIGHT, number))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.axis, color=LIGHT.text, fontfamily=fonts())
    axes.set_ylabel(curve.cost, color=LIGHT.text, fontfamily=fonts())
    legend(axes, LIGHT, list(curve.lines))
    return figure
