"""Tags: all come out, each once, nested as they were, around the words that are linked."""

import html
import random
import re
from collections import Counter

import pytest

from rnnsearch.text.alignments import words
from rnnsearch.text.markup.marks import MarkedText

TAG = re.compile(r"</?[a-zA-Z][^>]*>")


def links(pharaoh: str) -> list[tuple[int, int]]:
    return [(int(s), int(t)) for s, _, t in (link.partition("-") for link in pharaoh.split())]


def diagonal(text: str) -> list[tuple[int, int]]:
    return [(n, n) for n in range(len(words(text)))]


@pytest.mark.parametrize(
    ("source", "target", "linked", "expected"),
    [
        ("A <b>man</b> sits.", "Ein Mann sitzt.", "0-0 1-1 2-2", "Ein <b>Mann</b> sitzt."),
        ("A <b>man</b>.", "Ein Mann.", "0-0 1-1", "Ein <b>Mann</b>."),
        ("A <b>man.</b>", "Ein Mann.", "0-0 1-1", "Ein <b>Mann.</b>"),
        ("<p>A <i>red</i> car.</p>", "Ein rotes Auto.", "0-0 1-1 2-2", "<p>Ein <i>rotes</i> Auto.</p>"),
        ("<i>He</i> <b>eats it</b>", "Das isst er", "0-2 1-1 2-0", "<b>Das isst</b> <i>er</i>"),
        ("<b>do not</b> go", "ne va pas", "0-0 1-2 2-1", "<b>ne</b> va pas"),  # a run, without what is another's
        ("<a href='x'><b>ice</b> cream</a> now", "Eis jetzt", "0-0 1-0 2-1", "<a href='x'><b>Eis</b></a> jetzt"),
        ('One <x id="1"/> two', "Eins zwei", "0-0 1-1", 'Eins <x id="1"/> zwei'),
        ("One two<x/>", "Eins zwei", "0-0 1-1", "Eins zwei<x/>"),
        ("One<x/> two", "Eins zwei", "0-0 1-1", "Eins<x/> zwei"),
        ("One <x/>two", "Eins zwei", "0-0 1-1", "Eins <x/>zwei"),
        ("One two<x/>.", "Zwei da, eins.", "0-2 1-0", "Zwei<x/> da, eins."),
        ("One<x/>, two", "Zwei, eins", "0-1 1-0", "Zwei, eins<x/>"),
        ("one<br/>two", "eins zwei", "0-0 1-1", "eins <br/>zwei"),
        ("a &lt; b &amp; c", "a < b & c", "0-0", "a &lt; b &amp; c"),
        (
            "Run <code>a &amp;&amp; <i>b</i></code> now",
            "Jetzt a und b starten",
            "0-4 1-1 2-2 3-3 4-0",
            "Jetzt <code>a &amp;&amp; <i>b</i></code> starten",
        ),
        (
            'Ask <span translate="no">Ann <i>Lee</i></span> now',
            "Frag jetzt Frau Lee",
            "0-0 1-2 2-3 3-1",
            'Frag jetzt <span translate="no">Ann <i>Lee</i></span>',
        ),
        (
            "Use <code> and then <kbd>rm -rf</kbd> now",
            "Nimm und dann das jetzt",
            "0-0 1-1 2-2 3-3 4-3 5-4",
            "Nimm <code> und dann <kbd>rm -rf</kbd> jetzt",
        ),
        ("<code>a <code>b</code> go", "a b geh", "0-0 1-1 2-2", "<code>a <code>b</code> geh"),
        ("Run (<code>{x}()</code>), Ann", "Starte ({X}()), Ann", "0-0 1-1 2-2", "Starte (<code>{x}()</code>), Ann"),
        ("go<kbd>X</kbd>go", "los X los", "0-0 1-1 2-2", "los <kbd>X</kbd> los"),
        ("<b>gone</b> here", "hier", "1-0", "<b></b>hier"),
        ("a </b> stray <i> tag", "ein loses Zeichen", "0-0 1-1 2-2", "ein </b> loses <i> Zeichen"),
        ("<b>all</b>", "", "", "<b></b>"),
    ],
)
def test_marks_surround_linked_words(source, target, linked, expected):
    assert MarkedText(source).place(target, links(linked)) == expected


