"""Which pieces of attention go together, and in which sizes."""

from __future__ import annotations

from rnnsearch.config import AttentionConfig
from rnnsearch.models.attention.normalisers import NORMALISERS
from rnnsearch.models.attention.scores import SCORES
from rnnsearch.models.attention.windows import WINDOWS


def piece_faults(attention: AttentionConfig) -> list[str]:
    """Every reason why the named pieces cannot be put together, each with its dotted path."""
    score, window = SCORES[attention.score], WINDOWS[attention.window]
    normaliser = NORMALISERS[attention.normaliser]
    faults = [fault for fault in (normaliser.fault(),) if fault]
    if attention.features and not score.takes_features:
        able = ", ".join(name for name, kind in SCORES.items() if kind.takes_features)
        faults.append(
            f"model.attention.features: enter the score's hidden layer, which the {score.name} score has not; "
            f"use score = {able}"
        )
    for name in sorted({name for name in attention.features if attention.features.count(name) > 1}):
        faults.append(f'model.attention.features: must be different ones; got "{name}" twice')
    if normaliser.draws_noise and window.weighs:
        others = ", ".join(name for name, kind in WINDOWS.items() if not kind.weighs)
        faults.append(
            f"model.attention.window: must be {others} with the {normaliser.name} normaliser, whose one position has "
            f'no weight to scale; got "{window.name}"'
        )
    if normaliser.draws_noise and "heads" in score.options:
        faults.append(
            f"model.attention.score: must have one head with the {normaliser.name} normaliser, which draws one "
            f'position a target symbol; got "{score.name}"'
        )
    return faults


def size_faults(attention: AttentionConfig, query_size: int, annotation_size: int) -> list[str]:
    """Every reason why the pieces, whose options are all given, do not fit the model's sizes."""
    fault = SCORES[attention.score].fault(attention, query_size, annotation_size)
    return [fault] if fault else []


def length_faults(attention: AttentionConfig, max_length: int | None) -> list[str]:
    """Every reason why training sentences of at most `max_length` symbols (None: any) do not fit the pieces."""
    most = attention.max_source
    if most is None or (max_length is not None and max_length < most):
        return []
    return [
        f"training.max_length: must be given and below model.attention.max_source ({most}), for the end symbol has a "
        f"weight, too; got {max_length or 'none'}"
    ]
