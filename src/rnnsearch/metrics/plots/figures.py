"""What all our figures share: colours, fonts, and files written whole or not at all.

Figures are matplotlib `Figure` objects made without pyplot: no global state, no display needed, and
nothing to close.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.scores import Bucket, FrequencyClass, shown
from rnnsearch.utils.files import write_bytes

SUFFIXES = (".png", ".svg", ".pdf")

# Fonts for scripts that DejaVu Sans (which comes with matplotlib) lacks, used where they are installed.
_MORE_FONTS = (
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans CJK KR",
    "Noto Sans Hebrew",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
    "IPAexGothic",
    "Arial Unicode MS",
)


@dataclass(frozen=True)
class Theme:
    """The colours of a plot."""

    background: str
    text: str
    muted: str
    grid: str
    series: tuple[str, ...]
    """One colour a line, every one of contrast 4.5 or more to the background."""


LIGHT = Theme(
    background="#ffffff",
    text="#1c2024",
    muted="#5c636b",
    grid="#e3e6e9",
    series=("#0b62b8", "#b84a00", "#147a3c", "#8a2bb5", "#a61e4d", "#5f6300"),
)
DARK = Theme(
    background="#1a1d21",
    text="#eceef0",
    muted="#a3abb3",
    grid="#343a40",
    series=("#74b4ff", "#ffa261", "#63d58d", "#d49cff", "#ff8fb3", "#d3d84a"),
)
MARKERS = ("o", "s", "^", "D", "v", "P")


@lru_cache(maxsize=1)
def fonts() -> list[str]:
    """DejaVu Sans, then those fonts for other scripts that are installed."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _MORE_FONTS if name in installed)]


@contextmanager
def no_glyph_warnings() -> Iterator[None]:
    """Draw without matplotlib's warnings that no installed font has some character.

    Such a character is drawn as an empty box, which says the same where it matters. Older versions also
    warn that they do not shape a script (Arabic, Devanagari). Nothing else is silenced.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")
        yield


def paint(figure: Figure, axes: Axes, theme: Theme) -> None:
    """Plain axes in a theme's colours: a light grid across, no frame."""
    figure.set_facecolor(theme.background)
    axes.set_facecolor(theme.background)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted, labelsize=9, length=0, labelfontfamily=fonts())
    for side in axes.spines.values():
        side.set_visible(False)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color(theme.muted)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(theme.text)
        label.set_fontfamily(fonts())


