"""What all our figures share: colours, fonts, and files written whole or not at all.

Figures are matplotlib `Figure` objects made without pyplot: no global state, no display needed, and
nothing to close.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rnnsearch.errors import RnnsearchError
from rnnsearch.files import write_bytes

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
