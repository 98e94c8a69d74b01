"""What follows a search, once the words of translations are chosen: where a model has copied them from, how it spells
those that its vocabulary lacks, and what takes their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.unknown_words import UnknownWords
from rnnsearch.systems.system import System
from rnnsearch.text.alignments import attention_of_symbols
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import UNK

Known = Mapping[int, str]
"""Texts of a translation's unknown words, by their places."""
One = TypeVar("One")


class SecondStage:
    """That of a system; `unknown`: what takes the place of `<unk>`, None: nothing."""

    def __init__(self, system: System[Any], unknown: UnknownWords | None) -> None:
        self._system, self._unknown = system, unknown

    def read(
        self, sources: Sequence[Segmented], hypotheses: Sequence[Hypothesis], columns: ColumnChooser | None = None
    ) -> list[Hypothesis]:
        """One hypothesis of each source, its attention what its words come from, of a model that copies; `columns`:
        what a search found them among, if not all symbols."""
        copying = [n for n, h in enumerate(hypotheses) if h.attention] if self._system.can("copy") else []
        found = list(hypotheses)
        if copying:
            ids = [sources[n].spelled for n in copying], [found[n].ids for n in copying]
            for n, weights in zip(copying, self._system.copied(*ids, columns), strict=True):
                cut = {name: own[: len(found[n].token_scores)] for name, own in weights.items()}
                found[n] = replace(found[n], attention={**found[n].attention, **cut})
        return found

    def texts(
        self, sources: Sequence[Segmented], hypotheses: Sequence[Hypothesis], known: Sequence[Known], beam: int
    ) -> list[Segmented]:
        """The text of each hypothesis of a source: its unknown words are those `known`, or are spelled by a beam, or
        replaced."""
        given = list(zip(sources, hypotheses, known, strict=True))
        spelled = [dict[int, str]() for _ in given]
        if self._system.can("spell"):
            some = [n for n, (_, h, own) in enumerate(given) if _unknown(h) - own.keys()]
            ids = [sources[n].spelled for n in some], [hypotheses[n].ids for n in some]
            for n, words in zip(some, self._system.spell(*ids, beam), strict=True):
                spelled[n] = words
        return [self._text(*one, words) for one, words in zip(given, spelled, strict=True)]

    def _text(self, source: Segmented, hypothesis: Hypothesis, known: Known, spelled: Known) -> Segmented:
        target = self._system.target.joined(hypothesis.ids, {**spelled, **known})
        if self._unknown is None:
            return target
        attention, annotation = None, self._system.annotation
        if hypothesis.weights is not None:
            read = self._system.config.aligns_previous_word
            attention = attention_of_symbols(hypothesis.weights, len(hypothesis.ids), read)
        told = {} if annotation is None else annotation.places(target, source)
        return self._unknown.replace(source, target, attention, known, spelled, told)


def _unknown(hypothesis: Hypothesis) -> set[int]:
    return {place for place, id in enumerate(hypothesis.ids) if id == UNK}


def grouped(each: Iterable[One], like: Sequence[Sequence[Any]]) -> list[list[One]]:
    """A flat list in lists as long as others."""
    rest = iter(each)
    return [list(islice(rest, len(one))) for one in like]
