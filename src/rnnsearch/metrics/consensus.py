"""Minimum Bayes risk: choose the translation that is most similar to all candidates (Kumar & Byrne 2004).

    Y* = argmax over Y' of sum over Y of p(Y) u(Y', Y)

u(Y', Y) is sentence-level chrF or BLEU of Y' against the reference Y.

`translator/translator.py` uses it for minimum Bayes risk decoding. The time is quadratic in the number of candidates.
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
    """Return sum over Y of p(Y) u(text, Y) for each text, from 0 to 100.

    Args:
        texts: Candidate translations; may contain duplicates.
        probabilities: Probability of each text; they are normalised to sum to 1.
        utility: `chrf` or `bleu`.
        language: Code of the target language, for BLEU's tokeniser.
    """
    metric: Metric = CHRF() if utility == "chrf" else BLEU(tokenize=bleu_tokeniser(language), effective_order=True)
    mass: dict[str, float] = {}
    for text, probability in zip(texts, probabilities, strict=True):
        mass[text] = mass.get(text, 0.0) + probability
    total = sum(mass.values())
    utilities = {}
    for text in mass:
        utilities[text] = sum(p * metric.sentence_score(text, [other]).score for other, p in mass.items()) / total
    return [utilities[text] for text in texts]
