"""Sentences of raw text, and their layout."""

import random

import pytest

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
