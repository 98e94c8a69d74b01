"""`[model.attention]`: flat as users write it, each piece's options a class of its own. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_serializer, model_validator

from rnnsearch.config.choice import NameIn, Options, by_name, options_of, read_apart
from rnnsearch.config.names import NormaliserName
from rnnsearch.config.table import Count, Few, Positive, Size, Table


class ScoreOptions(Options):
    """What every score has."""

    type: str

    def size_fault(self, query_size: int, annotation_size: int) -> str | None:
        """Why it cannot be had in these sizes, with the path below `[model.attention]`; None if it can."""
        return None


class AdditiveOptions(ScoreOptions):
    """v^T tanh(W s + U h) (Bahdanau et al., appendix A.1.2)."""

    type: Literal["additive"] = "additive"
    size: Size
    """Units of the alignment model's hidden layer (A), of all heads together."""


class AdditiveBiasOptions(ScoreOptions):
    """v^T tanh(W s + U h + b): `additive` with a bias (OpenNMT-py's `mlp`)."""

    type: Literal["additive-bias"] = "additive-bias"
    size: Size


class ConcatOptions(ScoreOptions):
    """v^T tanh(W [s; h]) (Luong et al., after eq. 7): `additive`, begun as one matrix."""

    type: Literal["concat"] = "concat"
    size: Size


class ConcatIdentityOptions(ScoreOptions):
    """v^T tanh(W s + h): `concat` as its figures were reported (Luong et al., footnote 15)."""

    type: Literal["concat-identity"] = "concat-identity"


class MultiHeadAdditiveOptions(ScoreOptions):
    """An additive score a head, and a context of its own for each (RNMT+)."""

    type: Literal["multi-head-additive"] = "multi-head-additive"
    size: Size
    heads: Few
    """Heads. It must divide `size` and the size of an annotation."""

    def size_fault(self, query_size: int, annotation_size: int) -> str | None:
        if self.size % self.heads == 0 and annotation_size % self.heads == 0:
            return None
        must = "heads: must divide model.attention.size and the size of an annotation"
        return f"{must}; got {self.heads}, {self.size} and {annotation_size}"


class _AsLong(ScoreOptions):
    def size_fault(self, query_size: int, annotation_size: int) -> str | None:
        if query_size == annotation_size:
            return None
        must = f"score: {self.type} must have a decoder state as long as an annotation"
        return f"{must}; got {query_size} and {annotation_size} numbers (the general score takes any sizes)"


class DotOptions(_AsLong):
    """s^T h (Luong et al., after eq. 7). The state must be as long as an annotation."""

    type: Literal["dot"] = "dot"


class ScaledDotOptions(_AsLong):
    """s^T h by the square root of the state's size (Vaswani et al., eq. 1)."""

    type: Literal["scaled-dot"] = "scaled-dot"


class GeneralOptions(ScoreOptions):
    """s^T W h (Luong et al., after eq. 7), for any two sizes."""

    type: Literal["general"] = "general"


class LocationOptions(ScoreOptions):
    """W s alone, whatever stands at a position (Luong et al., eq. 8)."""

    type: Literal["location"] = "location"
    max_source: Size
    """Source symbols, the end symbol among them, that there are weights for. Those of a longer sentence that come after
    them are ignored."""


class EvenOptions(ScoreOptions):
    """0, whatever stands where: the window alone says what is attended to (the mixture's, in Graves 2013)."""

    type: Literal["even"] = "even"


class ConvolutionalOptions(ScoreOptions):
    """Filters over neighbouring annotations, gated by the state (Allamanis et al. 2016)."""

    type: Literal["convolutional"] = "convolutional"
    first: Size
    """Filters of the first layer (k_1)."""
    second: Size
    """Filters of the second, which the state gates (k_2)."""
    around: Count
    """Positions on either side that a filter sees."""


class WindowOptions(Options):
    """What every window has."""

    type: str


class GlobalOptions(WindowOptions):
    """All source positions."""

    type: Literal["global"] = "global"


class LocalMonotonicOptions(WindowOptions):
    """Those within `width` of the target position (Luong et al., section 3.2)."""

    type: Literal["local-m"] = "local-m"
    width: Size
    """D of the window [p - D, p + D] (10 in Luong et al.)."""


class LocalPredictiveOptions(WindowOptions):
    """Those within `width` of a predicted position, the weights times a Gaussian around it; they then add up to less
    than 1 (Luong et al., eq. 9-10)."""

    type: Literal["local-p"] = "local-p"
    width: Size


class WaitOptions(WindowOptions):
    """Those that have arrived: `wait` before the first target symbol, and one more with each (Ma et al. 2019)."""

    type: Literal["wait-k"] = "wait-k"
    wait: Size
    """Source symbols that are read before the first target symbol is written (k)."""


class MixtureOptions(WindowOptions):
    """The weights times a mixture of bells whose centres move rightward alone (Graves 2013, eq. 46-51)."""

    type: Literal["mixture"] = "mixture"
    components: Size
    """Bells (K)."""


