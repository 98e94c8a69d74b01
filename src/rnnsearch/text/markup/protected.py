"""Recognition of text that must stay letter for letter: URLs, placeholders of programs, codes, numbers.

`substitutes.py` takes it out of a sentence before translation and puts it back afterwards; `marks.py` uses
`find_protected`, too, and `text.sentences` uses `without_breaks`. Names of types are values of `--protect`.

New placeholder: add its syntax to `_PLACEHOLDERS`, and an example to tests/text/test_protected.py. Texts come from
strangers, so each pattern must take linear time (tests/text/test_linear.py): repetitions are bounded, and braces are
matched by a scanner, not by a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rnnsearch.errors import RnnsearchError, must_be_one_of

ProtectedType = Literal["urls", "emails", "placeholders", "codes", "numbers"]
PROTECTED: tuple[ProtectedType, ...] = ("urls", "emails", "placeholders", "codes", "numbers")
"""Types of protected text."""
DEFAULT_PROTECTED: tuple[ProtectedType, ...] = ("urls", "emails", "placeholders")
"""Types that are protected by default, because they can hardly be anything else."""
MAX_BRACES = 2000
"""Maximum number of characters between braces; longer text is not a placeholder."""
PRINTF = "printf"
"""Grammar in which all of C's directives are placeholders, also `% d` and those that look like percentages."""
NO_PRINTF = "no printf"
"""Grammar in which `%d` is ordinary text."""

_LETTER = r"[^\W\d_]"
_WIDTH = r"(?:\d{1,4}|\*(?:\d{1,2}\$)?)?(?:\.(?:\d{1,4}|\*(?:\d{1,2}\$)?)?)?"
_LENGTH = r"(?:hh|h|ll|l|q|j|z|t|L|I64|I32)?"
_POSITION = r"(?:\d{1,2}\$)?"
_NAME = r"[A-Za-z_][\w.:-]{0,63}"
_DIRECTIVE = rf"(?<!\d)%{_POSITION}[-+#0]{{0,5}}{_WIDTH}{_LENGTH}(?:[sdiufF@]|[xXoOcCeEgGaApSn](?!{_LETTER}))"
_ANY_DIRECTIVE = rf"%{_POSITION}[-+#0 'I,(]{{0,7}}{_WIDTH}{_LENGTH}[diouxXeEfFgGaAcCsSpnmbBhHr@]"
_PLACEHOLDERS = (
    r"%%",
    r"%\([^()]{1,64}\)[-+#0 ]{0,5}(?:\d{1,4}|\*)?(?:\.\d{1,4})?[diouxXeEfFgGcrsa]",  # Python
    r"%[-+#0]{0,5}\d{0,4}(?:\.\d{1,4})?<\w{1,64}>(?:[-+#0]{0,5}\d{0,4}(?:\.\d{1,4})?[bBdiouxXeEfgGcsp](?!\w))?",  # Ruby
    r"%\d{1,2}%",  # Boost
    rf"%(?!\d){_NAME}%(?!{_LETTER})",  # Symfony
    r"%L?\d{1,2}(?![\d$]|[.,]\d)",  # Qt and KDE
    rf"\$(?:t|\w{{1,16}})\({_NAME}\)|\${_NAME}\$",  # i18next; browser extensions
    r"__[A-Za-z0-9]\w{0,63}?__|@@\w{1,64}@@",
    r"\[[A-Za-z]{1,4}_?\d{1,9}[A-Za-z]{0,4}\]",  # masks such as Weblate's [X29X]
    r"\[\[[\w.:-]{1,64}\]\]|\(\(\(\d{1,9}\)\)\)|[⟦⟪«]\d{1,9}[⟧⟫»]",
    r"<%[^<>%]{1,200}%>|<\?[^<>?]{1,200}\?>",
    # Elements without content, and numbered tags: masks of localisation tools, or markup of the original file.
    r"<([A-Za-z]{1,8}\d{0,9})(?:\s[^<>]{0,200})?></\1>|<[A-Za-z]\w{0,15}(?:\s[^<>]{0,200})?/>|</?\d{1,9}/?>",
    r"<ph(?:\s[^<>]{0,200})?>[^<>]{0,200}</ph>",
    # Other tags, and names in angle brackets.
    r"</?[A-Za-z][\w:.-]{0,63}(?:\s{1,9}[A-Za-z_:@][\w:.-]{0,63}=(?:\"[^\"<>]{0,500}\"|'[^'<>]{0,500}')){0,20}\s{0,9}>",
)
_BRACE = r"(?:[$#@!]|%)?\{"
_EMAIL = r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
_URL = (
    r"(?<![A-Za-z0-9])(?i:https?://|ftp://|file://|mailto:|www\.)"
    r"[^\s<>\"`\\\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]+"
)
_CODE = (
    r"(?<![\w.-])(?=[\w.-]{0,64}\d)(?=[\w.-]{0,64}[^\W\d_])(?!\d+(?:st|nd|rd|th)(?!\w))"
    r"[\w-]{1,64}(?:\.[\w-]{1,64}){0,8}(?![\w-])"
)
_NUMBER = (
    r"(?<!\w)(?<!\w-)[-+\u2212\u00b1]?(?:(?<!\d)\d{1,3}(?:[ \u00a0\u2009\u202f'’]\d{3}){1,8}(?:[.,]\d{1,64})?(?![\d])"
    r"|\d(?:[\d.,:/\u2013-]{0,64}\d)?)(?!\w)"
)


