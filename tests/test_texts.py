"""Translations of texts of several sentences, joined to one `Translation`."""

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.metrics.calibration import Calibration
from rnnsearch.text.tokenizer import Replacement, Segmented
from rnnsearch.translator.confidence import FEATURES, warnings
from rnnsearch.translator.texts import TextTranslation, join_sentences, translate_texts
from rnnsearch.translator.translator import Translator
from tests.translations import translation
from tests.untrained import BAHDANAU, RNNENCDEC, untrained

TEXT = "  the small cat sees the dog.  A bird sees the cat! Is it red?\nthe dog sees a big bird."
SENTENCES = ["the small cat sees the dog.", "A bird sees the cat!", "Is it red?", "the dog sees a big bird."]


@pytest.fixture(scope="module", params=["words", "bpe"])
def translator(request):
    values = tuple(float(n % 3) for n in range(len(FEATURES)))
    calibration = Calibration(FEATURES, values, (2.0,) * len(FEATURES), values, 0.5, 300, 0.7, 0.1)
    return Translator(untrained(BAHDANAU, request.param), calibration=calibration)


def test_layout_and_scores_are_those_of_the_sentences(translator):
    joined = translator.translate_text(TEXT)
    parts = translator.translate(SENTENCES)
    texts = [part.text for part in parts]
    assert joined.source == TEXT
    assert joined.text == "  {}  {} {}\n{}".format(*texts)
    assert [part.text for part in joined.sentences] == texts
    assert joined.log_prob == pytest.approx(sum(part.log_prob for part in parts), rel=1e-4)
    assert len(joined.tokens) == len(joined.token_scores) == sum(len(part.tokens) for part in parts)
    assert joined.source_tokens.count("</s>") == 4
    assert joined.finished == all(part.finished for part in parts)
    assert min(part.score for part in parts) <= joined.score <= max(part.score for part in parts)
    assert len(joined.word_confidence) == len(joined.words)
    assert joined.confidence == pytest.approx(np.mean([p for part in parts for p in part.word_confidence]), abs=1e-3)


def test_alignments_and_attention_are_those_of_the_sentences(translator):
    joined = translator.translate_text(TEXT)
    source_word, target_word, source_token, target_token = 0, 0, 0, 0
    words, tokens = [], []
    for part in joined.sentences:
        words += [(source_word + i, target_word + j) for i, j in part.alignment]
        tokens += [(source_token + i, target_token + j) for i, j in part.token_alignment]
        rows = slice(target_word, target_word + len(part.words))
        columns = slice(source_word, source_word + len(part.source_words))
        np.testing.assert_array_equal(joined.word_attention[rows, columns], part.word_attention)
        source_word += len(part.source_words)
        target_word += len(part.words)
        source_token += len(part.source_tokens)
        target_token += len(part.tokens)
    assert joined.alignment == joined.attended == tuple(sorted(words))
    assert joined.token_alignment == joined.attended_tokens == tuple(sorted(tokens))
    assert len(joined.token_words) == len(joined.tokens)
    assert len(joined.word_probabilities) == len(joined.words)
    assert joined.word_attention.sum() == pytest.approx(
        sum(part.word_attention.sum() for part in joined.sentences), rel=1e-4
    )
    assert joined.attention is None
    assert joined.heatmap_data()[0].shape == (len(joined.words), len(joined.source_words))
    with pytest.raises(RnnsearchError, match="only words of a whole text"):
        joined.heatmap_data("symbols")


def test_single_sentences_and_texts_without_sentences(translator):
    one = translator.translate_text(SENTENCES[0])
    assert one.sentences == () and one.text == translator.translate(SENTENCES[0]).text
    assert translator.translate_text(" \n").text == " \n"
    assert translator.translate_text("").text == ""
    several = translator.translate_text([TEXT, "", SENTENCES[2]])
    assert [text.source for text in several] == [TEXT, "", SENTENCES[2]]


def test_texts_without_letters_in_a_text(translator):
    joined = translator.translate_text("5! A bird sees the cat! \u200b")
    assert joined.text.startswith("5! ") and joined.text.endswith(" \u200b")
    assert (0, 0) in joined.alignment


def test_model_without_attention():
    joined = Translator(untrained(RNNENCDEC)).translate_text(TEXT)
    assert joined.word_attention is None
    assert joined.alignment == ()


def test_ranks_and_warnings():
    best, second = translation(["a"], ["b"]), translation(["a"], ["c"])
    cut = translation(["d"], ["e"])
    cut = type(cut)(**{**vars(cut), "finished": False, "tokens": ("e",)})
    text = TextTranslation("a. d", [(0, 2), (3, 4)], [[best, second], [cut]], "de")
    first, last = text.translations()
    assert (first.text, last.text) == ("b e", "c e")
    assert warnings(first) == ("cut",)
    assert not first.finished and not first.blocked
    lost = type(cut)(**{**vars(cut), "fallback": "source"})
    pieces = type(cut)(**{**vars(cut), "fallback": "pieces"})
    joined = join_sentences("a. d e", [(0, 2), (3, 4), (5, 6)], [best, pieces, lost])
    assert joined.fallback == "source" and best.fallback is first.fallback is None
    assert {"pieces", "untranslated"} <= set(warnings(joined))
    blocked = type(cut)(**{**vars(cut), "tokens": ()})
    assert join_sentences("a. d", [(0, 2), (3, 4)], [best, blocked]).blocked


def test_sentences_without_a_space_between_them():
    """One word of the source text contains words of both sentences."""
    parts = [
        translation(["你好。"], ["Hello."], links=((0, 0),)),
        translation(["谁？"], ["Who", "?"], links=((0, 0), (0, 1))),
    ]
    joined = join_sentences("你好。谁？", [(0, 3), (3, 5)], parts, "en")
    assert joined.text == "Hello. Who ?"
    assert joined.alignment == ((0, 0), (0, 1), (0, 2))


def test_replaced_words_and_links_count_the_tokens_of_earlier_sentences():
    replaced = (Replacement(0, 0, "x", "copy"),)

    def part(word: str):
        from rnnsearch.search.hypothesis import EMPTY
        from rnnsearch.translator.translation import make_translation

        source = Segmented(word, [1], ["<unk>"], [(0, len(word))])
        target = Segmented(word, [1], ["<unk>"], [(0, len(word))], replaced)
        hypothesis = type(EMPTY)((1,), 0.0, 0.0, (0.0, 0.0), {}, True)
        return make_translation(source, target, hypothesis, False)

    joined = join_sentences("Ab! Cd!", [(0, 3), (4, 7)], [part("Ab!"), part("Cd!")], "de")
    assert [(word.token, word.source_token) for word in joined.replaced] == [(0, 0), (2, 2)]
    assert joined.alignment == ((0, 0), (1, 1))
    assert joined.token_alignment == ((0, 0), (2, 2))
    assert joined.word_replaced == ["copy", "copy"]


def test_all_sentences_are_searched_together():
    calls = []

    def n_best(sentences):
        calls.append(sentences)
        return [[translation(sentence.split(), ["x"])] for sentence in sentences]

    results = translate_texts(["a! B! ", "", "C"], ("en", "de"), n_best)
    assert calls == [["a!", "B!", "C"]]
    assert [result.text() for result in results] == ["x x ", "", "x"]
