"""`[training.schedule]`: a schedule's options. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import Options, by_name, raise_faults
from rnnsearch.config.faults import fault
from rnnsearch.config.table import Count, NotNegative, Positive, Size


class ScheduleConfig(Options):
    """`[training.schedule]`: how the learning rate moves.

    `plateau` and `training.patience` count evaluations on the dev set."""

    type: str
    """A schedule: see below."""
    warmup: Count = 0
    """Updates over which the rate rises linearly at the beginning."""


class ConstantOptions(ScheduleConfig):
    """The rate stays as it is."""

    type: Literal["constant"] = "constant"


class HalvingOptions(ScheduleConfig):
    """Halved at `start` epochs, and every `every` epochs after."""

    type: Literal["halving"] = "halving"
    start: NotNegative
    """Epochs before the first halving."""
    every: Positive
    """Epochs from one halving to the next."""


class InverseSquareRootOptions(ScheduleConfig):
    """Falls with the square root of the updates, after the warm-up."""

    type: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Count


class LinearOptions(ScheduleConfig):
    """Straight down to zero at the nearest of the run's limits (epochs, updates, minutes)."""

    type: Literal["linear"] = "linear"


class PlateauOptions(ScheduleConfig):
    """Lowered when the dev score no longer gets better."""

    type: Literal["plateau"] = "plateau"
    patience: Count
    """Evaluations in a row without a better dev score that are borne before the rate falls; 0: none."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """What the rate is multiplied by."""
    minimum: Positive | None = None
    """The rate never falls below this share of `learning_rate`; `exponential` ends there."""


class _DecayOptions(ScheduleConfig):
    decay_start: Count
    """The last update at the full rate."""
    decay_end: Size
    """The update at which the rate is at `minimum`."""
    minimum: Positive

    @model_validator(mode="after")
    def _falls(self) -> _DecayOptions:
        if self.decay_start >= self.decay_end:
            raise_faults(
                [fault(("decay_end",), f"must be after decay_start ({self.decay_start}); got {self.decay_end}")]
            )
        return self


class ExponentialOptions(_DecayOptions):
    """Falls from update `decay_start` to `decay_end`, by the same share at each update."""

    type: Literal["exponential"] = "exponential"


class RNMTPlusOptions(_DecayOptions):
    """The rate for one device rises to `devices` times it, and falls from there (Chen et al. 2018, eq. 1)."""

    type: Literal["rnmt-plus"] = "rnmt-plus"
    devices: Size = 1
    """Devices whose gradients make one update, in synchrony (n in eq. 1): 32 in Chen et al."""
    warmup: Count = 500
    """So many times `devices` updates take the rate from 1 to `devices` (p in eq. 1); with one device nothing rises."""


SCHEDULES: dict[str, type[ScheduleConfig]] = by_name(
    *(ConstantOptions, HalvingOptions, InverseSquareRootOptions),
    *(LinearOptions, PlateauOptions, ExponentialOptions, RNMTPlusOptions),
)
