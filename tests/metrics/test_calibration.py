"""Calibration: a logistic regression finds the probabilities that made the data, and its error is what it says."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from rnnsearch.errors import DataError, ModelError
from rnnsearch.metrics.calibration import Calibration, calibrate, calibration_bins, expected_calibration_error

NAMES = ("a", "b")


def drawn(words=20_000, seed=1):
    random = np.random.default_rng(seed)
    x = random.normal(size=(words, 2)) * [1.0, 5.0] + [3.0, -2.0]
    p = 1 / (1 + np.exp(-(0.8 * (x[:, 0] - 3.0) - 0.3 * (x[:, 1] + 2.0) + 0.5)))
    return x, p, random.random(words) < p, np.arange(words) // 10


def test_regression_recovers_the_true_weights():
    x, p, right, sentence = drawn()
    found = calibrate(NAMES, x, right, sentence)
    assert found(x) == pytest.approx(p, abs=0.06)
    slopes = np.array(found.weight) / np.array(found.deviation)
    assert slopes == pytest.approx([0.8, -0.3], abs=0.05)
    assert found.error < 0.02
    assert (found.words, found.right) == (20_000, pytest.approx(right.mean()))
    more, _, true, _ = drawn(seed=2)
    assert expected_calibration_error(calibration_bins(found(more), true)) < 0.02


def test_gradient_is_zero_at_the_maximum():
    x, _, right, sentence = drawn(500)
    found = calibrate(NAMES, x, right, sentence)
    z = (x - np.array(found.mean)) / np.array(found.deviation)
    assert (right - found(x)).sum() == pytest.approx(0.0, abs=1e-4)
    assert z.T @ (right - found(x)) == pytest.approx(np.array(found.weight), abs=1e-4), "the ridge"


def test_calibration_error_is_the_weighted_mean_over_bins():
    sure, right = np.array([0.05, 0.07, 0.95, 0.99, 1.0, 0.0]), np.array([True, False, True, True, False, False])
    made = calibration_bins(sure, right)
    assert [(b.count, b.right) for b in made] == [(3, pytest.approx(1 / 3)), (3, pytest.approx(2 / 3))]
    assert expected_calibration_error(made) == pytest.approx((abs(0.04 - 1 / 3) + abs(0.98 - 2 / 3)) / 2)
    assert expected_calibration_error([]) == 0.0


def test_too_few_words_raise_data_error():
    x, _, right, sentence = drawn(300)
    for n, some in ((100, right), (300, np.ones(300, dtype=bool)), (300, np.zeros(300, dtype=bool))):
        with pytest.raises(DataError, match="a calibration needs at least 200 translated words"):
            calibrate(NAMES, x[:n], some[:n], sentence[:n])


def test_save_and_load_round_trip_and_invalid_files(tmp_path):
    x, _, right, sentence = drawn(500)
    found, path = calibrate(NAMES, x, right, sentence), tmp_path / "confidence.json"
    found.save(path)
    assert Calibration.load(path, NAMES) == found
    with pytest.raises(ModelError, match="has other features; calibrate the model again"):
        Calibration.load(path, ("a", "c"))
    good = json.loads(json.dumps(asdict(found)))
    for wrong in ({"bias": float("nan")}, {"mean": [1.0]}, {"deviation": [0.0, 1.0]}, {"weight": [1.0, float("inf")]}):
        path.write_text(json.dumps(good | wrong))
        with pytest.raises(ModelError, match="calibrate"):
            Calibration.load(path, NAMES)
    for text in ("", "[]", "{}", "[" * 100_000, json.dumps(good | {"mean": "ab"})):
        path.write_text(text)
        with pytest.raises(ModelError, match="got a damaged or foreign file"):
            Calibration.load(path, NAMES)
