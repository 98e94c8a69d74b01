"""`[training]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.choice import OneOf
from rnnsearch.config.optimisers import OPTIMISERS, OptimiserConfig
from rnnsearch.config.schedules import SCHEDULES, ConstantOptions, ScheduleConfig
from rnnsearch.config.table import Count, Positive, Share, Size, Table


class BatchConfig(Table):
    """`[training.batch]`: without this table, `tokens = 4000`."""

    tokens: Size | None = None
    """Budget of a batch: its sentences times the symbols of the longest side, EOS included."""
    sentences: Size | None = None
    """Sentences of a batch. Exactly one of `tokens` and `sentences` must be given."""
    sort_batches: Size = 100
    """So many batches' worth of random pairs are sorted by length together (20 in Bahdanau et al.)."""
    shuffle: Literal["epoch", "once"] = "epoch"
    """Pairs are shuffled in each epoch and batches again, or pairs once and their batches traversed in order (Bahdanau
    et al., appendix B.2)."""
    accumulate: Size = 1
    """Batches whose gradients make one update."""

    @model_validator(mode="after")
    def _one_budget(self) -> BatchConfig:
        if (self.tokens is None) == (self.sentences is None):
            raise ValueError("must give exactly one of `tokens` and `sentences`")
        return self


class TrainingConfig(Table):
    """`[training]`: at least one of `max_epochs`, `max_updates`, `max_minutes` and `patience` must be given."""

    batch: BatchConfig = BatchConfig(tokens=4000)
    optimiser: Annotated[
        OptimiserConfig, OneOf("optimiser", OPTIMISERS, default="adam"), Field(default={}, validate_default=True)
    ]
    schedule: Annotated[ScheduleConfig, OneOf("schedule", SCHEDULES, default="constant")] = ConstantOptions()
    begin_from: str | None = None
    """A model folder, relative to the run file, whose weights the run begins with, in the place of drawn ones: its
    `[model]` and its symbols (`text.tokenizers`) must be the same. What this `[model]` has besides is drawn."""
    keep_zeros: bool = False
    """Weights of `begin_from` that `rnnsearch prune` has made zero stay so ([Shrinking](shrinking.md))."""
    max_length: Size | None = None
    """Training pairs with more symbols than this on either side are left out."""
    max_epochs: Positive | None = None
    """Stop after this many passes over the training pairs."""
    max_updates: Size | None = None
    """Stop after this many updates."""
    max_minutes: Positive | None = None
    """Stop after this many minutes of training, all resumed sessions together. Evaluation is not counted."""
    all_reduce: Literal["fp32", "bf16"] | None = None
    """What gradients are sent as where [several processes](training.md#several-processes-and-machines) train (fp32 if
    not given): bf16 is half as much to send."""
    normalise: Literal["sentences", "tokens"] = "sentences"
    """The loss is summed over words and averaged over sentences (the papers), or averaged over words."""
    label_smoothing: Share = 0.0
    """Share of the target distribution that is spread over the whole vocabulary."""
    clip_norm: Positive | None = None
    """Scale the gradient down to this norm where it is longer."""
    clip_value: Positive | None = None
    """Cut every element of the gradient to this size, before `clip_norm`."""
    clip_deviations: Positive | None = None
    """Leave an update out where the logarithm of its gradient's norm is this many moving standard deviations above its
    moving mean (4 in Chen et al. 2018)."""
    l2: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """This share of half the squared parameters is added to the loss of each update, in its gradient."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16`: matrix products in bfloat16 over weights in fp32."""
    evaluate_every: Size | None = None
    """Updates between dev evaluations. Without it: once an epoch."""
    metric: Literal["nll", "bleu", "aer"] = "nll"
    """What the best dev score is: the lowest NLL, the highest BLEU, or the lowest alignment error rate of the
    references. `bleu` needs `dev_bleu`; `aer` needs word alignments of the dev set."""
    dev_bleu: bool = True
    """Translate the dev set (greedily) at each evaluation."""
    patience: Size | None = None
    """Stop after this many evaluations in a row without a better dev score."""
    checkpoint_every: Size | None = None
    """Updates between numbered weights that are kept. Without it: only the best, the last and those to average."""
    save_minutes: Positive = 10.0
    """Minutes between saves of the state, besides those at evaluations."""
    average: Count = 0
    """Average the weights of this many last evaluations, and keep the mean if the dev set says that it is better. 0: do
    not."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Of everything random: parameters, dropout, the order of batches."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads. Without it: torch's own choice."""
    device: str = "auto"
    """`auto` (the GPU where there is one), `cpu`, `cuda` or `cuda:N`; with several processes not `cuda:N`: each has its
    own GPU."""
    tensorboard: bool = False
    """Write scalars for TensorBoard to `tensorboard/` in the run's folder. Needs the package (`pip install
    tensorboard`)."""

    @model_validator(mode="after")
    def _ends(self) -> TrainingConfig:
        if self.max_epochs is None and self.max_updates is None and self.max_minutes is None and self.patience is None:
            raise ValueError("must say when to stop: max_epochs, max_updates, max_minutes or patience")
        if self.average == 1:
            raise ValueError("average must be 0 or at least 2: one evaluation's weights are their own mean")
        if self.metric == "bleu" and not self.dev_bleu:
            raise ValueError('metric = "bleu" needs dev_bleu = true')
        if self.keep_zeros and self.begin_from is None:
            raise ValueError("keep_zeros = true needs begin_from, the folder of a pruned model")
        return self
