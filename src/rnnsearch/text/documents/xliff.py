"""XLIFF 1.2 and 2: units without a translation get one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnsearch.text.documents.document import Document
from rnnsearch.text.documents.xml import Element, Splice, XmlFile, as_content, inline_markup, with_spaces_around
from rnnsearch.text.languages import base_language
from rnnsearch.text.markup.marks import MarkedText

_TAGS = ("xliff", "file", "group", "unit", "trans-unit", "segment", "alt-trans", "source", "seg-source", "target")
_UNITS = ("trans-unit", "segment")
_SOURCE_LANGUAGES = {"xliff": "srcLang", "file": "source-language"}
_TARGET_LANGUAGES = {"xliff": "trgLang", "file": "target-language"}
_TARGET_ATTRIBUTES = {
    "trans-unit": {"state": "needs-review-translation", "state-qualifier": "mt-suggestion"},
    "segment": {},
}
"""Attributes of a target with a new translation, by the tag of its unit."""


@dataclass(eq=False, slots=True)
class _Unit:
    """A unit of XLIFF 1.2, or a segment of XLIFF 2."""

    element: Element
    source: Element | None = None
    target: Element | None = None
    last: Element | None = None
    """Last element for the source; a new target follows it."""


class Xliff(Document):
    """An XLIFF file: units for the languages of the model get a target if they have none.

    Files for other languages, and elements with `translate="no"`, have no segments. In XLIFF 1.2, a new target is
    marked as a machine translation to be reviewed.
    """

    is_bilingual = True
    tags = True

    def __init__(self, name: str, content: bytes, source: str, target: str) -> None:
        self._file = XmlFile(name, "XLIFF", "xliff", content, _TAGS)
        self._target = target
        self._open_units: list[tuple[_Unit, str]] = []
        self.marked_segments = []
        for unit in _read_units(self._file.elements):
            if unit.source is None or (unit.target is not None and not unit.target.is_blank):
                continue
            if not _is_for(unit.element, source, target):
                continue
            text = self._file.content(unit.source)
            segment = inline_markup(text)
            if MarkedText(segment).text.strip():
                self._open_units.append((unit, text))
                self.marked_segments.append(segment)

    def fill_marked(self, translations: Sequence[str]) -> bytes:
        """Return the file with the translations, and its target language if it does not declare one."""
        splices = []
        undeclared: dict[Element, None] = {}
        for (unit, text), translation in zip(self._open_units, translations, strict=True):
            if not translation.strip():
                continue
            content = with_spaces_around(as_content(translation), text)
            attributes = _TARGET_ATTRIBUTES[unit.element.tag]
            if unit.target is not None:
                splices.append(self._file.fill(unit.target, content))
                if not attributes.keys() & unit.target.attributes.keys():
                    splices.append(self._file.add_attributes(unit.target, attributes))
            else:
                assert unit.source is not None  # its text is translated
                last = unit.last or unit.source
                tag = "".join(["target", *(f' {name}="{value}"' for name, value in attributes.items())])
                new = f"{self._file.spaces_before(unit.source.start)}<{tag}>{content}</target>"
                splices.append(Splice(last.end, last.end, new))
            undeclared.update(dict.fromkeys(_undeclared(unit.element)))
        for element in undeclared:
            splices.append(self._file.add_attributes(element, {_TARGET_LANGUAGES[element.tag]: self._target}))
        return self._file.spliced(splices)


def _read_units(elements: Sequence[Element]) -> list[_Unit]:
    """Return the units of a file; those of alternative translations are ignored."""
    units: dict[Element, _Unit] = {}
    for element in elements:
        if element.tag in _UNITS:
            units[element] = _Unit(element)
        if element.parent not in units:
            continue
        unit = units[element.parent]
        if element.tag == "source" and unit.source is None:
            unit.source = unit.last = element
        elif element.tag == "seg-source":
            unit.last = element
        elif element.tag == "target" and unit.target is None:
            unit.target = element
    return list(units.values())


def _ancestors(element: Element) -> list[Element]:
    ancestors = [element]
    while (parent := ancestors[-1].parent) is not None:
        ancestors.append(parent)
    return ancestors


def _is_for(unit: Element, source: str, target: str) -> bool:
    """Return True if a unit is to be translated between two languages; languages that are not declared fit."""
    languages = {source: _SOURCE_LANGUAGES, target: _TARGET_LANGUAGES}
    translate = (ancestor.attributes.get("translate") for ancestor in _ancestors(unit))
    if next(filter(None, translate), "yes") == "no":  # the nearest declaration counts
        return False
    for ancestor in _ancestors(unit):
        for language, attributes in languages.items():
            declared = ancestor.attributes.get(attributes.get(ancestor.tag, ""))
            if declared and base_language(declared) != base_language(language):
                return False
    return True


def _undeclared(unit: Element) -> list[Element]:
    """Return the element around a unit that must declare the target language and does not."""
    tag = "file" if unit.tag == "trans-unit" else "xliff"
    name = _TARGET_LANGUAGES[tag]
    return [element for element in _ancestors(unit) if element.tag == tag and name not in element.attributes]
