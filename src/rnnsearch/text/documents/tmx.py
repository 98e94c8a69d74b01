"""Translation memories (TMX)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from rnnsearch.text.documents.document import Document
from rnnsearch.text.documents.xml import Element, Splice, XmlFile, as_content, inline_markup, with_spaces_around
from rnnsearch.text.languages import base_language
from rnnsearch.text.markup.marks import MarkedText

_LANGUAGE_ATTRIBUTES = ("xml:lang", "lang")


@dataclass(eq=False, slots=True)
class _Variant:
    """A `tuv` element: a unit's text in one language."""

    element: Element
    segment: Element | None = None

    @property
    def code(self) -> str:
        """Language code as it is written, or an empty string."""
        codes = (self.element.attributes.get(name) for name in _LANGUAGE_ATTRIBUTES)
        return next(filter(None, codes), "").strip()

    @property
    def language(self) -> str:
        """Language code in lower case, or an empty string."""
        return self.code.lower()

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
        self._file = XmlFile(name, "TMX", "tmx", content, ("tu", "tuv", "seg"))
        units = _read_units(self._file.elements)
        self._target = target
        self._target_code = next((v.code for unit in units for v in unit.in_language(target)), target)
        self._open_units: list[tuple[_Unit, _Variant, str]] = []
        self.marked_segments = []
        for unit in units:
            if not all(variant.is_blank for variant in unit.in_language(target)):
                continue
            for variant in unit.in_language(source):
                text = self._file.content(variant.segment) if variant.segment else ""
                segment = inline_markup(text)
                if MarkedText(segment).text.strip():
                    self._open_units.append((unit, variant, text))
                    self.marked_segments.append(segment)
                    break

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations, in an empty variant of the target language or in a new one."""
        splices = []
        for (unit, source, text), translation in zip(self._open_units, translations, strict=True):
            if not translation.strip():
                continue
            content = with_spaces_around(as_content(translation), text)
            variants = unit.in_language(self._target)
            if not variants:
                position = unit.variants[-1].element.end
                splices.append(Splice(position, position, self._new_variant(source, content)))
            elif (segment := variants[0].segment) is not None:
                splices.append(self._file.fill(segment, content))
            else:
                splices.append(self._file.fill(variants[0].element, f"<seg>{content}</seg>"))
        return self._file.spliced(splices)

    def _new_variant(self, source: _Variant, content: str) -> str:
        """Return a variant with its content, with the layout of the source variant."""
        element = source.element
        segment = source.segment
        assert segment is not None  # its text is translated
        attribute = next(name for name in _LANGUAGE_ATTRIBUTES if element.attributes.get(name))
        before = self._file.spaces_before(element.start)
        inside = self._file.spaces_before(segment.start)
        after = self._file.spaces_before(element.content_end)
        return f"{before}<tuv {attribute}={quoteattr(self._target_code)}>{inside}<seg>{content}</seg>{after}</tuv>"


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
