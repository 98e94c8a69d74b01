"""Sentence boundaries in raw text, so that each sentence is translated and the layout around them is kept.

Rules, not a model: a line break always ends a sentence; a CJK full stop ends one anywhere; other terminators end one
before white space and something that can start a sentence. A period after an abbreviation, an initial, a list number
or (in languages that write ordinals so) a short number ends none. `sentence_rules.py` has the words of each language.
Precision and recall: `python -m benchmarks.sentences` (docs/results/sentences.md).

`translator/texts.py` (for commands and the runtime) and `serve/limits.py` split texts with it.
`export/web/page/sentences.js` has the same rules: change both (tests/page/test_module.py compares them). The time must
be linear in the text (tests/text/test_linear.py).
"""

import re
import string
from collections.abc import Sequence

from rnnsearch.text.languages import base_language, unspaced_language
from rnnsearch.text.letters import is_invisible
from rnnsearch.text.markup.protected import without_breaks
from rnnsearch.text.sentence_rules import NAME_PARTICLES, Rules, rules

_LINE = re.compile(r"[^\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_TEXT = re.compile(r".+", re.DOTALL)
_QUOTES = "\"'“”„‘’‚«»‹›「」『』"
_CLOSING_BRACKETS = ")]}）】》"
_CLOSERS = _QUOTES + _CLOSING_BRACKETS
_OPENERS = _QUOTES + "([{¿¡-–—*•（【《"
_LATE_CLOSERS = "”’»›)]}）」』】》"
"""Closers that may follow a terminator after a space, as in `« Oui. »`."""
_FULL_STOPS = "。！？｡．။។៕"
"""Terminators that end a sentence anywhere, also without white space after them."""
_TERMINATORS = ".!?…؟۔।॥։።‽⁇⁈⁉‼" + _FULL_STOPS
"""Terminators that end a sentence only before white space."""
_ALL_TERMINATORS = frozenset(_TERMINATORS)
_AFTER_SENTENCE = "".join(set(_TERMINATORS) - set(_FULL_STOPS)) + _CLOSERS + string.whitespace
"""Characters at the end of a line in which no other sentence starts."""
_CONTINUATIONS = ",;:،、，"
"""Punctuation before which no sentence ends."""
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0002ffff"
_AFTER_HALF_WIDTH = _CJK + re.escape(_CLOSERS) + re.escape("（【《")
_FULL_STOP = re.compile(rf"(?:[{_FULL_STOPS}]+|(?<=[{_CJK}])[!?.]+(?=[{_AFTER_HALF_WIDTH}]))[{re.escape(_CLOSERS)}]*")
_CJK_START = re.compile(f"^.*[{_CJK}]", re.DOTALL)
_QUOTATIVE = re.compile("と(?!ても|ころ|にかく|りあえず)|って|という|など")
"""Words after a Japanese quotation that belong to its sentence."""
_SPEAKER = re.compile(r"[^。！？，,：:；\s没沒]{1,4}(?:[说說问問喊]道?|[答叫]?道)[。，！：,]")
"""A speaker after a Chinese quotation, as in `“我走了。”他说。`."""
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_DATE = re.compile(r"\d{1,2}(?:\.\d{1,2})?")
_ROMAN = re.compile(r"[IVXLCDM]+")
_DOTTED = re.compile(r"(?:\w\.)+\w")
_LETTERS = re.compile(r"[^\W\d_]+")
_MAX_BRACKET_CHARACTERS = 200
"""Distance at which the start of a bracket is searched; the limit keeps the time linear."""
_MAX_LIST_NUMBER = 8
"""Maximum number of digits of a list number before a full-width period."""
_MAX_ABBREVIATION = 8
"""Maximum length of the first word of an abbreviation of two words."""
_PARTICLES = frozenset(NAME_PARTICLES.split())


def sentence_spans(text: str, language: str | None = None, ends_at_line_breaks: bool = True) -> list[tuple[int, int]]:
    """Return the character span [start, end) of each sentence, without the white space around it.

    Args:
        text: Raw text.
        language: Code such as `de`, which determines abbreviations and how ordinals are written; None if unknown.
        ends_at_line_breaks: False if line breaks, such as U+2028 in a line of a file, are ordinary white space.
    """
    spans = []
    language = base_language(language or "")
    for line in (_LINE if ends_at_line_breaks else _TEXT).finditer(text):
        start = line.start()
        inner_ends = _Line(line.group(), language).ends if _may_have_sentences(line.group()) else []
        for end_in_line in [*inner_ends, len(line.group())]:
            end = line.start() + end_in_line
            sentence = text[start:end]
            if not is_invisible(sentence):
                leading_space = len(sentence) - len(sentence.lstrip())
                spans.append((start + leading_space, start + len(sentence.rstrip())))
            start = end
    # Only these contain white space.
    return without_breaks(text, spans) if len(spans) > 1 and ("{" in text or "<" in text) else spans


def _may_have_sentences(line: str) -> bool:
    """Return False if only the last word of a line has terminators, as in most lines of a corpus; this is fast."""
    before = line.rstrip(_AFTER_SENTENCE)
    return len(line[len(before) :].split()) > 1 or not _ALL_TERMINATORS.isdisjoint(before)


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


class _Line:
    """A line and the positions inside it where sentences end, found in linear time."""

    def __init__(self, line: str, language: str) -> None:
        self._line = line
        self._language = language
        self._rules: Rules = rules(language)
        matches = list(_WORD.finditer(line))
        self._spans = [match.span() for match in matches]
        self._words = [match.group() for match in matches]
        self._next = self._next_words()
        self.ends: list[int] = []
        self._has_text = False  # True if the sentence has a letter or digit before the current word
        number = 0
        while number < len(self._words):
            number = self._read_word(number)

    def _next_words(self) -> list[int]:
        """Return, for each word, the index of the first word from there on that is not only opening punctuation."""
        following = [len(self._words)] * (len(self._words) + 1)
        for number in reversed(range(len(self._words))):
            bare = self._words[number].lstrip(_OPENERS)
            is_clitic = bare in self._rules.clitics and bare != self._words[number]
            following[number] = following[number + 1] if not bare or is_clitic else number
        return following

    def _read_word(self, number: int) -> int:
        """Add the ends in and after a word; return the index of the next word to read."""
        start = self._spans[number][0]
        word = self._words[number]
        for stop in _FULL_STOP.finditer(word):
            if self._ends_at_full_stop(start, stop):
                self._end_at(start + stop.end())
        word = word[max(0, self._sentence_start - start) :]
        # `He said "Stop!"` ends with closers after the terminator.
        stem = word.rstrip(_CLOSERS).rstrip(_TERMINATORS)
        ending = word[len(stem) :]
        had_text = self._has_text
        self._has_text = had_text or any(map(str.isalnum, word))
        if not ending.rstrip(_CLOSERS) or not self._has_text:
            return number + 1
        last = number
        while last + 1 < len(self._words) and not self._words[last + 1].strip(_LATE_CLOSERS):
            last += 1
        if last + 1 < len(self._words) and self._ends_after(number, stem, ending, last + 1, not had_text):
            self._end_at(self._spans[last][1])
        return last + 1

    @property
    def _sentence_start(self) -> int:
        return self.ends[-1] if self.ends else 0

    def _end_at(self, position: int) -> None:
        self.ends.append(position)
        self._has_text = False

    def _ends_at_full_stop(self, start: int, stop: re.Match[str]) -> bool:
        """Return True if a full stop inside a word, at `start` in the line, ends a sentence."""
        word = stop.string
        before = word[stop.start() - 1 : stop.start()]
        after = word[stop.end() : stop.end() + 10]
        if stop.group() == "．" and before.isdecimal():
            # A decimal point, or a list number.
            first = max(0, self._sentence_start - start, stop.start() - _MAX_LIST_NUMBER)
            is_list_number = not self._has_text and word[first : stop.start()].isdecimal()
            return not (after[:1].isdecimal() or is_list_number)
        if stop.group()[-1] not in _CLOSERS:
            return True
        if self._language == "ja" and _QUOTATIVE.match(after):
            return False
        if self._language == "zh" and _SPEAKER.match(after):
            return False
        is_inner = stop.group()[-1] in _CLOSING_BRACKETS and self._is_inner_bracket(start + stop.start())
        return not is_inner or not after

    def _is_inner_bracket(self, end: int) -> bool:
        """Return True if the bracket that closes at a position was opened inside the sentence."""
        text = self._line[max(self._sentence_start, end - _MAX_BRACKET_CHARACTERS) : end]
        opened = max(map(text.rfind, "([{（【《"))
        return opened >= 0 and any(map(str.isalnum, text[:opened]))

    def _ends_after(self, number: int, stem: str, ending: str, following: int, is_first: bool) -> bool:
        """Return True if a sentence ends after a word with a terminator.

        Args:
            number: Index of the word.
            stem: The word without terminators and closers.
            ending: Its terminators and closers.
            following: Index of the word after it and its closers.
            is_first: True if the word is the first of its sentence.
        """
        following = self._next[following]
        following_word = self._words[following] if following < len(self._words) else ""
        bare = following_word.lstrip(_OPENERS)
        if bare and (bare[0].islower() or bare[0] in _CONTINUATIONS):
            return False
        closes_bracket = ending[-1] in _CLOSING_BRACKETS
        if closes_bracket and (not stem.lstrip(_OPENERS) or self._is_inner_bracket(self._spans[number][1] - 1)):
            return False
        if self._language == "en" and self._is_english_continuation(ending, following):
            return False
        if ending.rstrip(_CLOSERS) != ".":
            return True
        stem = _CJK_START.sub("", stem.strip(_OPENERS + _CLOSERS))
        return not self._is_abbreviation(number, stem, is_first, following_word)

    def _is_english_continuation(self, ending: str, following: int) -> bool:
        """Return True for a speaker after a quotation, and for `I` after an ellipsis."""
        if ending in ("...", "…"):
            return self._words[following : following + 1] in (["I"], ["I'm"], ["I'll"], ["I've"], ["I'd"])
        # `She` of a new sentence has a capital letter; a name always has.
        if ending[-1] not in _QUOTES or self._is_starter("".join(self._words[following : following + 1])):
            return False
        verb = "".join(self._words[following + 1 : following + 2]).rstrip(".,;:")
        return verb in self._rules.speech_verbs

    def _is_abbreviation(self, number: int, word: str, is_first: bool, following: str) -> bool:
        """Return True if a period after the word does not end the sentence.

        Args:
            number: Index of the word.
            word: The word without punctuation around it.
            is_first: True if it is the first word of its sentence.
            following: The next word.
        """
        starts = self._is_starter(following)
        if _NUMBER.fullmatch(word):
            return is_first or (self._rules.has_ordinals and bool(_DATE.fullmatch(word)) and not starts)
        if _ROMAN.fullmatch(word) and len(word) > 1 and (is_first or self._rules.has_ordinals):
            return is_first or not starts
        if word in self._rules.ending_letters:
            return False
        starts_with_digit = following.lstrip(_OPENERS)[:1].isdecimal()
        for key in self._keys(number, word):
            if key in self._rules.always or key.endswith(self._rules.suffixes):
                return True
            if key in self._rules.numeric and starts_with_digit:
                return True
            if key in self._rules.ending:
                return not starts
        if _DOTTED.fullmatch(word):
            return not starts
        if len(word) == 1 and word.isalpha():
            # An initial, as in `J. Smith`.
            return not starts or self._is_particle(following)
        return False

    def _keys(self, number: int, word: str) -> list[str]:
        """Return the forms of a word that may be abbreviations: with the one before it, and after an apostrophe."""
        key = word.casefold()
        keys = [key]
        before = self._words[number - 1].strip(_OPENERS + _CLOSERS) if number else ""
        if before.endswith(".") and len(before) <= _MAX_ABBREVIATION:
            keys.insert(0, before.casefold() + key)  # as in `z. B.`
        elision = key.replace("’", "'").rpartition("'")[2]
        return [*keys, elision] if elision != key else keys

    def _is_starter(self, word: str) -> bool:
        """Return True if a word often starts a sentence; an initial does not."""
        bare = word.lstrip(_OPENERS)
        match = _LETTERS.match(bare)
        if match is None:
            return False
        letters = match.group().casefold()
        after = bare[match.end() : match.end() + 1]
        if after == "." and len(letters) == 1:
            return False
        return letters in self._rules.starters or (after in ("'", "’") and letters + "'" in self._rules.starters)

    def _is_particle(self, word: str) -> bool:
        match = _LETTERS.match(word.lstrip(_OPENERS))
        return match is not None and match.group().casefold() in _PARTICLES
