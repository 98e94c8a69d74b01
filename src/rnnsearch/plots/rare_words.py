"""The plot of target words' accuracy by how often training saw them (`metrics.rare_words`)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rnnsearch.metrics.rare_words import FrequencyClass, shown
from rnnsearch.plots.figures import LIGHT, Theme, bars, legend, line, panels


def plot(classes: Sequence[FrequencyClass], theme: Theme = LIGHT) -> Figure:
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
