"""Learning curves of incomplete logs, and the paper's table of learning statistics."""

import math

import pytest

from rnnsearch.metrics.plots.figures import log_series, plot_learning_curves
from rnnsearch.systems.card import LearningStatistics, statistics_table

LOG = [
    {"update": 10, "train_nll": 60.0},
    {"update": 20, "train_nll": 50.0, "dev_nll": 55.0, "dev_bleu": 3.0},
    {"update": 30, "train_nll": math.nan, "dev_nll": None},
    {"update": 40, "train_nll": 40.0, "dev_nll": 45.0, "dev_bleu": 9.0},
]


def test_log_series_omits_missing_values():
    assert log_series(LOG, "train_nll") == ([10.0, 20.0, 40.0], [60.0, 50.0, 40.0])
    assert log_series(LOG, "dev_bleu") == ([20.0, 40.0], [3.0, 9.0])
    assert log_series(LOG, "unheard_of") == ([], [])


def test_learning_curves_show_all_series():
    figure = plot_learning_curves(LOG)
    above, below = figure.axes
    assert [line.get_ydata().tolist() for line in above.get_lines()] == [[60.0, 50.0, 40.0], [55.0, 45.0]]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["train NLL", "dev NLL"]
    assert [line.get_ydata().tolist() for line in below.get_lines()] == [[3.0, 9.0]]


@pytest.mark.parametrize(
    ("log", "panels"),
    [
        ([{"update": n, "train_nll": 1.0} for n in range(3)], 1),
        (LOG[:1], 0),
        ([{"update": 1}, {"update": 2}], 0),
        ([], 0),
    ],
)
def test_missing_series_are_not_drawn(log, panels):
    figure = plot_learning_curves(log)
    assert (0 if figure is None else len(figure.axes)) == panels


def test_statistics_table():
    rows = statistics_table(
        [
            LearningStatistics("RNNsearch-50*", 667_000, 5.0, 252.0, "Quadro K-6000", 36.7, 35.2),
            LearningStatistics("small", 1200, 3.25, 0.126, "CPU", dev_nll=40.0),
        ]
    )
    assert rows[0] == ["Model", "Updates", "Epochs", "Hours", "Device", "Train NLL", "Dev NLL"]
    assert rows[1] == ["RNNsearch-50*", "667,000", "5.0", "252", "Quadro K-6000", "36.7", "35.2"]
    assert rows[2] == ["small", "1,200", "3.2", "0.13", "CPU", "-", "40.0"]
