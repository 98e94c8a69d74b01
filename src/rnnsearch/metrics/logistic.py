"""Logistic regression by Newton's method."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
