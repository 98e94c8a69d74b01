"""Learning-rate schedules: factors of the optimiser's learning rate.

The training loop (`loop.py`) calls `factor` at each update. Only `Plateau` has state, which checkpoints store.

Names in `SCHEDULES` and options are those of `[training.schedule]` (`config/training.py`); a new schedule is a class
here and a declaration there.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

from rnnsearch.config import training
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.training import (
    ConstantOptions,
    ExponentialDecayOptions,
    HalvingOptions,
    InverseSquareRootOptions,
    LinearOptions,
    PlateauOptions,
    RNMTPlusScheduleOptions,
    ScheduleConfig,
)


class Schedule(ABC):
    """A factor for each update, times a linear warm-up over `warmup` updates if configured."""

    component: ClassVar[type[ScheduleConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: ScheduleConfig) -> None:
        self.options = options
        self.state: dict[str, float] = {}
        """Values that a checkpoint stores."""

    def factor(self, update: int, epoch: float, progress: float = 0.0) -> float:
        """Return the factor of an update.

        Args:
            update: Number of the update, from 1.
            epoch: Epochs done before it; 2.5 is the middle of the third epoch.
            progress: Fraction of the run done before it, from 0 to 1, by the run's nearest limit.
        """
        warmup = self.options.warmup
        rise = update / warmup if update < warmup else 1.0
        return rise * self.after_warmup(update, epoch, progress)

    @abstractmethod
    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        """Return the factor without the warm-up."""

    def evaluated(self, is_best: bool) -> None:
        """Take note of a dev evaluation; `is_best` is True if its score is the best so far."""

    @property
    def awaits_decay(self) -> bool:
        """Return True if the schedule lowers the rate by dev scores and has done so at most once.

        A dev score that no longer improves may then still improve at lower rates.
        """
        return False


@implements(ConstantOptions)
class Constant(Schedule):
    """A constant factor of 1."""

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        return 1.0


@implements(HalvingOptions)
class Halving(Schedule):
    """1 until `start` epochs, then halved at once and after every `every` epochs (Luong et al.: 5 and 1)."""

    options: HalvingOptions

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        if epoch < self.options.start:
            return 1.0
        return float(0.5 ** (1 + (epoch - self.options.start) // self.options.every))


@implements(InverseSquareRootOptions)
class InverseSquareRoot(Schedule):
    """sqrt(warmup / update) after the warm-up."""

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        warmup = max(1, self.options.warmup)
        return float((warmup / max(update, warmup)) ** 0.5)


@implements(LinearOptions)
class LinearDecay(Schedule):
    """Linear decay from 1 to 0 at the run's nearest limit (epochs, updates or minutes)."""

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        return 1.0 - progress


@implements(PlateauOptions)
class Plateau(Schedule):
    """Decay by `factor` (default 0.5) after more than `patience` evaluations in a row without a better dev score.

    With patience 0, each evaluation that is not the best so far lowers the rate. `minimum` bounds the product of the
    factors from below.
    """

    options: PlateauOptions

    def __init__(self, options: ScheduleConfig) -> None:
        super().__init__(options)
        self.state = {"current": 1.0, "worse": 0}

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        return max(self.state["current"], self.options.minimum or 0.0)

    def evaluated(self, is_best: bool) -> None:
        self.state["worse"] = 0 if is_best else self.state["worse"] + 1
        if self.state["worse"] > self.options.patience:
            self.state = {"current": self.state["current"] * self.options.factor, "worse": 0}

    @property
    def awaits_decay(self) -> bool:
        current = self.state["current"]
        return current >= self.options.factor and current > (self.options.minimum or 0.0)


@implements(ExponentialDecayOptions)
class ExponentialDecay(Schedule):
    """1 until update `decay_start`, then exponential decay to `minimum` at update `decay_end`, then constant."""

    options: ExponentialDecayOptions

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        start = self.options.decay_start
        end = self.options.decay_end
        minimum = self.options.minimum
        fraction = min(max((update - start) / (end - start), 0.0), 1.0)
        return float(minimum**fraction)


@implements(RNMTPlusScheduleOptions)
class RNMTPlusSchedule(Schedule):
    """The schedule of RNMT+ (Chen et al. 2018, eq. 1).

    min(1 + t (n - 1) / (n p), n, n (2 n)^((s - n t) / (e - s))) at update t, with n `devices`, p `warmup`, s
    `decay_start` and e `decay_end`, constant from n t = e on. The paper's 2 n, which ends at half the rate of one
    device, is n / `minimum` here.
    """

    options: RNMTPlusScheduleOptions

    def factor(self, update: int, epoch: float, progress: float = 0.0) -> float:
        n = self.options.devices
        p = self.options.warmup
        rise = 1 + update * (n - 1) / (n * p) if p else n
        return min(rise, self.after_warmup(update, epoch, progress))

    def after_warmup(self, update: int, epoch: float, progress: float) -> float:
        n = self.options.devices
        start = self.options.decay_start
        end = self.options.decay_end
        fraction = min(max((n * update - start) / (end - start), 0.0), 1.0)
        return float(n * (self.options.minimum / n) ** fraction)


SCHEDULES: Implementations[type[Schedule]] = Implementations(training.SCHEDULES)
"""Class by `type` of `[training.schedule]`; names are stored in model folders."""
