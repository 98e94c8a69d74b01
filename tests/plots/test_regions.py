"""Plots of attention over the regions of an image."""

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.figures import render
from rnnsearch.metrics.plots.regions import region_figure


def test_each_word_has_a_picture_of_the_grid():
    attention = np.array([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0, 0.5]], np.float32)
    figure = region_figure(attention, (2, 3), ["a", "$x$"], image=np.ones((4, 6)))
    assert [axes.get_title() for axes in figure.axes] == ["a", "$x$"]
    for axes, weights in zip(figure.axes, attention, strict=True):
        pixels, shown = axes.images
        assert pixels.get_array().shape == (4, 6)
        assert shown.get_array().tolist() == weights.reshape(2, 3).tolist()
        assert shown.get_extent() == pixels.get_extent()
    assert render(figure, "png") == render(region_figure(attention, (2, 3), ["a", "$x$"], np.ones((4, 6))), "png")


def test_weights_must_be_those_of_the_grid():
    with pytest.raises(RnnsearchError):
        region_figure(np.ones((1, 5), np.float32), (2, 3), ["a"])
