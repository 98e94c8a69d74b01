"""Sentences whose placeholders a model loses: other substitutes, pieces, and at last the source."""

import pytest

from rnnsearch.search.hypothesis import BLOCKED, Hypothesis
from rnnsearch.text.alignments import Link
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED
from rnnsearch.text.markup.substitutes import NAMES, NUMBERS
from rnnsearch.text.words import train_words
from rnnsearch.translator.confidence import warnings
from rnnsearch.translator.protection import Protection, restored_target
from rnnsearch.translator.translation import make_translation

TOKENIZER = train_words([" ".join((*NUMBERS, *NAMES)), "Tom has 20 new messages here now. % . ( ) - /"], 500, 1)


def test_blocked_translation_stays_empty():
    protection = Protection(TOKENIZER, TOKENIZER, TOKENIZER.segment)
    sources = protection.segment(["Tom has %s."], DEFAULT_PROTECTED)
    blocked = make_translation(sources[0], TOKENIZER.segment([""])[0], BLOCKED, False)
    assert protection.complete(sources, [[blocked]], lambda *_: pytest.fail("searched again")) == [[blocked]]


def translate(text, model, protect=DEFAULT_PROTECTED, has_links=True):
    """Return the translation of a text by a function of the text that the model reads."""
    protection = Protection(TOKENIZER, TOKENIZER, TOKENIZER.segment)

    def search(sources, _=None):
        n_best_lists = []
        for source in sources:
            text = source.text if source.substituted is None else source.substituted.text
            [target] = TOKENIZER.segment([model(text) if source.ids else ""])
            target = restored_target(source, target)
            scores = (-1.0,) * (len(target.ids) + 1)
            links = Links(target.text if has_links else "")
            hypothesis = Hypothesis(tuple(target.ids), -1.0, -1.0, scores, {}, True)
            n_best_lists.append([make_translation(source, target, hypothesis, False, links)])
        return n_best_lists

    sources = protection.segment([text], protect)
    [[translation]] = protection.complete(sources, search(sources), search)
    assert translation.source == text
    assert len(translation.words) == len(translation.word_probabilities)
    return translation


class Links:
    """Links of each word to the word in its position."""

    def __init__(self, text: str) -> None:
        self.words: tuple[Link, ...] = tuple((n, n) for n in range(len(text.split())))
        self.tokens: tuple[Link, ...] = ()


def without(*words):
    return lambda text: " ".join(word for word in text.split() if word.strip(".") not in words)


def test_substitutes_are_replaced():
    translation = translate("{user} has %d new messages.", lambda text: text.replace("new ", ""))
    assert translation.text == "{user} has %d messages."
    assert translation.fallback is None
    assert not warnings(translation)


def test_other_substitutes_are_tried():
    translation = translate("{user} has %d messages", without("Tom", "20"))
    assert translation.text == "{user} has %d messages"
    assert translation.fallback is None


def test_linked_words_are_replaced():
    spelled = {"Tom": "new", "20": "here", **dict.fromkeys((*NAMES[1:], *NUMBERS[1:]), "")}

    def model(text):
        return " ".join(spelled.get(word, word) for word in text.split()).strip()

    translation = translate("{user} has %d messages", model)
    assert translation.text == "{user} has %d messages"
    assert translation.words == ("{user}", "has", "%d", "messages")
    assert translation.fallback is None


def test_pieces_are_translated_if_substitutes_are_lost():
    translation = translate("Now {user} has %d messages.", without(*NAMES, *NUMBERS))
    assert translation.text == "Now {user} has %d messages."
    assert translation.fallback == "pieces"
    assert "pieces" in warnings(translation)
    assert set(translation.alignment) == {(n, n) for n in range(5)}


def test_pieces_keep_the_punctuation_around_protected_text():
    lost = without("'Tom'", "'Maria'", *(f"'{word}'" for word in (*NAMES, *NUMBERS)))
    translation = translate("Now '%s' has (new) messages!", lambda text: f"{lost(text)}.".upper(), has_links=False)
    assert translation.text == "NOW '%s' HAS (NEW) MESSAGES!"


def test_pieces_do_not_touch_protected_text():
    lost = without(*NAMES, *NUMBERS, "5", "$5")
    assert translate("now $5", lambda text: lost(text).replace("$", ""), ["numbers"]).text == "now 5"


def test_source_is_kept_if_nothing_helps():
    translation = translate("Now {user} has messages.", lambda _: "{name}")
    assert translation.text == "Now {user} has messages."
    assert warnings(translation) == ("untranslated",)


@pytest.mark.parametrize("text", ["%s", "{0}: %d%%", "www.a.org", "(%s)", " %d/%d "])
def test_text_without_letters_outside_protected_text_is_copied(text):
    translation = translate(text, lambda _: "ab")
    assert translation.text == text
    assert not warnings(translation)


def test_other_text_is_left_alone():
    translation = translate("Tom has 20 messages.", lambda text: text)
    assert translation.text == "Tom has 20 messages."
    assert translation.fallback is None


def test_several_words_of_a_placeholder_have_scores():
    translation = translate("Tom has {first name} now", lambda text: text)
    assert translation.words == ("Tom", "has", "{first", "name}", "now")
    assert len(translation.word_token_scores) == 5
