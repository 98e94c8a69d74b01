"""Adaptive clipping: which gradients are of a usual length (Chen et al. 2018, section 3.3)."""

import math

DECAY = 0.995
"""Of the moving mean and deviation, in each update."""
SEEN = 0.75
"""Nothing is unusual before the weights of what was seen add up to so much (after 277 updates)."""


class UsualNorms:
    """A moving mean m and standard deviation s of x = log(1 + |g|); a norm with x > m + `deviations` s is unusual,
    "usually an indication of an imminent gradient explosion". It moves them as if it were m + `deviations` s."""

    def __init__(self, deviations: float | None, state: dict[str, float]) -> None:
        """deviations: None: all norms are usual. state: of earlier updates, or empty."""
        self.deviations = deviations
        self.state = state
        """weight: of what was seen so far, up to 1; mean, square: of x and x^2, times it."""

    def has(self, norm: float) -> bool:
        """Whether this update's norm is usual, compared to those before it."""
        if self.deviations is None:
            return True
        x, weight = math.log1p(norm), self.state.get("weight", 0.0)
        mean, square = (self.state.get(name, 0.0) / max(weight, 1e-6) for name in ("mean", "square"))
        most = mean + self.deviations * math.sqrt(max(square - mean**2, 1e-6))
        usual = x <= most or weight <= SEEN
        if not usual:
            x = most
        for name, value in {"weight": 1.0, "mean": x, "square": x * x}.items():
            old = self.state.get(name, 0.0)
            self.state[name] = old + (1 - DECAY) * (value - old)
        return usual
