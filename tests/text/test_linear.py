"""Functions that read external text take linear time: on hard texts, twice the text takes at most 2.3 times the time.
Measured on four times the text, of processor time alone, and again where another process may have had the caches."""

import gc
import time
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest

from rnnsearch.errors import DataError
from rnnsearch.text.alignments import parse_pharaoh, with_copy_links, word_spans
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.text.documents import read_document
from rnnsearch.text.letter_case import letter_case, true_cased, upper_cased, word_spans_with_symbols
from rnnsearch.text.markup.html_document import HtmlDocument
from rnnsearch.text.markup.inline_document import InlineDocument
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.protected import PROTECTED, find_protected
from rnnsearch.text.markup.substitutes import NAMES, NUMBERS, Substitutes
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.text.tokenizer import Replacement, Segmented
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import train_words

HARD = {
    "dots": ".",
    "dots apart": ". ",
    "numbers": "1. ",
    "quotes": '."',
    "closers": ".)",
    "full stops": "。",
    "initials": "a.",
    "initials apart": "a. ",
    "capitals": "A. ",
    "spaces": " ",
    "lines": "\n",
    "one word": "a",
    "openers": "“ (",
    "tags": "<a ",
    "tags that end": "<b>x</b>",
    "tags that never end": "<code>x<kbd>",
    "declarations": "<!",
    "comments": "<!--",
    "quoted": "<a b=\"'",
    "entities": "&amp",
    "marks": "e\u0301",
    "apostrophes": "l'",
    "placeholders": "{a}",
    "placeholders apart": "({a}), ",
    "braces": "{",
}
MARKUP = {
    "braces and names": "{a, ",
    "closed braces": "{}}",
    "percent signs": "%",
    "directives": "%1$-5.2",
    "named directives": "%(a",
    "percent names": "%a ",
    "dollars": "$a",
    "underscores": "__a",
    "masks": "[X1",
    "codes": '<ph id="1">',
    "sub in codes": "<ph><sub>",
    "pairs": '<bpt i="1">a</bpt>',
    "attributes": '<a title="a',
    "many attributes": ' a="b"',
    "classes": ' class="a',
    "scheme": "http://",
    "hosts": "www.",
    "URL ends": "http://a.,)",
    "addresses": "a@a.",
    "digits": "1",
    "grouped numbers": "1 000 ",
    "signs": "-1",
    "words and dots": "a1.-",
}
"""Pieces that matter only to markup and protected text."""


def copied(text):
    """Check the copy links of a text of copied words."""
    offsets = word_spans(text)
    side = Segmented(text, [UNK] * len(offsets), ["<unk>"] * len(offsets), offsets)
    found = replace(side, replaced=tuple(Replacement(n, n, "", "copy") for n in range(len(offsets))))
    assert with_copy_links((), side, found, "words") == tuple((n, n) for n in range(len(offsets)))


def fill(name, text):
    """Read a document and fill it with its own segments."""
    with suppress(DataError):
        document = read_document(name, text.encode(), "en", "de")
        document.fill(document.segments)


def restored(text):
    """Replace the protected text of a sentence, and restore it."""
    item = SUBSTITUTES.replace(text, PROTECTED)
    if item is not None:
        target = Segmented(item.text, [], [], [])
        item.restored(target)
        item.partly_restored(item.text[:1000])


TOKENIZER = train_words([" ".join((*NUMBERS, *NAMES))], 100, 1)
SUBSTITUTES = Substitutes(TOKENIZER, TOKENIZER)
TMX = '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>'


def cased(text):
    """Read a text in ordinary letter case, and write it in capitals."""
    case = letter_case(text)
    if case is not None:
        text = true_cased(text, case, "tr", lambda words: [[0, 0]] * len(words))
    upper_cased(text, 0, "tr", word_spans_with_symbols(text, text))


