"""The tables of a run file: their options, types and ranges. Imports no torch; `config` reads and resolves them.

`None` stands for "not given". A class that needs an option says so; one that has no use for a given option refuses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from rnnsearch.objective_tables import ObjectiveConfig
from rnnsearch.table import Count, Language, Positive, Share, Size, Table

SearchPrecision = Literal["auto", "fp32", "bf16", "int8"]


class CleaningConfig(Table):
    """`[data.cleaning]`: which sentence pairs are left out of training. Lengths count words."""

    min_words: Count = 1
    max_words: Size = 100
    max_ratio: Annotated[float, Field(ge=1.0)] = 4.0
    """The longer side may have at most this many times the words of the shorter, plus a slack of 5 words."""
    drop_duplicates: bool = True
    drop_identical: bool = True
    """Pairs whose two sides are the same text (of at least two words)."""


class DataConfig(Table):
    """`[data]`: the corpus. Paths are relative to the run file."""

    source: Language
    target: Language
    corpus: str | None = None
    """A corpus of `rnnsearch data list`."""
    train: list[str] | None = None
    """Files of training pairs: TSV files, or pairs of text files written `source_file|target_file`."""
    dev: str | None = None
    test: str | None = None
    dev_size: Count = 1000
    test_size: Count = 1000
    """Sentences split off where no dev / test file is given; no source or target sentence is shared."""
    alignments: list[str] | None = None
    """Word alignments in the Pharaoh format, one file for each of `train`, line by line; a listed corpus with
    alignments brings its own. They are what `objective.supervision` learns from."""
    dev_alignments: str | None = None
    test_alignments: str | None = None
    prepared: str | None = None
    """Where the prepared ids go; without it, `<run folder>/data`."""
    cleaning: CleaningConfig = CleaningConfig()

    @model_validator(mode="after")
    def _one_corpus(self) -> DataConfig:
        if (self.corpus is None) == (self.train is None):
            raise ValueError("must name exactly one of `corpus` (see `rnnsearch data list`) and `train` (files)")
        if self.corpus is not None and (self.dev is not None or self.test is not None):
            raise ValueError("`dev` and `test` have no effect with `corpus`: a listed corpus brings its own split")
        if self.corpus is not None and (self.alignments or self.dev_alignments or self.test_alignments):
            raise ValueError("`alignments` have no effect with `corpus`: a listed corpus brings its own, if it has any")
        if self.alignments is not None and len(self.alignments) != len(self.train or []):
            got = f"{len(self.alignments)} for {len(self.train or [])}"
            raise ValueError(f"`alignments` must be one file for each file of `train`; got {got}")
        for part, text, links in (("dev", self.dev, self.dev_alignments), ("test", self.test, self.test_alignments)):
            if links is not None and text is None:
                raise ValueError(f"`{part}_alignments` have no effect without `{part}`")
        if self.source == self.target:
            raise ValueError(f"source and target must be two languages; got {self.source} twice")
        return self


class TextConfig(Table):
    """`[text]`: how raw text becomes symbols."""

    type: Literal["words", "bpe"] = "bpe"
    vocabulary: Annotated[int, Field(ge=8)] = 8000
    """Symbols a side, the special ones included; with `joint`, of both sides together."""
    target_vocabulary: Annotated[int, Field(ge=8)] | None = None
    """Symbols of the target side, where it has another number of them (80,000 to 160,000 in Sutskever et al.)."""
    joint: bool | None = None
    """One segmentation and vocabulary for both languages (bpe only)."""
    min_count: Size = 1
    """A symbol rarer than this in the training text stays out of the vocabulary."""

    @model_validator(mode="after")
    def _one_vocabulary(self) -> TextConfig:
        if self.joint and self.target_vocabulary is not None:
            raise ValueError("`target_vocabulary` has no effect with `joint`: both languages have one vocabulary")
        return self


class EncoderConfig(Table):
    """`[model.encoder]`"""

    type: str
    cell: str
    size: Size
    """Units a direction."""
    layers: Size | None = None
    direction: Literal["forward", "bottom", "both"] | None = None
    """What the layers of a stack read: all forward; the bottom one both ways (Wu et al. 2016); or all both ways."""
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, to which a residual connection is added; without it there is none."""
    reverse: bool | None = None
    """Read the source's words from last to first, its end symbol last all the same (Sutskever et al. 2014)."""
    reduce: Size | None = None
    """How many layers at the top of a pyramid halve the positions."""


class AttentionConfig(Table):
    """`[model.attention]`"""

    score: str = "additive"
    size: Size | None = None
    """Units of the alignment model's hidden layer (of all heads together)."""
    heads: Size | None = None
    max_source: Size | None = None
    """Source symbols, the end symbol among them, that a location score has weights for."""
    window: str = "global"
    width: Size | None = None
    """D of a local window [p_t - D, p_t + D] (10 in Luong et al.)."""
    normaliser: str = "softmax"
    features: list[str] = Field(default=[])
    fertility: Positive | None = None
    """N, the most target symbols that a source symbol may have, of linguistic coverage (2 in Tu et al.)."""
    coverage_size: Size | None = None
    """d, numbers a source position of neural coverage (10 in Tu et al.)."""
    neighbours: Count | None = None
    """k of the window [j - k, j + k] that the Markov and local-fertility features see (1 in Cohn et al.)."""


