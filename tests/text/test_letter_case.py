"""Letter case of whole sentences: which are changed, to what, and the way back in translations."""

import random

import pytest

from rnnsearch.text.letter_case import letter_case, true_cased, upper_cased, word_spans_with_symbols
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.prefixes import PrefixReader
from rnnsearch.text.subwords import train_bpe
from rnnsearch.translator.protection import restored_target

STANDARD = Normalization("standard")
LINES = ["The water is cold.", "the water and the bench", "NASA says he is cold", "Tom's bench isn't here"] * 30


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(LINES, 400, 1).normalizing(STANDARD)


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("THE WATER IS COLD.", "upper"),
        ("I AM HERE", "upper"),
        ("DON'T GO!", "upper"),
        ("CLICK {name} OR <b> TO OPEN HTTP://x.org/Ab", "upper"),
        ("DELETE Tom NOW?", "upper"),
        ("ΤΟ ΝΕΡΟ ΕΙΝΑΙ ΚΡΥΟ", "upper"),
        ("The Water Is Cold Today", "title"),
        ("Don't Look Back In Anger", "title"),
        ("The water is cold.", None),
        ("NASA and ESA", None),
        ("NASA", None),
        ("A B C", None),
        ("Tom Smith", None),
        ("Guten Morgen, liebe Leute", None),
        ("iPhone SALE NOW", None),
        ("5 × 3", None),
        ("数学很好", None),
        ("", None),
    ],
)
def test_letter_case_of_sentences(text, case):
    assert letter_case(text) == case


def test_sentences_are_read_in_ordinary_letter_case(tokenizer):
    texts = ["THE WATER IS COLD.", "The Water Is Cold Here Today", "NASA SAYS THE BENCH ISN'T {COLD} HTTP://A.ORG"]
    cases = ["upper", "title", "upper"]
    expected = ["The water is cold.", "The water is cold here today", "NASA says the bench isn't {COLD} HTTP://A.ORG"]
    for text, case, ordinary, segmented in zip(texts, cases, expected, tokenizer.segment_sources(texts), strict=True):
        assert (segmented.text, segmented.case) == (text, case)
        assert segmented.ids == tokenizer.ids([ordinary])[0]
        # Offsets refer to the text of the user.
        assert [one.lower() for one in segmented.texts] == [
            one.lower() for one in tokenizer.segment([ordinary])[0].texts
        ]


def test_existing_translations_keep_their_letter_case(tokenizer):
    [segmented] = tokenizer.segment(["THE WATER IS COLD."])
    assert segmented.case is None and segmented.ids == tokenizer.ids([segmented.text])[0]


def test_translations_of_capitals_are_in_capitals(tokenizer):
    [source] = tokenizer.segment_sources(["THE {x} IS AT A.ORG/x, TOM"])
    target = tokenizer.join_with_offsets(tokenizer.ids(["Straße {x}: am {y}, bei A.ORG/x."])[0])
    finished = restored_target(source, target, STANDARD)
    assert finished.text == "STRASSE {x}: AM {Y}, BEI A.ORG/x."
    # Characters of several bytes have several tokens.
    covered = [finished.text[start:end] for start, end in dict.fromkeys(finished.offsets)]
    assert "".join(covered) == finished.text.replace(" ", "")
    [other] = tokenizer.segment_sources(["The Water Is Cold Here"])
    assert restored_target(other, target, STANDARD) is target


def test_prefixes_in_capitals_have_ordinary_tokens(tokenizer):
    [source] = tokenizer.segment_sources(["DAS WASSER IST KALT."])
    prefix = PrefixReader(tokenizer).read("THE WAT", upper=True)
    assert prefix.normalized.text == "The wat"
    target = tokenizer.join_with_offsets(tokenizer.ids(["The water is cold."])[0])
    assert restored_target(source, target, STANDARD, prefix).text == "THE WATER IS COLD."


def test_turkish_letters():
    def encode(words):
        return [[0]] * len(words)

    assert true_cased("3 ILIK İSTANBUL", "upper", "tr", encode) == "3 Ilık istanbul"
    # The lower case of İ has two characters in other languages, so the word stays.
    assert true_cased("3 ILIK İSTANBUL", "upper", "en", encode) == "3 Ilik İSTANBUL"
    assert upper_cased("ılık istanbul", 0, "tr", ())[0] == "ILIK İSTANBUL"
    assert upper_cased("istanbul", 0, "en", ())[0] == "ISTANBUL"


def test_lengths_and_positions_fit():
    choose = random.Random(3)
    for _ in range(500):
        text = "".join(choose.choices("AbßİıſﬁǅΣσς 'ÉŉΐＡ{}1.Აᏸ\U00010400", k=choose.randint(0, 12)))
        assert len(true_cased(text, "upper", "tr", lambda words: [[1, 2]] * len(words))) == len(text)
        upper, positions = upper_cased(text, 0, "", word_spans_with_symbols(text, text))
        assert len(positions) == len(text) + 1 and positions == sorted(positions) and positions[-1] == len(upper)
