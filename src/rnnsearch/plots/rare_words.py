"""The plot of target words' accuracy by how often training saw them (`metrics.rare_words`)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from rnnsearch.metrics.rare_words import FrequencyClass, shown
from rnnsearch.plots.figures import LIGHT, MARKERS, Theme, legend, paint


def plot(classes: Sequence[FrequencyClass], theme: Theme = LIGHT) -> Figure:
    """Recall and precision of each class of words, over bars of how many words the references have of it."""
    classes = shown(classes)
    figure = Figure(figsize=(5.2, 3.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    places = range(len(classes))
    for n, values in enumerate(([c.recall for c in classes], [c.precision for c in classes])):
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        x, y = [place for place, _ in known], [value for _, value in known]
        above.plot(x, y, color=theme.series[n], marker=MARKERS[n], markersize=5, linewidth=2)
    bars = below.bar(places, [c.wanted for c in classes], 0.8, color=theme.muted, alpha=0.45)
    for bar in bars:
        bar.set_edgecolor(theme.background)
    for axes in (above, below):
        paint(figure, axes, theme)
    above.set_ylim(0, 1)
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.set_ylabel("right", color=theme.text)
    above.tick_params(labelbottom=False)
    below.set_ylabel("words", color=theme.text, fontsize=9)
    below.set_xlabel("times the word occurs in the training text", color=theme.text)
    below.set_xticks(list(places), [c.label for c in classes])
    below.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))
    legend(above, theme, ["recall", "precision"])
    return figure
