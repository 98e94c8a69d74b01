"""Sentences of raw text, and their layout."""

import random

import pytest

from benchmarks.sentences import found_starts, languages, ours, read_fixture, score
from rnnsearch.text.sentence_rules import STARTERS, rules
from rnnsearch.text.sentences import rejoin, sentence_spans


def split(text: str, language: str | None = "en") -> list[str]:
    return [text[a:b] for a, b in sentence_spans(text, language)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man sits. A dog runs.", ["A man sits.", "A dog runs."]),
        ("Really?! Yes. ", ["Really?!", "Yes."]),
        ('He said "No." She left.', ['He said "No."', "She left."]),
        ("Dr. Smith met Mrs. Jones.", ["Dr. Smith met Mrs. Jones."]),
        ("J. S. Bach was born. He died.", ["J. S. Bach was born.", "He died."]),
        ("So did I. We left.", ["So did I.", "We left."]),
        ("Fruit, e.g. Apples and Pears.", ["Fruit, e.g. Apples and Pears."]),
        ("It costs 3.50 now. Buy it.", ["It costs 3.50 now.", "Buy it."]),
        ("See example.com for more. thanks", ["See example.com for more. thanks"]),
        ("Wait... what? I know.", ["Wait... what?", "I know."]),
        ("In 12. The end.", ["In 12.", "The end."]),
        ("1. Wash the apples.", ["1. Wash the apples."]),
        ("One line\nanother line", ["One line", "another line"]),
        ("¿Qué? ¡Sí! Vale.", ["¿Qué?", "¡Sí!", "Vale."]),
        ("no terminator", ["no terminator"]),
        ("", []),
        (" \n\t\r\n ", []),
        ("...", ["..."]),
        ("Yahoo! is a company.", ["Yahoo! is a company."]),
    ],
)
def test_english_sentences(text, expected):
    assert split(text) == expected


def test_ordinals_depend_on_the_language():
    text = "Am 3. Oktober war es kalt. Es schneite."
    assert split(text, "de") == ["Am 3. Oktober war es kalt.", "Es schneite."]
    assert split(text, "de-AT") == split(text, "de")
    assert split("She is 3. Tom is 4.", "en") == ["She is 3.", "Tom is 4."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好。你是谁？我是他！", ["你好。", "你是谁？", "我是他！"]),
        ("「行く。」と言った。", ["「行く。」", "と言った。"]),
        ("यह है। वह नहीं।", ["यह है।", "वह नहीं।"]),
        ("من هنا؟ أنا.", ["من هنا؟", "أنا."]),
    ],
)
def test_other_scripts(text, expected):
    assert split(text, None) == expected


@pytest.mark.parametrize("language", languages())
def test_fixture_of_each_language(language):
    """The table of docs/results/sentences.md."""
    assert len(list(read_fixture(language))) == 40
    scores = score(language, ours(language))
    assert scores.precision >= 0.99
    assert scores.recall >= 0.95


