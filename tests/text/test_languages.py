"""Names of languages, and which one a text is in."""

import pytest

from rnnsearch.text.languages import base_language, detect, language_name

ALL = ["en", "de", "fr", "es", "ru", "el", "he", "zh", "ja", "ko", "pt-BR"]


def test_language_names_include_variants():
    assert language_name("de") == "German"
    assert language_name("pt-BR") == "Portuguese (BR)"
    assert language_name("xx") == "xx"
    assert (base_language("en_GB"), base_language("ZH-Hant")) == ("en", "zh")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The cat is on the table.", "en"),
        ("Die Katze sitzt auf dem Tisch.", "de"),
        ("Le chat est sur la table.", "fr"),
        ("El gato está en la mesa.", "es"),
        ("Кошка на столе.", "ru"),
        ("Η γάτα είναι εδώ.", "el"),
        ("החתול על השולחן", "he"),
        ("猫在桌子上。", "zh"),
        ("猫はテーブルの上にいます。", "ja"),
        ("고양이가 있다.", "ko"),
        ("O gato não está em casa.", "pt-BR"),
    ],
)
def test_detect_ranks_the_language_first(text, code):
    ranked = detect(text, ALL)
    assert ranked[0][0] == code
    assert sum(share for _, share in ranked) == pytest.approx(1.0)
    assert sorted(name for name, _ in ranked) == sorted(ALL)


def test_text_without_letters_gives_uniform_probabilities():
    assert detect("123 !?", ["de", "en"]) == [("de", 0.5), ("en", 0.5)]
    assert detect("", ["de"]) == [("de", 1.0)]
