"""How training went: the learning curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rnnsearch.plots.figures import LIGHT, MARKERS, Theme, legend, panels

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
