"""Names of languages, and which one a text is in."""

import pytest

from rnnsearch.text.languages import base_language, detect, language_name, two_letter_code

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
    assert sum(probability for _, probability in ranked) <= 1
    assert sorted(name for name, _ in ranked) == sorted(ALL)


@pytest.mark.parametrize("text", ["", "123 !?", "😀", "\u200b", "你好", "Кошка", "Le chat est sur la table."])
def test_text_in_none_of_the_languages_is_not_detected(text):
    assert detect(text, ["de", "en"]) == []


def test_short_text_has_a_low_probability_but_the_order_of_the_candidates():
    (first, probability), (second, _) = detect("ok", ["de", "en"])
    assert (first, second) == ("de", "en")
    assert probability < 0.5


def test_text_in_a_language_that_is_not_known_to_the_detector_is_ascribed_to_it():
    assert detect("די קאַץ איז אין הויז", ["en", "yi"])[0][0] == "yi"


def test_varieties_count_as_their_language():
    assert detect("你好世界", ["en", "zh"])[0][1] > 0.9


def test_codes_of_three_letters_are_known():
    assert [two_letter_code(code) for code in ("eng", "DEU", "de", "xyz")] == ["en", "de", "de", "xyz"]
