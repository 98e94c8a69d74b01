"""Heat maps show words and weights at bounded sizes in any script; invalid input raises an error."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.plots.heatmap import heatmap, save

ATTENTION = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])


def test_axes_show_the_words_and_weights():
    (axes,) = heatmap(ATTENTION, ["Ein", "Mann", "$5$"], ["A", "man"]).axes
    (image,) = axes.get_images()
    assert np.array_equal(image.get_array(), ATTENTION)
    assert (image.norm.vmin, image.norm.vmax, image.get_cmap().name) == (0.0, 1.0, "gray")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["Ein", "Mann", "$5$"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "man"]
    assert axes.xaxis.get_ticks_position() == "top"


def test_black_is_zero_and_white_is_one(tmp_path):
    weights = np.array([[0.0, 0.5, 1.0], [1.0, 0.0, 0.2]])
    figure = heatmap(weights, ["a", "b", "c"], ["x", "y"])
    save(figure, tmp_path / "map.png")
    image = np.asarray(Image.open(tmp_path / "map.png").convert("L"))
    box = figure.axes[0].get_position()
    rows = ((1 - box.y1 + box.height * np.array([0.25, 0.75])) * image.shape[0]).astype(int)
    columns = ((box.x0 + box.width * np.array([1, 3, 5]) / 6) * image.shape[1]).astype(int)
    assert image[np.ix_(rows, columns)] == pytest.approx(255 * weights, abs=2)


def test_words_are_inside_the_figure(tmp_path):
    words = ["Donaudampfschifffahrtsgesellschaft", "kurz"]
    save(
        heatmap(np.eye(2), words, words),
        tmp_path / "map.png",
    )
    image = np.asarray(Image.open(tmp_path / "map.png").convert("L"))
    edges = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert edges.min() == 255


@pytest.mark.parametrize(("words", "most"), [(90, 14), (0, 1)])
def test_long_and_empty_sentences_have_bounded_size(words, most):
    assert heatmap(np.full((words, words), 0.1), ["word"] * words, ["word"] * words).get_size_inches().max() < most


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_any_script_is_drawn_without_warnings(tmp_path, suffix):
    source = ["בראשית", "ברא", "مرحبا", "日本語", "नमस्ते", "😀", "a\x00b", "--><x>&", "\\frac{$"]
    path = tmp_path / f"map.{suffix}"
    save(heatmap(np.full((1, len(source)), 0.1), source, ["\u202eevil"]), path)
    assert path.stat().st_size > 1000
    if suffix == "svg":
        ET.fromstring(path.read_bytes())


def test_equal_figures_give_equal_files(tmp_path):
    for name in ("one.svg", "two.svg"):
        save(heatmap(ATTENTION, ["a", "b", "c"], ["x", "y"]), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_invalid_shapes_and_values_raise():
    with pytest.raises(RnnsearchError, match=r"\[2, 3\]; got \[3, 2\] \(is it the transpose\?\)"):
        heatmap(ATTENTION.T, ["a", "b", "c"], ["x", "y"])
    with pytest.raises(RnnsearchError, match=r"\[1, 3\]; got \[2, 3\]$"):
        heatmap(ATTENTION, ["a", "b", "c"], ["x"])
    with pytest.raises(RnnsearchError, match="finite values; got NaN"):
        heatmap(np.full((1, 1), np.nan), ["a"], ["x"])


def test_unknown_suffixes_raise(tmp_path):
    figure = heatmap(ATTENTION, ["a", "b", "c"], ["x", "y"])
    with pytest.raises(RnnsearchError, match=r'map.jpg: .* must end in .png, .svg or .pdf; got ".jpg"'):
        save(figure, tmp_path / "map.jpg")
    with pytest.raises(RnnsearchError, match=r"map: .* got no suffix"):
        save(figure, tmp_path / "map")
    assert not list(tmp_path.iterdir())
