"""Line plots of scores and learning curves, in a common style, and rendering to PNG, SVG and PDF.

Plots: BLEU by source length (Bahdanau et al., figure 2), BLEU by sparsity (See, Luong & Manning
2016), learning curves, and the accuracy of rare words. Figures are matplotlib `Figure` objects made
without pyplot: no global state, no display needed, and nothing to close.

Equal figures must give equal bytes. Tests: tests/plots/test_learning.py.
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
from rnnsearch.metrics.scores import Bucket, FrequencyClass, non_empty_classes
from rnnsearch.utils.files import write_bytes

SUFFIXES = (".png", ".svg", ".pdf")

# Fonts for scripts that DejaVu Sans (which comes with matplotlib) does not cover; used if they are installed.
_ADDITIONAL_FONTS = (
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
    """Colours of a plot."""

    background: str
    """Colour of the background."""
    text: str
    """Colour of text."""
    muted: str
    """Colour of secondary text."""
    grid: str
    """Colour of grid lines."""
    series: tuple[str, ...]
    """Colours of the lines, each with a contrast of at least 4.5 to the background."""


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
    """Return DejaVu Sans and the installed fonts for other scripts."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _ADDITIONAL_FONTS if name in installed)]


@contextmanager
def no_glyph_warnings() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters that no installed font contains.

    Such a character is drawn as an empty box, which is visible enough. Older versions also warn
    that they do not shape a script (Arabic, Devanagari). No other warnings are suppressed.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")
        yield


def style_axes(figure: Figure, axes: Axes, theme: Theme) -> None:
    """Apply a theme: plain axes with a light horizontal grid and no frame."""
    figure.set_facecolor(theme.background)
    axes.set_facecolor(theme.background)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted, labelsize=9, length=0, labelfontfamily=fonts())
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.spines["bottom"].set_visible(True)
    axes.spines["bottom"].set_color(theme.muted)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(theme.text)
        label.set_fontfamily(fonts())


