"""Substitutes in place of protected text, and protected text in place of substitutes."""

import random
from collections import Counter

import pytest

from rnnsearch.text.alignments import word_of_token, words
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, PRINTF, PROTECTED, find_protected
from rnnsearch.text.markup.substitutes import NAMES, NUM_VARIANTS, NUMBERS, Substitutes
from rnnsearch.text.words import train_words

TOKENIZER = train_words([" ".join((*NUMBERS, *NAMES)), "Tom has 20 new messages, and % . ( ) - /"], 500, 1)


@pytest.fixture(scope="module")
def substitutes():
    return Substitutes(TOKENIZER, TOKENIZER)


def restored(item, target):
    segmented = item.restored(TOKENIZER.segment([target])[0])
    return None if segmented is None else segmented.text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{user} has %d new messages.", "Tom has 20 new messages."),
        ("Copying %dKB", "Copying 20 KB"),
        ("%d%% full", "20% full"),
        ("Size {w}x{h}", "Size Tom"),
        ("At %02d:%02d", "At 20"),
        ("Tom has 20 %s", "Tom has 20 Maria"),
        ("x%sの", "x Tom の"),
        ("%s: not found", "not found"),
        ("No file: '%s'.", "No file"),
        ("{a} - go to %s: %s", "go to Tom"),
        ("%s: %s", ""),
        ('<x id="1"></x>Go now<x id="2"></x>.', "Go now"),
        ("[X1X]Go to [X2X]", "Go to Tom"),
        ("%dKB", "20 KB"),
    ],
)
def test_first_variant(substitutes, source, text):
    assert substitutes.replace(source, DEFAULT_PROTECTED).text == text


def test_text_without_protected_text_has_no_substitutes(substitutes):
    assert substitutes.replace("Tom is 100% sure.", DEFAULT_PROTECTED) is None


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("{user} has %d messages", "20 Mails hat Tom", "%d Mails hat {user}"),
        ("Copying %dKB", "Kopiere 20 KB", "Kopiere %dKB"),
        ("Copying %dKB", "Kopiere 20", "Kopiere %d"),
        ("%d%% full", "zu 20 % voll", "zu %d %% voll"),
        ("{user}'s file", "Toms Datei", "{user}s Datei"),
        ("{user}'s file", "Tomaten", None),
        ("{user} is here", "Er ist hier", None),
        ("{user} is here", "Tom ist hier, Tom", None),
        ("{user} is here", "Tom ist hier, {name}", None),
        ("%s: go to %s: '%s'.", "geh nach Tom.", "%s: geh nach %s: '%s'."),
        ("<1>Go now</1>.", "Jetzt geh.", "<1>Jetzt geh</1>."),
        ("%d of %s", "Tom von 20", None),  # a program would mix up the values
        ("%1$d of %2$s", "Tom von 20", "%2$s von %1$d"),
        ("%d men", "120 oder 20.5 oder 1.20 von 20", "120 oder 20.5 oder 1.20 von %d"),
    ],
)
def test_protected_text_is_restored(substitutes, source, target, expected):
    assert restored(substitutes.replace(source, DEFAULT_PROTECTED), target) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("There were 21,000 dogs", "Es gab 21.000 Hunde", "Es gab 21,000 Hunde"),
        ("1,000,000 of them", "1 000 000 von ihnen", "1,000,000 von ihnen"),
        ("Call 555-1234", "Ruf 5551234 an", "Ruf 555-1234 an"),
        ("It is -5 degrees", "Es sind 5 Grad", None),
        ("5 and 5", "5 und 5", "5 und 5"),
        ("5 and twelve", "5 und 12", "5 und 12"),
        ("5 dogs", "Hunde", None),
    ],
)
def test_numbers_stay_in_the_text(substitutes, source, target, expected):
    item = substitutes.replace(source, PROTECTED)
    assert item.text == source
    assert restored(item, target) == expected


def test_every_variant_is_restored(substitutes):
    source = "Send %d to {user} at www.a.org before 10:30, {{n}} times"
    texts = set()
    for variant in range(NUM_VARIANTS):
        item = substitutes.replace(source, PROTECTED, PRINTF, variant)
        texts.add(item.text)
        assert restored(item, item.text) == source
    assert len(texts) == NUM_VARIANTS


def test_tokens_cover_the_protected_text(substitutes):
    item = substitutes.replace("(%d {first name}) has", DEFAULT_PROTECTED)
    tokens = item.source_tokens(TOKENIZER.segment([item.text])[0])
    assert tokens.text == "(%d {first name}) has"
    assert tokens.texts == ["(", "%d", "{first name}", ")", "has"]
    assert word_of_token(tokens.text, tokens.offsets)[-1] == len(words(tokens.text)) - 1


def test_random_texts_are_restored(substitutes):
    rng = random.Random(3)
    for _ in range(500):
        pieces = rng.choices(["ab", " ", "(", "%s", "%d", "{a}", "{b c}", "%%", "www.a.org", ", ", "[X1X]"], k=8)
        source = "".join(pieces)
        for variant in range(NUM_VARIANTS):
            item = substitutes.replace(source, DEFAULT_PROTECTED, None, variant)
            if item is None:
                continue
            tokens = item.source_tokens(TOKENIZER.segment([item.text])[0])
            assert tokens.text == source
            assert all(0 <= start <= end <= len(source) for start, end in tokens.offsets)
            result = restored(item, item.text)
            assert result is None or _items(result) == _items(source)


def _items(text):
    return Counter(match.text for match in find_protected(text, DEFAULT_PROTECTED))


@pytest.mark.parametrize(
    ("source", "target", "links", "expected"),
    [
        ("{user} has %d cats", "Том hat zwanzig Katzen.", [(0, 0), (2, 2), (3, 3)], "{user} hat %d Katzen."),
        ("{user} has %d cats", "Tom hat (zwanzig) Katzen.", [(2, 2)], "{user} hat (%d) Katzen."),
        ("{user} has %d cats", "Tom hat Katzen.", [(2, 2), (3, 2)], None),
        ("{user} has %d cats", "Tom hat Katzen.", [], None),
        ("{first name} has cats", "Том hat Katzen.", [(0, 0)], None),
    ],
)
def test_linked_words_are_replaced(substitutes, source, target, links, expected):
    item = substitutes.replace(source, DEFAULT_PROTECTED)
    result = item.restored_by_links(TOKENIZER.segment([target])[0], links)
    assert (result and result.text) == expected
