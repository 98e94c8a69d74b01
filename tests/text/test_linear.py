"""Functions that read external text take linear time: on hard texts, twice the text takes at most 2.3
times the time. Measured on four times the text, of processor time alone, and again where another process may have had
the caches."""

import gc
import time
from dataclasses import replace

import pytest

from rnnsearch.text.alignments import with_copy_links, word_spans
from rnnsearch.text.banned import BannedPhrases
from rnnsearch.text.languages import detect, length_in_words
from rnnsearch.text.markup.html_document import HtmlDocument
from rnnsearch.text.markup.marks import MarkedText
from rnnsearch.text.markup.protected import PROTECTED, find_protected
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.text.tokenizer import Replacement, Segmented
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_words

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


def copied(text):
    """Check the copy links of a text of copied words."""
    offsets = word_spans(text)
    side = Segmented(text, [UNK] * len(offsets), ["<unk>"] * len(offsets), offsets)
    found = replace(side, replaced=tuple(Replacement(n, n, "", "copy") for n in range(len(offsets))))
    assert with_copy_links((), side, found, "words") == tuple((n, n) for n in range(len(offsets)))


READERS = {
    "sentences": lambda text: sentence_spans(text, "de"),
    "words": word_spans,
    "markup": HtmlDocument,
    "marks": lambda text: MarkedText(text).place(text, [(0, 0)]),
    "protected": lambda text: find_protected(text, PROTECTED),
    "language": lambda text: detect(text, ["en", "de", "zh"]),
    "length": lambda text: length_in_words(text, "zh"),
    "counts": lambda text: count_words([text]),
    "copies": copied,
}
MOST = {"words": 8**0.5, "markup": 3.2, "marks": 3.2, "counts": 3.2, "copies": 3.2}
"""Exceptions above 2.3: an object for each piece, and in `tokenizers` some bytes for each character, soon more
than the caches hold. A square would be 4; the first is half-way, as ratios go."""
LEAST = 0.004
"""Seconds of the shorter text: less is not measured well."""


def seconds(read, text):
    best = float("inf")
    gc.disable()  # it walks over all that the tests before this one have left
    for _ in range(2):
        began = time.process_time()
        read(text)
        best = min(best, time.process_time() - began)
    gc.enable()
    return best


def ratio(read, piece):
    """Ratio of the times of two texts, one twice as long as the other."""
    size = 1000
    while (short := seconds(read, piece * size)) < LEAST and size < 1 << 19:
        size *= 2
    return (seconds(read, piece * 4 * size) / max(short, LEAST / 2)) ** 0.5


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("piece", HARD)
def test_time_is_linear_in_text_length(reader, piece):
    found, most = [ratio(READERS[reader], HARD[piece])], MOST.get(reader, 2.3)
    while found[-1] > most and len(found) < 8:
        found.append(ratio(READERS[reader], HARD[piece]))
    assert found[-1] <= most, found


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
