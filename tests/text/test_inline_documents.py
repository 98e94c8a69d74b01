"""Texts with inline tags: ignored and splitting elements."""

from rnnsearch.text.markup.inline_document import InlineDocument


def translated(document: InlineDocument) -> str:
    """Return the document with its words in capitals."""
    filled = []
    for text in document.texts:
        words = range(len(text.split()))
        filled.append((text.upper(), list(zip(words, words, strict=True))))
    return document.filled(filled)


def test_all_tags_are_inside_of_the_text():
    document = InlineDocument('Open <g1>the <b>file</b></g1> <x2/> <p id="3">now</p>')
    assert document.texts == ["Open the file now"]
    assert document.has_inline_tags
    assert translated(document) == 'OPEN <g1>THE <b>FILE</b></g1> <x2/> <p id="3">NOW</p>'


def test_characters_are_escaped_in_xml_and_in_text_with_entities():
    assert translated(InlineDocument("a & <g1>b</g1>", loose=True)) == "A & <g1>B</g1>"
    assert translated(InlineDocument("a &amp; <g1>b</g1>", loose=True)) == "A &amp; <g1>B</g1>"
    assert translated(InlineDocument("a & <g1>b</g1>")) == "A &amp; <g1>B</g1>"


def test_ignored_elements_are_not_translated():
    document = InlineDocument("a <x>b <i>c</i></x> d", ignored=frozenset({"x"}))
    assert translated(document) == "A <x>b <i>c</i></x> D"


def test_splitting_elements_separate_texts():
    document = InlineDocument("<p>a <b>b</b></p> <p/>c", splitting=frozenset({"p"}))
    assert document.texts == ["a b", "c"]
    assert translated(document) == "<p>A <b>B</b></p> <p/>C"
    assert InlineDocument(" <p> </p>", splitting=frozenset({"p"})).texts == []
