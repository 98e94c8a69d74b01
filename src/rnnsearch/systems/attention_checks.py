"""Whether the pieces of `[model.attention]` go together, and what is attended to goes with how it is learned."""

from __future__ import annotations

from rnnsearch.config import AttentionConfig, ModelConfig, RunConfig
from rnnsearch.models.attention.features import FEATURES
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS
from rnnsearch.models.encoders import Rationale
from rnnsearch.models.fusion import FUSIONS
from rnnsearch.systems.shared_checks import against, idle

CHOOSES = f'model.encoder.type = "{Rationale.name}"'


def check_attention(model: ModelConfig, attention: AttentionConfig) -> list[str]:
    """Every reason why the pieces of a model's attention cannot be put together, or its score not be of its sizes."""
    if faults := _pieces(attention):
        return faults
    fault = attention.score.size_fault(model.decoder.size, model.decoder.attended_size(model.encoder.annotation_size))
    return [f"model.attention.{fault}"] if fault else []


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
    what = f"the {normaliser.name} normaliser"
    if not normaliser.goes_with(window):
        others = ", ".join(name for name, kind in WINDOWS.items() if normaliser.goes_with(kind))
        faults.append(f'{path}.window: must be {others} with {what}; got "{window.name}"')
    if normaliser.draws_noise and "heads" in attention.score.own():
        one = f"{what}, which finds one position a target symbol"
        faults.append(f'{path}.score: must have one head with {one}; got "{score.name}"')
    return faults


def check_drawn(config: RunConfig) -> list[str]:
    """Hard attention and REINFORCE need each other."""
    attention, path = config.translation.attention, "objective.reinforce"
    if attention is None:
        return []
    normaliser, what = NORMALISERS[attention.normaliser], f"the {attention.normaliser} normaliser"
    hard = normaliser.hard
    if hard and config.objective.reinforce is None:
        return [f"{path}: must be given for {what}, whose draws have no gradient"]
    if normaliser.draws_noise and config.translation.dropout.attention > 0:
        return idle(f"{what}, which draws noise of its own", {"model.dropout.attention": True})
    if config.objective.reinforce is not None and not hard:
        able = ", ".join(name for name, kind in NORMALISERS.items() if kind.hard)
        return [f"{path}: has no effect with {what}, which draws nothing; use model.attention.normaliser = {able}"]
    return []


def check_coverage(config: RunConfig) -> list[str]:
    """What is left can be learned from, where attention says what is."""
    attention = config.translation.attention
    if config.objective.coverage is None or attention is None:
        return []
    if any(FEATURES[feature.type].says_what_is_left for feature in attention.features):
        return []
    able = ", ".join(name for name, kind in FEATURES.items() if kind.says_what_is_left)
    return [f"objective.coverage: has no effect without a feature that says what is left; use one of {able}"]


def chooses(model: ModelConfig) -> bool:
    """Whether the encoder chooses the words that it reads."""
    return model.encoder.type == Rationale.name


def check_rationale(config: RunConfig) -> list[str]:
    """An encoder that chooses words and how it learns to need each other; what does not go with words left unread."""
    model, objective, path = config.translation, config.objective, "objective.rationale"
    learns, told = objective.rationale is not None, model.language_model
    if not chooses(model):
        what = f"the {model.encoder.type} encoder, which reads every word"
        return [f"{path}: has no effect with {what}; use {CHOOSES}"] if learns else []
    if not learns and not (told is not None and FUSIONS[told.type].output_alone):
        return [f"{path}: must be given for the {Rationale.name} encoder, whose choices have no gradient"]
    unread = {
        "objective.supervision": objective.supervision is not None,
        "search.coverage_penalty": config.search.coverage_penalty > 0,
    }
    return against(f"{CHOOSES}:", unread)
