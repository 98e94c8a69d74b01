"""`[training]` of a run file, with the options of optimisers and learning-rate schedules.

`training/optimisers.py` and `training/schedules.py` implement the components. A resumed run must have the same options,
except those in `RESUMABLE_OPTIONS` (`training/run_folder.py`). Names and options are stored in checkpoints and model
folders: never rename them. docs/configuration.md is generated from the docstrings. Tests:
tests/training/test_optimisers.py, tests/training/test_schedules.py, tests/test_config.py.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rnnsearch.config.options import (
    Count,
    Family,
    Fraction,
    NonNegative,
    OneOf,
    Options,
    Positive,
    Size,
    Table,
    problem,
    raise_problem,
    raise_problems,
)

# `[training.optimiser]`: the options of the optimisers.


class OptimiserConfig(Options):
    """`[training.optimiser]`: how gradients update the parameters."""

    type: str
    """Optimiser, see below."""
    learning_rate: Positive
    """Learning rate."""


OPTIMISERS = Family[OptimiserConfig]("optimiser")


@OPTIMISERS.register
class SGDOptions(OptimiserConfig):
    """Stochastic gradient descent."""

    type: Literal["sgd"] = "sgd"
    momentum: Fraction = 0.0
    """Momentum."""


@OPTIMISERS.register
class AdadeltaOptions(OptimiserConfig):
    """Adadelta (Zeiler 2012), used by the papers."""

    type: Literal["adadelta"] = "adadelta"
    learning_rate: Positive = 1.0
    rho: Fraction
    """Decay rate of the running averages."""
    epsilon: Positive
    """Constant added to the denominator for numerical stability."""


@OPTIMISERS.register
class AdamOptions(OptimiserConfig):
    """Adam (Kingma & Ba 2015)."""

    type: Literal["adam"] = "adam"
    beta1: Fraction = 0.9
    """Decay rate of the first moment."""
    beta2: Fraction = 0.999
    """Decay rate of the second moment."""
    epsilon: Positive = 1e-8


@OPTIMISERS.register
class AdamWOptions(OptimiserConfig):
    """Adam with decoupled weight decay."""

    type: Literal["adamw"] = "adamw"
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative
    """Coefficient of the decoupled weight decay."""


# `[training.schedule]`: the options of the learning-rate schedules.


class ScheduleConfig(Options):
    """`[training.schedule]`: the learning-rate schedule.

    `plateau` and `training.patience` count evaluations on the dev set.
    """

    type: str
    """Schedule, see below."""
    warmup: Count = 0
    """Number of updates over which the learning rate rises linearly from 0 at the start."""


SCHEDULES = Family[ScheduleConfig]("schedule")


@SCHEDULES.register
class ConstantOptions(ScheduleConfig):
    """Constant learning rate."""

    type: Literal["constant"] = "constant"


@SCHEDULES.register
class HalvingOptions(ScheduleConfig):
    """Halved after `start` epochs, and again every `every` epochs."""

    type: Literal["halving"] = "halving"
    start: NonNegative
    """Number of epochs before the first halving."""
    every: Positive
    """Number of epochs between halvings."""


@SCHEDULES.register
class InverseSquareRootOptions(ScheduleConfig):
    """Proportional to the inverse square root of the number of updates, after the warm-up."""

    type: Literal["inverse-sqrt"] = "inverse-sqrt"
    warmup: Count


@SCHEDULES.register
class LinearOptions(ScheduleConfig):
    """Linear decay to zero at the first of the run's limits (epochs, updates, minutes)."""

    type: Literal["linear"] = "linear"


@SCHEDULES.register
class PlateauOptions(ScheduleConfig):
    """Reduced when the dev score stops improving."""

    type: Literal["plateau"] = "plateau"
    patience: Count
    """Number of consecutive evaluations without a better dev score to wait before the rate is
    reduced; 0 reduces it at the first one."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Factor by which the rate is reduced."""
    minimum: Positive | None = None
    """Lower bound of the rate, as a fraction of `learning_rate`; `exponential` ends there."""


class _DecayOptions(ScheduleConfig):
    decay_start: Count
    """Last update at the full rate."""
    decay_end: Size
    """First update at `minimum`."""
    minimum: Positive

    @model_validator(mode="after")
    def _validate_decay(self) -> _DecayOptions:
        if self.decay_start >= self.decay_end:
            must = f"must be after decay_start ({self.decay_start}); got {self.decay_end}"
            raise_problem("decay_end", must)
        return self


@SCHEDULES.register
class ExponentialDecayOptions(_DecayOptions):
    """Exponential decay from update `decay_start` to update `decay_end`."""

    type: Literal["exponential"] = "exponential"