class DecoderConfig(Table):
    """`[model.decoder]`"""

    type: str
    cell: str | None = None
    size: Size
    maxout: Size | None = None
    """Units of the maxout layer after pairs are pooled (l in the paper)."""
    readout: Size | None = None
    """Units of the layer under the softmax where that is not a maxout layer (h~ of Luong et al., Nematus's t)."""
    layers: Size | None = None
    residual_from: Annotated[int, Field(ge=2)] | None = None
    """The first layer, from 1, to which a residual connection is added; without it there is none."""
    bridge: str | None = None
    """How the first states are made from the encoder's last ones."""
    transitions: Size | None = None
    """Transitions of one step after the one that reads the context (bideep: after each layer's first)."""
    slots: Size | None = None
    """Cells of the external memory (n in the paper)."""
    slot_size: Size | None = None
    """Numbers in each cell of the external memory (m in the paper)."""
    first: Literal["bos", "zero"] = "bos"
    """What stands before the first target word: a learned BOS embedding, or zeros (the papers)."""


class DropoutConfig(Table):
    """`[model.dropout]`: shares of units set to zero in training, drawn once a batch."""

    embedding: Share = 0.0
    annotations: Share = 0.0
    readout: Share = 0.0
    word: Share = 0.0
    """Share of whole words whose embedding is zeroed."""
    layers: Share = 0.0
    """Between the layers of stacked encoders and decoders, anew at each position (Zaremba et al. 2014)."""
    state: Share = 0.0
    """On the state that cells feed back, one mask a sequence (Gal & Ghahramani 2016)."""


class InitConfig(Table):
    """`[model.init]`"""

    type: Literal["glorot", "normal", "uniform"] = "glorot"
    scale: Positive | None = None
    """Standard deviation (normal) or bound (uniform)."""
    alignment_scale: Positive | None = None
    """Standard deviation of the alignment model's W_a and U_a, whose v_a is then zero (normal only)."""
    recurrent: Literal["orthogonal", "same"] = "orthogonal"


class ModelConfig(Table):
    """`[model]`"""

    embedding: Size
    encoder: EncoderConfig
    attention: AttentionConfig | None = None
    decoder: DecoderConfig
    dropout: DropoutConfig = DropoutConfig()
    init: InitConfig = InitConfig()
    tie: Literal["none", "target", "all"] = "none"
    """`target`: target embedding = output rows; `all`: source embedding too (needs `text.joint`)."""
    lexical: bool = False
    """The lexical model beside the decoder (Nguyen & Chiang 2018): the attended source words speak for themselves."""


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


class SearchConfig(Table):
    """`[search]`: the defaults of `translate`, kept in the model folder."""

    beam: Size = 5
    length_penalty: Annotated[float, Field(ge=0.0)] = 1.0
    """Score = log-probability / length ** this (0: the plain sum; 1: the mean a symbol)."""
    length_norm: str = "power"
    """What `length_penalty` is the exponent of: the length (`power`) or (5 + length) / 6 (`gnmt`)."""
    coverage_penalty: Annotated[float, Field(ge=0.0)] = 0.0
    """beta of beta * sum_j log(min(sum_i alpha_ij, 1)), added to the score (Wu et al. 2016)."""
    max_ratio: Positive = 2.0
    """A translation has at most this many symbols a source symbol, plus `max_extra`."""
    max_extra: Count = 20
    replace_unknown: Literal["none", "copy", "dictionary"] = "none"
    """What becomes of `<unk>`: it stays, or the source word that it attends to most takes its place."""
    dictionary: str | None = None
    """A TSV file of source words and translations, relative to the run file."""
    batch_sentences: Size = 64
    candidates: Count = 0
    """Likeliest translations (at most 100) of each source symbol in a batch's candidate list; 0: all symbols."""
    precision: SearchPrecision = "auto"
    """Of matrix products on the CPU; `auto`: bf16 where there is native code and the processor multiplies it."""


class RunConfig(Table):
    """A whole run file, resolved."""

    name: str | None = None
    folder: str | None = None
    """The run's folder; without it, `runs/<name>` or, without a name, `runs/<run file's stem>`."""
    data: DataConfig
    text: TextConfig = TextConfig()
    model: ModelConfig
    objective: ObjectiveConfig = ObjectiveConfig()
    training: TrainingConfig
    search: SearchConfig = SearchConfig()
    _base: Path = PrivateAttr(default=Path())

    @property
    def base(self) -> Path:
        """The folder that relative paths are relative to: the run file's."""
        return self._base
