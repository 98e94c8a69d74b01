"""Sentences of raw text that people paste: where each begins and ends, so that the layout around them can be kept.

Rules, not a model: a line break always ends a sentence; CJK full stops end one where they stand; other
terminators end one before white space and something that can begin a sentence. A period after an abbreviation,
an initial or (in languages that write ordinals so) a short number ends none.
"""

import re
from collections.abc import Sequence

from rnnsearch.text.languages import base, unspaced

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_CLOSERS = "\"'”’»›)]}）」』】》"
_FULL_STOPS = "。！？｡．"
_TERMINATORS = ".!?…؟۔।॥։።"
_FULL_STOP = re.compile(rf"[{_FULL_STOPS}]+[{re.escape(_CLOSERS)}]*")
_WORD = re.compile(r"\S+")
_OPENERS = "\"'“„‘‚«‹([{¿¡-–—*•「『（【《"
_ORDINALS = frozenset({"cs", "da", "de", "et", "fi", "hr", "hu", "is", "lv", "nb", "nn", "no", "pl", "sk", "sl", "sr"})
"""Languages that write an ordinal number as digits and a period."""
_ABBREVIATED = """
mr mrs ms dr prof rev gen col sgt capt lt hon st sr jr mt vs nos fig figs vol pp ed eds approx dept est
e.g i.e cf al resp ca evtl bzw ggf z.b d.h u.a z.t o.ä vgl abs bd hr fr frl nr str tel geb gest inkl zzgl
mme mlle mm av env ex p.ex sra srta dña pág núm ud uds sig dott ing avv sig.ra ecc p.es
jan feb apr jun jul aug sep sept oct okt nov dec dez т.е т.д т.п ул им св стр рис
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())


def sentence_spans(text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Characters [start, end) of each sentence, without the white space around it; together with what lies
    between them they are the text.

    `language`: a code such as `de`, which says how ordinals are written; None for unknown.
    """
    spans = []
    for line in _LINE.finditer(text):
        begin = line.start()
        for end in [*_ends(line.group(), language), len(line.group())]:
            stop = line.start() + end
            piece = text[begin:stop]
            if piece.strip():
                left = len(piece) - len(piece.lstrip())
                spans.append((begin + left, begin + len(piece.rstrip())))
            begin = stop
    return spans


def rejoin(
    text: str, spans: Sequence[tuple[int, int]], new: Sequence[str], target: str | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """The text with each span replaced by its new text, and where each of these stands in it: what lay between
    the spans stays.

    Sentences that had nothing between them (as in Chinese) get a space, unless the target language has none.
    """
    parts: list[str] = []
    placed = []
    at = length = 0
    for (start, end), replacement in zip(spans, new, strict=True):
        gap = text[at:start]
        if not gap and at and unspaced(target) is None:
            gap = " "
        begin = length + len(gap)
        length = begin + len(replacement)
        placed.append((begin, length))
        parts += [gap, replacement]
        at = end
    return "".join([*parts, text[at:]]), placed


def _ends(line: str, language: str | None) -> list[int]:
    """Where sentences end inside a line, in time linear in its length: each word is looked at once."""
    ends = []
    words = list(_WORD.finditer(line))
    for number, match in enumerate(words):
        word, end, following = match.group(), match.end(), words[number + 1 : number + 2]
        ends += [match.start() + stop.end() for stop in _FULL_STOP.finditer(word)]
        before = word.rstrip(_CLOSERS).rstrip(_TERMINATORS)
        terminator = word[len(before) :].rstrip(_CLOSERS)
        if not terminator or not following or end in ends[-1:] or not _begins(following[0].group()):
            continue
        if word[len(before) :] != "." or not _abbreviated(before, number == 0, language):
            ends.append(end)
    return ends


def _begins(word: str) -> bool:
    """Whether a sentence can begin with this word: not with a small letter."""
    bare = word.lstrip(_OPENERS)
    return not bare or not bare[0].islower()


def _abbreviated(word: str, first: bool, language: str | None) -> bool:
    """Whether a period after it belongs to the word; `first`: of its line."""
    word = word.lstrip(_OPENERS)
    if word.isdigit():
        return first or (len(word) <= 2 and base(language or "") in _ORDINALS)
    if len(word) == 1:
        return word.isupper() and word != "I"
    return word.casefold() in _ABBREVIATIONS or bool(re.fullmatch(r"(\w\.)+\w", word))
