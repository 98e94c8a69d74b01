"""`--glossary`: the terms of a file, forced upon translations or put into the source texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rnnsearch.bulk import Counts
from rnnsearch.cli.io import say

if TYPE_CHECKING:
    from rnnsearch.search.constraints import SearchOptions
    from rnnsearch.translate import Translator
    from rnnsearch.translation import Translation

TERMS, MET = "terms inline", "terms met"
"""Counts."""


class GivenTerms:
    """The terms of a glossary file, for one model: inline where it reads them so, unless they are to be forced."""

    def __init__(self, path: Path, translator: Translator, options: SearchOptions, force: bool, counts: Counts) -> None:
        """Leaves out what the model cannot be forced to write, which is said. `counts` has how many of those inline
        there were. Errors: BadParameter for a beam that can force none; RnnsearchError for another search that forces
        none, and a term that holds a banned phrase; DataError for an unfit file."""
        from rnnsearch.search.unknown_words import read_dictionary
        from rnnsearch.text.glossary import Glossary

        self._translator, self._inline = translator, translator.reads_terms and not force
        if not self._inline and options.beam == 1 and options.variant is None:
            raise typer.BadParameter("--glossary needs a beam of 2 or more")
        entries = read_dictionary(path)
        written = entries
        if not self._inline:
            written = {source: target for source, target in entries.items() if translator.demands.writes(target)}
        if len(written) < len(entries):
            lacking = next(target for source, target in entries.items() if source not in written)
            count = f"{len(entries) - len(written):,} of {len(entries):,}"
            say(f'{path}: {count} terms left out: the model has no symbol for a word of them (like "{lacking}")')
        if not self._inline:  # what cannot be is said now, not where the first term turns up
            translator.demands.phrases([list(written.values())], options)
        self._glossary, self._counts = Glossary(written), counts

    def n_best(self, texts: Sequence[str], options: SearchOptions, size: int) -> list[list[Translation]]:
        """As `Translator.n_best`, under the terms of each text."""
        if not self._inline:
            return self._translator.n_best(texts, options, size, terms=[self._glossary.terms(text) for text in texts])
        told = [self._translator.with_terms(text, self._glossary) for text in texts]
        found = self._translator.n_best(told, options, size)
        self._count(texts, found)
        return found

    def _count(self, texts: Sequence[str], found: Sequence[Sequence[Translation]]) -> None:
        from rnnsearch.text.glossary import words_of
        from rnnsearch.text.inline_terms import stands_in

        asked, met = self._counts.get(TERMS, 0), self._counts.get(MET, 0)
        for text, best in zip(texts, found, strict=True):
            words = words_of(best[0].text)
            each = [stands_in(words_of(term), words, exactly=True) for term in self._glossary.terms(text)]
            asked, met = asked + len(each), met + sum(each)
        self._counts[TERMS], self._counts[MET] = asked, met


def tell_terms(counts: Counts) -> None:
    """Say how many terms came out as they stand in the glossary; of forced ones all do."""
    if TERMS in counts:
        asked, met = counts[TERMS], counts[MET]
        say(f"{asked:,.0f} terms, of which {met:,.0f} stand in the translations as the glossary has them")
