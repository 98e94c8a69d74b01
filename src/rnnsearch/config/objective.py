"""`[objective]` of a run file: the training objective.

Implemented in `objectives/`, with parameters in `models/auxiliary.py`. `systems/validation.py` checks it, in addition
to `rules.py`. Names and options are stored in model folders: never rename them. docs/configuration.md is generated from
the docstrings. Tests: tests/training/test_objectives.py, tests/objectives.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.options import (
    Family,
    Fraction,
    NameIn,
    NonNegative,
    OneOf,
    Options,
    Positive,
    Size,
    Table,
)
from rnnsearch.config.sequence import (
    SEQUENCES,
    CriticConfig,
    PolicyGradientConfig,
    ReadWriteOptions,
    SequenceConfig,
)


class FertilityConfig(Table):
    """`[objective.fertility]`: the global fertility penalty (Cohn et al. 2016).

    The fertility of a source token, its expected number of target tokens, is predicted from its annotation.
    """

    size: Size
    """Hidden size of the fertility model."""
    weight: Positive = 1.0
    """Weight of the penalty."""


class AlignmentLossOptions(Options):
    """Declaration of a distance between attention weights and gold alignments."""

    type: str


ALIGNMENT_LOSSES = Family[AlignmentLossOptions]("alignment loss")


@ALIGNMENT_LOSSES.register
class CrossEntropyOptions(AlignmentLossOptions):
    """Cross-entropy between gold and attention weights."""

    type: Literal["cross-entropy"] = "cross-entropy"


@ALIGNMENT_LOSSES.register
class SquaredErrorOptions(AlignmentLossOptions):
    """Half the squared difference of gold and attention weights."""

    type: Literal["squared-error"] = "squared-error"


@ALIGNMENT_LOSSES.register
class ProductOptions(AlignmentLossOptions):
    """Negative logarithm of the sum of gold times attention weights."""

    type: Literal["product"] = "product"


class SupervisionConfig(Table):
    """`[objective.supervision]`: supervised attention, trained to match word alignments (Liu et al. 2016).

    The alignments come from `data.alignments` or from a listed corpus.
    """

    type: Annotated[str, NameIn(ALIGNMENT_LOSSES)]
    """Alignment loss, see below."""
    weight: Positive = 1.0
    """Weight of the alignment loss."""
    spread: Positive | None = None
    """Standard deviation, in source tokens, of the Gaussian that replaces each link (after Mi et
    al. 2016). If not given, a link is a single position."""
    unaligned: Literal["skip", "end"] = "skip"
    """Target tokens without a link: leave them out of the loss, or align them to the source's end
    token (which the encoder must read)."""
    word: Literal["predicted", "read"] = "predicted"
    """The target word whose links supervise the weights of a step: the word predicted at the step, or the word just
    read. `"read"` gives much better alignments and a worse likelihood; alignments are then taken from the next step,
    and the decoder must attend after it reads (`cgru`, `luong`, ... but not `bahdanau`)."""


class ContrastConfig(Options):
    """`[objective.contrast]`: training by contrast with noise words instead of a softmax over the vocabulary.

    The training NLL in the log is then this loss. Updates are sparse: they change only the
    embeddings and output rows of the words in the batch and the noise. Only for `model.output.type
    = "softmax"`.
    """

    type: str
    """Contrastive loss, see below."""
    samples: Size = 500
    """Number of noise words per batch (K). More give a better estimate and slower updates."""
    power: Annotated[float, Field(ge=0.0, le=1.0)]
    """Noise words are sampled in proportion to their training counts raised to this power."""


CONTRASTS = Family[ContrastConfig]("contrast")


@CONTRASTS.register
class NCEOptions(ContrastConfig):
    """Noise-contrastive estimation: classify words as text or noise (Mnih & Teh 2012)."""

    type: Literal["nce"] = "nce"
    power: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Noise words are sampled in proportion to their training counts raised to this power (default:
    1; 0.4 with `blackout`)."""


@CONTRASTS.register
class BlackOutOptions(ContrastConfig):
    """BlackOut: a weighted softmax over the word and the noise words, which also pushes each noise
    word down (Ji et al. 2016).
    """

    type: Literal["blackout"] = "blackout"
    power: Annotated[float, Field(ge=0.0, le=1.0)] = 0.4


class ShortlistConfig(Table):
    """`[objective.shortlist]`: a training softmax over the batch's target tokens and a sample of the other tokens.

    The sampled tokens have importance weights, so that the softmax's denominator is right on
    average (Bengio & Senecal 2003; Jean et al. 2015). Updates are sparse: they change only the
    embeddings and output rows of these tokens. Only for `model.output.type = "softmax"`.
    """

    samples: Size = 2000
    """Number of tokens that are sampled per batch, with replacement. More give a better estimate and slower updates."""
    power: Annotated[float, Field(ge=0.0, le=1.0)] = 0.75
    """Tokens are sampled in proportion to their training counts raised to this power."""


