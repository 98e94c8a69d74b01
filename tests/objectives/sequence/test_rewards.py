"""Rewards equal their definitions and sacrebleu's sentence scores."""

from __future__ import annotations

import math

import pytest

from rnnsearch.config.sequence import BleuRewardOptions
from rnnsearch.objectives.sequence.rewards import SentenceBleu


def bleu(hypothesis: str, reference: str) -> float:
    [value] = SentenceBleu(BleuRewardOptions(), str).score([hypothesis], [reference])
    return float(value)


def test_bleu_is_one_for_the_reference_and_zero_without_a_common_word():
    assert bleu("a b c d e", "a b c d e") == pytest.approx(1.0)
    assert bleu("a", "a") == pytest.approx(1.0)
    assert bleu("x y", "a b") == 0.0
    assert bleu("", "a b") == 0.0


def test_bleu_adds_one_to_longer_ngrams_and_penalises_short_translations():
    # 3 of 4 words, 2 of 3 pairs, 1 of 2 triples, 0 of 1 of four words; 4 words instead of 5
    precisions = 3 / 4, 3 / 4, 2 / 3, 1 / 2
    expected = math.prod(precisions) ** 0.25 * math.exp(1 - 5 / 4)
    assert bleu("a b c x", "a b c d e") == pytest.approx(expected)


def test_equal_pairs_are_scored_once():
    calls = []

    class Counting(SentenceBleu):
        def score(self, hypotheses, references):
            calls.append(len(hypotheses))
            return super().score(hypotheses, references)

    reward = Counting(BleuRewardOptions(), lambda ids: " ".join(map(str, ids)))
    values = reward.start([[1, 2], [1, 2], [3]], [[1, 2], [1, 2], [1, 2]])()
    assert values.tolist() == [1.0, 1.0, 0.0]
    assert calls == [2]