@SCHEDULES.register
class RNMTPlusScheduleOptions(_DecayOptions):
    """Rises to `devices` times the rate of one device, then decays (Chen et al. 2018, eq. 1)."""

    type: Literal["rnmt-plus"] = "rnmt-plus"
    devices: Size = 1
    """Number of devices in synchronous training (n in eq. 1; 32 in Chen et al.)."""
    warmup: Count = 500
    """The rate rises from 1 to `devices` over `devices` times this number of updates (p in eq. 1);
    it is constant with one device."""


class BatchConfig(Table):
    """`[training.batch]`: `tokens = 4000` if this table is not given."""

    tokens: Size | None = None
    """Batch size in tokens: number of sentences times length of the longest source or target
    sentence, including EOS. Lower it if memory runs out."""
    sentences: Size | None = None
    """Batch size in sentences. Exactly one of `tokens` and `sentences` must be given."""
    sort_batches: Size = 100
    """Number of batches' worth of random pairs that are sorted by length together (20 in Bahdanau et al.)."""
    shuffle: Literal["epoch", "once"] = "epoch"
    """Shuffle pairs and make new batches in every epoch, or shuffle once and keep the order of the
    batches (Bahdanau et al., appendix B.2)."""
    accumulate: Size = 1
    """Number of batches whose gradients are accumulated for one update."""
    temperature: Annotated[float, Field(ge=1.0, le=1000.0)] = 1.0
    """Temperature T by which a [multi-way model](multilingual.md) samples directions: in proportion to their number
    of batches to the power of 1/T. 1 uses each pair once per epoch; higher values use small corpora more often."""

    @model_validator(mode="after")
    def _validate(self) -> BatchConfig:
        if (self.tokens is None) == (self.sentences is None):
            raise ValueError("must have exactly one of `tokens` and `sentences`")
        return self


TokenMapping = Literal["same", "token", "dictionary", "random"]
"""How the rows of a trained model's embeddings are assigned to the tokens of a new one."""


class TransferConfig(Table):
    """`[training.transfer]`: transfer learning (Zoph et al. 2016). The model in `begin_from` (the
    parent) may have other tokens and translate other languages than this one (the child). See
    [Training](training.md#transfer-between-languages).

    Both models have the same `[model]`, except in components that are reinitialised. Components are
    names of parameters or their first parts, such as `encoder`, `decoder.attention` or
    `output.bias`; `rnnsearch inspect` lists them. A matrix that two components share belongs to both.
    """

    source: TokenMapping | None = None
    """Rows of the source embedding: `same` (the default) needs the parent's tokens, `token` assigns
    the parent's row of the token with the same characters, `dictionary` that of a translation, and
    `random` assigns the parent's rows at random, as in the paper. Tokens without a row are initialised as usual."""
    target: TokenMapping | None = None
    """Rows of the target embedding and of the output layer, likewise. With `model.tie = "all"`, the default is
    `source`, and no other value is valid."""
    languages: dict[str, str] = Field(default={})
    """For a [multi-way model](multilingual.md#add-a-language): languages and the languages of the parent that
    they start from, such as `{ es = "fr" }`. Others start from the same language, if the parent has it."""
    source_dictionary: str | None = None
    """For `dictionary`: TSV file, relative to the run file, of words in the source language and their
    translations into the parent's source language, the best first, as written by `rnnsearch
    dictionary`. If a translation has several tokens, the row is the mean of theirs; tokens without
    a translation are assigned like `token`."""
    target_dictionary: str | None = None
    """TSV file for the target side, likewise."""
    freeze: list[str] = Field(default=[])
    """Components that are not trained."""
    reinitialise: list[str] = Field(default=[])
    """Components that are not taken from the parent but initialised as usual."""

    @model_validator(mode="after")
    def _validate(self) -> TransferConfig:
        problems = []
        for side, mapping, path in (
            ("source", self.source, self.source_dictionary),
            ("target", self.target, self.target_dictionary),
        ):
            if mapping == "dictionary" and path is None:
                problems.append(problem((f"{side}_dictionary",), f'must be given for {side} = "dictionary"'))
            elif mapping != "dictionary" and path is not None:
                problems.append(problem((f"{side}_dictionary",), f'has no effect without {side} = "dictionary"'))
        both = [name for name in self.freeze if _overlap([name], self.reinitialise)]
        if both:
            message = f'must not have components that are reinitialised; got "{both[0]}"'
            problems.append(problem(("freeze",), message))
        raise_problems(problems)
        return self


def _overlap(names: list[str], others: list[str]) -> bool:
    """Return True if a component is in both lists, or is part of one in the other list."""
    return any(f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in names for b in others)


