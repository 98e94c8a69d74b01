"""From `[objective]` to penalties."""

from __future__ import annotations

from rnnsearch.config import ObjectiveConfig
from rnnsearch.objectives.attention_priors import CoverageLeft, DoublyStochastic, GlobalFertility
from rnnsearch.objectives.penalty import Penalty
from rnnsearch.objectives.rationale import Rationales
from rnnsearch.objectives.reinforce import Reinforce
from rnnsearch.objectives.supervised_attention import SupervisedAttention


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
