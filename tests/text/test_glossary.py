"""Glossary terms are found in a text."""

import pytest

from rnnsearch.text.terms import Glossary
from tests.text.test_linear import seconds

ENTRIES = {"dog": "Hund", "hot dog": "Wiener", "C++": "C++", "New York": "New York", "e-mail": "Mail", "Apple": "Apple"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The dog, a Dog and DOG.", ["Hund"]),
        ("dogs and dogged", []),
        ("A hot dog for a dog.", ["Wiener", "Hund"]),
        ("hot  dog", ["Wiener"]),
        ("C++ by e-mail", ["C++", "Mail"]),
        ("Written in C.", []),
        ("new york, New York", ["New York"]),
        ("an apple of Apple", ["Apple"]),
        ("hot", []),
        ("", []),
    ],
)
def test_longest_whole_word_terms_match(text, found):
    assert list(Glossary(ENTRIES).terms(text)) == found


def test_an_empty_glossary_finds_nothing():
    assert Glossary({}).terms("a dog") == ()


def test_exact_case_wins_ties_and_longer_terms_win():
    glossary = Glossary(
        {"Big dog": "as it stands", "big dog": "lower", "big dog house": "longest", "dog": "dog", " ": "x"}
    )
    assert len(glossary) == 5
    assert glossary.terms("A Big dog, a BIG DOG") == ("as it stands", "lower")
    assert glossary.terms("The Big dog house") == ("longest",)
    assert glossary.terms("big dogs, big dog") == ("lower",)


def test_near_matches_of_long_terms_take_linear_time():
    """Each of so many sizes was tried at each word, and read to its end: 100 words took ten times the time of 25."""

    def ratio() -> float:
        short, long = (Glossary({"c " * size + "z": "x" for size in range(most)}) for most in (25, 100))
        return seconds(long.terms, "c " * 2000) / seconds(short.terms, "c " * 2000)

    found = [ratio()]
    while found[-1] > 6 and len(found) < 8:
        found.append(ratio())
    assert found[-1] <= 6, found
