"""How training went: the learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rnnsearch.plots.figures import LIGHT, MARKERS, Theme, legend, paint

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
    nll = {name: line for name, line in nll.items() if line[0]}
    bleu = points(log, "dev_bleu")
    panels = [("NLL a sentence", nll)] if nll else []
    panels += [("dev BLEU", {"dev BLEU": bleu})] if bleu[0] else []
    if max((len(line[0]) for _, lines in panels for line in lines.values()), default=0) < 2:
        return None
    figure = Figure(figsize=(5.2, 2.4 + 1.5 * (len(panels) - 1)), layout="constrained")
    heights = (3, 2)[: len(panels)]
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, lines) in zip(grid, panels, strict=True):
        _draw(axes, lines, theme, first=0 if lines is nll else 2)
        paint(figure, axes, theme)
        axes.set_ylabel(name, color=theme.text)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.tick_params(labelbottom=axes is grid[-1])
        legend(axes, theme, list(lines))
    grid[-1].set_xlabel("updates", color=theme.text)
    grid[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def _draw(axes: Axes, lines: Mapping[str, tuple[list[float], list[float]]], theme: Theme, first: int) -> None:
    """One line a quantity; colours and marks from the theme's number `first` on."""
    for n, (updates, values) in enumerate(lines.values(), start=first):
        marker = MARKERS[n] if len(updates) <= _MARKED else ""
        axes.plot(updates, values, color=theme.series[n], marker=marker, markersize=4, linewidth=2)
