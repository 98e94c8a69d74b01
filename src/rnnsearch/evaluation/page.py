"""The report page: one self-contained HTML file about a run and its scores.

`report.py` fills a `Report` from a model folder and an evaluation, and `write_report` renders it with the templates
in `templates/`. Every part is optional. All text is escaped, and the page makes no requests: its content security
policy allows only its own script, by hash, and without JavaScript it shows the same facts.

A new kind of content is a field of `Report` and a block in a template. The script is in `templates/report.js`; values
that it reads are attributes of the page's elements. Tests: tests/page/test_report.py (in a browser).

Axes: I target positions, J source positions.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rnnsearch import __version__
from rnnsearch.evaluation.corpus_scores import (
    Evaluation,
    comparison_table,
    confidence_table,
    paper_table,
    rare_words_table,
)
from rnnsearch.evaluation.projection import Projection, scatter
from rnnsearch.metrics.plots import figures
from rnnsearch.metrics.plots.figures import DARK, LIGHT, Theme, render
from rnnsearch.metrics.scores import check_lines, non_empty_classes, sentence_chrf
from rnnsearch.systems.card import LearningStatistics, statistics_table
from rnnsearch.translator.translation import Translation
from rnnsearch.utils.files import write_bytes

Rows = list[list[str]]
"""A table; the first row is the header."""
ExampleLabel = Literal["best", "median", "worst", "longest"]
PIXELS_PER_INCH = 100
"""Size of figures on the page."""
MIN_GREY = 2
"""Grey levels up to this one are shown as black, see `grey`."""


@dataclass(frozen=True)
class Example:
    """A translation to show."""

    label: ExampleLabel
    """Reason why it was chosen."""
    chrf: float
    """Sentence chrF of the translation."""
    translation: Translation
    """Translation to show."""
    reference: str
    """Reference translation."""

    @property
    def has_attention(self) -> bool:
        """True if there are attention weights to draw."""
        attention = self.translation.word_attention
        return attention is not None and attention.size > 0


def choose_examples(translations: Sequence[Translation], references: Sequence[str]) -> list[Example]:
    """Return the best, median and worst translations by sentence chrF, and the longest, without duplicates.

    Pairs with an empty sentence are skipped, and a small test set has fewer examples. Of several translations with
    the highest chrF, the best is the longest: a perfect "Yes." shows little.

    Raises:
        DataError: If the numbers of lines differ or are 0.
    """
    check_lines([t.text for t in translations], references)
    num_words = [len(t.source_words) for t in translations]
    usable = [n for n in range(len(translations)) if num_words[n] and references[n].strip()]
    chrf = {n: sentence_chrf(translations[n].text, references[n]) for n in usable}
    ranking = sorted(usable, key=lambda n: (-round(chrf[n], 6), -num_words[n], n))
    middle = len(ranking) // 2
    candidates: dict[ExampleLabel, list[int]] = {
        "best": ranking,
        "median": ranking[middle:] + ranking[:middle][::-1],
        "worst": ranking[::-1],
        "longest": sorted(usable, key=lambda n: (-num_words[n], n)),
    }
    labels: dict[int, ExampleLabel] = {}
    for label, order in candidates.items():
        first_unused = next((n for n in order if n not in labels), None)
        if first_unused is not None:
            labels[first_unused] = label
    return [Example(label, chrf[n], translations[n], references[n]) for n, label in labels.items()]


@dataclass(frozen=True)
class Report:
    """Content of the page."""

    title: str
    """Title of the page."""
    source_language: str = ""
    """Language code of the source, for the browser's choice of fonts; likewise `target_language`."""
    target_language: str = ""
    """Language code of the target."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the model: sizes, data, licence, attribution."""
    evaluations: Sequence[Evaluation] = ()
    """Scores of the system itself, then of others to compare with."""
    log: Sequence[Mapping[str, Any]] = ()
    """Rows of the training log: `update`, and any of `train_nll`, `dev_nll`, `dev_bleu`."""
    statistics: Sequence[LearningStatistics] = ()
    """Rows of the table of learning statistics, one per system."""
    examples: Sequence[Example] = ()
    """Translations to show."""
    replacements: Rows = field(default_factory=list)
    """Table of the replacements of unknown words in the translations, or empty."""
    projection: Projection | None = None
    """Encoder states of source sentences."""
    cleaning: Mapping[str, int] = field(default_factory=dict)
    """Number of removed training pairs by reason."""
    pairs_read: int | None = None
    """Number of pairs of the corpus before cleaning."""
    pairs_kept: int | None = None
    """Number of training pairs."""
    config: str = ""
    """The resolved run file."""


