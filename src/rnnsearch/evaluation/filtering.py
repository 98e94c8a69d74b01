"""Scores of how well two sentences translate each other, to select pairs of a noisy corpus.

Dual conditional cross-entropy filtering (Junczys-Dowmunt 2018), used by `rnnsearch filter` and from Python.

`cli/corpora.py` stores the scores in a text file, one per line, so a changed formula changes what existing files mean.
Tests: tests/commands/test_filter.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ModelError
from rnnsearch.translator.translator import Translator

Scores = npt.NDArray[np.float64]


def adequacy(entropies: Sequence[Sequence[float]]) -> Scores:
    """Return scores [pairs] from 1, if all directions are certain, down to 0.

    With two directions, the score is exp(-(|H_f - H_r| + (H_f + H_r) / 2)) (Junczys-Dowmunt 2018, eq. 1 and 2): it is
    low if the models find a pair improbable, or if one of them finds it much less probable than the other. With one
    direction, it is exp(-H).

    Args:
        entropies: Cross-entropies per token [directions, pairs].
    """
    by_direction = np.asarray(entropies, dtype=np.float64)
    scores: Scores = np.exp(-(by_direction.max(0) - by_direction.min(0) + by_direction.mean(0)))
    return scores


@dataclass(frozen=True)
class PairScores:
    """Scores sentence pairs with a model from source to target, one from target to source, or both.

    Raises:
        ModelError: If no model is given, or if the two are not for the same pair of languages.
    """

    forward: Translator | None = None
    """Model from source to target, if there is one."""
    reverse: Translator | None = None
    """Model from target to source, if there is one."""

    def __post_init__(self) -> None:
        if self.forward is None and self.reverse is None:
            raise ModelError("there must be a model to score pairs by; got none")
        if self.forward is not None and self.reverse is not None:
            self.reverse.require_reverse_of(*self.forward.languages)

    @property
    def model(self) -> Translator:
        """The forward model, or the reverse one if there is no other."""
        model = self.forward or self.reverse
        assert model is not None
        return model

    def __call__(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the `adequacy` of each pair; 0 if a sentence is empty."""
        complete = []
        for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
            if source.strip() and target.strip():
                complete.append(index)
        complete_sources = [sources[index] for index in complete]
        complete_targets = [targets[index] for index in complete]
        entropies = []
        if self.forward is not None:
            entropies.append(self.forward.cross_entropies(complete_sources, complete_targets))
        if self.reverse is not None:
            entropies.append(self.reverse.cross_entropies(complete_targets, complete_sources))
        scores = np.zeros(len(sources))
        scores[complete] = adequacy(entropies)
        return scores.tolist()


def kept(scores: Scores, share: float | None = None, threshold: float = 0.0) -> npt.NDArray[np.bool_]:
    """Return True for each pair to keep, [pairs]; pairs with score 0 are never kept.

    Args:
        scores: Scores of the pairs.
        share: Fraction of all pairs to keep, best first; of equal scores, the first. None keeps all.
        threshold: Minimum score.
    """
    is_kept = (scores > 0) & (scores >= threshold)
    if share is not None:
        ranking = np.argsort(-scores, kind="stable")
        is_kept[ranking[round(share * len(scores)) :]] = False
    return is_kept