NOISE = {
    "unordered marks": "\u0301\u0323",
    "soft hyphens and joiners": "\u00ad\u200d",
    "no-break spaces": "\u00a0",
    "capitals": "AB ",
    "symbols": '1"',
}
READERS = {
    "sentences": lambda text: sentence_spans(text, "de"),
    "words": word_spans,
    "markup": HtmlDocument,
    "marks": lambda text: MarkedText(text).place(text, [(0, 0)]),
    "protected": lambda text: find_protected(text, PROTECTED),
    "substitutes": restored,
    "codes": lambda text: InlineDocument(text, True, frozenset({"b"}), frozenset({"code"})).filled,
}
NORMALISERS = {"normalization": Normalization("punctuation", "fr").text, "letter case": cased}
COMBINATIONS = [
    *product(READERS, HARD.items()),
    *product(("normalization", "letter case"), NOISE.items()),
    *product(("markup", "marks", "protected", "substitutes", "sentences"), MARKUP.items()),
]
FILES = [
    ("a.txt", "{}", "a\n"),
    ("a.tsv", "{}", "a\tb\n"),
    ("a.tsv", "{}", "a\t\n"),
    ("a.po", "{}", 'msgid "a"\nmsgstr ""\n'),
    ("a.po", 'msgid ""{}\nmsgstr ""\n', '"a\\n"\n'),
    ("a.po", 'msgid "{}"\nmsgstr ""\n', "<a>%("),
    ("a.tmx", TMX, '<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>'),
    ("a.tmx", TMX.format('<tu><tuv xml:lang="en"><seg>{}</seg></tuv></tu>'), "<ph>a</ph>"),
    ("a.srt", "{}", "1\n00:00:01,000 --> 00:00:02,000\n<i>a\n\n"),
    ("a.html", "{}", '<p title="a">a<!-- b -->'),
]
"""Names of files, their contents, and a piece to repeat in them."""
MOST = {
    "words": 8**0.5,
    "markup": 3.2,
    "marks": 3.2,
    "codes": 3.2,
    "counts": 3.2,
    "copies": 3.2,
    "normalization": 3.2,
    "letter case": 3.2,
}
"""Exceptions above 2.3: an object for each piece, and in `tokenizers` some bytes for each character, soon more
than the caches hold. A square would be 4; the first is half-way, as ratios go."""
LEAST = 0.004
"""Seconds of the shorter text: less is not measured well."""
FIRST_LEAST = 0.001
"""Seconds of the shorter text in the first attempt, which most combinations pass."""


def seconds(read, text):
    best = float("inf")
    gc.disable()  # it walks over all that the tests before this one have left
    for _ in range(2):
        began = time.process_time()
        read(text)
        best = min(best, time.process_time() - began)
    gc.enable()
    return best


def ratio(read, piece, least=LEAST):
    """Ratio of the times of two texts, one twice as long as the other."""
    size = 1000
    while (short := seconds(read, piece * size)) < least and size < 1 << 19:
        size *= 2
    return (seconds(read, piece * 4 * size) / max(short, least / 2)) ** 0.5


def require_linear(read, piece, most=2.3):
    """Fail if reading twice the text takes more than `most` times the time."""
    found = [ratio(read, piece, FIRST_LEAST)]
    while found[-1] > most and len(found) < 8:
        found.append(ratio(read, piece))
    assert found[-1] <= most, found


@pytest.mark.parametrize(
    ("reader", "piece"), [pytest.param(reader, piece, id=f"{reader}-{name}") for reader, (name, piece) in COMBINATIONS]
)
def test_time_is_linear_in_text_length(reader, piece):
    require_linear((READERS | NORMALISERS)[reader], piece, MOST.get(reader, 2.3))


@pytest.mark.parametrize(("name", "content", "piece"), FILES)
def test_time_is_linear_in_file_length(name, content, piece):
    require_linear(lambda text: fill(name, content.format(text)), piece, 3.2)


def test_time_is_linear_in_number_of_links():
    require_linear(lambda text: parse_pharaoh(text, "a"), "0-0 11-1 ", 3.2)


@pytest.mark.parametrize(
    "phrases",
    [
        lambda size: ["ab " * size],
        lambda size: ["." * size],
        lambda size: [f"{chr(0x4E00 + n % 5000)}{chr(0x4E00 + n // 5000)}" for n in range(size)],
    ],
    ids=["one long", "one of dots", "many of many characters"],
)
def test_time_is_linear_in_banned_text_length(phrases):
    def found() -> float:
        short, long = (seconds(BannedPhrases, phrases(size)) for size in (8000, 32000))
        return (long / short) ** 0.5

    ratios = [found()]
    while ratios[-1] > 2.3 and len(ratios) < 8:
        ratios.append(found())
    assert ratios[-1] <= 2.3, ratios
