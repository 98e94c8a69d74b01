"""Banned phrases: found where a plain look at the text finds them, in whatever symbols it is spelled."""

import unicodedata

import numpy as np
import pytest

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.banned import MATCHED, START, BannedPhrases, TokenAutomaton, continues_word
from rnnsearch.text.vocabulary import UNK


def inside(text, at):
    return 0 <= at < len(text) and (unicodedata.category(text[at])[0] in "LMN" or text[at] in "_\u200c\u200d")


def holds(text, phrases):
    """Reference that tries each position."""
    for phrase in phrases:
        for at in range(len(text) - len(phrase) + 1):
            end = at + len(phrase)
            before = inside(text, at) and inside(text, at - 1)
            after = inside(text, end - 1) and inside(text, end)
            if text[at:end] == phrase and not before and not after:
                return True
    return False


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("der Hund bellt", True),
        ("der Hund", True),
        ("Hund", True),
        ("der „Hund“.", True),
        ("eine Hund-Katze", True),
        ("die Hunde", False),
        ("ein Windhund", False),
        ("der hund", False),
        ("der Hund\u0308", False),
        ("ein rotes Auto", False),
        ("ein rotes Auto!", True),
        ("so rotes  Auto!", False),
        ("wow!", False),
        ("das ist toll ... ja", True),
        ("das ist toll...ja", True),
        ("Grüße", True),
        ("Begrüße", False),
        ("Grüßen", False),
        ("", False),
    ],
)
def test_phrases_match_whole_words_exactly(text, held):
    phrases = ["Hund", "rotes Auto!", "...", "Grüße"]
    assert BannedPhrases(phrases).occurs_in(text) == holds(text, phrases) == held


def test_automaton_equals_naive_search():
    draw = np.random.default_rng(2)
    letters, hits = list("ab .ä"), 0
    for _ in range(60):
        phrases = {"".join(draw.choice(letters, draw.integers(1, 5))).strip() for _ in range(3)} - {""}
        if not phrases:
            continue
        banned = BannedPhrases(sorted(phrases))
        for _ in range(30):
            text = "".join(draw.choice([*letters, "x", "-"], draw.integers(0, 12)))
            assert banned.occurs_in(text) == holds(text, phrases), (phrases, text)
            hits += holds(text, phrases)
    assert 200 < hits < 1600


def test_token_automaton_equals_character_automaton():
    """Symbols of whole words, parts of them, single bytes and nothing."""
    draw = np.random.default_rng(3)
    spellings = [b"", b" ", b"a", b" a", b"ab", b" b", "ä".encode(), b".", b"b a", "–".encode()]
    spellings += [bytes([byte]) for byte in "äß–".encode()]
    phrases = ["ab", "a b", "ä.", "b–a", "ß"]
    banned = BannedPhrases(phrases)
    states, hits = TokenAutomaton(banned, spellings), 0
    assert len(states) == len(spellings)
    for _ in range(1500):
        ids = draw.integers(0, len(spellings), draw.integers(0, 9)).tolist()
        state = START
        for id in ids:
            state = int(states.transitions(state)[id])
        text = b"".join(spellings[id] for id in ids).decode("utf-8", errors="replace")
        assert (state == MATCHED or states.is_pending(np.array([state]))[0]) == holds(text, phrases), text
        hits += holds(text, phrases)
    assert 200 < hits < 1300


@pytest.mark.parametrize("phrases", [[], ["a", " "], [""]])
def test_empty_phrases_are_rejected(phrases):
    with pytest.raises(RnnsearchError, match="banned must be phrases that are not empty; got"):
        BannedPhrases(phrases)


def test_continues_word_depends_on_the_first_character(tokenizer):
    spellings, asked = tokenizer.token_bytes(), 0
    for tail in ("", "s", "üren", ".", "-x", " x", "’s", "_", "5", "n's", "\u0308", "!", "日本", " 日本", "ไทย"):
        [term], [ids] = tokenizer.ids(["Bank"]), tokenizer.ids([f"Bank{tail}"])
        if ids[: len(term)] == term and ids[len(term) :][:1] not in ([], [UNK]):
            asked += 1
            following = spellings[ids[len(term)]]
            broken = "\ufffd" in following.decode(errors="replace")
            assert continues_word(following) == (broken or tail[0] in "süren_5\u0308"), tail
    assert asked
    assert not continues_word(b""), "the end"
    assert not continues_word(spellings[UNK]), "an unknown word"
    assert not continues_word("日".encode()), "where no spaces are written a word ends anywhere"