class FeatureOptions(Options):
    """What every feature has."""

    type: str


class LinguisticCoverageOptions(FeatureOptions):
    """How much of a source symbol has been translated, by its fertility (Tu et al. 2016, section 3.1.1)."""

    type: Literal["coverage-linguistic"] = "coverage-linguistic"
    fertility: Positive
    """N, the most target symbols that a source symbol may have (2 in Tu et al.)."""


class NeuralCoverageOptions(FeatureOptions):
    """A coverage vector a source symbol, kept by a GRU (Tu et al. 2016, section 3.1.2)."""

    type: Literal["coverage-neural"] = "coverage-neural"
    coverage_size: Size
    """Numbers of coverage a source position (10 in Tu et al.)."""


class CoverageEmbeddingOptions(FeatureOptions):
    """A coverage embedding a source word, which each target word changes by its weights (Mi et al. 2016)."""

    type: Literal["coverage-embedding"] = "coverage-embedding"
    coverage_size: Size


class PositionOptions(FeatureOptions):
    """Logarithms of target position, source position and source length (Cohn et al. 2016, section 3.1)."""

    type: Literal["position"] = "position"


class MarkovOptions(FeatureOptions):
    """The last weights around a source position (Cohn et al. 2016, section 3.2)."""

    type: Literal["markov"] = "markov"
    neighbours: Count
    """k of the window [j - k, j + k] over earlier weights (1 in Cohn et al.)."""


class LocalFertilityOptions(FeatureOptions):
    """The sums of all weights so far around it (Cohn et al. 2016, section 3.3)."""

    type: Literal["fertility-local"] = "fertility-local"
    neighbours: Count


class RecurrentOptions(FeatureOptions):
    """A memory a source symbol of the weights around it so far, kept by an LSTM (Yang et al. 2017)."""

    type: Literal["recurrent"] = "recurrent"
    neighbours: Count
    recurrent_size: Size
    """Numbers of that memory."""


SCORES: dict[str, type[ScoreOptions]] = by_name(
    *(AdditiveOptions, AdditiveBiasOptions, ConcatOptions, ConcatIdentityOptions, MultiHeadAdditiveOptions),
    *(DotOptions, ScaledDotOptions, GeneralOptions, LocationOptions, ConvolutionalOptions, EvenOptions),
)
WINDOWS: dict[str, type[WindowOptions]] = by_name(
    GlobalOptions, LocalMonotonicOptions, LocalPredictiveOptions, WaitOptions, MixtureOptions
)
FEATURES: dict[str, type[FeatureOptions]] = by_name(
    *(LinguisticCoverageOptions, NeuralCoverageOptions, CoverageEmbeddingOptions),
    *(PositionOptions, MarkovOptions, LocalFertilityOptions, RecurrentOptions),
)


class Pieces(Table):
    """Which pieces a flat table names."""

    score: Annotated[str, NameIn(SCORES)] = "additive"
    """A score: see below."""
    window: Annotated[str, NameIn(WINDOWS)] = "global"
    """Which source positions may be attended to: see below."""
    normaliser: NormaliserName = "softmax"
    """How energies become weights: see below."""
    features: list[Annotated[str, NameIn(FEATURES)]] = Field(default=[])
    """What the alignment model sees of a source position besides: see below. For scores with a hidden layer."""


class AttentionConfig(Table):
    """`[model.attention]`: score, window, normaliser and features, their options side by side in one flat table.

    Must be given for a decoder with attention, and must not for one without."""

    score: ScoreOptions
    window: WindowOptions
    normaliser: str
    features: tuple[FeatureOptions, ...]

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, flat: Any) -> Any:
        if not isinstance(flat, Mapping):
            return flat
        named = Pieces.model_validate({key: flat[key] for key in Pieces.model_fields if flat.get(key) is not None})
        chosen = [SCORES[named.score], WINDOWS[named.window], *(FEATURES[name] for name in named.features)]
        what = ", ".join([f"the {named.score} score", f"the {named.window} window", *named.features])
        options = {key: value for key, value in flat.items() if key not in Pieces.model_fields}
        score, window, *features = read_apart(options, chosen, _known, what)
        return {"score": score, "window": window, "normaliser": named.normaliser, "features": tuple(features)}

    @model_serializer
    def flat(self) -> dict[str, Any]:
        """As it stands in a run file."""
        features = {key: value for feature in self.features for key, value in _options(feature).items()}
        return {
            "score": self.score.type,
            **_options(self.score),
            "window": self.window.type,
            **_options(self.window),
            "normaliser": self.normaliser,
            "features": [feature.type for feature in self.features],
            **features,
        }


def _known() -> list[str]:
    """Every option that `[model.attention]` may have."""
    return [*Pieces.model_fields, *options_of(SCORES, WINDOWS, FEATURES)]


def _options(piece: Options) -> dict[str, Any]:
    return {key: value for key, value in piece if key != piece.key}
