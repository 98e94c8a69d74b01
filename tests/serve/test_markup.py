"""HTML taken apart and put together."""

import random

import pytest

from rnnsearch.serve.libretranslate import Markup
from rnnsearch.text.alignments import words


def shout(text: str) -> str:
    page = Markup(text)
    return page.filled([(part.upper(), diagonal(part)) for part in page.texts])


def diagonal(text: str) -> list[tuple[int, int]]:
    """The links of a text with one of as many words."""
    return [(n, n) for n in range(len(words(text)))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "PLAIN"),
        ("", ""),
        ("<p>one <b>two</b></p>\n", "<p>ONE <b>TWO</b></p>\n"),
        ("a &lt; b &amp; c&nbsp;d", "A &lt; B &amp; C\u00a0D"),
        ("a < b", "A &lt; B"),
        ("<a title=\"x > y\" href='<z>'>go</a>", "<a title=\"x > y\" href='<z>'>GO</a>"),
        ("<!-- keep --><!DOCTYPE html><?php x ?>go", "<!-- keep --><!DOCTYPE html><?php x ?>GO"),
        ("<script>if (a<b) x('</p>')</script>go", "<script>if (a<b) x('</p>')</script>GO"),
        ("<STYLE>p{}</style>go", "<STYLE>p{}</style>GO"),
        ("one<code>two<code>three</code>four</code>five", "ONE <code>two<code>three</code>four</code> FIVE"),
        (
            'one <span translate="no">two <i>three</i></span> four',
            'ONE <span translate="no">two <i>three</i></span> FOUR',
        ),
        ('<br translate="no">go', '<br translate="no">GO'),
        ("one <b two", "ONE <b two"),
        ("one <!-- two", "ONE <!-- two"),
        ("one <script>two", "ONE <script>two"),
        ("</p>one</q>", "</p>ONE</q>"),
        ("one <3 two", "ONE &lt;3 TWO"),
    ],
)
def test_text_is_translated_and_nothing_else(text, expected):
    assert shout(text) == expected


@pytest.mark.parametrize(
    ("text", "found", "links", "expected"),
    [
        ("<p>go <b>on</b> now</p>", "NOW GO ON", [(0, 1), (1, 2), (2, 0)], "<p>NOW GO <b>ON</b></p>"),
        ("<p>a <code>x</code> b</p>", "B A y", [(0, 1), (1, 2), (2, 0)], "<p>B A <code>x</code></p>"),
        ("<p>a <code>x</code> b</p>", "", [], "<p><code>x</code></p>"),
    ],
)
def test_tags_inside_of_sentences_go_with_their_words(text, found, links, expected):
    page = Markup(text)
    assert page.marked
    assert page.filled([(found, links)]) == expected


def test_elements_that_cross_what_divides_sentences_keep_their_tags():
    assert shout("<li>go <b>on<li>now</b></li>") == "<li>GO <b>ON<li>NOW</b></li>"
    assert not Markup("<p>go on</p>").marked


def test_whatever_it_is_untranslated_text_comes_back():
    draw = random.Random(2)
    pieces = [
        *["<", ">", "</", "<p>", "</p>", '"', "'", "é", "<!--", "-->", "<!", "<?", "svg", "<svg>", "</svg>", "/"],
        " ",
    ]
    for _ in range(2000):
        text = "".join(draw.choices(pieces, k=draw.randrange(25)))
        page = Markup(text)
        back = page.filled([(part, diagonal(part)) for part in page.texts])
        assert back.replace("&lt;", "<").replace("&gt;", ">") == text


@pytest.mark.parametrize("piece", ["<a ", '<a "', "<a '\"", "<!--", "<script>", "</script", "<code>", "< "])
def test_long_nonsense_is_read_in_one_pass(piece):
    """Were it read once a mark, these would take many minutes."""
    text = piece * 60_000
    page = Markup(text)
    assert page.filled([(part, diagonal(part)) for part in page.texts]).replace("&lt;", "<") == text
