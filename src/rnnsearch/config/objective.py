"""`[objective]` of a run file. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rnnsearch.config.choice import OneOf, Options, by_name
from rnnsearch.config.names import AlignmentLoss
from rnnsearch.config.table import NotNegative, Positive, Share, Size, Table


class FertilityConfig(Table):
    """`[objective.fertility]`: the global fertility penalty (Cohn et al. 2016).

    How many target symbols a source symbol has is read from its annotation."""

    size: Size
    """Units of its hidden layer."""
    weight: Positive = 1.0
    """Weight."""


class SupervisionConfig(Table):
    """`[objective.supervision]`: attention learns given word alignments (Liu et al. 2016).

    They come from `data.alignments`, or from a listed corpus."""

    type: AlignmentLoss
    """An alignment loss: see below."""
    weight: Positive = 1.0
    """Weight."""
    spread: Positive | None = None
    """Standard deviation, in source symbols, of the bell that each link is (after Mi et al. 2016). Without it a link is
    its one position."""
    unaligned: Literal["skip", "end"] = "skip"
    """Target symbols without a link are left out, or sent to the source's end symbol (which the encoder must read)."""
    word: Literal["predicted", "read"] = "predicted"
    """Whose links the weights of a position learn: those of the word it predicts, or of the word it has just read.
    `"read"` aligns far better and translates worse; alignments are then taken from the position after, and the decoder
    must attend after it reads (`cgru`, `luong`, ... not `bahdanau`)."""


class ContrastConfig(Options):
    """`[objective.contrast]`: training tells words of the text from noise words, and sums over no vocabulary.

    The log's training NLL is then this loss, and an update changes the vectors of the words alone that it has read.
    Only for `model.output.type = "softmax"`."""

    type: str
    """A contrast: see below."""
    samples: Size = 500
    """Noise words of a batch (K)."""
    power: Annotated[float, Field(ge=0.0, le=1.0)]
    """Noise words are drawn by their counts in the training text to this power."""


class NCEOptions(ContrastConfig):
    """Noise-contrastive estimation: a word of the text, or of the noise? (Mnih & Teh 2012)"""

    type: Literal["nce"] = "nce"
    power: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """Noise words are drawn by their counts in the training text to this power: 1, or 0.4 with `blackout`."""


class BlackOutOptions(ContrastConfig):
    """A softmax over the word and the noise words, weighted, that also pushes each noise word down (Ji et al. 2016)."""

    type: Literal["blackout"] = "blackout"
    power: Annotated[float, Field(ge=0.0, le=1.0)] = 0.4
    """As for `nce`."""


CONTRASTS: dict[str, type[ContrastConfig]] = by_name(NCEOptions, BlackOutOptions)


class ReinforceConfig(Options):
    """`[objective.reinforce]`: how hard attention is trained (Xu et al. 2015).

    Must be given for `normaliser = "hard"`, and must not for another."""

    key = "baseline"

    baseline: str
    """A baseline: see below."""
    weight: Positive = 1.0
    """Weight."""
    entropy: NotNegative = 0.0
    """Weight of the entropy of the attention weights, which keeps them from settling too early."""


class AverageBaselineOptions(ReinforceConfig):
    """The moving average of the log-probabilities (Xu et al., section 4.1)."""

    baseline: Literal["average"] = "average"
    decay: Share
    """How much of the average stays at each update (0.9 in Xu et al.)."""


class LearnedBaselineOptions(ReinforceConfig):
    """Read from the last position's readout."""

    baseline: Literal["learned"] = "learned"


BASELINES: dict[str, type[ReinforceConfig]] = by_name(AverageBaselineOptions, LearnedBaselineOptions)


class RationaleConfig(Table):
    """`[objective.rationale]`: how the encoder `rationale` learns which words to read (Lei et al. 2016).

    Must be given for `model.encoder.type = "rationale"`, and must not for another. The log's training NLL is of what is
    translated from the words that were drawn."""

    sparsity: NotNegative
    """Weight of the number of words that are read (lambda_1)."""
    coherence: NotNegative = 0.0
    """Weight of the number of places where reading begins or stops (lambda_2)."""
    decay: Share = 0.9
    """How much of the moving average of the cost, with which a draw's is compared, stays at each update."""


class TeacherConfig(Table):
    """`[objective.teacher]`: a trained model, whose distribution over the symbols at each position is learned, too
    (Kim & Rush 2016). See [Distillation](distillation.md#word-by-word)."""

    folder: str
    """The teacher's folder, relative to the run file. Training reads it whenever it begins or goes on; the student does
    not need it."""
    weight: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """alpha of (1 - alpha) NLL + alpha (cross-entropy to the teacher's distributions); 1 is the teacher alone, without
    `training.label_smoothing`."""


class ObjectiveConfig(Table):
    """`[objective]`: what training minimises besides the negative log-likelihood.

    Weights are those of sums over a sentence. All but `partition`, `contrast`, `spelling`, `rationale` and `teacher`
    are only for a decoder with attention."""

    doubly_stochastic: Positive | None = None
    """Weight of the sum over source positions of (1 - sum of its weights)^2 (Xu et al. 2015)."""
    coverage: Positive | None = None
    """Weight of what is left of the source words' coverage embeddings when the end symbol is written, the sum of their
    lengths (Mi et al. 2016). Only for the feature `coverage-embedding`."""
    fertility: FertilityConfig | None = None
    supervision: SupervisionConfig | None = None
    partition: Size | None = None
    """In training the softmax is over so many target symbols at most, those of some successive batches (tau in Jean et
    al. 2015): for vocabularies of hundreds of thousands of words. Without it over all. An update changes the vectors of
    the words alone that it has read."""
    contrast: Annotated[ContrastConfig, OneOf("contrast", CONTRASTS)] | None = None
    spelling: Positive | None = None
    """alpha of J_w + alpha J_c, the weight of the spelling of unknown words (Luong & Manning 2016). Without it 1. Only
    with `[model.target_characters]`."""
    reinforce: Annotated[ReinforceConfig, OneOf("baseline", BASELINES, key="baseline")] | None = None
    rationale: RationaleConfig | None = None
    teacher: TeacherConfig | None = None
    symmetry: Positive | None = None
    """Weight of the agreement of two models, one a direction, that are trained together (Cohn et al. 2016). The reverse
    model goes to `<run folder>-reverse`."""

    @property
    def reads_some_words(self) -> bool:
        """Whether an update's loss is over some words of the vocabulary alone."""
        return self.partition is not None or self.contrast is not None

    @property
    def aligns_read_words(self) -> bool:
        """Whether the alignment of a target symbol is in the weights of the position after it."""
        return self.supervision is not None and self.supervision.word == "read"