class ProtectedText(NamedTuple):
    """Characters [start, end) of a text that must stay letter for letter."""

    text: str
    """The characters."""
    start: int
    """Offset of the first one."""
    end: int
    """Offset after the last one."""
    type: ProtectedType

    def span(self) -> tuple[int, int]:
        """Return the characters [start, end), like a match of a regular expression."""
        return self.start, self.end


class Recogniser:
    """Finds protected text of some types."""

    def __init__(self, types: Iterable[ProtectedType], grammar: str | None = None) -> None:
        """Compile the patterns.

        Args:
            types: Types of protected text.
            grammar: `PRINTF` or `NO_PRINTF`; by default, only what is hardly a percentage is a directive.
        """
        types = tuple(types)
        self._finds_braces = "placeholders" in types
        placeholders = list(_PLACEHOLDERS)
        if grammar != NO_PRINTF:
            # Names between percent signs are rarer than two directives: %s_%s.
            placeholders[4:4] = [_ANY_DIRECTIVE if grammar == PRINTF else _DIRECTIVE]
        patterns: dict[ProtectedType, str] = {
            "urls": _URL,
            "emails": _EMAIL,
            "placeholders": "|".join([*placeholders, _BRACE])
            .replace(r"\1", "(?P=element)")
            .replace("<([A-Za-z]", "<(?P<element>[A-Za-z]", 1),
            "codes": _CODE,
            "numbers": _NUMBER,
        }
        found = [f"(?P<{name}>{patterns[name]})" for name in PROTECTED if name in types]
        self._pattern = re.compile("|".join(found) or r"(?!)")

    def finditer(self, text: str) -> Iterator[ProtectedText]:
        """Yield the protected text in order; no two overlap."""
        brace_ends = _brace_ends(text) if self._finds_braces and "{" in text else {}
        position = 0
        while (match := self._pattern.search(text, position)) is not None:
            start, end = match.span()
            type = next(name for name in PROTECTED if name in match.re.groupindex and match[name] is not None)
            if type == "urls":
                end = _url_end(text, start, end)
            elif type == "placeholders" and text[end - 1] == "{":
                end = brace_ends.get(end - 1, start)
            if end > start:
                yield ProtectedText(text[start:end], start, end, type)
            # An opening brace without a partner is skipped.
            position = max(end, start + 1)


def parse_protected(names: Iterable[str]) -> tuple[ProtectedType, ...]:
    """Return the types of names, which may be `all` or `none`.

    Raises:
        RnnsearchError: A name is unknown.
    """
    by_name: dict[str, tuple[ProtectedType, ...]] = {name: (name,) for name in PROTECTED}
    by_name |= {"all": PROTECTED, "none": ()}
    types: list[ProtectedType] = []
    for name in names:
        if name not in by_name:
            raise RnnsearchError(f"--protect {must_be_one_of(list(by_name), name)}")
        types += by_name[name]
    return tuple(dict.fromkeys(types))


def without_breaks(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans of sentences, joined where one ends inside a placeholder, such as an ICU message."""
    placeholders = protected_pattern(("placeholders",)).finditer(text)
    placeholder = next(placeholders, None)
    results: list[tuple[int, int]] = []
    for start, end in spans:
        while placeholder is not None and placeholder.end <= start:
            placeholder = next(placeholders, None)
        if results and placeholder is not None and placeholder.start < results[-1][1]:
            results[-1] = (results[-1][0], end)
        else:
            results.append((start, end))
    return results


def find_protected(text: str, types: Collection[ProtectedType], grammar: str | None = None) -> list[ProtectedText]:
    """Return the protected text of these types in order."""
    return list(protected_pattern(types, grammar).finditer(text))


def protected_pattern(types: Iterable[ProtectedType], grammar: str | None = None) -> Recogniser:
    """Return the recogniser of these types of text; the types are compiled once."""
    # In a fixed order, so that there are few.
    requested = set(types)
    key = (tuple(name for name in PROTECTED if name in requested), grammar)
    if key not in _recognisers:
        _recognisers[key] = Recogniser(*key)
    return _recognisers[key]


protected = protected_pattern  # earlier name

_recognisers: dict[tuple[tuple[ProtectedType, ...], str | None], Recogniser] = {}


def _brace_ends(text: str) -> dict[int, int]:
    """Return the offset after the closing brace of each outermost pair, by the offset of the opening brace."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"[{}]", text):
        position = match.start()
        if match[0] == "{":
            opened.append(position)
        elif opened:
            start = opened.pop()
            if position - start <= MAX_BRACES:
                ends[start] = position + 1
    return ends


def _url_end(text: str, start: int, end: int) -> int:
    """Return the end of a URL without punctuation of the sentence and without brackets that it does not open."""
    surplus = {
        close: text.count(close, start, end) - text.count(open, start, end) for open, close in ("()", "[]", "{}")
    }
    while end > start:
        last = text[end - 1]
        if surplus.get(last, 0) > 0:
            surplus[last] -= 1
        elif last not in ".,;:!?'’”»“*_":
            break
        end -= 1
    return end