@pytest.mark.parametrize(
    ("source", "text", "target", "linked", "expected"),
    [
        # Codes of XLIFF and TMX: markup of another format.
        (
            'The <bpt i="1">&lt;b&gt;</bpt>dog<ept i="1">&lt;/b&gt;</ept> sleeps.',
            "The dog sleeps.",
            "Da schläft der Hund.",
            "0-2 1-3 2-1",
            'Da schläft der <bpt i="1">&lt;b&gt;</bpt>Hund<ept i="1">&lt;/b&gt;</ept>.',
        ),
        ('Go<it pos="begin">[i]</it> on', "Go on", "Geh weiter", "0-0 1-1", 'Geh<it pos="begin">[i]</it> weiter'),
        ("Go <ph>&lt;br/&gt;</ph> on", "Go on", "Geh weiter", "0-0 1-1", "Geh <ph>&lt;br/&gt;</ph> weiter"),
        (
            'Go to <ph id="1">%s</ph> now',
            'Go to <ph id="1">%s</ph> now',
            'Geh jetzt zu <ph id="1">%s</ph>',
            "0-0 3-1 1-2 2-3",
            'Geh jetzt zu <ph id="1">%s</ph>',
        ),
        (
            "Go <ph>[a<sub>on foot</sub>]</ph> now",
            "Go on foot now",
            "Geh jetzt zu Fuß",
            "0-0 1-2 2-3 3-1",
            "Geh jetzt <ph>[a<sub>zu Fuß</sub>]</ph>",
        ),
        # Masks of localisation tools.
        (
            'Hello <x id="29"></x>, go',
            'Hello <x id="29"></x>, go',
            'Los, <x id="29"></x>, hallo',
            "0-2 1-1 2-0",
            'Los, <x id="29"></x>, hallo',
        ),
        (
            '<mrk mtype="protected">Ann Lee</mrk> sits',
            "Ann Lee sits",
            "Frau Lee sitzt",
            "0-0 1-1 2-2",
            '<mrk mtype="protected">Ann Lee</mrk> sitzt',
        ),
        (
            "See <svg><title>x</title></svg> here",
            "See here",
            "Sieh her",
            "0-0 1-1",
            "Sieh <svg><title>x</title></svg> her",
        ),
        ("A <ruby>b<rt>c</rt></ruby> d", "A b d", "X Y Z", "0-0 1-1 2-2", "X <ruby>Y<rt>c</rt></ruby> Z"),
    ],
)
def test_codes_are_no_text(source, text, target, linked, expected):
    marked = MarkedText(source)
    assert marked.text == text
    assert marked.place(target, links(linked)) == expected


def test_white_space_collapses():
    assert MarkedText("a\n  <b>b\n c</b>\u00a0 d", collapse=True).text == "a b c\u00a0 d"


def nested(draw: random.Random, depth: int = 0) -> str:
    """Words with elements and points in them, of the usual spacing."""
    parts = []
    for _ in range(draw.randrange(1, 5)):
        kind = draw.random()
        if kind < 0.3 and depth < 5:
            name = draw.choice("abiu")
            parts.append(f'<{name} n="{draw.randrange(99)}">{nested(draw, depth + 1)}</{name}>')
        elif kind < 0.4:
            parts.append(f'<x id="{draw.randrange(99)}"/>')
        else:
            parts.append("".join(draw.choices("abcdeé", k=draw.randrange(1, 6))) + draw.choice(["", "", ",", "&amp;"]))
    return " ".join(parts)


def tags(text: str) -> list[str]:
    return [match[0] for match in TAG.finditer(text)]


def nests(text: str) -> bool:
    opened = []
    for tag in tags(text):
        if tag.startswith("</"):
            if not opened or opened.pop() != tag[2:-1]:
                return False
        elif not tag.endswith("/>"):
            opened.append(tag[1])
    return not opened


def test_identity_links_restore_the_source():
    draw = random.Random(5)
    for _ in range(500):
        source = re.sub(r'<x id="\d+"/>', "", nested(draw)).replace(",", "").replace("&amp;", "")
        marked = MarkedText(source)
        back = marked.place(marked.text, diagonal(marked.text))
        assert closer(back) == closer(source)


def closer(text: str) -> str:
    """No spaces at the inner side of tags, and between elements without a word."""
    return re.sub(r"\s+", "", text)


def test_tags_stay_nested_for_any_links():
    draw = random.Random(6)
    for _ in range(2000):
        source = nested(draw)
        marked = MarkedText(source)
        if not marked.text:
            continue
        target = " ".join("".join(draw.choices("xyz", k=3)) + draw.choice(["", "."]) for _ in range(draw.randrange(9)))
        sizes = len(words(marked.text)), len(words(target))
        linked = (
            {(draw.randrange(sizes[0]), draw.randrange(sizes[1])) for _ in range(draw.randrange(9))}
            if all(sizes)
            else set()
        )
        found = marked.place(target, linked)
        assert Counter(tags(found)) == Counter(tags(source)), (source, found)
        assert nests(found), (source, found)
        assert html.unescape(TAG.sub("", found)).split() == target.split(), (source, found)


def test_malformed_markup_keeps_all_tags():
    draw = random.Random(7)
    pieces = [
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        "<x/>",
        "<code>",
        "</code>",
        "<!-- c -->",
        "<",
        ">",
        "&",
        "a",
        " ",
        "1",
        '"',
    ]
    for _ in range(3000):
        source = "".join(draw.choices(pieces, k=draw.randrange(20)))
        marked = MarkedText(source)
        found = marked.place(marked.text, diagonal(marked.text))
        assert Counter(tags(found)) == Counter(tags(source)), (source, found)


def test_deep_nesting_is_accepted():
    for source in ("<b>" * 500 + "x" + "</b>" * 500, "<b>a " * 500 + "</b>" * 500, "<i>" * 300 + "<b>x</b>"):
        marked = MarkedText(source)
        found = marked.place(marked.text, diagonal(marked.text))
        assert Counter(tags(found)) == Counter(tags(source))


def test_untranslatable_text_is_unchanged():
    for source in ("<x/> <b></b>", " <code>a</code>  <kbd>b</kbd>", "&nbsp;<br>", ""):
        marked = MarkedText(source)
        assert marked.text == ""
        assert marked.place("", []) == source


def test_text_without_marks_is_unchanged():
    assert MarkedText("a < b & c", tags=False).place("x < y & z", []) == "x < y & z"
