"""How sure to be of a word: a logistic regression from what search says of it to whether a reference has it, and how
far its probabilities are from what comes true (the expected calibration error)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import DataError, ModelError
from rnnsearch.utils.files import write_json

# Logistic regression by Newton's method.

Numbers = npt.NDArray[np.float64]
ROUNDS = 50


def logistic(x: Numbers, right: npt.NDArray[np.bool_], ridge: Numbers) -> Numbers:
    """The weights w [features] that make sum log p(right) - w' diag(ridge) w / 2 largest, where p = sigma(x w) is the
    probability that a row of x [rows, features] is right. A ridge [features] above 0 keeps a weight finite where the
    rows can be told apart without fault."""
    w = np.zeros(x.shape[1])
    for _ in range(ROUNDS):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30.0, 30.0)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(curvature, x.T @ (right - p) - ridge * w)
        w += step
        if np.abs(step).max() < 1e-8:
            break
    return w


BINS, FOLDS, RIDGE = 10, 5, 1.0
FEWEST = 200
"""Words that a calibration is learned from at least."""


@dataclass(frozen=True)
class Bin:
    """The words whose confidence lies in one of ten equal ranges."""

    count: int
    confidence: float
    """Its mean."""
    right: float
    """The share of them that a reference has."""


def bins(confidence: Numbers, right: npt.NDArray[np.bool_]) -> list[Bin]:
    """Those that are not empty, the least sure first."""
    number = np.minimum((confidence * BINS).astype(int), BINS - 1)
    each = [number == n for n in range(BINS)]
    return [Bin(int(own.sum()), float(confidence[own].mean()), float(right[own].mean())) for own in each if own.any()]


def expected_calibration_error(made: Sequence[Bin]) -> float:
    """The mean distance of a bin's confidence from its share of right words, by their words (Naeini et al. 2015)."""
    return sum(b.count * abs(b.confidence - b.right) for b in made) / max(1, sum(b.count for b in made))


@dataclass(frozen=True)
class Calibration:
    """p(right) = sigma(w (x - mean) / deviation + b) of a word's features x; what it was learned from, and how well it
    does on sentences that it was not learned from."""

    features: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    weight: tuple[float, ...]
    bias: float
    words: int
    right: float
    """The share of those words that the references have."""
    error: float
    """The expected calibration error, cross-validated over sentences."""

    def __call__(self, x: Numbers) -> Numbers:
        """Of words' features [words, features] their confidence, 0 to 1."""
        z = ((x - np.array(self.mean)) / np.array(self.deviation)) @ np.array(self.weight) + self.bias
        found: Numbers = 1.0 / (1.0 + np.exp(-np.clip(z, -30.0, 30.0)))
        return found

    def save(self, path: Path) -> None:
        """As JSON."""
        write_json(path, asdict(self))

    @staticmethod
    def load(path: Path, features: Sequence[str]) -> Calibration:
        """Read what `save` wrote. Errors: ModelError for a damaged or foreign file, or one of other features."""
        try:
            return Calibration.of(path.read_text(encoding="utf-8"), path, features)
        except (OSError, UnicodeDecodeError):
            raise _foreign(path) from None

    @staticmethod
    def of(text: str, path: Path, features: Sequence[str]) -> Calibration:
        """From what `save` writes. Errors: ModelError, as in `load`."""
        try:
            raw = json.loads(text)
            mean, deviation, weight = (tuple(map(float, raw[name])) for name in ("mean", "deviation", "weight"))
            numbers = float(raw["bias"]), int(raw["words"]), float(raw["right"]), float(raw["error"])
            found = Calibration(tuple(map(str, raw["features"])), mean, deviation, weight, *numbers)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            raise _foreign(path) from None
        values = [*mean, *deviation, *weight, found.bias]
        whole = {len(mean), len(deviation), len(weight)} == {len(features)} and all(map(math.isfinite, values))
        if found.features != tuple(features) or not whole or min(deviation) <= 0:
            raise ModelError(f"{path}: is of other features; calibrate the model again")
        return found


def _foreign(path: Path) -> ModelError:
    return ModelError(f"{path}: must be what `rnnsearch calibrate` writes; got a damaged or foreign file")


def calibrate(
    names: Sequence[str], x: Numbers, right: npt.NDArray[np.bool_], sentence: npt.NDArray[np.int64]
) -> Calibration:
    """Learn from words' features [words, features], whether each is `right`, and its sentence's number.

    Errors: DataError for too few words, or where all or none are right.
    """
    if len(right) < FEWEST or right.all() or not right.any():
        some = f"{FEWEST} translated words at least, right ones and wrong ones"
        raise DataError(f"a calibration needs {some}; got {len(right)}, of which {int(right.sum())} right")
    fold = sentence % FOLDS
    held = np.zeros(len(right))
    for n in range(FOLDS):
        held[fold == n] = _fitted(names, x[fold != n], right[fold != n])(x[fold == n])
    error = expected_calibration_error(bins(held, right))
    found = _fitted(names, x, right)
    return Calibration(**{**asdict(found), "error": error})


def _fitted(names: Sequence[str], x: Numbers, right: npt.NDArray[np.bool_]) -> Calibration:
    """The maximum of the likelihood with a small ridge."""
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
    a = np.column_stack([(x - mean) / deviation, np.ones(len(x))])
    w = logistic(a, right, np.array([RIDGE] * x.shape[1] + [1e-9]))
    center, spread, weight = (tuple(map(float, values)) for values in (mean, deviation, w[:-1]))
    return Calibration(tuple(names), center, spread, weight, float(w[-1]), len(right), float(right.mean()), 0.0)
