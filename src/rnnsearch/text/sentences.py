"""Sentence boundaries in raw text, so that each sentence is translated and the layout around them is kept.

Rules, not a model: a line break always ends a sentence; a CJK full stop ends one anywhere; other
terminators end one before white space and something that can start a sentence. A period after an
abbreviation, an initial or (in languages that write ordinals so) a short number ends none.

`serve` and `runtime/serve.py` split texts with it. `export/web/page/sentences.js` has the same rules: change both
(tests/page/test_module.py compares them). Tests: tests/text/test_sentences.py.
"""

import re
from collections.abc import Sequence

from rnnsearch.text.languages import base_language, unspaced_language
from rnnsearch.text.letters import is_invisible

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_CLOSERS = "\"'”’»›)]}）」』】》"
_FULL_STOPS = "。！？｡．"
"""Terminators that end a sentence anywhere, also without white space after them."""
_TERMINATORS = ".!?…؟۔।॥։።"
"""Terminators that end a sentence only before white space."""
_FULL_STOP = re.compile(rf"[{_FULL_STOPS}]+[{re.escape(_CLOSERS)}]*")
_WORD = re.compile(r"\S+")
_OPENERS = "\"'“„‘‚«‹([{¿¡-–—*•「『（【《"
_ORDINALS = frozenset({"cs", "da", "de", "et", "fi", "hr", "hu", "is", "lv", "nb", "nn", "no", "pl", "sk", "sl", "sr"})
"""Languages that write an ordinal number as digits and a period."""
# One line per group: English; English and German; French, Spanish and Italian; months and Russian.
_ABBREVIATION_LIST = """
mr mrs ms dr prof rev gen col sgt capt lt hon st sr jr mt vs nos fig figs vol pp ed eds approx dept est
e.g i.e cf al resp ca evtl bzw ggf z.b d.h u.a z.t o.ä vgl abs bd hr fr frl nr str tel geb gest inkl zzgl
mme mlle mm av env ex p.ex sra srta dña pág núm ud uds sig dott ing avv sig.ra ecc p.es
jan feb apr jun jul aug sep sept oct okt nov dec dez т.е т.д т.п ул им св стр рис
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())


def sentence_spans(text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Return the character span [start, end) of each sentence, without the white space around it.

    Args:
        text: Raw text.
        language: Code such as `de`, which determines how ordinals are written; None if unknown.
    """
    spans = []
    for line in _LINE.finditer(text):
        start = line.start()
        for end_in_line in [*_sentence_ends(line.group(), language), len(line.group())]:
            end = line.start() + end_in_line
            sentence = text[start:end]
            if not is_invisible(sentence):
                leading_space = len(sentence) - len(sentence.lstrip())
                spans.append((start + leading_space, start + len(sentence.rstrip())))
            start = end
    return spans


def rejoin(
    text: str, spans: Sequence[tuple[int, int]], new: Sequence[str], target: str | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with each span replaced by its new text, and the spans of the new texts.

    What is between the spans stays. Sentences with nothing between them (as in Chinese) are separated by a
    space, unless the target language is written without spaces.
    """
    parts: list[str] = []
    new_spans = []
    position = 0  # in the old text
    length = 0  # of the new text
    for (start, end), replacement in zip(spans, new, strict=True):
        gap = text[position:start]
        # Not before the first sentence, which starts the text.
        if not gap and position and unspaced_language(target) is None:
            gap = " "
        new_start = length + len(gap)
        length = new_start + len(replacement)
        new_spans.append((new_start, length))
        parts += [gap, replacement]
        position = end
    return "".join([*parts, text[position:]]), new_spans


def _sentence_ends(line: str, language: str | None) -> list[int]:
    """Return the positions inside a line where sentences end, in linear time."""
    ends = []
    words = list(_WORD.finditer(line))
    for number, match in enumerate(words):
        word = match.group()
        end = match.end()
        following = words[number + 1 : number + 2]
        ends += [match.start() + stop.end() for stop in _FULL_STOP.finditer(word)]
        # `He said "Stop!"` ends with closers after the terminator.
        stem = word.rstrip(_CLOSERS).rstrip(_TERMINATORS)
        ending = word[len(stem) :]
        has_terminator = bool(ending.rstrip(_CLOSERS))
        # `end in ends[-1:]`: a full stop of the loop above has already ended the sentence here.
        if not has_terminator or not following or end in ends[-1:] or not _can_start(following[0].group()):
            continue
        if ending != "." or not _is_abbreviation(stem, number == 0, language):
            ends.append(end)
    return ends


def _can_start(word: str) -> bool:
    """Return True unless the word starts with a lower-case letter."""
    bare = word.lstrip(_OPENERS)
    return not bare or not bare[0].islower()


def _is_abbreviation(word: str, is_first: bool, language: str | None) -> bool:
    """Return True if a period after the word belongs to it; `is_first` if it is the first word of a line."""
    word = word.lstrip(_OPENERS)
    if word.isdigit():
        return is_first or (len(word) <= 2 and base_language(language or "") in _ORDINALS)
    if len(word) == 1:
        # An initial, as in `J. Smith`; the pronoun may end a sentence.
        return word.isupper() and word != "I"
    return word.casefold() in _ABBREVIATIONS or bool(re.fullmatch(r"(\w\.)+\w", word))
