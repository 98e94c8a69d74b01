"""Translation memories (TMX)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from rnnsearch.text.documents.document import Document, FileText, Replacement
from rnnsearch.text.documents.xml import Element, as_content, declared_encoding, find_elements, inline_markup
from rnnsearch.text.languages import base_language
from rnnsearch.text.markup.marks import MarkedText

_LANGUAGE_ATTRIBUTES = ("xml:lang", "lang")
_XML_SPACES = " \t\r\n"


@dataclass(eq=False, slots=True)
class _Variant:
    """A `tuv` element: a unit's text in one language."""

    element: Element
    segment: Element | None = None

    @property
    def language(self) -> str:
        """Language code in lower case, or an empty string."""
        codes = (self.element.attributes.get(name) for name in _LANGUAGE_ATTRIBUTES)
        return next(filter(None, codes), "").strip().lower()

    @property
    def is_blank(self) -> bool:
        """True if it has no text and no markup."""
        return self.segment is None or self.segment.is_blank


@dataclass(eq=False, slots=True)
class _Unit:
    """A `tu` element."""

    variants: list[_Variant] = field(default_factory=list)

    def in_language(self, language: str) -> list[_Variant]:
        """Return the variants in a language, whatever their regions, those of the same region first."""
        base = base_language(language)
        variants = [variant for variant in self.variants if base_language(variant.language) == base]
        return sorted(variants, key=lambda variant: variant.language != language.lower())


class Tmx(Document):
    """A translation memory: units with a source-language variant get a target-language variant if they have none.

    A unit has a translation if any variant in the target language has text, whatever its region.
    """

    tags = True
    is_bilingual = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._file = FileText.decode(name, content, declared_encoding(content))
        self._data = self._file.text.encode()
        self._target = target
        self._open_units: list[tuple[_Unit, _Variant, str]] = []
        self.marked_segments = []
        for unit in _read_units(find_elements(name, "TMX", "tmx", self._data, ("tu", "tuv", "seg"))):
            if not all(variant.is_blank for variant in unit.in_language(target)):
                continue
            for variant in unit.in_language(source):
                text = self._content(variant)
                segment = inline_markup(text).strip(_XML_SPACES)
                if MarkedText(segment).text.strip():
                    self._open_units.append((unit, variant, text))
                    self.marked_segments.append(segment)
                    break

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations, in an empty variant of the target language or in a new one."""
        splices: list[tuple[int, int, bytes]] = []
        for (unit, source, text), translation in zip(self._open_units, translations, strict=True):
            if not translation.strip():
                continue
            content = _with_spaces_around(as_content(translation), text)
            variants = unit.in_language(self._target)
            if variants:
                splices.append(self._fill_variant(variants[0], content))
            else:
                position = unit.variants[-1].element.end
                splices.append((position, position, self._new_variant(source, content)))
        parts = []
        position = 0
        for start, end, replacement in sorted(splices):
            parts += [self._data[position:start], replacement]
            position = end
        parts.append(self._data[position:])
        text = b"".join(parts).decode()
        whole = Replacement(0, len(self._file.text), text)
        return self._file.spliced([whole], "xmlcharrefreplace")

    def _content(self, variant: _Variant) -> str:
        if variant.segment is None:
            return ""
        return self._data[variant.segment.content_start : variant.segment.content_end].decode()

    def _fill_variant(self, variant: _Variant, content: str) -> tuple[int, int, bytes]:
        """Return the replacement that gives a blank variant its content."""
        element = variant.segment or variant.element
        new = content if variant.segment else f"<seg>{content}</seg>"
        if element.is_empty_tag:  # the `/>` becomes an end tag
            return element.end - 2, element.end, f">{new}</{element.tag}>".encode()
        old = self._data[element.content_start : element.content_end]
        # White space is replaced; comments stay.
        end = element.content_start if old.strip() else element.content_end
        return element.content_start, end, new.encode()

    def _new_variant(self, source: _Variant, content: str) -> bytes:
        """Return a variant with its content, with the layout of the source variant."""
        element = source.element
        segment = source.segment
        assert segment is not None  # its text is translated
        attribute = next(name for name in _LANGUAGE_ATTRIBUTES if element.attributes.get(name))
        before = self._spaces_before(element.start)
        inside = self._spaces_before(segment.start)
        after = self._spaces_before(element.content_end)
        variant = f"<tuv {attribute}={quoteattr(self._target)}>{inside}<seg>{content}</seg>{after}</tuv>"
        return (before + variant).encode()

    def _spaces_before(self, offset: int) -> str:
        start = offset
        while start and self._data[start - 1 : start] in (b" ", b"\t", b"\r", b"\n"):
            start -= 1
        return self._data[start:offset].decode()


def _read_units(elements: Sequence[Element]) -> list[_Unit]:
    """Return the units of a file; variants and segments in other places are ignored."""
    units: dict[Element, _Unit] = {}
    variants: dict[Element, _Variant] = {}
    for element in elements:
        parent = element.parent
        if element.tag == "tu":
            units[element] = _Unit()
        elif element.tag == "tuv" and parent in units:
            variants[element] = _Variant(element)
            units[parent].variants.append(variants[element])
        elif element.tag == "seg" and parent in variants and variants[parent].segment is None:
            variants[parent].segment = element
    return list(units.values())


def _with_spaces_around(translation: str, source: str) -> str:
    """Return a translation with the white space at both ends of its source."""
    stripped = source.strip(_XML_SPACES)
    start = source.index(stripped)
    return source[:start] + translation.strip(_XML_SPACES) + source[start + len(stripped) :]
