"""Texts without letters are their own translations, in the full package."""

import numpy as np
import pytest

from rnnsearch.search.sampling import Sampling
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.words import train_words
from rnnsearch.translator.copies import overlap
from rnnsearch.translator.translator import Translator
from tests.untrained import BAHDANAU, RNNENCDEC, untrained

TEXTS = ["5", "---", "•", "—", "2024-05-17", "😀  1.", " 3,50 "]


@pytest.fixture(scope="module", params=["words", "bpe"])
def translator(request):
    return Translator(untrained(BAHDANAU, request.param))


@pytest.mark.parametrize("text", TEXTS)
def test_copies_are_certain_and_aligned_with_themselves(translator, text):
    [[copy]] = translator.n_best([text], translator.options(n_best=3))
    assert copy.text == text and copy.source == text
    assert copy.finished and not copy.blocked
    assert (copy.score, copy.log_prob) == (0.0, 0.0)
    assert copy.tokens[-1] == "</s>" and set(copy.token_scores) == {0.0}
    links = tuple((n, n) for n in range(len(text.split())))
    assert copy.alignment == copy.attended == links
    assert copy.attention.shape == (len(copy.tokens), len(copy.source_tokens))
    np.testing.assert_allclose(copy.attention.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("text", ["\u200b", "\u00ad", "\u200e \ufeff", " "])
def test_texts_that_show_nothing_have_an_empty_translation(translator, text):
    translation = translator.translate(text)
    assert translation.text == "" and translation.finished


def test_other_sentences_of_a_batch_are_unchanged(translator):
    sentences = ["the small cat sees the dog.", "A bird sees the cat!"]
    mixed = translator.translate(["5", sentences[0], "-", sentences[1]])
    assert [mixed[0].text, mixed[2].text] == ["5", "-"]
    expected = translator.translate(sentences)
    assert [mixed[1].text, mixed[3].text] == [translation.text for translation in expected]
    assert mixed[1].score == pytest.approx(expected[0].score, rel=1e-5)


def test_prefixes_that_the_copy_does_not_have_are_continued(translator):
    copy, continued, empty = translator.n_best(["5.", "5.", "5."], prefixes=["5", "die", ""])
    assert copy[0].text == empty[0].text == "5."
    assert continued[0].text.startswith("die")


def test_terms_that_the_copy_does_not_contain_are_written(translator):
    [same], [translated, *_] = translator.n_best(["5", "5"], translator.options(beam=4), terms=[["5"], ["Hund"]])
    assert same.text == "5"
    assert "Hund" in translated.text


def test_samples_and_streams_are_copies(translator):
    options = translator.options(beam=2, n_best=2, variant=Sampling())
    assert [copy.text for copy in translator.n_best(["12"], options)[0]] == ["12"]
    steps = translator.stream("12")
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value.text == "12"


def test_a_model_without_attention_links_words_to_themselves():
    copy = Translator(untrained(RNNENCDEC)).translate("5 - 7")
    assert copy.attention is None
    assert copy.alignment == ((0, 0), (1, 1), (2, 2))


def test_attention_of_the_next_position_is_shifted():
    translator = Translator(untrained(BAHDANAU, search={"attended_word": "read"}))
    copy = translator.translate("5 - 7")
    assert copy.attended == copy.alignment == ((0, 0), (1, 1), (2, 2))


def test_a_vocabulary_of_digits_is_translated():
    system = untrained(BAHDANAU)
    numbers = Translator(system)
    assert numbers.source.has_letters
    for train in (train_words, train_bpe):
        assert not train(["1 2 3", "3 4 5"], 340, 1).has_letters


def test_overlap_of_different_tokens():
    words = train_words(["12 + 34."], 50, 1)
    subwords = train_bpe(["1", "2"], 300, 1)
    [source] = words.segment(["12 + 34."])
    [target] = subwords.segment(["12 + 34."])
    weights = overlap(source, target)
    assert weights.shape == (len(target.ids) + 1, len(source.ids) + 1)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)