class ReinforceConfig(Options):
    """`[objective.reinforce]`: training of hard attention by REINFORCE (Xu et al. 2015).

    Required for `normaliser = "hard"`, and an error for any other.
    """

    key = "baseline"

    baseline: str
    """Baseline that reduces the variance of the gradient, see below."""
    weight: Positive = 1.0
    """Weight of the REINFORCE loss."""
    entropy: NonNegative = 0.0
    """Weight of the entropy of the attention weights; raise it if attention settles on one position too early."""


# The key is the option that names a class, by default `type`.
BASELINES = Family[ReinforceConfig]("baseline", key="baseline")


@BASELINES.register
class AverageBaselineOptions(ReinforceConfig):
    """A moving average of the log-probabilities (Xu et al., section 4.1)."""

    baseline: Literal["average"] = "average"
    decay: Fraction
    """Decay rate of the moving average (0.9 in Xu et al.)."""


@BASELINES.register
class LearnedBaselineOptions(ReinforceConfig):
    """A prediction from the readout of the previous position."""

    baseline: Literal["learned"] = "learned"


class RationaleConfig(Table):
    """`[objective.rationale]`: how the `rationale` encoder learns to select words (Lei et al. 2016).

    Required for `model.encoder.type = "rationale"`, and an error for any other. The training NLL in
    the log is that of translations from the sampled words.
    """

    sparsity: NonNegative
    """Weight of the number of selected words (lambda_1); a higher weight selects fewer."""
    coherence: NonNegative = 0.0
    """Weight of the number of transitions between selected and skipped words (lambda_2); a higher
    weight selects longer spans."""
    decay: Fraction = 0.9
    """Decay rate of the moving average of the cost, the baseline that a sample's cost is compared with."""


class TeacherConfig(Table):
    """`[objective.teacher]`: word-level knowledge distillation from a trained model (Kim & Rush
    2016). See [Distillation](distillation.md#word-level-distillation).
    """

    folder: str
    """Folder of the teacher, relative to the run file. It is read whenever training starts or
    resumes; the trained student does not need it."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """alpha of (1 - alpha) NLL + alpha cross-entropy to the teacher's distributions. 1 trains on
    the teacher only, and excludes `training.label_smoothing`."""


class ObjectiveConfig(Table):
    """`[objective]`: terms of the training loss in addition to the negative log-likelihood.

    Weights apply to sums over a sentence. All terms except `partition`, `shortlist`, `contrast`,
    `spelling`, `rationale` and `teacher` need a decoder with attention.
    """

    doubly_stochastic: Positive | None = None
    """Weight of the sum over source positions of (1 - total attention to the position)^2 (Xu et al.
    2015). It encourages attention to the whole source."""
    coverage: Positive | None = None
    """Weight of the norms of the source words' coverage embeddings after the end token, summed over
    words (Mi et al. 2016). Only for the feature `coverage-embedding`."""
    fertility: FertilityConfig | None = None
    supervision: SupervisionConfig | None = None
    partition: Size | None = None
    """Maximum number of target tokens in the training softmax: those of consecutive batches (tau in Jean et al. 2015).
    For vocabularies of hundreds of thousands of words; by default the softmax is over all tokens. Updates are sparse:
    they change only the embeddings and output rows of these tokens."""
    shortlist: ShortlistConfig | None = None
    contrast: Annotated[ContrastConfig, OneOf(CONTRASTS)] | None = None
    spelling: Positive | None = None
    """alpha of J_w + alpha J_c, the weight of the character-level loss of unknown words (Luong &
    Manning 2016). Default: 1. Only with `[model.target_characters]`."""
    reinforce: Annotated[ReinforceConfig, OneOf(BASELINES)] | None = None
    rationale: RationaleConfig | None = None
    teacher: TeacherConfig | None = None
    sequence: Annotated[SequenceConfig, OneOf(SEQUENCES)] | None = None
    symmetry: Positive | None = None
    """Weight of the agreement between the attention of two models, one per direction, that are
    trained together (Cohn et al. 2016). The reverse model goes to `<run folder>-reverse`."""

    @property
    def has_parameters(self) -> bool:
        """True if the objective has parameters in the model, which only training uses."""
        has_networks = isinstance(self.sequence, PolicyGradientConfig | CriticConfig | ReadWriteOptions)
        return bool(self.fertility or self.reinforce or self.rationale) or has_networks

    @property
    def samples_vocabulary(self) -> bool:
        """True if the loss of an update is over a subset of the vocabulary."""
        return not (self.partition is None and self.shortlist is None and self.contrast is None)

    @property
    def normalises_scores(self) -> bool:
        """True if the model's scores of tokens are log-probabilities, False if they are sums without a softmax."""
        return self.sequence is None or self.sequence.normalised

    @property
    def aligns_previous_word(self) -> bool:
        """True if the alignment of a target token is in the attention weights of the next step."""
        return self.supervision is not None and self.supervision.word == "read"
