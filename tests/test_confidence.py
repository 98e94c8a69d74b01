"""Word confidence, its features, and warnings about translations."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.calibration import expected_calibration_error
from rnnsearch.translator.confidence import (
    FEATURES,
    correct_words,
    max_repetitions,
    reliability_bins,
    unknown_rate,
    warnings,
    word_features,
)
from rnnsearch.translator.translator import Translator
from tests.translations import attention_stub
from tests.untrained import BAHDANAU, RNNENCDEC, TEXT, untrained


@pytest.fixture(scope="module")
def translation():
    return Translator(untrained(BAHDANAU)).score(TEXT["en"][:1], TEXT["de"][:1])[0]


def test_correct_words_are_a_longest_common_subsequence():
    random = np.random.default_rng(3)
    for _ in range(40):
        one, other = (["abc"[n] for n in random.integers(0, 3, size)] for size in random.integers(0, 8, 2))
        marks = correct_words(one, other)
        common = [word for word, right in zip(one, marks, strict=True) if right]
        subsequences = {some for size in range(len(other) + 1) for some in combinations(other, size)}
        assert tuple(common) in subsequences
        longest = max(len(s) for size in range(len(one) + 1) for s in combinations(one, size) if s in subsequences)
        assert len(common) == longest
    assert correct_words(["Der", "Hund."], ["Hund", ",", "Der", "Hund"]).tolist() == [True, True]
    assert correct_words(["."], ["."]).tolist() == [True]


def test_features_have_their_definitions(translation):
    t = translation
    x = word_features(t)
    assert x.shape == (len(t.words), len(FEATURES))
    by_name = dict(zip(FEATURES, x.T, strict=True))
    p = np.array(t.word_probabilities)
    np.testing.assert_allclose(by_name["word's log p"], np.log(p), atol=1e-6)
    np.testing.assert_allclose(1 / (1 + np.exp(-by_name["word"])), np.clip(p, 1e-3, 1 - 1e-3), atol=1e-6)
    np.testing.assert_allclose(by_name["word before"][1:], by_name["word"][:-1])
    np.testing.assert_allclose(by_name["word after"][:-1], by_name["word"][1:])
    assert by_name["word before"][0] == by_name["word after"][-1] == 0
    assert by_name["sentence's log p"] == pytest.approx(t.log_prob / len(t.tokens))
    shares = t.word_attention / t.word_attention.sum(1, keepdims=True)
    entropy = [-sum(a * np.log(a) for a in row) / np.log(len(row)) for row in shares]
    np.testing.assert_allclose(by_name["attention entropy"], entropy, atol=1e-5)
    np.testing.assert_allclose(by_name["attention peak"], t.word_attention.max(1))
    assert by_name["length"] == pytest.approx(np.log(len(t.words) / len(t.source_words)))
    assert np.isfinite(
        word_features(replace(t, words=(), by_attention=attention_stub(token_words=(-1,) * len(t.tokens))))
    ).all()


def test_reliability_bins_compare_confidence_with_references(translation):
    t = translation
    sure = replace(t, word_confidence=tuple(0.05 + 0.9 * (n % 2) for n in range(len(t.words))))
    reference = " ".join(word if n % 2 else "x" for n, word in enumerate(t.words))
    low, high = reliability_bins([sure, sure], [reference, reference])
    assert (low.count + high.count, low.right, high.right) == (2 * len(t.words), 0.0, 1.0)
    assert expected_calibration_error([low, high]) == pytest.approx(0.05)
    assert reliability_bins([t], [reference]) == [], "uncalibrated translations are ignored"
    with pytest.raises(RnnsearchError, match="references must be one per sentence"):
        reliability_bins([sure], [])


def test_attention_features_are_zero_without_attention():
    [t] = Translator(untrained(RNNENCDEC)).score(TEXT["en"][:1], TEXT["de"][:1])
    x = dict(zip(FEATURES, word_features(t).T, strict=True))
    assert not x["attention entropy"].any() and not x["attention peak"].any() and not x["source use"].any()
    assert x["word"].any()


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 1), ("a", 1), ("a a", 1), ("a a a", 3), ("b a a a a c", 4), ("a b a b", 2), ("x a b a b a b", 3),
        ("a b c a b c", 2), ("a b c d a b c d", 2), ("a b c d e a b c d e", 1), ("a b a", 1), ("a b c a b", 1),
    ],
)  # fmt: skip
def test_max_repetitions(text, times):
    assert max_repetitions(text.split()) == times


def test_repetitions_of_a_long_line_take_linear_time():
    assert max_repetitions(["a"] * 100_000) == 100_000


@pytest.mark.parametrize(
    ("tokens", "rate"),
    [
        ("▁the ▁house </s>", 0),
        ("▁the <unk> <unk> </s>", 2 / 3),
        ("▁I ▁love ▁it ▁ <0xF0> <0x9F> <0x98> <0x80> . </s>", 1 / 5),
        ("▁ <0xD0> <0x9F> <0xD1> <0x80> ▁ <0xD0> <0xB8> </s>", 1),
        ("▁ <0x02> ▁a </s>", 0),
        ("</s>", 0),
    ],
)
def test_unknown_rate_counts_unknown_characters_once(translation, tokens, rate):
    assert unknown_rate(replace(translation, source_tokens=tuple(tokens.split()))) == pytest.approx(rate)


def test_warnings_of_each_kind(translation):
    t = replace(translation, finished=True, source_words=tuple("abcd"))
    even = np.full((4, 4), 0.25, dtype=np.float32)
    good = replace(t, words=tuple("efgh"), by_attention=attention_stub(even))
    assert warnings(good) == ()
    assert warnings(replace(good, finished=False)) == ("cut",)
    assert warnings(replace(good, words=("e",) * 30, by_attention=attention_stub())) == ("long", "repeated")
    assert warnings(replace(good, words=tuple("efef"))) == ("repeated",)
    assert warnings(replace(good, words=tuple("efef"), source_words=tuple("abab"))) == (), "the source also repeats"
    on_one = np.zeros((4, 4), dtype=np.float32)
    on_one[:, 3] = 1.0
    assert warnings(replace(good, by_attention=attention_stub(on_one))) == ("detached",)
    assert warnings(replace(good, words=("e",), by_attention=attention_stub(on_one[:1]))) == ("dropped",)
    assert warnings(replace(good, words=(), by_attention=attention_stub(on_one[:0]))) == ()
