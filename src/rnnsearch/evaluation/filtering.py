"""How well two sentences translate each other, by the models of both directions, and which pairs of a noisy corpus to
keep: dual conditional cross-entropy filtering (Junczys-Dowmunt 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ModelError
from rnnsearch.translator.translator import Translator

Numbers = npt.NDArray[np.float64]


def adequacy(entropies: Sequence[Sequence[float]]) -> Numbers:
    """[pairs], from 1 (all directions are certain) down to 0, of cross-entropies a symbol [directions, pairs].

    Of two directions it is exp(-(|H_f - H_r| + (H_f + H_r) / 2)): pairs that the models find improbable, or one of them
    much more so than the other (Junczys-Dowmunt 2018, eq. 1 and 2). Of one it is exp(-H).
    """
    both = np.asarray(entropies, dtype=np.float64)
    adequate: Numbers = np.exp(-(both.max(0) - both.min(0) + both.mean(0)))
    return adequate


@dataclass(frozen=True)
class PairScores:
    """Scores of sentence pairs, by a model from source to target, one from target to source, or both.

    Errors: ModelError where there is none, or the two are not of one pair of languages.
    """

    forward: Translator | None = None
    reverse: Translator | None = None

    def __post_init__(self) -> None:
        if self.forward is None and self.reverse is None:
            raise ModelError("there must be a model to score pairs by; got none")
        if self.forward is not None and self.reverse is not None:
            self.reverse.require_reverse_of(*self.forward.languages)

    @property
    def model(self) -> Translator:
        """The forward model, where there is one, else the reverse one."""
        found = self.forward or self.reverse
        assert found is not None
        return found

    def __call__(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """The `adequacy` of each pair; 0 of one with an empty side."""
        whole = [n for n, pair in enumerate(zip(sources, targets, strict=True)) if all(map(str.strip, pair))]
        texts = [sources[n] for n in whole], [targets[n] for n in whole]
        entropies = []
        if self.forward is not None:
            entropies.append(self.forward.cross_entropies(*texts))
        if self.reverse is not None:
            entropies.append(self.reverse.cross_entropies(*reversed(texts)))
        scores = np.zeros(len(sources))
        scores[whole] = adequacy(entropies)
        return scores.tolist()


def kept(scores: Numbers, share: float | None = None, threshold: float = 0.0) -> npt.NDArray[np.bool_]:
    """Which pairs [pairs] to keep: the best `share` of all, of equal ones the first, and of these the scores of
    `threshold` and more; none of score 0."""
    keep = (scores > 0) & (scores >= threshold)
    if share is not None:
        keep[np.argsort(-scores, kind="stable")[round(share * len(scores)) :]] = False
    return keep
