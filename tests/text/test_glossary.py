"""Which terms of a glossary a text holds."""

import pytest

from rnnsearch.text.glossary import Glossary

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
def test_terms_are_whole_words_the_longest_first(text, found):
    assert list(Glossary(ENTRIES).terms(text)) == found


def test_an_empty_glossary_finds_nothing():
    assert Glossary({}).terms("a dog") == ()
