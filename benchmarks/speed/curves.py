"""How time grows: of an update with sentence length, vocabulary, hidden size and batch; of a translation with beam and
batch; of preparation and of the start of training with the corpus."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure

from benchmarks.harness import Row, say, seconds_of
from benchmarks.speed.model import RIVALS_SIZE, Sizes, model
from rnnsearch.config import resolve
from rnnsearch.data.batches import make_batch
from rnnsearch.device import precision
from rnnsearch.models.draws import Draws
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import likelihood
from rnnsearch.plots.figures import LIGHT, MARKERS, fonts, legend, paint, save
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import fastest
from rnnsearch.systems.build import build
from rnnsearch.text.vocabulary import SPECIALS

Point = tuple[float, float]


@dataclass(frozen=True)
class Case:
    """One update: sizes, symbols of both vocabularies, sentences and their length."""

    width: int = RIVALS_SIZE.decoder
    vocabulary: int = 5760
    batch: int = 64
    length: int = 15


@dataclass(frozen=True)
class Curve:
    """One figure: lines of points (value, cost) by name."""

    name: str
    axis: str
    cost: str
    lines: dict[str, list[Point]]


LENGTHS, VOCABULARIES, WIDTHS, BATCHES = (
    (10, 20, 40, 80),
    (2_000, 8_000, 32_000),
    (128, 256, 512, 1024),
    (16, 32, 64, 128, 256),
)
BEAMS, DECODED_BATCHES, PAIRS = (1, 2, 5, 10, 20), (1, 8, 64, 256), (3_000, 10_000, 30_000, 100_000)
TOY = 8
"""Divides all values, for a run that only shows that it runs."""


def draw(folder: Path, scratch: Path, threads: int, toy: bool = False) -> str:
    """Measure all curves; write curves.json and a figure each into `folder`. Returns their section of the report."""
    torch.set_num_threads(threads)
    scale = TOY if toy else 1
    curves = [*update_curves(scale), *search_curves(scale), *corpus_curves(scratch / "curves", scale)]
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {curve.name: curve.__dict__ for curve in curves}
    (folder / "curves.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for curve in curves:
        save(plot(curve), folder / f"curve-{curve.name}.png")
    return markdown(curves)


def markdown(curves: Sequence[Curve]) -> str:
    """Each figure under what it shows."""
    lines = ["## Cost curves", "", "Both axes begin at zero, so a straight line is a cost in proportion.", ""]
    for curve in curves:
        title = f"{curve.cost} against {curve.axis}"
        lines += [f"![{title}](curve-{curve.name}.png)", ""]
    return "\n".join(lines)


def network(case: Case) -> TranslationModel:
    """The rivals' model, all of its widths scaled with the decoder's."""
    half = max(2, case.width // 2)
    sizes = Sizes(half, half, case.width, case.width, case.width, case.batch)
    tables = {
        "data": {"source": "en", "target": "de", "corpus": "none"},
        "model": model(sizes),
        "training": {"max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
    }
    return build(resolve(tables).model, case.vocabulary, case.vocabulary, seed=1)


def sentences(case: Case, seed: int = 1) -> list[list[int]]:
    """Random symbols."""
    generator = torch.Generator().manual_seed(seed)
    shape = (case.batch, case.length - 1)
    rows: list[list[int]] = torch.randint(len(SPECIALS), case.vocabulary, shape, generator=generator).tolist()
    return rows


def update_seconds(case: Case, kind: str) -> float:
    """Seconds of forward and backward of one batch; the best of a few."""
    network_ = network(case)
    objective, device = likelihood(), torch.device("cpu")
    ids = sentences(case)
    batch = make_batch(list(zip(ids, ids, strict=True)), range(case.batch))

    def once() -> None:
        network_.zero_grad(set_to_none=True)
        with precision(device, kind):
            loss = objective(network_, batch, Draws(1, device))
        loss.total.backward()  # type: ignore[no-untyped-call]

    return seconds_of(once, 3)


def search_seconds(network_: TranslationModel, ids: list[list[int]], beam: int, batch: int) -> float:
    """Seconds to translate sentences, each as long as its source: no end is allowed before."""
    length = len(ids[0])
    options = SearchOptions(beam=beam, min_length=length, max_ratio=1.0, max_extra=0)
    scorer = fastest(network_).scorer
    return seconds_of(lambda: decode_all(scorer, ids, options, batch), 2)


def update_curves(scale: int) -> list[Curve]:
    """One update, by precision."""
    axes: list[tuple[str, str, str, Sequence[int]]] = [
        ("length", "length", "symbols a sentence", LENGTHS),
        ("vocabulary", "vocabulary", "symbols of each vocabulary", VOCABULARIES),
        ("width", "width", "units of the decoder", WIDTHS),
        ("batch", "batch", "sentences a batch", BATCHES),
    ]
    plain = Case(width=RIVALS_SIZE.decoder // scale, vocabulary=5760 // scale, batch=64 // scale)
    curves = []
    for name, field, axis, values in axes:
        lines: dict[str, list[Point]] = {}
        for kind in ("fp32", "bf16"):
            cases = [(value, Case(**{**plain.__dict__, field: max(2, value // scale)})) for value in values]
            lines[kind] = [(case.__dict__[field], 1000 * update_seconds(case, kind)) for _, case in cases]
        say(f"curve {name}: {lines}")
        curves.append(Curve(name, axis, "ms an update", lines))
    return curves


def search_curves(scale: int) -> list[Curve]:
    """Search, by beam and by batch."""
    case = Case(width=RIVALS_SIZE.decoder // scale, vocabulary=5760 // scale, batch=256 // scale)
    ids, network_ = sentences(case), network(case).eval()
    by_beam = [(float(b), 1000 * search_seconds(network_, ids[:64], b, 64) / len(ids[:64])) for b in BEAMS]
    by_batch = {
        f"beam {beam}": [
            (float(size), 1000 * search_seconds(network_, ids[:count], beam, size) / count)
            for size in DECODED_BATCHES
            for count in [min(len(ids), max(8, size))]
        ]
        for beam in (1, 5)
    }
    say(f"curve beam: {by_beam}; search-batch: {by_batch}")
    return [
        Curve("beam", "hypotheses a sentence", "ms a sentence, 64 a batch", {"search": by_beam}),
        Curve("search-batch", "sentences a batch", "ms a sentence", by_batch),
    ]


def corpus_curves(folder: Path, scale: int) -> list[Curve]:
    """Preparing a corpus of random words, and opening it to the first batch."""
    from rnnsearch.data.batches import Batches
    from rnnsearch.data.prepare import prepare
    from rnnsearch.data.prepared import Prepared

    folder.mkdir(parents=True, exist_ok=True)
    prepared_seconds, opened_seconds = [], []
    counts = [max(200, pairs // scale) for pairs in PAIRS]
    for count in [counts[0], *counts]:  # the first one only to warm up
        generator = torch.Generator().manual_seed(count)
        words = torch.randint(0, 5_000, (count, 14), generator=generator).tolist()
        text = "".join(" ".join(f"w{word}" for word in line) + "\n" for line in words)
        for language in ("en", "de"):
            (folder / f"train.{language}").write_text(text, encoding="utf-8")
        tables = {
            "data": {
                "source": "en",
                "target": "de",
                "train": ["train.en|train.de"],
                "dev_size": 20,
                "test_size": 20,
                "cleaning": {"drop_identical": False},
            },
            "text": {"type": "words", "vocabulary": 6_000},
            "model": model(RIVALS_SIZE),
            "training": {"batch": {"sentences": 64}, "max_epochs": 1, "optimiser": {"learning_rate": 0.001}},
        }
        config = resolve(tables, base=folder)
        began = time.perf_counter()
        prepare(config, folder / "prepared")
        done = time.perf_counter()
        batches = Batches(Prepared.open(folder / "prepared", config).train, config.training.batch, None, 1)
        next(iter(batches.epoch(0)))
        prepared_seconds.append((float(count), done - began))
        opened_seconds.append((float(count), time.perf_counter() - done))
    say(f"curve corpus: {prepared_seconds}, {opened_seconds}")
    lines = {"prepare": prepared_seconds[1:], "open, to the first batch": opened_seconds[1:]}
    return [Curve("corpus", "sentence pairs", "seconds", lines)]


def plot(curve: Curve) -> Figure:
    """Cost against value, both from zero, so that a straight line is a cost in proportion."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    paint(figure, axes, LIGHT)
    for number, points in enumerate(curve.lines.values()):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=LIGHT.series[number], marker=MARKERS[number], markersize=5, linewidth=1.8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.axis, color=LIGHT.text, fontfamily=fonts())
    axes.set_ylabel(curve.cost, color=LIGHT.text, fontfamily=fonts())
    legend(axes, LIGHT, list(curve.lines))
    return figure
