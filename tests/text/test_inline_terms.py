"""Terms inline: what a source sentence then says, how its symbols lie over the text as it was, what training draws."""

import re
from collections import Counter
from itertools import product
from random import Random

import pytest

from rnnsearch.text.subwords import train_bpe, train_characters
from rnnsearch.text.terms import Glossary, InlineTerms, contains_term, insert_terms, restore_offsets, term_words

SENTENCES = [
    "A red ball and the dog.",
    "Dogs see (dog) balls.",
    "dog",
    "the red ball red ball",
    "see a dog  ",
    "",
    " dog",
    "  dog",
]
GLOSSARY = Glossary({"red ball": "roter Ball", "dog": "Hund", "the red": "das Rot"})
TOLD = [
    "A\x01 red ball\x02 roter Ball\x03 and the\x01 dog\x02 Hund\x03.",
    "Dogs see (\x01dog\x02 Hund\x03) balls.",
    "\x01 dog\x02 Hund\x03",
    "\x01 the red\x02 das Rot\x03 ball\x01 red ball\x02 roter Ball\x03",
    "see a\x01 dog\x02 Hund\x03  ",
    "",
    "\x01  dog\x02 Hund\x03",
    " \x01 dog\x02 Hund\x03",
]
TRAINERS = {"bpe": lambda: train_bpe(SENTENCES, 300, 1), "characters": lambda: train_characters(SENTENCES, 300, 1)}


@pytest.fixture(params=TRAINERS)
def tokenizer(request):
    return TRAINERS[request.param]()


@pytest.mark.parametrize(("text", "told"), list(zip(SENTENCES, TOLD, strict=True)))
def test_terms_are_inserted_with_marks(text, told):
    assert insert_terms(text, GLOSSARY.preferred(text)) == told


@pytest.mark.parametrize(("text", "told"), list(zip(SENTENCES, TOLD, strict=True)))
def test_offsets_refer_to_the_original_text(text, told, tokenizer):
    [segmented] = tokenizer.segment([told])
    found = restore_offsets(segmented)
    assert found.text == text and len(found.offsets) == len(found.ids) == len(found.tokens)
    # The source terms are not read: what is, is the text with the target terms alone.
    alone = re.sub("\x01( *)[^\x01-\x03]*\x02", "\x01\x02", told)
    assert tokenizer.join(found.ids) == alone
    assert [tokenizer.token(id) for id in found.ids] == found.tokens
    assert all(0 <= start <= end <= len(text) for start, end in found.offsets)
    over = Counter[str]()
    for symbol, (start, end) in zip(found.tokens, found.offsets, strict=True):
        over[text[start:end]] += 1
        if symbol in ("<0x01>", "<0x02>", "<0x03>"):
            assert start == end
    # What is inline lies over its source term, the rest over itself: every character is covered.
    covered = {k for start, end in found.offsets for k in range(start, end)}
    assert covered >= {k for k, character in enumerate(text) if character != " "}
    if "roter" in told:
        assert over["red ball"] > 0


def test_text_without_terms_is_unchanged(tokenizer):
    [plain, odd] = tokenizer.segment(["A dog.", "a \x01 b \x03\x02"])
    assert restore_offsets(plain) is plain and restore_offsets(odd) is odd


def test_words_next_to_a_term_keep_their_tokens(tokenizer):
    [plain, told] = tokenizer.segment([SENTENCES[0], TOLD[0]])
    [terms] = tokenizer.segment(["red ball dog"])
    assert not Counter(plain.tokens) - Counter(restore_offsets(told).tokens) - Counter(terms.tokens), "but of the terms"


@pytest.mark.parametrize(
    ("term", "text", "stands", "exactly"),
    [
        ("roter Ball", "ein roter Ball .", True, True),
        ("roter Ball", "den roten Ball", True, False),
        ("Hund", "die Hunde", True, False),
        ("Hunde", "ein Hund", True, False),
        ("Hund", "Hundertwasser", False, False),
        ("rot", "roten", False, False),
        ("Ball roter", "roter Ball", False, False),
        ("Hund", "", False, False),
    ],
)
def test_contains_term_accepts_inflected_forms(term, text, stands, exactly):
    assert contains_term(term_words(term), term_words(text)) == stands
    assert contains_term(term_words(term), term_words(text), exact=True) == exactly


def test_training_samples_terms_that_occur_in_both_languages(tokenizer):
    target = train_bpe(["der Hund und roten Ball Bälle sehen"], 300, 1)
    entries = {"dog": ["Katze", "Hund", "Hündin"], "red ball": ["roter Ball"], "and": ["oder"]}
    drawing = InlineTerms(entries, tokenizer, target, rate=0.5)
    source, reference = tokenizer.ids([SENTENCES[0]])[0], target.ids(["der Hund und den roten Ball sehen"])[0]
    told = [tokenizer.join(drawing(source, reference, Random(n))) for n in range(400)]
    balls, dogs = ("\x01\x02 roter Ball\x03", " red ball"), ("\x01\x02 Hund\x03", " dog")
    assert set(told) == {f"A{ball} and the{dog}." for ball, dog in product(balls, dogs)}
    assert 0.4 < told.count(SENTENCES[0]) / 400 < 0.6
    assert drawing(source, reference, Random(3)) == drawing(source, reference, Random(3))
    every = InlineTerms(entries, tokenizer, target, rate=1.0)
    for unfit in (target.ids(["Alles anders"])[0], []):
        assert every(source, unfit, Random(1)) == source
    marked = tokenizer.ids(["\x01 dog\x02 Hund\x03"])[0]
    assert every(marked, reference, Random(1)) == marked, "nothing is put into what has marks"