def panels(
    theme: Theme, labels: Sequence[str], heights: Sequence[int], height: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """A figure of painted axes, one above the other, with one axis along the bottom; `height` in inches."""
    figure = Figure(figsize=(5.2, height), layout="constrained")
    column = list(figure.subplots(len(labels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for axes, label in zip(column, labels, strict=True):
        paint(figure, axes, theme)
        axes.set_ylabel(label)
        axes.tick_params(labelbottom=axes is column[-1])
    return figure, column


def bars(axes: Axes, theme: Theme, places: Sequence[float], counts: Sequence[int], widths: float | list[float]) -> None:
    """How many there were of what is drawn above; `places`: the bars' left edges."""
    for bar in axes.bar(places, counts, widths, align="edge", color=theme.muted, alpha=0.45):
        bar.set_edgecolor(theme.background)
    axes.yaxis.label.set_fontsize(9)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))


def line(theme: Theme, n: int) -> dict[str, Any]:
    """How the n-th of several lines is drawn: after all colours they come again, dashed."""
    again, of = divmod(n, len(theme.series))
    style = "--" if again % 2 else "-"
    return {"color": theme.series[of], "marker": MARKERS[of], "linestyle": style, "linewidth": 2}


FEW = 4
"""Lines whose legend has room among them; that of more goes below the figure."""


def legend(axes: Axes, theme: Theme, names: list[str]) -> None:
    """A frameless legend of the axes' lines, where there is more than one."""
    if len(names) < 2:
        return
    lines = axes.get_lines()
    if len(names) > FEW:
        assert isinstance(axes.figure, Figure)
        entries = axes.figure.legend(lines, names, loc="outside lower left", ncols=2, handlelength=3, frameon=False)
    else:
        entries = axes.legend(lines, names, frameon=False)
    for text in entries.get_texts():
        text.set(fontsize=9, fontfamily=fonts(), color=theme.text, parse_math=False)


def render(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a `png`, `svg` or `pdf` file, the same for the same figure."""
    buffer = io.BytesIO()
    date = {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    with no_glyph_warnings(), mpl.rc_context({"svg.hashsalt": "rnnsearch"}):
        figure.savefig(buffer, format=kind, dpi=160, metadata={date: None} if date else None)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the file's suffix.

    Errors: RnnsearchError for another suffix, or where the file cannot be written; a file that was
    there before is then left as it was.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        given = f'"{path.suffix}"' if path.suffix else "no suffix"
        raise RnnsearchError(f"{path}: the name of a figure must end in .png, .svg or .pdf; got {given}")
    write_bytes(path, render(figure, suffix[1:]))


# The plot of BLEU by source length (Bahdanau et al., figure 2).


def plot_bleu_by_length(
    systems: Mapping[str, Sequence[Bucket]], theme: Theme = LIGHT, title: str | None = None
) -> Figure:
    """BLEU against source length, one line a system, over bars of how many sentences each bucket holds."""
    figure, (above, below) = panels(theme, ("BLEU", "sentences"), (4, 1))
    for n, buckets in enumerate(systems.values()):
        lengths, bleu = [b.mean_length for b in buckets], [b.bleu for b in buckets]
        above.plot(lengths, bleu, markersize=5, **line(theme, n))
    buckets = next(iter(systems.values()), ())
    bars(below, theme, [b.low - 0.5 for b in buckets], [b.sentences for b in buckets], _widths(buckets))
    # Room above the lines for a legend there.
    above.set_ylim(0, above.get_ylim()[1] * (1 + 0.15 * len(systems) * (1 < len(systems) <= FEW)))
    below.set_xlabel("source length (words)")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    legend(above, theme, list(systems))
    if title:
        above.set_title(title, loc="left", color=theme.text, fontfamily=fonts(), parse_math=False)
    return figure


def _widths(buckets: Sequence[Bucket]) -> list[float]:
    """Bars as wide as their buckets."""
    widths = [b.high - b.low + 1.0 for b in buckets]
    if len(buckets) > 1:
        # One sentence of 300 words must not squeeze all others into a corner.
        widths[-1] = min(widths[-1], max(widths[-2], 2 * (buckets[-1].mean_length - buckets[-1].low) + 1))
    return widths


def write_plot(systems: Mapping[str, Sequence[Bucket]], folder: Path, title: str | None = None) -> list[Path]:
    """The plot as `bleu-by-length.png` and `.svg` in a folder; returns the files' paths.

    Errors: RnnsearchError where they cannot be written.
    """
    figure = plot_bleu_by_length(systems, title=title)
    paths = [folder / "bleu-by-length.png", folder / "bleu-by-length.svg"]
    for path in paths:
        save(figure, path)
    return paths


# The plot of BLEU by the share of weights that were pruned (See, Luong & Manning 2016).


class Point(NamedTuple):
    """BLEU at a share, as pruned and trained on (None: it was not)."""

    share: float
    before: float
    after: float | None


def plot_bleu_by_sparsity(ways: Mapping[str, Sequence[Point]], theme: Theme = LIGHT) -> Figure:
    """BLEU against the share pruned, a line a way: as pruned above, trained on below."""
    figure, both = panels(theme, ("BLEU, as pruned", "BLEU, trained on"), (1, 1), 5.0)
    for axes, value in zip(both, ("before", "after"), strict=True):
        for n, points in enumerate(ways.values()):
            known = [(point.share, bleu) for point in points if (bleu := getattr(point, value)) is not None]
            axes.plot(*zip(*known, strict=True), markersize=4, **line(theme, n))
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax or None)  # from 0, and whole marks at the top
    both[-1].set_xlabel("share of the weights that is pruned")
    both[-1].xaxis.set_major_formatter(PercentFormatter(1.0))
    legend(both[0], theme, list(ways))
    return figure


# How training went: the learning curves.

_MARKED = 40
"""A line of at most this many points shows each of them."""


def points(log: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Updates and values of one quantity of the log; rows without it, or not finite, are left out."""
    pairs = [(row.get("update"), row.get(key)) for row in log]
    known = [(float(u), float(v)) for u, v in pairs if u is not None and v is not None and math.isfinite(v)]
    return [u for u, _ in known], [v for _, v in known]


def curves(log: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> Figure | None:
    """Train and dev NLL over updates and, where the log has it, dev BLEU below.

    `log`: rows with `update` and any of `train_nll`, `dev_nll` and `dev_bleu`. None where fewer than two
    points of anything are known: there is no curve to draw.
    """
    nll = {name: points(log, key) for name, key in (("train NLL", "train_nll"), ("dev NLL", "dev_nll"))}
    parts = {"NLL a sentence": nll, "dev BLEU": {"dev BLEU": points(log, "dev_bleu")}}
    parts = {label: {name: line for name, line in lines.items() if line[0]} for label, lines in parts.items()}
    parts = {label: lines for label, lines in parts.items() if lines}
    if max((len(line[0]) for lines in parts.values() for line in lines.values()), default=0) < 2:
        return None
    figure, column = panels(theme, list(parts), (3, 2)[: len(parts)], 2.4 + 1.5 * (len(parts) - 1))
    for axes, (label, lines) in zip(column, parts.items(), strict=True):
        for n, (updates, values) in enumerate(lines.values(), start=2 if label == "dev BLEU" else 0):
            marker = MARKERS[n] if len(updates) <= _MARKED else ""
            axes.plot(updates, values, color=theme.series[n], marker=marker, markersize=4, linewidth=2)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        legend(axes, theme, list(lines))
    column[-1].set_xlabel("updates")
    column[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


# The plot of target words' accuracy by how often training saw them (`metrics.rare_words`).


def plot_rare_words(classes: Sequence[FrequencyClass], theme: Theme = LIGHT) -> Figure:
    """Recall and precision of each class of words, over bars of how many words the references have of it."""
    classes = shown(classes)
    figure, (above, below) = panels(theme, ("right", "words"), (4, 1))
    places = range(len(classes))
    for n, values in enumerate(([c.recall for c in classes], [c.precision for c in classes])):
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        x, y = [place for place, _ in known], [value for _, value in known]
        above.plot(x, y, markersize=5, **line(theme, n))
    bars(below, theme, [place - 0.4 for place in places], [c.wanted for c in classes], 0.8)
    above.set_ylim(0, 1)
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    below.set_xlabel("times the word occurs in the training text")
    below.set_xticks(list(places), [c.label for c in classes])
    legend(above, theme, ["recall", "precision"])
    return figure
