"""Whether the parts of `[model]` go together: every fault in one sentence with its dotted path."""

from __future__ import annotations

from rnnsearch.config import AttentionConfig, ModelConfig, RunConfig
from rnnsearch.config.decoders import StackOptions
from rnnsearch.config.encoders import ENCODERS, StackedOptions
from rnnsearch.config.model import NormalOptions
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.bridges import BRIDGES, Zero
from rnnsearch.models.cells import CELLS
from rnnsearch.models.decoders.table import DECODERS
from rnnsearch.models.memory import StateShape


def check_model(config: RunConfig) -> list[str]:
    """Every fault in the combinations of `[model]`; empty if none."""
    return [*_init(config.model), *_attends(config), *_bridge(config.model), *_dropout(config.model), *_ties(config)]


def _what(model: ModelConfig) -> str:
    return f"the {model.decoder.type} decoder"


def _init(model: ModelConfig) -> list[str]:
    """Matrices of an alignment model need a scale where the init has one for them."""
    if not isinstance(model.init, NormalOptions):
        return []
    aligns = DECODERS[model.decoder.type].attends and model.attention is not None
    draws = aligns and model.attention is not None and SCORES[model.attention.score.type].draws
    path = "model.init.alignment_scale"
    if draws and model.init.alignment_scale is None:
        return [f"{path}: must be given for the normal init of this model"]
    if not draws and model.init.alignment_scale is not None:
        return [f'{path}: has no effect with the normal init of this model; remove it (or say "unset")']
    return []


def _attends(config: RunConfig) -> list[str]:
    """A decoder with attention and `[model.attention]` need each other; without it, one vector is all there is."""
    model, what = config.model, _what(config.model)
    if DECODERS[model.decoder.type].attends:
        if model.attention is None:
            return [f"model.attention: must be given for {what}"]
        return _pieces(model.attention) or _sizes(config, model.attention)
    idle = {
        "model.attention": model.attention is not None,
        "model.lexical": model.lexical,
        "model.dropout.annotations": model.dropout.annotations > 0,
    }
    faults = [f"{path}: has no effect with {what}, which does not attend; remove it" for path, on in idle.items() if on]
    return [*faults, *_one_vector(model)]


def _one_vector(model: ModelConfig) -> list[str]:
    """Without attention and a bridge the encoder must give one vector."""
    reader, encoder = f"{_what(model)}, whose context is the encoder's last state", model.encoder
    if isinstance(model.decoder, StackOptions):
        return []
    if not encoder.one_vector:
        able = ", ".join(name for name, kind in ENCODERS.items() if kind.one_vector)
        return [f'model.encoder.type: must be {able} for {reader}; got "{encoder.type}"']
    if isinstance(encoder, StackedOptions) and encoder.direction == "both":
        return [f'model.encoder.direction: must be forward or bottom for {reader}; got "both"']
    return []


def _pieces(attention: AttentionConfig) -> list[str]:
    """Every reason why the pieces of attention cannot be put together."""
    score, window = SCORES[attention.score.type], WINDOWS[attention.window.type]
    normaliser, path = NORMALISERS[attention.normaliser], "model.attention"
    faults = [fault for fault in (normaliser.fault(),) if fault]
    names = [feature.type for feature in attention.features]
    if names and not score.takes_features:
        able = ", ".join(name for name, kind in SCORES.items() if kind.takes_features)
        why = f"enter the score's hidden layer, which the {score.name} score has not"
        faults.append(f"{path}.features: {why}; use score = {able}")
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.append(f'{path}.features: must be different ones; got "{name}" twice')
    one = f"the {normaliser.name} normaliser, whose one position has no weight to scale"
    if normaliser.draws_noise and window.weighs:
        others = ", ".join(name for name, kind in WINDOWS.items() if not kind.weighs)
        faults.append(f'{path}.window: must be {others} with {one}; got "{window.name}"')
    if normaliser.draws_noise and "heads" in attention.score.own():
        one = f"the {normaliser.name} normaliser, which draws one position a target symbol"
        faults.append(f'{path}.score: must have one head with {one}; got "{score.name}"')
    return faults


def _sizes(config: RunConfig, attention: AttentionConfig) -> list[str]:
    """Whether a score fits the sizes of queries and annotations, and the lengths of the training sentences."""
    model, longest = config.model, config.training.max_length
    fault = attention.score.size_fault(model.decoder.size, model.decoder.attended_size(model.encoder.annotation_size))
    faults = [f"model.attention.{fault}"] if fault else []
    most: int | None = getattr(attention.score, "max_source", None)
    if most is not None and (longest is None or longest >= most):
        must = f"must be given and below model.attention.max_source ({most}), for the end symbol has a weight, too"
        faults.append(f"training.max_length: {must}; got {longest or 'none'}")
    return faults


def _bridge(model: ModelConfig) -> list[str]:
    """A bridge must fit the states on both its sides."""
    decoder = model.decoder
    if not isinstance(decoder, StackOptions):
        return []
    if not DECODERS[decoder.type].attends and decoder.bridge == Zero.name:
        blind = f'"zero" would leave {_what(model)} without any sight of the source'
        return [f'model.decoder.bridge: {blind}; use "copy" or "learned"']
    state = CELLS[model.encoder.cell].state
    encoder = tuple(StateShape(state, size) for size in model.encoder.layer_sizes)
    shapes = (StateShape(CELLS[decoder.cell].state, decoder.size),) * decoder.layers
    fault = BRIDGES[decoder.bridge].fault(encoder, shapes)
    return [f"model.decoder.bridge: {fault}"] if fault else []


def _dropout(model: ModelConfig) -> list[str]:
    """Dropout between layers needs some."""
    if model.dropout.layers == 0 or len(model.encoder.layer_sizes) > 1 or model.decoder.depth > 1:
        return []
    return ["model.dropout.layers: has no effect with an encoder and a decoder of one layer; remove it"]


def _ties(config: RunConfig) -> list[str]:
    """Shared embeddings need a readout of their size, and all of them one vocabulary."""
    model, text, faults = config.model, config.text, []
    option, size = model.decoder.readout_option, model.decoder.readout_size
    shares = f'model.tie: "{model.tie}" shares the embeddings with the output rows'
    if model.tie != "none" and option is None:
        faults.append(f"{shares}, which {_what(model)}'s two-part readout does not fit; remove it")
    elif model.tie != "none" and size != model.embedding:
        must = f"model.decoder.{option} must equal model.embedding ({model.embedding})"
        faults.append(f"{shares}, so {must}; got {size}")
    if model.tie == "all" and not text.joint:
        faults.append('model.tie: "all" needs one vocabulary for both languages: set text.joint = true')
    if text.joint and text.type == "words":
        faults.append('text.joint: has no effect with text.type = "words"; remove it')
    return faults