def test_positions_of_sentences_in_fixtures():
    text, starts = next(read_fixture("en"))
    assert text == "A man sits on a bench. His dog sleeps under it."
    assert starts == {23} == found_starts(text, ["A man sits on a bench. ", "His dog sleeps under it."])
    assert found_starts(text, [text]) == frozenset()


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "See No. 5, pp. 2-3 and Fig. 4 (approx. 5 cm, etc.) by J. R. R. Tolkien, Ph.D., of Acme Inc. Records."),
        ("de", "Am 3. Mai 44 v. Chr. kamen z. B. 2 Mio. Menschen, d. h. Prof. Dr. Meier, in die Hauptstr. 5."),
        ("fr", "M. J. Le Goff cite l'art. 5 (p. 20) : « Arrêtez ! » dit-il en 44 av. J.-C. à Rome."),
        ("es", "El Sr. López (pág. 15, núm. 5) vive en EE. UU. desde 1990, p. ej. Texas."),
        ("ru", "В 1999 г. Россия и г. Москва, т. е. А. С. Пушкин, стр. 5, ул. Мира, 3 млн. руб. налогов."),
        ("nl", "Dhr. J. de Boer en mevr. De Vries, nr. 5, blz. 3, o.a. Jan, in 44 v. Chr. te Rome."),
        ("zh", "“我走了。”他说，价格是３．５元（真的！）很便宜"),
        ("ja", "「行く。」と言った値段は３．５ユーロです"),
        ("xx", "Dr. J. Smith, No. 5, z. B. Anna."),
    ],
)
def test_texts_without_a_sentence_end_inside(language, text):
    assert split(text, language) == [text]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "He works for Acme Inc.| The firm is big.| No.| He left at 5 p.m.| It was Plan B.| We paid $3.50."),
        (
            "en",
            'He asked: "Why?"| She said (it was late), "I know."| (They left.)| Then... silence.| So did I.',
        ),
        ("de", "Er ist 12.| Sie ist 13.| „Ja.“| »Nein.«| Das war 50 n. Chr.| Die Stadt wuchs usw.| Dann brannte sie."),
        ("fr", "« Oui. »| Il est né en 44 av. J.-C.| Il sait où il est.| L'art. 5 dit non.| C'est tout."),
        ("ru", "Это знаю только я.| Он ушёл в 2015 г.| Она осталась и т. д.| Потом — тишина…| «Да.»| Конец."),
        ("nl", "Hij werkt bij Jansen B.V.| Het is klein.| 's Avonds is het dicht.| 't Regent."),
        ("zh", "他说：“我累了。”|然后他睡了！|你好!|你是谁?|我。"),
    ],
)
def test_texts_with_sentence_ends(language, text):
    assert split(text.replace("|", ""), language) == [sentence.strip() for sentence in text.split("|")]


def test_line_breaks_in_a_line_of_a_file_are_white_space():
    text = "The cat\u2028sees it.\x0bThe dog\x85barks."
    spans = sentence_spans(text, "en", ends_at_line_breaks=False)
    assert [text[start:end] for start, end in spans] == ["The cat\u2028sees it.", "The dog\x85barks."]


def test_sentences_have_a_letter_or_digit_and_invisible_text_is_between_them():
    assert split("... ! Yes. \u200b", "en") == ["... ! Yes."]
    assert split("\u200b\n\u00ad", "en") == []


def test_a_language_without_rules_has_those_of_all():
    assert rules("xx").starters >= rules("en").starters | rules("ru").starters
    assert not rules("de").always & {"sra", "dhr"}
    assert "en" in STARTERS


def test_rejoin_keeps_text_between_sentences():
    text = "  A man.  Two dogs.\r\n\r\n\tThe end\n\n"
    spans = sentence_spans(text, "en")
    joined, placed = rejoin(text, spans, ["Ein Mann.", "Zwei Hunde.", "Ende"], "de")
    assert joined == "  Ein Mann.  Zwei Hunde.\r\n\r\n\tEnde\n\n"
    assert [joined[a:b] for a, b in placed] == ["Ein Mann.", "Zwei Hunde.", "Ende"]


def test_rejoin_adds_spaces_for_target_languages_with_spaces():
    text = "你好。你是谁？"
    spans = sentence_spans(text, "zh")
    assert rejoin(text, spans, ["Hello.", "Who?"], "en") == ("Hello. Who?", [(0, 6), (7, 11)])
    assert rejoin(text, spans, ["もし。", "誰？"], "ja")[0] == "もし。誰？"


def test_spans_and_gaps_cover_the_text():
    """Spans of any text ascend, have no white space at their ends, and have only white space between them."""
    draw = random.Random(1)
    pieces = ["A", "b", ". ", "! ", "? ", "...", "\n", "\r\n", " ", "\u2028", "。", '"', "Dr. ", "3. ", "z.B. ", ")",
              "é"]  # fmt: skip
    for _ in range(500):
        text = "".join(draw.choices(pieces, k=draw.randrange(30)))
        spans = sentence_spans(text, draw.choice([None, "de", "en"]))
        at = 0
        for a, b in spans:
            assert not text[at:a].strip()
            assert text[a:b] == text[a:b].strip() != ""
            assert "\n" not in text[a:b]
            at = b
        assert not text[at:].strip()
        assert rejoin(text, spans, [text[a:b] for a, b in spans], "ja") == (text, spans)
