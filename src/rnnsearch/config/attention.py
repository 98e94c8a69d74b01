"""`[model.attention]`: one flat table in a run file, one options class per component in Python.

Implemented in `models/attention`; `model_rules.py` and `rules.py` read the traits. Names and options are stored in
model folders: never rename them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from rnnsearch.config.options import (
    Count,
    Family,
    NameIn,
    Options,
    Positive,
    Size,
    SmallSize,
    Table,
    option_names,
    parse_flat,
)


class ScoreOptions(Options):
    """Options of a score function."""

    type: str
    takes_features: ClassVar[bool] = False
    """True if the score has a hidden layer, which attention features are added to."""
    has_parameters: ClassVar[bool] = True
    """True if the score has parameters, which `[model.init]` initialises."""
    reads_ahead: ClassVar[bool] = False
    """True if the score of a source position depends on later ones."""

    def size_problem(self, query_size: int, annotation_size: int) -> str | None:
        """Return why the score cannot be computed for these sizes, or None if it can.

        The message starts with a path relative to `[model.attention]`.
        """
        return None


SCORES = Family[ScoreOptions]("score")


@SCORES.register
class AdditiveOptions(ScoreOptions):
    """v^T tanh(W s + U h) (Bahdanau et al., appendix A.1.2)."""

    type: Literal["additive"] = "additive"
    takes_features = True
    size: Size
    """Hidden size of the alignment model (A), over all heads."""


@SCORES.register
class AdditiveBiasOptions(ScoreOptions):
    """v^T tanh(W s + U h + b): `additive` with a bias (OpenNMT-py's `mlp`)."""

    type: Literal["additive-bias"] = "additive-bias"
    takes_features = True
    size: Size


@SCORES.register
class ConcatOptions(ScoreOptions):
    """v^T tanh(W [s; h]) (Luong et al., after eq. 7): `additive` with one matrix, initialised as a whole."""

    type: Literal["concat"] = "concat"
    takes_features = True
    size: Size


@SCORES.register
class ConcatIdentityOptions(ScoreOptions):
    """v^T tanh(W s + h): the variant of `concat` behind the published results (Luong et al., footnote 15)."""

    type: Literal["concat-identity"] = "concat-identity"
    takes_features = True


@SCORES.register
class MultiHeadAdditiveOptions(ScoreOptions):
    """One additive score and one context per head (RNMT+)."""

    type: Literal["multi-head-additive"] = "multi-head-additive"
    takes_features = True
    size: Size
    heads: SmallSize
    """Number of attention heads; must divide `size` and the annotation size."""

    def size_problem(self, query_size: int, annotation_size: int) -> str | None:
        if self.size % self.heads == 0 and annotation_size % self.heads == 0:
            return None
        must = f"must divide model.attention.size ({self.size}) and the annotation size ({annotation_size})"
        return f"heads: {must}; got {self.heads}"


class _EqualSizeOptions(ScoreOptions):
    has_parameters = False

    def size_problem(self, query_size: int, annotation_size: int) -> str | None:
        if query_size == annotation_size:
            return None
        must = f"{self.type} needs a decoder state and annotations of equal size"
        return f"score: {must}; got {query_size} and {annotation_size} (the general score takes any sizes)"


@SCORES.register
class DotOptions(_EqualSizeOptions):
    """s^T h (Luong et al., after eq. 7); decoder state and annotations must have the same size."""

    type: Literal["dot"] = "dot"


@SCORES.register
class ScaledDotOptions(_EqualSizeOptions):
    """s^T h divided by the square root of the state size (Vaswani et al., eq. 1)."""

    type: Literal["scaled-dot"] = "scaled-dot"


@SCORES.register
class GeneralOptions(ScoreOptions):
    """s^T W h (Luong et al., after eq. 7), for any two sizes."""

    type: Literal["general"] = "general"


@SCORES.register
class LocationOptions(ScoreOptions):
    """W s: depends on the decoder state and the position, not on the annotations (Luong et al., eq. 8)."""

    type: Literal["location"] = "location"
    max_source: Size
    """Number of source positions with weights, including the end token; later positions of longer
    sentences are ignored."""


@SCORES.register
class ConvolutionalScoreOptions(ScoreOptions):
    """Convolutions over neighbouring annotations, gated by the decoder state (Allamanis et al. 2016)."""

    type: Literal["convolutional"] = "convolutional"
    reads_ahead = True
    first: Size
    """Number of filters in the first layer (k_1)."""
    second: Size
    """Number of filters in the second layer, which the state gates (k_2)."""
    around: Count
    """Number of positions on either side that a filter covers."""


@SCORES.register
class EvenOptions(ScoreOptions):
    """Constant 0: attention is determined by the window only (for the mixture window of Graves 2013)."""

    type: Literal["even"] = "even"
    has_parameters = False


class WindowOptions(Options):
    """Options of an attention window."""

    type: str
    has_factor: ClassVar[bool] = False
    """True if the window multiplies the normalised weights by a factor."""
    reads_prefix: ClassVar[bool] = False
    """True if the window ends at a source position that depends only on the target position."""


WINDOWS = Family[WindowOptions]("window")


@WINDOWS.register
class GlobalOptions(WindowOptions):
    """All source positions."""

    type: Literal["global"] = "global"


@WINDOWS.register
class LocalMonotonicOptions(WindowOptions):
    """Source positions within `width` of the target position (Luong et al., section 3.2)."""

    type: Literal["local-m"] = "local-m"
    width: Size
    """D of the window [p - D, p + D] (10 in Luong et al.)."""


@WINDOWS.register
class LocalPredictiveOptions(WindowOptions):
    """Source positions within `width` of a predicted position. The weights are multiplied by a
    Gaussian around it, so that they sum to less than 1 (Luong et al., eq. 9-10).
    """

    type: Literal["local-p"] = "local-p"
    has_factor = True
    width: Size


@WINDOWS.register
class WaitOptions(WindowOptions):
    """The source prefix that has arrived in simultaneous translation: `wait` tokens before the
    first target token, then one more per target token (Ma et al. 2019).
    """

    type: Literal["wait-k"] = "wait-k"
    reads_prefix = True
    wait: Size
    """Number of source tokens read before the first target token is written (k)."""


@WINDOWS.register
class MixtureOptions(WindowOptions):
    """A mixture of Gaussians that multiplies the weights; its centres only move right (Graves 2013, eq. 46-51)."""

    type: Literal["mixture"] = "mixture"
    has_factor = True
    components: Size
    """Number of Gaussians (K)."""


WindowType = type[WindowOptions]


class NormaliserOptions(Options):
    """Declaration of a normaliser, the function from scores to weights."""

    type: str
    package: ClassVar[str | None] = None
    """Optional package that the normaliser needs."""
    samples: ClassVar[bool] = False
    """True if training samples positions, which gives the scores no gradient."""
    needs_noise: ClassVar[bool] = False
    """True if training needs a random number per target and source position, which `Attention` provides."""
    reads_prefix: ClassVar[bool] = False
    """True if search attends to nothing after the position at which reading stops."""

    @classmethod
    def supports(cls, window: WindowType) -> bool:
        """Return True if the normaliser is valid with this window."""
        return True


NORMALISERS = Family[NormaliserOptions]("normaliser")


@NORMALISERS.register
class SoftmaxOptions(NormaliserOptions):
    """Softmax (Bahdanau et al., eq. 6)."""

    type: Literal["softmax"] = "softmax"


@NORMALISERS.register
class SparsemaxOptions(NormaliserOptions):
    """Sparsemax, the projection onto the simplex, which gives many positions a weight of 0 (Martins
    & Astudillo 2016). Needs `pip install entmax`.
    """

    type: Literal["sparsemax"] = "sparsemax"
    package = "entmax"


@NORMALISERS.register
class Entmax15Options(NormaliserOptions):
    """1.5-entmax, between softmax and sparsemax (Peters et al. 2019). Needs `pip install entmax`."""

    type: Literal["entmax15"] = "entmax15"
    package = "entmax"


@NORMALISERS.register
class HardOptions(NormaliserOptions):
    """Hard attention to one position: sampled from the softmax in training, the best one in search
    (Xu et al. 2015). Needs `[objective.reinforce]`.
    """

    type: Literal["hard"] = "hard"
    samples = True
    needs_noise = True

    @classmethod
    def supports(cls, window: WindowType) -> bool:
        # The weight of the one position is 1; there is nothing to scale.
        return not window.has_factor


@NORMALISERS.register
class ExponentialOptions(NormaliserOptions):
    """exp(e), not normalised; with the even score and the mixture window, the attention of Graves 2013."""

    type: Literal["exponential"] = "exponential"


@NORMALISERS.register
class MonotonicOptions(NormaliserOptions):
    """Monotonic attention, which learns where to stop and never moves back (Raffel et al. 2017):
    expected weights in training, one position in search.
    """

    type: Literal["monotonic"] = "monotonic"
    needs_noise = True
    reads_prefix = True

    @classmethod
    def supports(cls, window: WindowType) -> bool:
        # All positions between the last stop and the next must be visible.
        return window in (GlobalOptions, WaitOptions)


@NORMALISERS.register
class LinearChainOptions(NormaliserOptions):
    """Marginals of a linear chain, so that neighbouring positions are selected together (after Kim et al. 2017)."""

    type: Literal["linear-chain"] = "linear-chain"


class FeatureOptions(Options):
    """Options of an attention feature."""

    type: str
    tracks_untranslated: ClassVar[bool] = False
    """True if the feature learns how much of each source word is left to translate."""
    reads_ahead: ClassVar[bool] = False
    """True if the feature of a source position depends on later ones."""


FEATURES = Family[FeatureOptions]("feature")


@FEATURES.register
class LinguisticCoverageOptions(FeatureOptions):
    """The fraction of a source token that has been translated, given its fertility (Tu et al. 2016, section 3.1.1)."""

    type: Literal["coverage-linguistic"] = "coverage-linguistic"
    fertility: Positive
    """N, the maximum number of target tokens per source token (2 in Tu et al.)."""


@FEATURES.register
class NeuralCoverageOptions(FeatureOptions):
    """A coverage vector per source token, updated by a GRU (Tu et al. 2016, section 3.1.2)."""

    type: Literal["coverage-neural"] = "coverage-neural"
    coverage_size: Size
    """Size of the coverage vector per source position (10 in Tu et al.)."""


@FEATURES.register
class CoverageEmbeddingOptions(FeatureOptions):
    """A coverage embedding per source word, which each target word updates by its weights (Mi et al. 2016)."""

    type: Literal["coverage-embedding"] = "coverage-embedding"
    tracks_untranslated = True
    coverage_size: Size


@FEATURES.register
class PositionOptions(FeatureOptions):
    """Logarithms of target position, source position and source length (Cohn et al. 2016, section 3.1)."""

    type: Literal["position"] = "position"
    reads_ahead = True


@FEATURES.register
class MarkovOptions(FeatureOptions):
    """The previous step's weights around a source position (Cohn et al. 2016, section 3.2)."""

    type: Literal["markov"] = "markov"
    neighbours: Count
    """k of the window [j - k, j + k] over earlier weights (1 in Cohn et al.)."""


@FEATURES.register
class LocalFertilityOptions(FeatureOptions):
    """The sums of all earlier weights around a source position (Cohn et al. 2016, section 3.3)."""

    type: Literal["fertility-local"] = "fertility-local"
    neighbours: Count


@FEATURES.register
class RecurrentOptions(FeatureOptions):
    """An LSTM per source token that reads the earlier weights around it (Yang et al. 2017)."""

    type: Literal["recurrent"] = "recurrent"
    neighbours: Count
    recurrent_size: Size
    """Size of the LSTM state per source token."""


class ComponentNames(Table):
    """The options of the flat table that name components."""

    score: Annotated[str, NameIn(SCORES)] = "additive"
    """Score function, see below."""
    window: Annotated[str, NameIn(WINDOWS)] = "global"
    """Source positions that may be attended to, see below."""
    normaliser: Annotated[str, NameIn(NORMALISERS)] = "softmax"
    """Function from scores to weights, see below."""
    features: list[Annotated[str, NameIn(FEATURES)]] = Field(default=[])
    """Additional inputs of the alignment model per source position, see below. Only for scores with a hidden layer."""


class AttentionConfig(Table):
    """`[model.attention]`: score, window, normaliser and features, with the options of each in one
    flat table.

    Required for a decoder with attention, and an error for any other.
    """

    score: ScoreOptions
    window: WindowOptions
    normaliser: str
    features: tuple[FeatureOptions, ...]

    @model_validator(mode="before")
    @classmethod
    def _split(cls, flat: Any) -> Any:
        """Return the flat table as one table per component; raise ValidationError if an option belongs to none."""
        if not isinstance(flat, Mapping):
            return flat
        named = {key: flat[key] for key in ComponentNames.model_fields if flat.get(key) is not None}
        names = ComponentNames.model_validate(named)
        selected = [SCORES[names.score], WINDOWS[names.window], *(FEATURES[name] for name in names.features)]
        description = ", ".join([f"the {names.score} score", f"the {names.window} window", *names.features])
        options = {key: value for key, value in flat.items() if key not in ComponentNames.model_fields}
        score, window, *features = parse_flat(options, selected, _all_options, description)
        return {"score": score, "window": window, "normaliser": names.normaliser, "features": tuple(features)}

    @model_serializer
    def flat(self) -> dict[str, Any]:
        """Return the flat table, as in a run file."""
        feature_values: dict[str, Any] = {}
        for feature in self.features:
            feature_values |= _values(feature)
        return {
            "score": self.score.type,
            **_values(self.score),
            "window": self.window.type,
            **_values(self.window),
            "normaliser": self.normaliser,
            "features": [feature.type for feature in self.features],
            **feature_values,
        }


def _all_options() -> list[str]:
    return [*ComponentNames.model_fields, *option_names(SCORES, WINDOWS, FEATURES)]


def _values(options: Options) -> dict[str, Any]:
    return {key: value for key, value in options if key != options.key}
