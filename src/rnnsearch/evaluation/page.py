"""A run on one page: a self-contained HTML report, light or dark, for desk and phone.

Every part is optional and is left out where it was not given. The templates escape all text. The page loads nothing,
and runs its own script alone, whose hash its policy names; without it the page has the same facts.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

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
from rnnsearch.metrics.scores import check_lines, sentence_chrf, shown
from rnnsearch.systems.card import LearningStatistics, statistics_table
from rnnsearch.translator.translation import Translation
from rnnsearch.utils.files import write_bytes

# Sentences that show what a system does: its best, median, worst and longest, by sentence chrF.


@dataclass(frozen=True)
class Example:
    """A translation to show, and why it was chosen."""

    kind: str
    """`best`, `median`, `worst` or `longest`."""
    chrf: float
    translation: Translation
    reference: str

    @property
    def drawn(self) -> bool:
        """Whether there is attention to draw."""
        attention = self.translation.word_attention
        return attention is not None and attention.size > 0


def choose(translations: Sequence[Translation], references: Sequence[str]) -> list[Example]:
    """The best, median, worst and longest translations, no sentence twice; empty ones are passed over.

    The best is the longest of those with the highest chrF, for a perfect "Yes." shows little. A test set of
    fewer sentences gives fewer examples.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines([t.text for t in translations], references)
    words = [len(t.source_words) for t in translations]
    usable = [n for n in range(len(words)) if words[n] and references[n].strip()]
    chrf = {n: sentence_chrf(translations[n].text, references[n]) for n in usable}
    ranked = sorted(usable, key=lambda n: (-round(chrf[n], 6), -words[n], n))
    wanted = {
        "best": ranked,
        "median": ranked[len(ranked) // 2 :] + ranked[: len(ranked) // 2][::-1],
        "worst": ranked[::-1],
        "longest": sorted(usable, key=lambda n: (-words[n], n)),
    }
    chosen: dict[int, str] = {}
    for kind, order in wanted.items():
        free = (n for n in order if n not in chosen)
        chosen |= dict.fromkeys(list(free)[:1], kind)
    return [Example(kind, chrf[n], translations[n], references[n]) for n, kind in chosen.items()]


Rows = list[list[str]]
"""A table's, the first of them its head."""


@dataclass(frozen=True)
class Report:
    """What goes on the page. `evaluations` has the system itself first, then others to set beside it."""

    title: str
    source_language: str = ""
    """Language codes, so that the browser picks fitting fonts."""
    target_language: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the model is: sizes, data, licence, attribution."""
    evaluations: Sequence[Evaluation] = ()
    log: Sequence[Mapping[str, Any]] = ()
    """Rows of the training log: `update`, and any of `train_nll`, `dev_nll`, `dev_bleu`."""
    statistics: Sequence[LearningStatistics] = ()
    examples: Sequence[Example] = ()
    replaced: Rows = field(default_factory=list)
    """What stands for unknown words in the translations, and from where; empty without any."""
    projection: Projection | None = None
    """Encoder states of chosen source sentences."""
    cleaning: Mapping[str, int] = field(default_factory=dict)
    """Left-out training pairs by reason."""
    read: int | None = None
    """Pairs of the corpus, before cleaning."""
    kept: int | None = None
    """Pairs that were trained on."""
    config: str = ""
    """The resolved run file."""


def write_report(path: Path, report: Report) -> None:
    """Write the page, whole or not at all. Errors: RnnsearchError where it cannot be written."""
    write_bytes(path, to_html(report).encode("utf-8", errors="replace"))


def to_html(report: Report) -> str:
    """The page as text."""
    pages = Environment(
        loader=PackageLoader("rnnsearch.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for known in (grey, percentages, paper_table, comparison_table, confidence_table, statistics_table):
        pages.filters[known.__name__] = known
    files = resources.files("rnnsearch.evaluation") / "templates"
    style, script = ((files / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return pages.get_template("report.html").render(
        report=report,
        by_length=_lengths(report.evaluations),
        rare_words=_rare_words(report.evaluations),
        dots=None if report.projection is None else scatter(report.projection),
        curves=_plot(lambda theme: figures.curves(report.log, theme)),
        cleaning=_cleaning(report),
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
        version=__version__,
    )


class Plot(NamedTuple):
    """A figure in two themes, each as a data URI; width and height in the page's pixels."""

    light: str
    dark: str
    width: int
    height: int


class Charted(NamedTuple):
    """A plot and the table of the same numbers."""

    plot: Plot | None
    rows: Rows


def _plot(draw: Callable[[Theme], Figure | None]) -> Plot | None:
    light, dark = draw(LIGHT), draw(DARK)
    if light is None or dark is None:
        return None
    width, height = (round(float(side) * 100) for side in light.get_size_inches())
    return Plot(_data_uri(light), _data_uri(dark), width, height)


def _data_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(render(figure, "svg")).decode("ascii")


def _lengths(evaluations: Sequence[Evaluation]) -> Charted | None:
    systems = {e.name: e.lengths for e in evaluations if e.lengths}
    if not systems:
        return None
    rows = [["Source words", "Sentences", *(systems if len(systems) > 1 else ["BLEU"])]]
    for n, bucket in enumerate(next(iter(systems.values()))):
        # Other systems have the same buckets where they were given the same sources.
        scores = [f"{others[n].bleu:.1f}" if n < len(others) else "-" for others in systems.values()]
        rows.append([bucket.label, f"{bucket.sentences:,}", *scores])
    return Charted(_plot(lambda theme: figures.plot_bleu_by_length(systems, theme)), rows)


def _rare_words(evaluations: Sequence[Evaluation]) -> Charted | None:
    classes = evaluations[0].rare_words if evaluations else ()
    if not shown(classes):
        return None
    return Charted(_plot(lambda theme: figures.plot_rare_words(classes, theme)), rare_words_table(classes))


def _cleaning(report: Report) -> Rows | None:
    if not report.cleaning:
        return None
    left_out = sum(report.cleaning.values())
    counts = [*report.cleaning.items(), ("left out in all", left_out)]
    if report.read is None or report.kept is None:
        return [["Why pairs were left out", "Pairs"], *([name, f"{count:,}"] for name, count in counts)]
    held_out = report.read - left_out - report.kept
    counts += [("held out for dev and test", held_out)] if held_out > 0 else []
    counts += [("trained on", report.kept), ("read", report.read)]
    rows = [[name, f"{count:,}", f"{100 * count / max(report.read, 1):.1f} %"] for name, count in counts]
    return [["Why pairs were left out", "Pairs", "Share"], *rows]


def percentages(attention: NDArray[np.floating[Any]]) -> str:
    """Attention [I, J] for the page's script: whole percents, rows parted by `;`."""
    whole = np.rint(100 * np.clip(attention, 0.0, 1.0)).astype(int)
    return ";".join(" ".join(map(str, row)) for row in whole.tolist())


def grey(weight: float) -> str:
    """A cell's colour; near-black ones, most of a long sentence's, are left to the style sheet's black."""
    level = round(255 * min(max(weight, 0.0), 1.0))
    return f"#{level:02x}{level:02x}{level:02x}" if level > 2 else ""
