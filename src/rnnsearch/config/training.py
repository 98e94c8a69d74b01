"""`[training]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.table import Count, Positive, Share, Size, Table


class OptimiserConfig(Table):
    """`[training.optimiser]`"""

    type: str = "adam"
    learning_rate: Positive | None = None
    momentum: Share | None = None
    rho: Share | None = None
    epsilon: Positive | None = None
    beta1: Share | None = None
    beta2: Share | None = None
    weight_decay: Annotated[float, Field(ge=0.0)] | None = None


class ScheduleConfig(Table):
    """`[training.schedule]`: how the learning rate moves."""

    type: str = "constant"
    warmup: Count | None = None
    """Updates of linear rise at the beginning."""
    start: Annotated[float, Field(ge=0.0)] | None = None
    """Epoch after which `halving` begins."""
    every: Positive | None = None
    """Epochs between halvings."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    patience: Count | None = None
    """Evaluations without a better dev score before `plateau` lowers the rate."""
    minimum: Positive | None = None
    """`plateau` does not go below this factor of the learning rate; `exponential` ends at it."""
    decay_start: Count | None = None
    decay_end: Size | None = None
    """Updates between which `exponential` falls from 1 to `minimum`."""

    @model_validator(mode="after")
    def _decay(self) -> ScheduleConfig:
        if self.decay_start is not None and self.decay_end is not None and self.decay_start >= self.decay_end:
            raise ValueError(f"decay_end must be after decay_start ({self.decay_start}); got {self.decay_end}")
        return self


class BatchConfig(Table):
    """`[training.batch]`: exactly one of `tokens` and `sentences`."""

    tokens: Size | None = None
    """Budget of a batch: rows times the longer side's padded length."""
    sentences: Size | None = None
    sort_batches: Size = 100
    """Batches drawn at random together and sorted by length (20 in Bahdanau et al.)."""
    accumulate: Size = 1
    """Batches whose gradients are summed before one update."""

    @model_validator(mode="after")
    def _one_budget(self) -> BatchConfig:
        if (self.tokens is None) == (self.sentences is None):
            raise ValueError("must give exactly one of `tokens` and `sentences`")
        return self


class TrainingConfig(Table):
    """`[training]`"""

    batch: BatchConfig = BatchConfig(tokens=4000)
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    max_length: Size | None = None
    """Training pairs with more symbols than this on either side are left out (30 / 50 in the papers)."""
    max_epochs: Positive | None = None
    max_updates: Size | None = None
    max_minutes: Positive | None = None
    """Minutes of training, over all resumed sessions together; evaluation is not counted."""
    all_reduce: Literal["fp32", "bf16"] | None = None
    """What gradients are sent as where several processes train (fp32 if not given): bf16 is half as much to send."""
    normalise: Literal["sentences", "tokens"] = "sentences"
    """Loss summed over words and averaged over sentences (the papers), or averaged over words."""
    label_smoothing: Share = 0.0
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    evaluate_every: Size | None = None
    """Updates between dev evaluations; without it, once an epoch."""
    metric: Literal["nll", "bleu", "aer"] = "nll"
    """What `best` means on the dev set: the lowest NLL, the highest BLEU, or the lowest alignment error rate (of the
    references, where the dev set has word alignments)."""
    dev_bleu: bool = True
    """Translate the dev set (greedy) at each evaluation."""
    patience: Size | None = None
    """Evaluations without a better dev score before training stops."""
    checkpoint_every: Size | None = None
    """Updates between kept numbered checkpoints; without it, none is kept besides best and last."""
    save_minutes: Positive = 10.0
    """Minutes between saves of `last`, besides those at evaluations."""
    average: Count = 0
    """Final model = mean of the weights of the last this many evaluations (0: the best alone)."""
    seed: Count = 1
    threads: Size | None = None
    device: str = "auto"
    tensorboard: bool = False

    @model_validator(mode="after")
    def _ends(self) -> TrainingConfig:
        if self.max_epochs is None and self.max_updates is None and self.max_minutes is None and self.patience is None:
            raise ValueError("must say when to stop: max_epochs, max_updates, max_minutes or patience")
        if self.average == 1:
            raise ValueError("average must be 0 or at least 2: one evaluation's weights are their own mean")
        if self.metric == "bleu" and not self.dev_bleu:
            raise ValueError('metric = "bleu" needs dev_bleu = true')
        return self
