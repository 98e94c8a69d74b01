"""Replacing `<unk>` in a translation by the source word that it attends to most, or that it says it stands for, or by
its entry in a dictionary.

After Luong et al. 2015, "Addressing the Rare Word Problem"; by attention as in Jean et al. 2015 (section 3.3) and in
Luong, Pham & Manning 2015 (section 4.1).
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.config import RunConfig
from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import spoken_spans
from rnnsearch.text.tokenizer import ReplacedBy, Replacement, Segmented
from rnnsearch.text.vocabulary import is_unknown

Span = tuple[int, int]
DICTIONARY_FILE = "dictionary.tsv"
"""The dictionary's name in a model folder."""
MAX_ENTRY_TOKENS = 8
"""Symbols of an entry that is looked up."""
_LAST_MARK, _FIRST_MARK = re.compile(r"(?:\S(?=.$)|<unk>)([^\w\s]) ?$"), re.compile(r"([^\w\s])(?:\S| <unk)")
"""Of what stands before `<unk>`, and behind it: a mark between two pieces of a word."""
WINDOW = len("<unk>- ")
"""Characters beside `<unk>` that these look at."""


class UnknownWordReplacer:
    """What stands in for `<unk>`: the attended source word's translation in a dictionary, else the word itself."""

    def __init__(self, dictionary: Mapping[str, str] | None = None) -> None:
        self.dictionary = dictionary or {}

    def replace(
        self,
        source: Segmented,
        target: Segmented,
        attention: NDArray[np.floating[Any]] | None,
        unchanged: Collection[int] = (),
        spelled: Collection[int] = (),
        copied_from: Mapping[int, int] = MappingProxyType({}),
    ) -> Segmented:
        """`target` with other text at its unknown symbols; its symbols and their number stay. `kept`: the places of
        those that stay as they are; `spelled`: of those that a model has spelled, for which a dictionary's entry alone
        is put. `told`: the source symbols of those for which the model says one.

        `attention` is [target symbols or more, source symbols or more], if the model has any. The source's own symbols
        are copied as they stand in its text, unknown or not; its end is never. An `<unk>` stays where nothing tells its
        source, or that has no symbol. A word of several symbols that has an entry is looked up as a whole, and put once
        where several `<unk>` in a row stand for it: the others become nothing.
        """
        real = np.array([end > start for start, end in source.offsets], dtype=bool)
        if not any(map(is_unknown, target.symbols)) or not real.any():
            return target
        spans = spoken_spans(source.text) if self.dictionary else []
        text, offsets, done, replaced, own = "", [], 0, list[Replacement](), range(0)
        for i, (symbol, (start, end)) in enumerate(zip(target.symbols, target.offsets, strict=True)):
            gap, shown = target.text[done:start], target.text[start:end]
            beside = target.text[max(start - WINDOW, 0) : start], target.text[end : end + WINDOW]
            done = max(done, end)
            j = copied_from.get(i)
            if is_unknown(symbol) and attention is not None and (j is None or not real[j]):
                j = int(np.where(real, attention[i, : len(real)], -np.inf).argmax())
            if is_unknown(symbol) and i not in unchanged and j is not None and real[j]:
                again = len(own) > 1 and j in own
                own = own if again else self._looked_up(source, spans, j, beside)
                copied = source.text[source.offsets[own[0]][0] : source.offsets[own[-1]][1]]
                found = self.entry(copied)
                gap, shown = ("", "") if again else (gap, found or (shown if i in spelled else copied))
                by: ReplacedBy = "dictionary" if found else "spelled" if i in spelled else "copy"
                replaced.append(Replacement(i, j, copied, by))
            elif end > start:
                own = range(0)
            text += gap + shown
            offsets.append((len(text) - len(shown), len(text)))
        return replace(target, text=text + target.text[done:], offsets=offsets, replaced=tuple(replaced))

    def _looked_up(self, source: Segmented, spans: Sequence[Span], j: int, beside: tuple[str, str]) -> range:
        """The symbols of the longest entry in the word (`spans`) that symbol j is in, j among them; j alone if there is
        none. `beside`: what stands on both sides of `<unk>`."""
        word = bisect_right(spans, source.offsets[j][0], key=lambda span: span[1])
        if word < len(spans) and spans[word][0] <= source.offsets[j][0]:
            begin, end = j, j + 1
            while begin > max(j + 1 - MAX_ENTRY_TOKENS, 0) and source.offsets[begin - 1][0] >= spans[word][0]:
                begin -= 1
            while end < min(j + MAX_ENTRY_TOKENS, len(source.offsets)) and source.offsets[end][1] <= spans[word][1]:
                end += 1
            for size in range(min(end - begin, MAX_ENTRY_TOKENS), 1, -1):
                for first in range(max(begin, j + 1 - size), min(j, end - size) + 1):
                    entry = source.text[source.offsets[first][0] : source.offsets[first + size - 1][1]]
                    if self.entry(entry) and not _in_pieces(entry, *beside):
                        return range(first, first + size)
        return range(j, j + 1)

    def entry(self, source: str) -> str | None:
        """What the dictionary has for a source word as it stands, or else in lower case."""
        return self.dictionary.get(source) or self.dictionary.get(source.lower())


def _in_pieces(entry: str, before: str, after: str) -> bool:
    """Whether a translation has the marks of a word, too, and so its pieces one by one: `<unk>-Post`, `<unk>- <unk>`
    as it is shown."""
    marks = (_LAST_MARK.search(before), _FIRST_MARK.match(after))
    return any(found is not None and found[1] in entry for found in marks)


def unknown_word_replacer(config: RunConfig) -> UnknownWordReplacer | None:
    """What `[search]` asks for, or a model that spells, copies or says what to copy needs; None where `<unk>` stays.

    Errors: DataError for an unfit dictionary.
    """
    told = config.copies_words or config.text.annotation is not None
    if config.search.replace_unknown == "none" and not told and config.translation.target_characters is None:
        return None
    path = config.search.dictionary
    return UnknownWordReplacer(None if path is None else read_dictionary(config.base / path))


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
