"""Unknown target words that say which source words they stand for (Luong, Sutskever, Le, Vinyals & Zaremba 2015,
"Addressing the Rare Word Problem in Neural Machine Translation", section 3): how sentence pairs are annotated for
training, and how what a model then writes is read.

The distances are the source's place less the target's, in symbols: of "The <unk> portico in <unk>" the annotated
translation is "Le <unk+1> <unk-1> de <unk+0>".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from rnnsearch.config import TextConfig, data
from rnnsearch.config.data import CopyableOptions, PosAllOptions, PosUnkOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.text.alignments import Link
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import POSITION, SPECIALS, UNK, UNKNOWN, is_unknown

NOTHING = "?"
"""In the place of a number or distance, where a word is aligned to nothing that it could tell (unk_null, p_n)."""


class Annotation(ABC):
    """One way to annotate the pairs of two vocabularies that have its symbols."""

    symbols_a_word: ClassVar[int] = 1
    """Annotated symbols of a target symbol."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._of_source, self._of_target = source.marks, target.marks

    @staticmethod
    @abstractmethod
    def symbols(options: Any) -> tuple[list[str], list[str]]:
        """Those that it adds to the vocabularies of source and target."""

    def source(self, text: Segmented) -> Segmented:
        """A source text as the model reads it."""
        return text

    def target(self, text: Segmented, links: Collection[Link], source: Segmented) -> Segmented:
        """A target text as the model writes it, by links (source symbol, target symbol) to a source as it reads it."""
        ids, symbols, nearest = list(text.ids), list(text.symbols), _nearest(links, text, source)
        for i, id in enumerate(text.ids):
            if id == UNK:
                name = self._said(i, nearest[i], source) if i in nearest else ""
                symbols[i] = name if name in self._of_target else f"{UNKNOWN}{NOTHING}>"
                ids[i] = self._of_target[symbols[i]]
        return replace(text, ids=ids, symbols=symbols)

    def places(self, target: Segmented, source: Segmented) -> dict[int, int]:
        """The source symbols that the unknown symbols of a target text say they stand for, where they say one."""
        found = {i: self._place(symbol, i, source) for i, symbol in enumerate(target.symbols) if is_unknown(symbol)}
        return {i: j for i, j in found.items() if j is not None and 0 <= j < len(source.symbols)}

    @abstractmethod
    def _said(self, i: int, j: int, source: Segmented) -> str:
        """The symbol that target symbol i becomes, of source symbol j."""

    @abstractmethod
    def _place(self, symbol: str, i: int, source: Segmented) -> int | None:
        """The source symbol that it says."""


@implements(CopyableOptions)
class CopyableAnnotation(Annotation):
    """Section 3.1: the unknown words of a source are numbered, and have their numbers in the translation."""

    @staticmethod
    def symbols(options: CopyableOptions) -> tuple[list[str], list[str]]:
        numbers = [f"{UNKNOWN}{n}>" for n in range(1, options.numbers + 1)]
        return numbers, [*numbers, f"{UNKNOWN}{NOTHING}>"]

    def source(self, text: Segmented) -> Segmented:
        numbers: dict[str, int] = {}
        ids, symbols = list(text.ids), list(text.symbols)
        for j, (id, word) in enumerate(zip(text.ids, text.texts, strict=True)):
            if id == UNK:
                name = f"{UNKNOWN}{numbers.setdefault(word, len(numbers) + 1)}>"
                if name in self._of_source:
                    ids[j], symbols[j] = self._of_source[name], name
        return replace(text, ids=ids, symbols=symbols)

    def _said(self, i: int, j: int, source: Segmented) -> str:
        return source.symbols[j]

    def _place(self, symbol: str, i: int, source: Segmented) -> int | None:
        return source.symbols.index(symbol) if symbol in self._of_source and symbol in source.symbols else None


@implements(PosUnkOptions)
class PosUnkAnnotation(Annotation):
    """Section 3.3: an unknown word is `<unk+d>`, which says that its source word stands d places on."""

    @staticmethod
    def symbols(options: PosUnkOptions) -> tuple[list[str], list[str]]:
        return [], _distances(UNKNOWN, options.window)

    def _said(self, i: int, j: int, source: Segmented) -> str:
        return f"{UNKNOWN}{j - i:+d}>"

    def _place(self, symbol: str, i: int, source: Segmented) -> int | None:
        return _place(UNKNOWN, symbol, i)


@implements(PosAllOptions)
class PosAllAnnotation(Annotation):
    """Section 3.2: after every word stands `<at+d>`, which says that its source word stands d places on."""

    symbols_a_word = 2

    @staticmethod
    def symbols(options: PosAllOptions) -> tuple[list[str], list[str]]:
        return [], _distances(POSITION, options.window)

    def target(self, text: Segmented, links: Collection[Link], source: Segmented) -> Segmented:
        ids, symbols, offsets = list[int](), list[str](), list[tuple[int, int]]()
        nearest = _nearest(links, text, source)
        for i, (id, symbol, (start, end)) in enumerate(zip(text.ids, text.symbols, text.offsets, strict=True)):
            name = self._said(i, nearest[i], source) if i in nearest else ""
            name = name if name in self._of_target else f"{POSITION}{NOTHING}>"
            ids += [id, self._of_target[name]]
            symbols += [symbol, name]
            offsets += [(start, end), (end, end)]
        return replace(text, ids=ids, symbols=symbols, offsets=offsets)

    def places(self, target: Segmented, source: Segmented) -> dict[int, int]:
        found, words = dict[int, int](), 0
        for n, (symbol, following) in enumerate(pairwise([*target.symbols, ""])):
            j = self._place(following, words, source) if is_unknown(symbol) else None
            if j is not None and 0 <= j < len(source.symbols):
                found[n] = j
            words += not symbol.startswith(POSITION)
        return found

    def _said(self, i: int, j: int, source: Segmented) -> str:
        return f"{POSITION}{j - i:+d}>"

    def _place(self, symbol: str, i: int, source: Segmented) -> int | None:
        return _place(POSITION, symbol, i)


def _distances(head: str, window: int) -> list[str]:
    return [*(f"{head}{d:+d}>" for d in range(-window, window + 1)), f"{head}{NOTHING}>"]


def _place(head: str, symbol: str, i: int) -> int | None:
    """Where a symbol says that the source word of target symbol i is."""
    said = symbol.startswith(head) and symbol not in (SPECIALS[UNK], f"{head}{NOTHING}>")
    return i + int(symbol[len(head) : -1]) if said else None


def _nearest(links: Collection[Link], target: Segmented, source: Segmented) -> dict[int, int]:
    """Of each linked target symbol one source symbol: the nearest place, words to words and marks to marks first."""
    found: dict[int, int] = {}
    spoken = [[any(map(str.isalnum, text)) for text in side.texts] for side in (source, target)]
    for j, i in sorted(
        links, key=lambda link: (spoken[0][link[0]] != spoken[1][link[1]], abs(link[0] - link[1]), link)
    ):
        found.setdefault(i, j)
    return found


ANNOTATIONS: Implementations[type[Annotation]] = Implementations(data.ANNOTATIONS)


def annotation(config: TextConfig, source: Tokenizer, target: Tokenizer) -> Annotation | None:
    """That of `[text]`, where there is one."""
    return None if config.annotation is None else ANNOTATIONS[config.annotation.type](source, target)


def annotated_symbols(config: TextConfig) -> tuple[list[str], list[str]]:
    """The symbols that `[text]` adds to the vocabularies of source and target."""
    return ([], []) if config.annotation is None else ANNOTATIONS[config.annotation.type].symbols(config.annotation)
