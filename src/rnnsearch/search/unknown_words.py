"""Replacing `<unk>` in a translation by the source word that it attends to most, or that it says it stands for, or by
its entry in a dictionary.

After Luong et al. 2015, "Addressing the Rare Word Problem"; by attention as in Jean et al. 2015 (section 3.3) and in
Luong, Pham & Manning 2015 (section 4.1).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.config import RunConfig
from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError
from rnnsearch.text.tokenizer import ReplacedBy, Replacement, Segmented
from rnnsearch.text.vocabulary import is_unknown

DICTIONARY = "dictionary.tsv"
"""The dictionary's name in a model folder."""


class UnknownWords:
    """What stands in for `<unk>`: the attended source word's translation in a dictionary, else the word itself."""

    def __init__(self, dictionary: Mapping[str, str] | None = None) -> None:
        self.dictionary = dictionary or {}

    def replace(
        self,
        source: Segmented,
        target: Segmented,
        attention: NDArray[np.floating[Any]] | None,
        kept: Collection[int] = (),
        spelled: Collection[int] = (),
        told: Mapping[int, int] = MappingProxyType({}),
    ) -> Segmented:
        """`target` with other text at its unknown symbols; its symbols and their number stay. `kept`: the places of
        those that stay as they are; `spelled`: of those that a model has spelled, for which a dictionary's entry alone
        is put. `told`: the source symbols of those for which the model says one.

        `attention` is [target symbols or more, source symbols or more], if the model has any. The source's own symbols
        are copied as they stand in its text, unknown or not; its end is never. An `<unk>` stays where nothing tells its
        source, or that has no symbol.
        """
        real = np.array([end > start for start, end in source.offsets], dtype=bool)
        if not any(map(is_unknown, target.symbols)) or not real.any():
            return target
        text, offsets, done, replaced = "", [], 0, list[Replacement]()
        for i, (symbol, (start, end)) in enumerate(zip(target.symbols, target.offsets, strict=True)):
            text += target.text[done:start]
            done = max(done, end)
            begin = len(text)
            j = told.get(i)
            if is_unknown(symbol) and attention is not None and (j is None or not real[j]):
                j = int(np.where(real, attention[i, : len(real)], -np.inf).argmax())
            if is_unknown(symbol) and i not in kept and j is not None and real[j]:
                copied = source.text[slice(*source.offsets[j])]
                found = self.entry(copied)
                text += found or (target.text[start:end] if i in spelled else copied)
                by: ReplacedBy = "dictionary" if found else "spelled" if i in spelled else "copy"
                replaced.append(Replacement(i, j, copied, by))
            else:
                text += target.text[start:end]
            offsets.append((begin, len(text)))
        return replace(target, text=text + target.text[done:], offsets=offsets, replaced=tuple(replaced))

    def entry(self, source: str) -> str | None:
        """What the dictionary has for a source word as it stands, or else in lower case."""
        return self.dictionary.get(source) or self.dictionary.get(source.lower())


def unknown_words(config: RunConfig) -> UnknownWords | None:
    """What `[search]` asks for, or a model that spells, copies or says what to copy needs; None where `<unk>` stays.

    Errors: DataError for an unfit dictionary.
    """
    told = config.copies_words or config.text.annotation is not None
    if config.search.replace_unknown == "none" and not told and config.translation.target_characters is None:
        return None
    path = config.search.dictionary
    return UnknownWords(None if path is None else read_dictionary(config.base / path))


def read_dictionary(path: Path) -> dict[str, str]:
    """As `read_entries`; the first entry of a word counts."""
    return {word: translations[0] for word, translations in read_entries(path).items()}


def read_entries(path: Path) -> dict[str, list[str]]:
    """A TSV file of source words and their translations, in order; empty lines do not count.

    Errors: DataError with file:line.
    """
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, _, translation = (part.strip() for part in line.partition("\t"))
        if line.strip() and not (word and translation):
            raise DataError(f'{path}:{number}: must be a source word, a tab and its translation; got "{line[:40]}"')
        if word:
            entries.setdefault(word, []).append(translation.partition("\t")[0].strip())
    return entries
