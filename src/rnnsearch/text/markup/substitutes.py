"""Substitutes of protected text: numbers and names that a model translates reliably, in place of `%s` or a URL.

A model reads "Tom has 20 messages." instead of "{user} has %d messages.", and each substitute in its output is replaced
by the protected text (`SubstitutedText.restored`). If one is missing or occurs twice, the caller tries other variants.

`translator/protection.py` is the caller, also on behalf of the runtime. `NUMBERS` and `NAMES` were chosen by how often
models wrote them unchanged; numbers below 13 are often written as words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from rnnsearch.text.alignments import Link, bare_word_spans, word_spans
from rnnsearch.text.markup.protected import PRINTF, ProtectedText, ProtectedType, find_protected
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import SUBSTITUTE_NAMES

NUMBERS = ("20", "25", "2000", "42", "30", "83", "50", "15", "60", "5000", "45", "18", "95", "70", "38", "64")
NAMES = SUBSTITUTE_NAMES
MAX_NAME_TOKENS = 2
"""Maximum number of tokens of a name; a model of another script spells longer ones in its own."""
MAX_NUMBER_TOKENS = 5
MAX_SLOTS = 8
"""Maximum number of substitutes in a sentence; models confuse more of them."""
MAX_RESTORED = 40
"""Maximum number of slots that are restored; each takes a pass over the translation."""
NUM_VARIANTS = 5
"""Number of variants: one that is tried first, and others for sentences in which it fails."""
_JOINED = re.compile(r"[^\w\s]{0,3}|x")
"""Text between two placeholders that are replaced together: `%d/%d`, `{width}x{height}`."""
_LEADING = re.compile(r"[\"'“„‚«»‹›‘’”`)\]]{0,2}(?::\s{1,3}|\s{1,3}[-–—|>]\s{1,3})")
"""Text between a placeholder and the sentence that it is the heading of: `%s: not found`."""
_TRAILING = re.compile(r"(?:\s{0,2}:\s{0,3}|\s{1,3}[-–—|]\s{1,3})[\"'“„‚«»‹›‘’”`(\[]{0,2}$")
_MAX_TRAILING = 10
_TAG_STARTS = "<["
"""Characters that start a tag or a mask, which is no part of a sentence if it touches a word at its end."""
_OPENERS = re.compile(r"\s*[\"'“„‚«»‹›‘’”`(\[]{0,2}")
_CLOSERS = re.compile(r"[\"'“„‚«»‹›‘’”`)\].]{0,3}\s*")
_SEPARATORS = r"[ \u00a0\u2009\u202f.,:/'’\u2013-]?"
_UNNUMBERED = re.compile(r"%(?!\d+\$)[^%\s({<]*[A-Za-z@]")
_NUMERIC = re.compile(
    r"%[^s@%]*[diouxXeEfFgGaA]|\{\s*(?:n|num|number|count|total|\d*:\.?\d*[dfn%].*)\s*\}", re.IGNORECASE
)
_EXACT: frozenset[ProtectedType] = frozenset({"urls", "emails", "placeholders"})
"""Types that a translation has exactly as often as its source; it may have further numbers."""
_VERBATIM: frozenset[ProtectedType] = frozenset({"codes", "numbers"})
"""Types that the first variant leaves in the text, because models usually copy them."""


class Slot(NamedTuple):
    """Protected text and the substitute that a model reads in its place."""

    text: str
    """Protected text; several placeholders if they follow each other."""
    source_start: int
    """Offset of the protected text in the source."""
    start: int
    """Offset of the substitute in the text for the model."""
    substitute: str
    """The substitute; the text itself if it stays, empty at an end of the text, where it is no part of the sentence."""
    space_before: bool
    """True if a space was put before the substitute."""
    space_after: bool
    """True if a space was put after the substitute."""

    @property
    def source_end(self) -> int:
        """Offset after the protected text in the source."""
        return self.source_start + len(self.text)

    @property
    def end(self) -> int:
        """Offset after the substitute in the text for the model."""
        return self.start + len(self.substitute)


@dataclass(frozen=True)
class SubstitutedText:
    """A source text whose protected text is replaced by substitutes."""

    source: str
    text: str
    """The text for the model."""
    slots: tuple[Slot, ...]
    """The substitutes in order."""
    protected: tuple[ProtectedText, ...]
    """Protected text of the source, in order."""
    types: tuple[ProtectedType, ...]
    """Types of text that are protected."""
    grammar: str | None
    """Grammar of placeholders (see `protected.Recogniser`)."""
    variant: int

    @property
    def is_translatable(self) -> bool:
        """True if there are letters outside protected text."""
        return any(character.isalpha() for piece in self.pieces() for character in piece)

    def pieces(self) -> Iterator[str]:
        """Yield the text before, between and after the slots."""
        position = 0
        for slot in self.slots:
            yield self.source[position : slot.source_start]
            position = slot.source_end
        yield self.source[position:]

    def relocated(self, text: str) -> SubstitutedText | None:
        """Return this for another text for the model, or None if the text does not contain all substitutes."""
        slots: list[Slot] = []
        source = ""
        position = 0
        for slot in self.slots:
            start = text.find(slot.substitute, position)
            if start < 0:
                return None
            source += text[position : start - slot.space_before]
            slots.append(slot._replace(source_start=len(source), start=start))
            source += slot.text
            position = start + len(slot.substitute) + slot.space_after
        return replace(self, source=source + text[position:], text=text, slots=tuple(slots))

    def source_tokens(self, segmented: Segmented) -> Segmented:
        """Return the tokens of the text for the model with the source text and offsets in it."""
        edits = []
        for slot in self.slots:
            start = slot.start - slot.space_before
            edits.append(_Edit(start, slot.start, slot.end, slot.end + slot.space_after, slot.text))
        return replace(_edited(segmented, edits), text=self.source, substituted=self)

    def restored(self, target: Segmented) -> Segmented | None:
        """Return a translation with the protected text instead of the substitutes.

        Returns:
            The translation, or None if it does not contain all protected text exactly once.
        """
        edits = self._edits(target.text)
        if edits is None:
            return None
        result = _edited(target, edits)
        return result if self.is_complete(result.text) else None

    def protected_spans(self, target: str) -> list[tuple[int, int]]:
        """Return the spans of protected text in a translation."""
        return [(item.start, item.end) for item in find_protected(target, self.types, self.grammar)]

    def restored_by_links(self, target: Segmented, links: Collection[Link]) -> Segmented | None:
        """Return a translation with the protected text instead of words that are linked to it and to nothing else.

        A model may write a number as a word, or a name in another script. The number of words stays.

        Args:
            target: The translation, with the substitutes as the model has written them.
            links: Links between words of the source, which has the protected text, and the translation.
        """
        if any(len(slot.text.split()) != 1 for slot in self.slots if slot.substitute):
            return None
        edits = self._edits(target.text, links)
        result = None if edits is None else _edited(target, edits)
        return result if result is not None and self.is_complete(result.text) else None

    def _linked_span(self, slot: Slot, target: str, links: Collection[Link]) -> tuple[int, int] | None:
        """Return the characters of the only target word that is linked to a slot's word and to no other."""
        word = bisect_right(word_spans(self.source), slot.source_start, key=lambda span: span[1])
        linked = [j for i, j in links if i == word]
        if len(linked) != 1 or any(j == linked[0] and i != word for i, j in links):
            return None
        return bare_word_spans(target)[linked[0]]

    def partly_restored(self, target: str) -> str:
        """Return the start of a translation with the protected text instead of the substitutes found so far."""
        for slot in self.slots:
            if not slot.substitute:
                target = slot.text + target if slot.start == 0 else target
                continue
            parts = _pattern(slot).split(target, maxsplit=1)
            target = slot.text.join(parts)
        return target

    def is_complete(self, target: str) -> bool:
        """Return True if a translation has all protected text of the source, in an order that programs accept."""
        found = find_protected(target, self.types, self.grammar)
        surplus = Counter(item.text for item in found)
        surplus.subtract(item.text for item in self.protected)
        # A translation may have further numbers, in place of words.
        exact = {item.text for item in found if item.type in _EXACT} | {item.text for item in self.protected}
        if any(surplus[text] for text in exact):
            return False
        if self.grammar == PRINTF and not _has_only_directives(target, found):
            return False
        return _unnumbered(found) == _unnumbered(self.protected)

    def _edits(self, target: str, links: Collection[Link] | None = None) -> list[_Edit] | None:
        """Return the replacements that restore the protected text, or None if a substitute is not there once.

        With links, the only word linked to a slot is a substitute, too.
        """
        if len(self.slots) > MAX_RESTORED:
            return None
        slots_by_substitute: dict[str, list[Slot]] = {}
        for slot in self.slots:
            slots_by_substitute.setdefault(slot.substitute, []).append(slot)
        edits = []
        for slot in slots_by_substitute.pop("", []):
            is_heading = slot.start == 0
            # A full stop that the model has added does not stay before a colon.
            start = 0 if is_heading else len(target.rstrip(" .。…"))
            end = 0 if is_heading else len(target)
            edits.append(_Edit(start, start, end, end, slot.text))
        for slots in slots_by_substitute.values():
            spans = [match.span() for match in _pattern(slots[0]).finditer(target)]
            if len(spans) != len(slots) and len(slots) == 1 and links is not None:
                span = self._linked_span(slots[0], target, links)
                spans = [] if span is None else [span]
            if len(spans) != len(slots):
                return None
            for slot, (start, end) in zip(slots, spans, strict=True):
                # Spaces that separated the substitute from letters belong to it.
                before = start - (slot.space_before and target[start - 1 : start] == " ")
                after = end + (slot.space_after and target[end : end + 1] == " ")
                edits.append(_Edit(before, start, end, after, slot.text))
        edits.sort()
        if any(left.after > right.before for left, right in pairwise(edits)):
            return None
        return edits


