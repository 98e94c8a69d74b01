"""Calibrated word confidence: a logistic regression from features of a translated word to its correctness.

A word is correct if a reference contains it. The expected calibration error measures how far the
predicted probabilities are from the observed frequencies. `rnnsearch calibrate` learns a
calibration, and `translator.confidence` computes the features.

Fields of `Calibration` and names of features are the JSON that is stored in model folders and engine files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import DataError, ModelError
from rnnsearch.utils.files import JSON_ERRORS, read_folder_text, write_json

Floats = npt.NDArray[np.float64]
MAX_NEWTON_STEPS = 50


def fit_logistic_regression(x: Floats, correct: npt.NDArray[np.bool_], ridge: Floats) -> Floats:
    """Fit a ridge-regularised logistic regression by Newton's method.

    Returns the weights w [features] that maximise sum log p(correct) - w' diag(ridge) w / 2, where
    p = sigma(x w) is the probability that a row is correct. A positive ridge keeps a weight finite
    for separable rows.

    Args:
        x: [rows, features].
        correct: [rows].
        ridge: [features].
    """
    w = np.zeros(x.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30.0, 30.0)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(curvature, x.T @ (correct - p) - ridge * w)
        w += step
        if np.abs(step).max() < 1e-8:
            break
    return w


NUM_BINS = 10
NUM_FOLDS = 5
RIDGE = 1.0
MIN_WORDS = 200
"""Minimum number of words to learn a calibration from."""


@dataclass(frozen=True)
class Bin:
    """The words whose confidence lies in one of ten equal intervals."""

    count: int
    """Number of words."""
    confidence: float
    """Mean confidence."""
    right: float
    """Fraction of correct words."""


def calibration_bins(confidence: Floats, correct: npt.NDArray[np.bool_]) -> list[Bin]:
    """Return the bins that are not empty, in order of confidence."""
    indices = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = []
    for n in range(NUM_BINS):
        members = indices == n
        if members.any():
            bins.append(Bin(int(members.sum()), float(confidence[members].mean()), float(correct[members].mean())))
    return bins


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Return the mean difference of a bin's confidence and accuracy, weighted by words (Naeini et al. 2015)."""
    return sum(b.count * abs(b.confidence - b.right) for b in bins) / max(1, sum(b.count for b in bins))


@dataclass(frozen=True)
class Calibration:
    """A calibration p(correct) = sigma(w (x - mean) / deviation + b) of the features x of a word.

    It also stores what it was learned from, and its error on held-out sentences. The field names
    are part of the file format.
    """

    features: tuple[str, ...]
    """Names of the features, in the order of the weights."""
    mean: tuple[float, ...]
    """Mean of each feature."""
    deviation: tuple[float, ...]
    """Standard deviation of each feature."""
    weight: tuple[float, ...]
    """Weight of each standardised feature."""
    bias: float
    """Bias b."""
    words: int
    """Number of words that it was learned from."""
    right: float
    """Fraction of correct words."""
    error: float
    """Expected calibration error, cross-validated over sentences."""

    def __call__(self, x: Floats) -> Floats:
        """Return the confidence, 0 to 1, of words with features x [words, features]."""
        z = ((x - np.array(self.mean)) / np.array(self.deviation)) @ np.array(self.weight) + self.bias
        confidence: Floats = 1.0 / (1.0 + np.exp(-np.clip(z, -30.0, 30.0)))
        return confidence

    def save(self, path: Path) -> None:
        """Write the calibration as JSON."""
        write_json(path, asdict(self))

    @staticmethod
    def load(path: Path, features: Sequence[str]) -> Calibration:
        """Load a calibration that was written by `save`.

        Args:
            path: The file.
            features: Names of the features that the model computes.

        Raises:
            ModelError: The file is damaged, something else, or has other features.
        """
        try:
            return Calibration.from_json(read_folder_text(path), path, features)
        except (OSError, UnicodeDecodeError):
            raise _format_error(path) from None

    @staticmethod
    def from_json(text: str, path: Path, features: Sequence[str]) -> Calibration:
        """Return a calibration from the JSON that `save` writes.

        Raises:
            ModelError: See `load`.
        """
        try:
            raw = json.loads(text)
            mean, deviation, weight = (tuple(map(float, raw[name])) for name in ("mean", "deviation", "weight"))
            calibration = Calibration(
                features=tuple(map(str, raw["features"])),
                mean=mean,
                deviation=deviation,
                weight=weight,
                bias=float(raw["bias"]),
                words=int(raw["words"]),
                right=float(raw["right"]),
                error=float(raw["error"]),
            )
        except JSON_ERRORS:
            raise _format_error(path) from None
        values = [*mean, *deviation, *weight, calibration.bias]
        is_valid = {len(mean), len(deviation), len(weight)} == {len(features)} and all(map(math.isfinite, values))
        if calibration.features != tuple(features) or not is_valid or min(deviation) <= 0:
            raise ModelError(f"{path}: has other features; calibrate the model again")
        return calibration


def _format_error(path: Path) -> ModelError:
    return ModelError(f"{path}: must be what `rnnsearch calibrate` writes; got a damaged or foreign file")


def calibrate(
    names: Sequence[str], x: Floats, correct: npt.NDArray[np.bool_], sentence: npt.NDArray[np.int64]
) -> Calibration:
    """Learn a calibration.

    Args:
        names: Names of the features.
        x: Features of words, [words, features].
        correct: True for each correct word, [words].
        sentence: Index of each word's sentence, [words].

    Raises:
        DataError: There are too few words, or all or none are correct.
    """
    if len(correct) < MIN_WORDS or correct.all() or not correct.any():
        raise DataError(
            f"a calibration needs at least {MIN_WORDS} translated words, correct ones and wrong ones; "
            f"got {len(correct)}, of which {int(correct.sum())} are correct"
        )
    fold = sentence % NUM_FOLDS
    held_out = np.zeros(len(correct))
    for n in range(NUM_FOLDS):
        held_out[fold == n] = _fit(names, x[fold != n], correct[fold != n])(x[fold == n])
    error = expected_calibration_error(calibration_bins(held_out, correct))
    return replace(_fit(names, x, correct), error=error)


def _fit(names: Sequence[str], x: Floats, correct: npt.NDArray[np.bool_]) -> Calibration:
    mean = x.mean(0)
    deviation = np.maximum(x.std(0), 1e-6)
    inputs = np.column_stack([(x - mean) / deviation, np.ones(len(x))])
    w = fit_logistic_regression(inputs, correct, np.array([RIDGE] * x.shape[1] + [1e-9]))
    return Calibration(
        features=tuple(names),
        mean=tuple(map(float, mean)),
        deviation=tuple(map(float, deviation)),
        weight=tuple(map(float, w[:-1])),
        bias=float(w[-1]),
        words=len(correct),
        right=float(correct.mean()),
        error=0.0,
    )
