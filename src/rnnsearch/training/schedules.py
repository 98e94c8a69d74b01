"""Learning-rate schedules: factors on the optimiser's rate. Only `plateau` has a state, which resumes."""

from abc import ABC, abstractmethod
from typing import ClassVar

from rnnsearch.config import training
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.training import (
    ConstantOptions,
    ExponentialOptions,
    HalvingOptions,
    InverseSquareRootOptions,
    LinearOptions,
    PlateauOptions,
    RNMTPlusOptions,
    ScheduleConfig,
)


class Schedule(ABC):
    """A factor for each update, times a linear warm-up over `warmup` updates where that is given."""

    component: ClassVar[type[ScheduleConfig]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: ScheduleConfig) -> None:
        self.options = options
        self.state: dict[str, float] = {}
        """What a resumed run needs to go on."""

    def factor(self, update: int, epoch: float, done: float = 0.0) -> float:
        """The factor of update number `update` (from 1), `epoch` epochs into training (2.5: mid third).

        done: the share of the run that is done before this update, from 0 to 1, by the nearest of its limits.
        """
        warmup = self.options.warmup
        rise = update / warmup if update < warmup else 1.0
        return rise * self.after_warmup(update, epoch, done)

    @abstractmethod
    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        """The factor without the warm-up."""

    def evaluated(self, better: bool) -> None:
        """Told of each dev evaluation, and whether it was the best so far."""

    @property
    def early(self) -> bool:
        """Whether it waits for the dev score to lower the rate, and has done so once at most: what the score does not
        gain at this rate it may gain at lower ones."""
        return False


@implements(ConstantOptions)
class Constant(Schedule):
    """Always 1."""

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        return 1.0


@implements(HalvingOptions)
class Halving(Schedule):
    """1 until `start` epochs, then halved at once and every `every` epochs after (Luong et al.: 5 and 1)."""

    options: HalvingOptions

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        if epoch < self.options.start:
            return 1.0
        return float(0.5 ** (1 + (epoch - self.options.start) // self.options.every))


@implements(InverseSquareRootOptions)
class InverseSquareRoot(Schedule):
    """sqrt(warmup / update) after the warm-up."""

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        warmup = max(1, self.options.warmup)
        return float((warmup / max(update, warmup)) ** 0.5)


@implements(LinearOptions)
class LinearDecay(Schedule):
    """From 1 at the beginning straight down to 0 at the nearest of the run's limits (epochs, updates, minutes)."""

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        return 1.0 - done


@implements(PlateauOptions)
class Plateau(Schedule):
    """Times `factor` (0.5 if not given) whenever more than `patience` evaluations in a row bring no better dev score.

    With patience 0 that is every evaluation which is not the best so far. `minimum` bounds the product of the
    factors from below.
    """

    options: PlateauOptions

    def __init__(self, options: ScheduleConfig) -> None:
        super().__init__(options)
        self.state = {"current": 1.0, "worse": 0}

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        return max(self.state["current"], self.options.minimum or 0.0)

    def evaluated(self, better: bool) -> None:
        self.state["worse"] = 0 if better else self.state["worse"] + 1
        if self.state["worse"] > self.options.patience:
            self.state = {"current": self.state["current"] * self.options.factor, "worse": 0}

    @property
    def early(self) -> bool:
        current = self.state["current"]
        return current >= self.options.factor and current > (self.options.minimum or 0.0)


@implements(ExponentialOptions)
class Exponential(Schedule):
    """1 until update `decay_start`, then down to `minimum` at update `decay_end` by the same share at each update, and
    `minimum` after it."""

    options: ExponentialOptions

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        start, end, minimum = self.options.decay_start, self.options.decay_end, self.options.minimum
        way = min(max((update - start) / (end - start), 0.0), 1.0)
        return float(minimum**way)


@implements(RNMTPlusOptions)
class RNMTPlus(Schedule):
    """min(1 + t (n - 1) / (n p), n, n (2 n)^((s - n t) / (e - s))) at update t, for n devices, p `warmup`, s
    `decay_start`, e `decay_end`, and no less than at n t = e (Chen et al. 2018, eq. 1). The paper's 2 n, which ends at
    half the rate of one device, is here n / `minimum`."""

    options: RNMTPlusOptions

    def factor(self, update: int, epoch: float, done: float = 0.0) -> float:
        n, p = self.options.devices, self.options.warmup
        rise = 1 + update * (n - 1) / (n * p) if p else n
        return min(rise, self.after_warmup(update, epoch, done))

    def after_warmup(self, update: int, epoch: float, done: float) -> float:
        n, start, end = self.options.devices, self.options.decay_start, self.options.decay_end
        way = min(max((n * update - start) / (end - start), 0.0), 1.0)
        return float(n * (self.options.minimum / n) ** way)


SCHEDULES: Implementations[type[Schedule]] = Implementations(training.SCHEDULES)
