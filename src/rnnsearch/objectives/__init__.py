"""Objectives of training: functions (model, batch, rng) -> Loss.

`loss.py` has the base classes, `likelihood.py` the objective of almost every model, and the other modules its optional
terms. `penalties` creates those that `[objective]` configures.

`systems/translation.py`, `systems/language.py` and `training/tasks.py` create the objectives, `training/gradients.py`
calls them. A call must have no side effects, because a batch may be split or repeated.
"""

from __future__ import annotations

from rnnsearch.config import ObjectiveConfig
from rnnsearch.objectives.attention_penalties import (
    DoublyStochastic,
    GlobalFertility,
    RemainingCoverage,
    SupervisedAttention,
)
from rnnsearch.objectives.loss import Penalty
from rnnsearch.objectives.reinforce import RationalePenalty, Reinforce


def penalties(config: ObjectiveConfig) -> list[tuple[float, Penalty]]:
    """Return the penalties of a config with their weights."""
    weighted: list[tuple[float, Penalty]] = []
    if config.doubly_stochastic is not None:
        weighted.append((config.doubly_stochastic, DoublyStochastic()))
    if config.coverage is not None:
        weighted.append((config.coverage, RemainingCoverage()))
    if config.fertility is not None:
        weighted.append((config.fertility.weight, GlobalFertility()))
    if config.supervision is not None:
        weighted.append((config.supervision.weight, SupervisedAttention(config.supervision)))
    if config.reinforce is not None:
        weighted.append((config.reinforce.weight, Reinforce(config.reinforce.entropy)))
    if config.rationale is not None:
        weighted.append((1.0, RationalePenalty(config.rationale)))
    return weighted