def stacked_axes(
    theme: Theme, labels: Sequence[str], heights: Sequence[int], height: float = 3.5
) -> tuple[Figure, list[Axes]]:
    """Return a figure of styled axes, one above the other, with a common horizontal axis.

    Args:
        theme: The theme.
        labels: Label of each vertical axis.
        heights: Relative heights of the axes.
        height: Height of the figure in inches.
    """
    figure = Figure(figsize=(5.2, height), layout="constrained")
    column = list(figure.subplots(len(labels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for axes, label in zip(column, labels, strict=True):
        style_axes(figure, axes, theme)
        axes.set_ylabel(label)
        axes.tick_params(labelbottom=axes is column[-1])
    return figure, column


def draw_counts(
    axes: Axes, theme: Theme, positions: Sequence[float], counts: Sequence[int], widths: float | list[float]
) -> None:
    """Draw bars of the number of items behind each point of the plot above; `positions` are the left edges."""
    for bar in axes.bar(positions, counts, widths, align="edge", color=theme.muted, alpha=0.45):
        bar.set_edgecolor(theme.background)
    axes.yaxis.label.set_fontsize(9)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))


def line_style(theme: Theme, n: int) -> dict[str, Any]:
    """Return matplotlib's options for the n-th of several lines; colours repeat with dashed lines."""
    repetition, index = divmod(n, len(theme.series))
    style = "--" if repetition % 2 else "-"
    return {"color": theme.series[index], "marker": MARKERS[index], "linestyle": style, "linewidth": 2}


MAX_INNER_LEGEND = 4
"""Maximum number of lines with the legend inside the axes; otherwise it is below the figure."""


def legend(axes: Axes, theme: Theme, names: list[str]) -> None:
    """Add a frameless legend if there is more than one line."""
    if len(names) < 2:
        return
    lines = axes.get_lines()
    if len(names) > MAX_INNER_LEGEND:
        assert isinstance(axes.figure, Figure)
        entries = axes.figure.legend(lines, names, loc="outside lower left", ncols=2, handlelength=3, frameon=False)
    else:
        entries = axes.legend(lines, names, frameon=False)
    for text in entries.get_texts():
        text.set(fontsize=9, fontfamily=fonts(), color=theme.text, parse_math=False)


def render(figure: Figure, format: str) -> bytes:
    """Return a figure as the bytes of a `png`, `svg` or `pdf` file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    date = {"svg": "Date", "pdf": "CreationDate"}.get(format)
    with no_glyph_warnings(), mpl.rc_context({"svg.hashsalt": "rnnsearch"}):
        figure.savefig(buffer, format=format, dpi=160, metadata={date: None} if date else None)
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the file's suffix.

    Raises:
        RnnsearchError: The suffix is unknown or the file cannot be written; an existing file is
            then unchanged.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        actual = f'"{path.suffix}"' if path.suffix else "no suffix"
        raise RnnsearchError(f"{path}: the name of a figure must end in .png, .svg or .pdf; got {actual}")
    write_bytes(path, render(figure, suffix[1:]))


def plot_bleu_by_length(
    systems: Mapping[str, Sequence[Bucket]], theme: Theme = LIGHT, title: str | None = None
) -> Figure:
    """Plot BLEU against source length, one line per system, above bars of the sentences in each bucket."""
    figure, (above, below) = stacked_axes(theme, ("BLEU", "sentences"), (4, 1))
    for n, buckets in enumerate(systems.values()):
        lengths = [bucket.mean_length for bucket in buckets]
        bleu = [bucket.bleu for bucket in buckets]
        above.plot(lengths, bleu, markersize=5, **line_style(theme, n))
    buckets = next(iter(systems.values()), ())
    draw_counts(below, theme, [b.low - 0.5 for b in buckets], [b.sentences for b in buckets], _bar_widths(buckets))
    top = above.get_ylim()[1]
    if 1 < len(systems) <= MAX_INNER_LEGEND:  # leave space for the legend above the lines
        top *= 1 + 0.15 * len(systems)
    above.set_ylim(0, top)
    below.set_xlabel("source length (words)")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    legend(above, theme, list(systems))
    if title:
        above.set_title(title, loc="left", color=theme.text, fontfamily=fonts(), parse_math=False)
    return figure


def _bar_widths(buckets: Sequence[Bucket]) -> list[float]:
    """Return the widths of the buckets, with the last one limited."""
    widths = [b.high - b.low + 1.0 for b in buckets]
    if len(buckets) > 1:
        # A single sentence of 300 words must not squeeze all others into a corner.
        widths[-1] = min(widths[-1], max(widths[-2], 2 * (buckets[-1].mean_length - buckets[-1].low) + 1))
    return widths


def write_bleu_by_length(systems: Mapping[str, Sequence[Bucket]], folder: Path, title: str | None = None) -> list[Path]:
    """Write the plot as `bleu-by-length.png` and `.svg` into a folder and return the paths.

    Raises:
        RnnsearchError: A file cannot be written.
    """
    figure = plot_bleu_by_length(systems, title=title)
    paths = [folder / "bleu-by-length.png", folder / "bleu-by-length.svg"]
    for path in paths:
        save(figure, path)
    return paths


class SparsityPoint(NamedTuple):
    """BLEU at a fraction of pruned weights, directly after pruning and after further training, if there was any."""

    fraction: float
    """Fraction of the weights that are pruned."""
    before: float
    """BLEU directly after pruning."""
    after: float | None
    """BLEU after further training, if there was any."""


def plot_bleu_by_sparsity(methods: Mapping[str, Sequence[SparsityPoint]], theme: Theme = LIGHT) -> Figure:
    """Plot BLEU against the fraction of pruned weights, one line per method: as pruned above, retrained below."""
    figure, column = stacked_axes(theme, ("BLEU, as pruned", "BLEU, trained on"), (1, 1), 5.0)
    for axes, attribute in zip(column, ("before", "after"), strict=True):
        for n, points in enumerate(methods.values()):
            measured = [point for point in points if getattr(point, attribute) is not None]
            fractions = [point.fraction for point in measured]
            bleu = [getattr(point, attribute) for point in measured]
            axes.plot(fractions, bleu, markersize=4, **line_style(theme, n))
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax or None)  # leaves space for whole markers at the top
    column[-1].set_xlabel("fraction of pruned weights")
    column[-1].xaxis.set_major_formatter(PercentFormatter(1.0))
    legend(column[0], theme, list(methods))
    return figure


_MAX_MARKERS = 40
"""Lines with more points are drawn without markers."""


def log_series(log: Sequence[Mapping[str, Any]], key: str) -> tuple[list[float], list[float]]:
    """Return the updates and values of one quantity in a log; missing and non-finite values are omitted."""
    pairs = [(row.get("update"), row.get(key)) for row in log]
    finite = [(float(u), float(v)) for u, v in pairs if u is not None and v is not None and math.isfinite(v)]
    return [u for u, _ in finite], [v for _, v in finite]


def plot_learning_curves(log: Sequence[Mapping[str, Any]], theme: Theme = LIGHT) -> Figure | None:
    """Plot training and dev NLL over updates, and dev BLEU below if the log has it.

    Returns None if no quantity has two points.

    Args:
        log: Rows with `update` and any of `train_nll`, `dev_nll` and `dev_bleu`.
        theme: The theme.
    """
    nll = {"train NLL": log_series(log, "train_nll"), "dev NLL": log_series(log, "dev_nll")}
    bleu = {"dev BLEU": log_series(log, "dev_bleu")}
    panels = {}
    for label, series in (("NLL per sentence", nll), ("dev BLEU", bleu)):
        lines = {name: (updates, values) for name, (updates, values) in series.items() if updates}
        if lines:
            panels[label] = lines
    num_points = [len(updates) for lines in panels.values() for updates, _ in lines.values()]
    if max(num_points, default=0) < 2:
        return None
    figure, column = stacked_axes(theme, list(panels), (3, 2)[: len(panels)], 2.4 + 1.5 * (len(panels) - 1))
    for axes, (label, lines) in zip(column, panels.items(), strict=True):
        for n, (updates, values) in enumerate(lines.values(), start=2 if label == "dev BLEU" else 0):
            marker = MARKERS[n] if len(updates) <= _MAX_MARKERS else ""
            axes.plot(updates, values, color=theme.series[n], marker=marker, markersize=4, linewidth=2)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        legend(axes, theme, list(lines))
    column[-1].set_xlabel("updates")
    column[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def plot_rare_words(classes: Sequence[FrequencyClass], theme: Theme = LIGHT) -> Figure:
    """Plot recall and precision by training frequency, above bars of the words in the references."""
    classes = non_empty_classes(classes)
    figure, (above, below) = stacked_axes(theme, ("correct", "words"), (4, 1))
    positions = range(len(classes))
    recall = [c.recall for c in classes]
    precision = [c.precision for c in classes]
    for n, values in enumerate((recall, precision)):
        defined = [(position, value) for position, value in enumerate(values) if value is not None]
        x = [position for position, _ in defined]
        y = [value for _, value in defined]
        above.plot(x, y, markersize=5, **line_style(theme, n))
    draw_counts(below, theme, [position - 0.4 for position in positions], [c.wanted for c in classes], 0.8)
    above.set_ylim(0, 1)
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    below.set_xlabel("times the word occurs in the training text")
    below.set_xticks(list(positions), [c.label for c in classes])
    legend(above, theme, ["recall", "precision"])
    return figure
