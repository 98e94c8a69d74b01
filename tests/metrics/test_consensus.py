"""Minimum Bayes risk: what is most like the others, by a plain loop over the sentence scores."""

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from rnnsearch.metrics.consensus import expected_utility

TEXTS = ["a dog sees a ball", "a dog sees the ball", "the cat sleeps", "a dog sees a ball"]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_expected_utility_equals_a_loop(utility):
    p, metric = np.array([0.1, 0.4, 0.2, 0.3]), CHRF() if utility == "chrf" else BLEU(effective_order=True)
    each = np.array([[metric.sentence_score(own, [other]).score for other in TEXTS] for own in TEXTS])
    found = expected_utility(TEXTS, (7 * p).tolist(), utility, "en")
    np.testing.assert_allclose(found, each @ p, rtol=1e-9)
    assert int(np.argmax(found)) in (0, 1, 3)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_single_sample_has_full_utility(utility):
    assert expected_utility(["a dog sees a ball"], [0.2], utility) == pytest.approx([100.0])
