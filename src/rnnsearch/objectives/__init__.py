"""What training minimises: functions `(model, batch, rng) -> Loss`, combined as weighted lists."""

from __future__ import annotations

from rnnsearch.config import ObjectiveConfig
from rnnsearch.objectives.attention_penalties import (
    CoverageLeft,
    DoublyStochastic,
    GlobalFertility,
    SupervisedAttention,
)
from rnnsearch.objectives.loss import Penalty
from rnnsearch.objectives.reinforce import Rationales, Reinforce

# From `[objective]` to penalties.


def penalties(config: ObjectiveConfig) -> list[tuple[float, Penalty]]:
    """The weighted penalties that the config asks for."""
    found: list[tuple[float, Penalty]] = []
    if config.doubly_stochastic is not None:
        found.append((config.doubly_stochastic, DoublyStochastic()))
    if config.coverage is not None:
        found.append((config.coverage, CoverageLeft()))
    if config.fertility is not None:
        found.append((config.fertility.weight, GlobalFertility()))
    if config.supervision is not None:
        found.append((config.supervision.weight, SupervisedAttention(config.supervision)))
    if config.reinforce is not None:
        found.append((config.reinforce.weight, Reinforce(config.reinforce.entropy)))
    if config.rationale is not None:
        found.append((1.0, Rationales(config.rationale)))
    return found
