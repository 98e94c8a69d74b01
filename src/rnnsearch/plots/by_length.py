"""The plot of BLEU by source length (Bahdanau et al., figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rnnsearch.metrics.by_length import Bucket
from rnnsearch.plots.figures import FEW, LIGHT, Theme, bars, fonts, legend, line, panels, save


def plot(systems: Mapping[str, Sequence[Bucket]], theme: Theme = LIGHT, title: str | None = None) -> Figure:
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
    figure = plot(systems, title=title)
    paths = [folder / "bleu-by-length.png", folder / "bleu-by-length.svg"]
    for path in paths:
        save(figure, path)
    return paths
