"""HTML documents: which text is translated, where tags are placed, and linear parsing."""

import random
from collections import Counter

import pytest

from rnnsearch.text.alignments import words
from rnnsearch.text.markup.html_document import HtmlDocument


def to_upper(html: str) -> str:
    """Return a document with its texts in upper case."""
    document = HtmlDocument(html)
    return document.filled([(text.upper(), diagonal(text)) for text in document.texts])


def diagonal(text: str) -> list[tuple[int, int]]:
    """Return links between equal positions of a text and a translation with as many words."""
    return [(n, n) for n in range(len(words(text)))]


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("plain", "PLAIN"),
        ("", ""),
        ("<p>one <b>two</b></p>\n", "<p>ONE <b>TWO</b></p>\n"),
        ("a &lt; b &amp; c&nbsp;d", "A &lt; B &amp; C\u00a0D"),
        ("a < b", "A &lt; B"),
        ("<a id=\"x > y\" href='<z>'>go</a>", "<a id=\"x > y\" href='<z>'>GO</a>"),
        ("<img alt='a cat' src=b>", "<img alt='A CAT' src=b>"),
        ('go <a title="a &amp; b" href="c">on</a>', 'GO <a title="A &amp; B" href="c">ON</a>'),
        ('<p title="5">go</p>', '<p title="5">GO</p>'),
        (
            '<meta name="description" content="a cat"><meta name="x" content="y">',
            '<meta name="description" content="A CAT"><meta name="x" content="y">',
        ),
        (
            '<code title="a">b</code> <script title="a">b</script>',
            '<code title="a">b</code> <script title="a">b</script>',
        ),
        ("<p>\n  one\n  <b>two\n three</b>.\n</p>", "<p>\n  ONE <b>TWO THREE</b>.\n</p>"),
        ("<pre>one\n  two</pre> three\nfour", "<pre>ONE\n  TWO</pre> THREE FOUR"),
        ("<!-- a --> one <!-- b --> two <!-- c -->", "<!-- a --> ONE <!-- b --> TWO <!-- c -->"),
        ('<img src="a"> <br>one <br> two <br> ', '<img src="a"> <br>ONE <br> TWO <br> '),
        ("one <svg><path/></svg> two", "ONE <svg><path/></svg> TWO"),
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
def test_only_text_is_translated(html, expected):
    assert to_upper(html) == expected


@pytest.mark.parametrize(
    ("html", "translation", "links", "expected"),
    [
        ("<p>go <b>on</b> now</p>", "NOW GO ON", [(0, 1), (1, 2), (2, 0)], "<p>NOW GO <b>ON</b></p>"),
        ("<p>a <code>x</code> b</p>", "B A y", [(0, 1), (1, 2), (2, 0)], "<p>B A <code>x</code></p>"),
        ("<p>a <code>x</code> b</p>", "", [], "<p><code>x</code></p>"),
    ],
)
def test_inline_tags_follow_their_words(html, translation, links, expected):
    document = HtmlDocument(html)
    assert document.has_inline_tags
    assert document.filled([(translation, links)]) == expected


def test_inline_elements_across_block_tags_keep_their_tags():
    assert to_upper("<li>go <b>on<li>now</b></li>") == "<li>GO <b>ON<li>NOW</b></li>"
    assert not HtmlDocument("<p>go on</p>").has_inline_tags


def test_any_untranslated_document_is_unchanged():
    rng = random.Random(2)
    pieces = [
        *["<", ">", "</", "<p>", "</p>", '"', "'", "é", "<!--", "-->", "<!", "<?", "svg", "<svg>", "</svg>", "/"],
        " ",
    ]
    for _ in range(2000):
        html = "".join(rng.choices(pieces, k=rng.randrange(25)))
        document = HtmlDocument(html)
        result = document.filled([(text, diagonal(text)) for text in document.texts])
        unescaped = result.replace("&lt;", "<").replace("&gt;", ">")
        # Comments and images inside a word move to its end.
        has_points = "<!--" in html or "svg>" in html
        assert (
            Counter(unescaped.replace(" ", "")) == Counter(html.replace(" ", "")) if has_points else unescaped == html
        )


@pytest.mark.parametrize("piece", ["<a ", '<a "', "<a '\"", "<!--", "<script>", "</script", "<code>", "< "])
def test_parsing_takes_linear_time(piece):
    # With one pass per tag, this would take many minutes.
    html = piece * 60_000
    document = HtmlDocument(html)
    assert document.filled([(text, diagonal(text)) for text in document.texts]).replace("&lt;", "<") == html
