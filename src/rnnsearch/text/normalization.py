"""Normalisation of raw text before it is segmented, with character offsets into the raw text.

Word processors, web pages and PDF files write the same sentence in many ways: with no-break, thin or repeated spaces,
soft hyphens, invisible marks or decomposed accents. A model that has not seen these translates them badly. A
`Normalization` replaces them before training and before translation in the same way:

1. Invisible characters are removed: soft hyphens, zero-width spaces, directional marks, byte-order marks. The joiners
   ZWJ and ZWNJ stay where they have a meaning: after letters of Arabic and Indic scripts and after emoji.
2. Letters and their accents are composed (Unicode's NFC).
3. White space of any type becomes one space; there is none at the start and the end.
4. At the level "punctuation" only, typographic quotation marks and dashes become ASCII.

`Tokenizer` applies it, and stores it in its JSON. `export/web/module/normalization.js` does the same in browsers. Every
step takes linear time, and a normalised text stays as it is. The rules are part of trained models: a change needs a new
level. Tests: tests/page/test_module.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import category, is_normalized, normalize

NONE = "none"
PUNCTUATION = "punctuation"
LEVELS = (NONE, "standard", PUNCTUATION)
"""Levels of normalisation (`text.normalize` in run files)."""

HIDDEN = "\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"
"""Invisible characters that are removed, as a character class."""
_UNUSUAL_SPACES = "\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SPACES = f" {_UNUSUAL_SPACES}"
"""Characters for which `str.isspace` is true, as a character class."""
JOINED = (
    "\u0590-\u10ff\u1200-\u1cff\u2190-\u2328\u232b-\u2bff\ua800-\ua95f\ua980-\uabff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e800-\U0001e95f\U0001f000-\U0001faff\U000e0020-\U000e007f"
)
"""Characters that a joiner has a meaning after, as a character class: letters of scripts with joiners, and emoji."""
COMPOSED = "\u1161-\u1175\u11a8-\u11c2\U00016d63\U00016d67"
"""Characters that are composed with the one before them and are not marks, as a character class."""
SPECIAL_LANGUAGES = frozenset({"fr", "tr", "az"})
"""Languages with rules for spaces or letter case (see `Normalization.restored` and `letter_case`)."""
MAX_CLUSTER = 32
"""Maximum number of characters of a letter with its marks that is composed; longer ones take quadratic time."""

_UNUSUAL_ASCII = re.compile("[\t-\r\x1c-\x1f]")
_UNUSUAL = re.compile(f"[{HIDDEN}\u200c\u200d{_UNUSUAL_SPACES}]")
_HIDDEN = re.compile(f"[{HIDDEN}]+")
_JOINER = re.compile("[\u200c\u200d]")
_JOINED = re.compile(f"[{JOINED}]")
_COMPOSED = re.compile(f"[{COMPOSED}]")
_SPACES = re.compile(f"[{SPACES}]+")
_TYPOGRAPHIC = re.compile("« ?| ?»|[“”„‟〝〞]|[‘’‚‛‹›]|[‐‑‒–−]|[—―]")
_ASCII = {
    **dict.fromkeys("«»“”„‟〝〞", '"'),
    **dict.fromkeys("‘’‚‛‹›", "'"),
    **dict.fromkeys("‐‑‒–−", "-"),
    **dict.fromkeys("—―", " - "),
}
_FRENCH_SPACE = re.compile("(?<=«) | (?=([:;!?»%]))")

Edit = tuple[int, int, str]
"""Start and end of characters to replace, and the text that replaces them."""


@dataclass(frozen=True)
class Normalized:
    """A normalised text and the origin of its characters."""

    text: str
    """Normalised text."""
    spans: Sequence[tuple[int, int]] | None = None
    """Characters [start, end) of the raw text of each normalised character; None if the texts are equal."""

    def raw_span(self, start: int, end: int, raw_length: int) -> tuple[int, int]:
        """Return the characters [start, end) of the raw text that normalised characters come from.

        Args:
            start: Index of the first normalised character.
            end: Index after the last one.
            raw_length: Length of the raw text.
        """
        if self.spans is None:
            return start, end
        raw_start = self.spans[start][0] if start < len(self.spans) else raw_length
        return raw_start, max(raw_start, self.spans[end - 1][1]) if end > start else raw_start


@dataclass(frozen=True)
class Normalization:
    """Normalisation of the text of one language; without arguments, it changes nothing."""

    level: str = NONE
    """One of `LEVELS`."""
    language: str = ""
    """Code of the language, if it is one of `SPECIAL_LANGUAGES`."""

    @staticmethod
    def of_language(level: str, language: str) -> Normalization:
        """Return the normalisation for a language; languages without special rules have the same one."""
        return Normalization(level, language if main_language(language) in SPECIAL_LANGUAGES else "")

    def __bool__(self) -> bool:
        return self.level != NONE

    def text(self, text: str) -> str:
        """Return a text normalised."""
        return self.normalized(text).text

    def normalized(self, text: str, keeps_last_space: bool = False) -> Normalized:
        """Return a text normalised, with the origin of its characters.

        Args:
            text: Raw text.
            keeps_last_space: True for the start of a text, in which a last space means that the next word follows.
        """
        if not self or not self._needs_change(text):
            return Normalized(text)
        new = _edited(Normalized(text), _hidden_edits(text))
        if not is_normalized("NFC", new.text):
            new = _edited(new, _composition_edits(new.text))
        new = _edited(new, _space_edits(new.text, keeps_last_space))
        if self.level == PUNCTUATION:
            new = _edited(new, _punctuation_edits(new.text))
            # Dashes have got spaces around them.
            new = _edited(new, _space_edits(new.text, keeps_last_space))
        return new

    def restored(self, text: str) -> str:
        """Return a translation with the no-break spaces of its language, which normalisation has removed.

        In French, a space before `: ; ! ? » %` or after `«` is one at which no line may break. The length stays.
        """
        if not self or main_language(self.language) != "fr":
            return text
        return _FRENCH_SPACE.sub(_french_space, text)

    def _needs_change(self, text: str) -> bool:
        """Return False if a text is certainly normalised, as most are; this is fast."""
        if text[:1] == " " or text[-1:] == " " or "  " in text:
            return True
        if text.isascii():
            return _UNUSUAL_ASCII.search(text) is not None
        if _UNUSUAL.search(text) or not is_normalized("NFC", text):
            return True
        return self.level == PUNCTUATION and _TYPOGRAPHIC.search(text) is not None

    def settings(self) -> dict[str, str]:
        """Return what a tokenizer file contains about it."""
        return {"level": self.level, "language": self.language}


def main_language(code: str) -> str:
    """Return the language of a code without its region: "fr" for "fr-CA"."""
    return code.partition("-")[0].lower()


NO_NORMALIZATION = Normalization()


def from_settings(settings: Any) -> Normalization | None:
    """Return the normalisation that `Normalization.settings` describes, or None if the settings are invalid."""
    if not isinstance(settings, dict) or settings.keys() != {"level", "language"}:
        return None
    level, language = settings["level"], settings["language"]
    is_valid = level in LEVELS and isinstance(language, str)
    return Normalization(level, language) if is_valid else None


def _edited(before: Normalized, edits: Iterable[Edit]) -> Normalized:
    """Return a text with some characters replaced; `edits` come from left to right."""
    spans = before.spans
    parts: list[str] = []
    new_spans: list[tuple[int, int]] = []
    position = 0
    for start, end, replacement in edits:
        if spans is None:
            spans = [(index, index + 1) for index in range(len(before.text))]
        parts += before.text[position:start], replacement
        new_spans += spans[position:start]
        new_spans += [(spans[start][0], spans[end - 1][1])] * len(replacement)
        position = end
    if not parts or spans is None:
        return before
    return Normalized("".join(parts) + before.text[position:], new_spans + list(spans[position:]))


def _hidden_edits(text: str) -> list[Edit]:
    """Return the removal of invisible characters, and of joiners without a meaning."""
    edits = [(*match.span(), "") for match in _HIDDEN.finditer(text)]
    removed = {index for start, end, _ in edits for index in range(start, end)}
    for match in _JOINER.finditer(text):
        # Marks and removed characters may be between a letter and its joiner.
        index = match.start() - 1
        while index >= 0 and (index in removed or category(text[index])[0] == "M"):
            index -= 1
        if index < 0 or not _JOINED.match(text[index]):
            edits.append((*match.span(), ""))
    return sorted(edits)


def _composition_edits(text: str) -> Iterator[Edit]:
    """Yield the composition of each letter with its marks, except of very many marks."""
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and (category(text[end])[0] == "M" or _COMPOSED.match(text[end])):
            continue
        cluster = text[start:end]
        if end - start <= MAX_CLUSTER and not cluster.isascii():
            composed = normalize("NFC", cluster)
            if composed != cluster:
                yield start, end, composed
        start = end


def _space_edits(text: str, keeps_last_space: bool) -> Iterator[Edit]:
    """Yield the replacement of white space by one space, or by nothing at the ends."""
    for match in _SPACES.finditer(text):
        start, end = match.span()
        is_removed = start == 0 or (end == len(text) and not keeps_last_space)
        new = "" if is_removed else " "
        if match[0] != new:
            yield start, end, new


def _punctuation_edits(text: str) -> Iterator[Edit]:
    for match in _TYPOGRAPHIC.finditer(text):
        yield match.start(), match.end(), _ASCII[match[0].strip()]


def _french_space(match: re.Match[str]) -> str:
    """Return the space of French typography: narrow before a mark of a sentence, otherwise as wide as a word space."""
    return "\u202f" if match[1] in (";", "!", "?") else "\u00a0"
