"""Imports of the translator, consensus ranking, and lazy word attention."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import rnnsearch
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.sampling import Sampling
from rnnsearch.text import attention_words
from rnnsearch.text.alignments import attention_over_words
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.translation import make_translation

MODEL = Path(__file__).parent / "old_models" / "words"
TRANSLATE = f"""
import sys
import rnnsearch
translator = rnnsearch.load({str(MODEL)!r})
assert translator.translate("the dog sees a cat").text
translator.score(["the dog"], ["der Hund"])
apart = ("rnnsearch.training", "rnnsearch.evaluation", "rnnsearch.cli", "rnnsearch.serve", "matplotlib")
sys.exit(", ".join(name for name in sys.modules if name.startswith(apart)) or None)
"""


def test_translating_imports_no_training():
    done = subprocess.run([sys.executable, "-c", TRANSLATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_consensus_maximises_expected_utility():
    """Expected utility is computed by hand with sacreBLEU's sentence-level metrics, as in `metrics.consensus`."""
    translator = rnnsearch.load(MODEL)
    [one] = translator.n_best(["the dog"], translator.options(1))[0]
    texts, log_probs = ["der Hund", "ein Hund", "ein Hund da", "Katze"], [-1.0, -1.1, -1.2, -0.9]
    found = [replace(one, text=t, log_prob=p) for t, p in zip(texts, log_probs, strict=True)]

    def order(found, counts, utility):
        worth = [sum(p * utility(t.text, [o.text]).score for o, p in zip(found, counts, strict=True)) for t in found]
        return [found[n].text for n in np.argsort(-np.array(worth), kind="stable")]

    for name, utility in (("chrf", CHRF().sentence_score), ("bleu", BLEU(effective_order=True).sentence_score)):
        best = translator.by_consensus(found, translator.options(4), name)
        assert [t.text for t in best] == order(found, np.exp(log_probs), utility)
    assert best[0].text != "Katze", "the most probable text has least in common with the others"
    # A text sampled twice counts twice, and its probability has no further effect.
    drawn = [found[3], found[0], found[3], found[3], found[1]]
    best = translator.by_consensus(drawn, translator.options(5, variant=Sampling()))
    assert [t.text for t in best] == order(drawn, [1.0] * 5, CHRF().sentence_score)
    assert best[0].text == "Katze"


def test_word_attention_is_computed_on_first_access(monkeypatch):
    asked = []

    def record(*arguments):
        asked.append(1)
        return attention_over_words(*arguments)

    monkeypatch.setattr(attention_words, "attention_over_words", record)
    t = rnnsearch.load(MODEL).translate("the dog sees a cat")
    assert t.text and not asked, "word attention would make search a third slower"
    assert t.word_attention.shape == (len(t.words), len(t.source_words))
    assert t.alignment
    assert len(asked) == 1


def test_word_without_tokens_has_zero_attention():
    source = Segmented("a b \u200b", [4, 5], ["a", "b"], [(0, 1), (2, 3)])
    target = Segmented("x \u200b", [6], ["x"], [(0, 1)])
    attention = {"source": np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)}
    t = make_translation(
        source, target, Hypothesis((6,), -1.0, -1.0, (-0.5, -0.5), attention, True), aligns_previous_word=False
    )
    np.testing.assert_allclose(t.word_attention, [[0.7, 0.2, 0.0], [0.0, 0.0, 0.0]])
    assert t.alignment == ((0, 0),)