class _Edit(NamedTuple):
    """A replacement of characters [before, after), of which [start, end) are the substitute."""

    before: int
    start: int
    end: int
    after: int
    text: str


class Substitutes:
    """The numbers and names that the tokenizers of a model know."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        """Choose the substitutes, those that are a token of both languages first."""
        self._numbers = _known(NUMBERS, source, target, MAX_NUMBER_TOKENS)
        self._names = _known(NAMES, source, target, MAX_NAME_TOKENS)

    def replace(
        self, text: str, types: Collection[ProtectedType], grammar: str | None = None, variant: int = 0
    ) -> SubstitutedText | None:
        """Return a text with substitutes, or None if it contains no protected text.

        Args:
            text: The source text.
            types: Types of text to protect.
            grammar: Grammar of placeholders.
            variant: Number of the variant, below `NUM_VARIANTS`; each has other substitutes.
        """
        protected = find_protected(text, types, grammar)
        if not protected:
            return None
        used = set(re.findall(r"\w+", text))
        numbers = [number for number in self._numbers if number not in used]
        names = [name for name in self._names if name not in used]
        parts: list[str] = []
        slots: list[Slot] = []
        position = length = 0
        for start, end, item in _with_edges(text, _joined(text, protected, keeps_percent=variant == 0)):
            substitute = "" if item is None else self._substitute(item, variant, numbers, names)
            before = text[position:start]
            is_word = item is not None and substitute != item.text and substitute[0].isalnum()
            space_before = is_word and (before[-1:].isalnum() or (start > 0 and not before))
            space_after = is_word and text[end : end + 1].isalnum()
            parts += [before, " " * space_before, substitute, " " * space_after]
            length += len(before) + space_before
            slots.append(Slot(text[start:end], start, length, substitute, space_before, space_after))
            length += len(substitute) + space_after
            position = end
        parts.append(text[position:])
        return SubstitutedText(text, "".join(parts), tuple(slots), tuple(protected), tuple(types), grammar, variant)

    def _substitute(self, item: ProtectedText, variant: int, numbers: list[str], names: list[str]) -> str:
        """Return the substitute of an item, removed from the lists; the item itself if it stays."""
        if variant == 0 and item.type in _VERBATIM:
            return item.text
        if variant == 0 and item.text == "%%":
            return "%"
        is_number = item.type == "numbers" or (item.type == "placeholders" and bool(_NUMERIC.fullmatch(item.text)))
        # Later variants begin with later substitutes, every second one with those of the other list.
        first, second = (numbers, names) if is_number != (variant % 3 == 2) else (names, numbers)
        if not first:
            first = second
        return first.pop(variant % len(first)) if first else item.text


def _known(words: Sequence[str], source: Tokenizer, target: Tokenizer, max_tokens: int) -> list[str]:
    """Return the words without unknown tokens and with at most some tokens, those of one or two tokens first."""
    known = []
    for word, source_tokens, target_tokens in zip(words, source.segment(words), target.segment(words), strict=True):
        num_tokens = max(len(source_tokens.ids), len(target_tokens.ids))
        if num_tokens <= max_tokens and not (source_tokens.has_unknown or target_tokens.has_unknown):
            known.append((num_tokens > 2, word))
    return [word for _, word in sorted(known, key=lambda item: item[0])]


def _joined(text: str, protected: Sequence[ProtectedText], keeps_percent: bool) -> list[tuple[int, int, ProtectedText]]:
    """Return the characters [start, end) of each slot and its first item; placeholders in sequence share a slot."""
    groups: list[tuple[int, int, ProtectedText]] = []
    for item in protected:
        if groups:
            start, end, first = groups[-1]
            is_placeholder = item.type == first.type == "placeholders" and _JOINED.fullmatch(text, end, item.start)
            is_percent = keeps_percent and (item.text == "%%" or first.text == "%%")
            if is_placeholder and not is_percent:
                groups[-1] = (start, item.end, first)
                continue
        groups.append((item.start, item.end, item))
    return groups


def _with_edges(
    text: str, groups: Sequence[tuple[int, int, ProtectedText]]
) -> list[tuple[int, int, ProtectedText | None]]:
    """Return the slots; those at the ends of the text extend to the sentence and have no item."""
    results: list[tuple[int, int, ProtectedText | None]] = list(groups)
    start, end, item = groups[0]
    separator = _LEADING.match(text, end)
    is_glued = item.text[0] in _TAG_STARTS and text[end : end + 1].isalnum()
    if item.type in _EXACT and (separator or is_glued) and _OPENERS.fullmatch(text, 0, start):
        results[0] = (0, separator.end() if separator else end, None)
    start, end, item = groups[-1]
    separator = _TRAILING.search(text[max(0, start - _MAX_TRAILING) : start])
    is_glued = item.text[0] in _TAG_STARTS and text[max(0, start - 1) : start].isalnum()
    is_edge = item.type in _EXACT and (separator or is_glued) and _CLOSERS.fullmatch(text, end)
    if is_edge and (len(groups) > 1 or results[0][2]):
        results[-1] = (start - len(separator[0] if separator else ""), len(text), None)
    return results


def _pattern(slot: Slot) -> re.Pattern[str]:
    """Return the pattern that finds a substitute in a translation."""
    word = slot.substitute
    if word == "%":
        return re.compile(r"%")
    if word == slot.text and any(map(str.isdigit, word)) and not any(map(str.isalpha, word)):
        # A number that stays may have the separators of the other language.
        digits = [re.escape(character) for character in word if character.isdigit()]
        sign = re.escape(word[0]) if not word[0].isdigit() else ""
        return re.compile(rf"(?<!\d)(?<!\d[.,:/]){sign}{_SEPARATORS.join(digits)}(?!\d|[.,:/]\d)")
    if word.isdigit():
        return re.compile(rf"(?<!\d)(?<!\d[.,:/]){word}(?!\d|[.,:/]\d)")
    return re.compile(
        rf"(?<!\w){re.escape(word)}(?=s?(?!\w))" if word.isalpha() else rf"(?<!\w){re.escape(word)}(?!\w)"
    )


def _has_only_directives(text: str, found: Sequence[ProtectedText]) -> bool:
    """Return True if each percent sign is part of a directive, as programs in C require."""
    return text.count("%") == sum(item.text.count("%") for item in found)


def _unnumbered(found: Sequence[ProtectedText]) -> list[str]:
    """Return the directives that a program fills in by their order."""
    return [item.text for item in found if item.type == "placeholders" and _UNNUMBERED.fullmatch(item.text)]


def _edited(segmented: Segmented, edits: Sequence[_Edit]) -> Segmented:
    """Return a text and its tokens with replaced characters; tokens of a replaced text cover the new one."""
    parts: list[str] = []
    starts: list[int] = []  # of the new texts
    position = length = 0
    for edit in edits:
        gap = segmented.text[position : edit.before] if edit.before >= position else ""
        parts += [gap, edit.text]
        starts.append(length + len(gap))
        length += len(gap) + len(edit.text)
        position = edit.after
    parts.append(segmented.text[position:])
    offsets = []
    index = 0
    for start, end in segmented.offsets:
        while index < len(edits) and edits[index].after <= start:
            index += 1
        shift = starts[index - 1] + len(edits[index - 1].text) - edits[index - 1].after if index else 0
        if index < len(edits) and edits[index].before < max(end, start + 1):
            new_start = min(start + shift, starts[index])
            new_end = starts[index] + len(edits[index].text) + max(end - edits[index].after, 0)
            offsets.append((starts[index] if start >= edits[index].before else new_start, new_end))
        else:
            offsets.append((start + shift, end + shift))
    return replace(segmented, text="".join(parts), offsets=offsets)