class TrainingConfig(Table):
    """`[training]`: at least one of `max_epochs`, `max_updates`, `max_minutes` and `patience` must be given."""

    batch: BatchConfig = BatchConfig(tokens=4000)
    optimiser: Annotated[OptimiserConfig, OneOf(OPTIMISERS, default="adam"), Field(default={}, validate_default=True)]
    schedule: Annotated[ScheduleConfig, OneOf(SCHEDULES, default="constant")] = ConstantOptions()
    begin_from: str | None = None
    """Warm start: model folder, relative to the run file, whose weights replace the random
    initialisation. Its `[model]` and vocabulary (`text.tokenizers`) must be the same, unless there
    is a table `transfer`; components that only this `[model]` has are initialised as usual."""
    transfer: TransferConfig | None = None
    keep_zeros: bool = False
    """Keep the weights of `begin_from` at zero that `rnnsearch prune` set to zero ([Pruning](shrinking.md))."""
    max_length: Size | None = None
    """Maximum length of training sentences in tokens; longer pairs are skipped."""
    max_epochs: Positive | None = None
    """Stop after this many epochs."""
    max_updates: Size | None = None
    """Stop after this many updates."""
    max_minutes: Positive | None = None
    """Stop after this many minutes of training, over all resumed sessions, without the time of evaluations."""
    all_reduce: Literal["fp32", "bf16"] | None = None
    """Precision in which gradients are exchanged between [several
    processes](training.md#several-processes-and-machines) (default: fp32); bf16 halves the traffic."""
    normalise: Literal["sentences", "tokens"] = "sentences"
    """Divide the summed loss of a batch by the number of sentences (as in the papers) or of tokens."""
    label_smoothing: Fraction = 0.0
    """Label smoothing: probability mass of the target distribution that is spread over the whole vocabulary."""
    clip_norm: Positive | None = None
    """Maximum norm of the gradient; longer gradients are scaled down to it."""
    clip_embeddings: bool = True
    """Include the embeddings' gradients in the norm that `clip_norm` limits. If false, they are scaled like the others
    but do not count (as in the code of Luong et al. 2015)."""
    clip_value: Positive | None = None
    """Maximum absolute value of each element of the gradient; applied before `clip_norm`."""
    clip_deviations: Positive | None = None
    """Skip an update if the logarithm of its gradient norm exceeds the moving mean by this many
    moving standard deviations (4 in Chen et al. 2018)."""
    l2: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """L2 regularisation: coefficient of half the squared norm of the parameters, added to the loss of each update."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes matrix products in bfloat16; weights stay in fp32."""
    evaluate_every: Size | None = None
    """Number of updates between evaluations on the dev set. Default: once per epoch."""
    metric: Literal["nll", "bleu", "aer", "reward"] = "nll"
    """Dev score that selects the best weights: lowest NLL, highest BLEU, lowest alignment error
    rate of the references, or highest reward of an agent's decisions. `bleu` needs `dev_bleu`; `aer` needs word
    alignments of the dev set; `reward` is only for a [read and write policy](objectives.md#read-and-write-policy)."""
    dev_bleu: bool = True
    """Translate the dev set (greedily) at each evaluation and report BLEU."""
    patience: Size | None = None
    """Early stopping: stop after this many consecutive evaluations without a better dev score."""
    direction_patience: Size | None = None
    """Early stopping of the directions of a [multi-way model](multilingual.md): a direction without a
    better dev score in this many consecutive evaluations is no longer trained. Training stops if
    none is left."""
    save_directions: bool = False
    """Also write a bilingual model folder, `directions/de-en`, for each direction of a multi-way model, with the
    weights of its best dev score."""
    checkpoint_every: Size | None = None
    """Number of updates between numbered checkpoints. By default, only the best and the last
    weights are stored, and those to average."""
    save_minutes: Positive = 10.0
    """Minutes between saves of the training state, in addition to those at evaluations."""
    average: Count = 0
    """Average the weights of this many last evaluations, and use the average if it has a better dev
    score; 0 does not average."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Random seed for initialisation, dropout and the order of batches."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of CPU threads. Default: PyTorch's choice."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`. With several processes each uses
    its own GPU, and `cuda:N` is an error."""
    tensorboard: bool = False
    """Write scalars for TensorBoard to `tensorboard/` in the run's folder. Needs `pip install tensorboard`."""

    @model_validator(mode="after")
    def _validate(self) -> TrainingConfig:
        if self.max_epochs is None and self.max_updates is None and self.max_minutes is None and self.patience is None:
            raise ValueError("must have a limit: give max_epochs, max_updates, max_minutes or patience")
        if self.average == 1:
            raise ValueError("average must be 0 or at least 2: the average of one evaluation's weights changes nothing")
        if self.metric == "bleu" and not self.dev_bleu:
            raise ValueError('metric = "bleu" needs dev_bleu = true')
        if self.keep_zeros and self.begin_from is None:
            raise ValueError("keep_zeros = true needs begin_from, the folder of a pruned model")
        if self.transfer is not None and self.begin_from is None:
            raise ValueError("transfer needs begin_from, the folder of the parent model")
        if self.transfer is not None and self.keep_zeros:
            raise ValueError("keep_zeros = true cannot be combined with transfer, which changes the parent's weights")
        return self
