"""The plot of BLEU by the share of weights that were pruned (See, Luong & Manning 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rnnsearch.plots.figures import LIGHT, Theme, legend, line, panels


class Point(NamedTuple):
    """BLEU at a share, as pruned and trained on (None: it was not)."""

    share: float
    before: float
    after: float | None


def plot(ways: Mapping[str, Sequence[Point]], theme: Theme = LIGHT) -> Figure:
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
