"""The comparison of softmaxes interpolates between evaluations."""

from benchmarks.softmaxes import reached


def test_score_is_reached_between_evaluations():
    rows = [{"update": 10, "seconds": 4.0, "nll": 6.0}, {"update": 20, "seconds": 10.0, "nll": 4.0}]
    assert reached(4.5, rows, "nll", -1) == (17.5, 8.5)
    assert reached(7.0, rows, "nll", -1) == (10, 4.0)
    assert reached(3.0, rows, "nll", -1) is None
    assert reached(5.0, rows, "nll", 1) == (10, 4.0)
