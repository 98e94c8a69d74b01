"""Minimum Bayes risk: of several translations of a sentence the one most like all of them (Kumar & Byrne 2004).

    Y* = argmax over Y' of sum over Y of p(Y) u(Y', Y)

u(Y', Y) is sentence-level chrF or BLEU of Y' against the reference Y.
"""

from collections.abc import Sequence
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from rnnsearch.metrics.scores import bleu_tokeniser

Utility = Literal["chrf", "bleu"]


def expected_utility(
    texts: Sequence[str], probabilities: Sequence[float], utility: Utility = "chrf", language: str = ""
) -> list[float]:
    """Of each text sum over Y of p(Y) u(text, Y), 0 to 100; the probabilities, one a text, need not sum to one."""
    metric: Metric = CHRF() if utility == "chrf" else BLEU(tokenize=bleu_tokeniser(language), effective_order=True)
    mass: dict[str, float] = {}
    for text, probability in zip(texts, probabilities, strict=True):
        mass[text] = mass.get(text, 0.0) + probability
    total = sum(mass.values())
    each = {
        own: sum(p * metric.sentence_score(own, [other]).score for other, p in mass.items()) / total for own in mass
    }
    return [each[text] for text in texts]