def write_report(path: Path, report: Report) -> None:
    """Write the page atomically; raise RnnsearchError if it cannot be written."""
    write_bytes(path, to_html(report).encode("utf-8", errors="replace"))


def to_html(report: Report) -> str:
    """Return the page as text."""
    environment = Environment(
        loader=PackageLoader("rnnsearch.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (grey, percentages, paper_table, comparison_table, confidence_table, statistics_table):
        environment.filters[function.__name__] = function
    templates = resources.files("rnnsearch.evaluation") / "templates"
    style = (templates / "report.css").read_text(encoding="utf-8")
    script = (templates / "report.js").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(
        report=report,
        by_length=_chart_bleu_by_length(report.evaluations),
        rare_words=_chart_rare_words(report.evaluations),
        dots=None if report.projection is None else scatter(report.projection),
        curves=_plot(lambda theme: figures.plot_learning_curves(report.log, theme)),
        cleaning=_cleaning_table(report),
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


class Plot(NamedTuple):
    """A figure in a light and a dark theme, as data URIs; width and height in CSS pixels."""

    light: str
    """Data URI of the light theme."""
    dark: str
    """Data URI of the dark theme."""
    width: int
    """Width in CSS pixels."""
    height: int
    """Height in CSS pixels."""


class Chart(NamedTuple):
    """A plot and a table of the same values."""

    plot: Plot | None
    """Plot, or None if there is nothing to draw."""
    rows: Rows
    """Table of the values."""


def _plot(draw: Callable[[Theme], Figure | None]) -> Plot | None:
    """Draw a figure in both themes; return None if there is nothing to draw."""
    light = draw(LIGHT)
    dark = draw(DARK)
    if light is None or dark is None:
        return None
    width, height = light.get_size_inches()
    width_pixels = round(float(width) * PIXELS_PER_INCH)
    height_pixels = round(float(height) * PIXELS_PER_INCH)
    return Plot(_data_uri(light), _data_uri(dark), width_pixels, height_pixels)


def _data_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(render(figure, "svg")).decode("ascii")


def _chart_bleu_by_length(evaluations: Sequence[Evaluation]) -> Chart | None:
    systems = {e.name: e.lengths for e in evaluations if e.lengths}
    if not systems:
        return None
    rows = [["Source words", "Sentences", *(systems if len(systems) > 1 else ["BLEU"])]]
    for n, bucket in enumerate(next(iter(systems.values()))):
        row = [bucket.label, f"{bucket.sentences:,}"]
        for buckets in systems.values():
            # All systems have the same buckets if they translated the same sources.
            row.append(f"{buckets[n].bleu:.1f}" if n < len(buckets) else "-")
        rows.append(row)
    return Chart(_plot(lambda theme: figures.plot_bleu_by_length(systems, theme)), rows)


def _chart_rare_words(evaluations: Sequence[Evaluation]) -> Chart | None:
    classes = evaluations[0].rare_words if evaluations else ()
    if not non_empty_classes(classes):
        return None
    return Chart(_plot(lambda theme: figures.plot_rare_words(classes, theme)), rare_words_table(classes))


def _cleaning_table(report: Report) -> Rows | None:
    """Return the numbers of removed and remaining training pairs, with percentages if all numbers are known."""
    if not report.cleaning:
        return None
    removed = sum(report.cleaning.values())
    counts = [*report.cleaning.items(), ("removed in all", removed)]
    if report.pairs_read is None or report.pairs_kept is None:
        return [["Reason for removal", "Pairs"], *([name, f"{count:,}"] for name, count in counts)]
    held_out = report.pairs_read - removed - report.pairs_kept
    if held_out > 0:
        counts.append(("held out for dev and test", held_out))
    counts += [("trained on", report.pairs_kept), ("read", report.pairs_read)]
    rows = [["Reason for removal", "Pairs", "Percentage"]]
    for name, count in counts:
        rows.append([name, f"{count:,}", f"{100 * count / max(report.pairs_read, 1):.1f} %"])
    return rows


def percentages(attention: NDArray[np.floating[Any]]) -> str:
    """Return attention weights [I, J] for the page's script: whole percentages, rows separated by `;`."""
    rounded = np.rint(100 * np.clip(attention, 0.0, 1.0)).astype(int)
    return ";".join(" ".join(map(str, row)) for row in rounded.tolist())


def grey(weight: float) -> str:
    """Return the colour of a heat map's cell, or "" for weights near 0, to which the style sheet gives black.

    Most cells of a long sentence are near 0, so that this keeps the page small.
    """
    level = round(255 * min(max(weight, 0.0), 1.0))
    return f"#{level:02x}{level:02x}{level:02x}" if level > MIN_GREY else ""
