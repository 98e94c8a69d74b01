"""Texts without letters and texts that show nothing."""

import pytest

from rnnsearch.text.letters import has_letters, is_invisible
from tests.untrained import BAHDANAU, untrained


@pytest.mark.parametrize(
    "text", ["5", "---", "•", "—", "2024-05-17", "1.", "😀", "100 %", "\u200b", "", " \t", "①", "e\u0301"[1:]]
)
def test_texts_without_letters(text):
    assert not has_letters(text)


@pytest.mark.parametrize("text", ["a", "5 km", "三", "あ", "अ", "ª", "https://example.org", "%s", "--é--", "ß", "한"])
def test_texts_with_letters(text):
    assert has_letters(text)


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\ufeff", "\u00ad", "\u200e\u00a0", "\u3000\u2060"])
def test_invisible_texts(text):
    assert is_invisible(text)


@pytest.mark.parametrize("text", ["5", "\u200b.", "\u0301", "-"])
def test_visible_texts(text):
    assert not is_invisible(text)


def test_special_tokens_are_not_letters_of_a_vocabulary():
    tokenizer = untrained(BAHDANAU, "bpe").source
    assert tokenizer.has_letters
