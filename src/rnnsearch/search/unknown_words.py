"""Replacement of `<unk>` in a translation by a source word, or by the source word's entry in a dictionary.

The source word is the one with the most attention (Jean et al. 2015, section 3.3; Luong, Pham & Manning 2015, section
4.1), or the one that the model itself indicates (Luong et al. 2015, "Addressing the Rare Word Problem"). The translator
applies an `UnknownWordReplacer` after every search (`translator/postprocess.py`).

`translator/loading.py` creates it from `[search]` and reads `dictionary.tsv` (source word, tab, translation) of the
model folder; `training/run_folder.py` writes the file there. `training/run.py` reads files of this format for inline
terms; glossaries have another reader (`translator/glossaries.py`). Tests: tests/text/test_copied_words.py.
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
from rnnsearch.text.alignments import bare_word_spans
from rnnsearch.text.tokenizer import ReplacedBy, Replacement, Segmented
from rnnsearch.text.vocabulary import is_unknown

Span = tuple[int, int]
DICTIONARY_FILE = "dictionary.tsv"
"""File name of the dictionary in a model folder."""
MAX_ENTRY_TOKENS = 8
"""Maximum number of source tokens of an entry that is looked up."""

# Punctuation between two components of a compound, right before and right after `<unk>`.
_MARK_BEFORE = re.compile(r"(?:\S(?=.$)|<unk>)([^\w\s]) ?$")
_MARK_AFTER = re.compile(r"([^\w\s])(?:\S| <unk)")
MARK_CONTEXT_CHARACTERS = len("<unk>- ")  # that these two patterns look at, on each side


class UnknownWordReplacer:
    """Replacement of `<unk>` by the source word's translation in a dictionary, or else by the source word itself."""

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
        """Return `target` with other text at its unknown tokens; the tokens themselves stay.

        A source token is copied as it is in the source text, even if it is unknown; EOS is never copied. An `<unk>`
        stays if its source is not known. If several tokens of a source word have a dictionary entry together, they are
        looked up together; where several consecutive `<unk>` come from them, the entry is inserted once and the
        others become empty.

        Args:
            source: Source sentence.
            target: Translation.
            attention: [target tokens or more, source tokens or more], if the model has attention.
            unchanged: Positions of target tokens that are not replaced.
            spelled: Positions of tokens that a model has spelled; only a dictionary entry replaces them.
            copied_from: Source position of target tokens for which the model indicates one.
        """
        # Tokens without text, such as a single space, cannot be copied.
        has_text = np.array([end > start for start, end in source.offsets], dtype=bool)
        if not any(map(is_unknown, target.tokens)) or not has_text.any():
            return target
        spans = bare_word_spans(source.text) if self.dictionary else []
        text = ""
        offsets = []
        replaced: list[Replacement] = []
        done = 0  # characters of target.text that are in `text`
        entry_tokens = range(0)  # source tokens of the last replacement
        for i, (symbol, (start, end)) in enumerate(zip(target.tokens, target.offsets, strict=True)):
            gap = target.text[done:start]
            token_text = target.text[start:end]
            done = max(done, end)
            j = None
            if is_unknown(symbol) and i not in unchanged:
                j = _source_position(copied_from.get(i), None if attention is None else attention[i], has_text)
            if j is not None:
                is_repeated = len(entry_tokens) > 1 and j in entry_tokens
                if not is_repeated:
                    before = target.text[max(start - MARK_CONTEXT_CHARACTERS, 0) : start]
                    after = target.text[end : end + MARK_CONTEXT_CHARACTERS]
                    entry_tokens = self._entry_tokens(source, spans, j, before, after)
                copied = source.text[source.offsets[entry_tokens[0]][0] : source.offsets[entry_tokens[-1]][1]]
                entry = self.entry(copied)
                by: ReplacedBy = "copy"
                if entry:
                    by = "dictionary"
                elif i in spelled:
                    by = "spelled"
                if is_repeated:
                    gap = ""
                    token_text = ""
                elif by != "spelled":
                    token_text = entry or copied
                replaced.append(Replacement(i, j, copied, by))
            elif end > start:
                # Other text ends a run of `<unk>` that come from one entry.
                entry_tokens = range(0)
            text += gap + token_text
            offsets.append((len(text) - len(token_text), len(text)))
        return replace(target, text=text + target.text[done:], offsets=offsets, replaced=tuple(replaced))

    def _entry_tokens(self, source: Segmented, spans: Sequence[Span], j: int, before: str, after: str) -> range:
        """Return the source tokens of the longest dictionary entry within the word of token j, or only j.

        Args:
            source: Source sentence.
            spans: Spans of its words.
            j: Source token, which is part of the entry.
            before: Text before `<unk>` in the translation.
            after: Text after it.
        """
        offsets = source.offsets
        word = bisect_right(spans, offsets[j][0], key=lambda span: span[1])
        if word < len(spans) and spans[word][0] <= offsets[j][0]:
            # The tokens first .. last - 1 of the word, near j.
            first = j
            last = j + 1
            while first > max(j + 1 - MAX_ENTRY_TOKENS, 0) and offsets[first - 1][0] >= spans[word][0]:
                first -= 1
            while last < min(j + MAX_ENTRY_TOKENS, len(offsets)) and offsets[last][1] <= spans[word][1]:
                last += 1
            for size in range(min(last - first, MAX_ENTRY_TOKENS), 1, -1):
                for start in range(max(first, j + 1 - size), min(j, last - size) + 1):
                    text = source.text[offsets[start][0] : offsets[start + size - 1][1]]
                    if self.entry(text) and not _is_split(text, before, after):
                        return range(start, start + size)
        return range(j, j + 1)

    def entry(self, source: str) -> str | None:
        """Return the dictionary's translation of a source word, as it is or else in lower case."""
        return self.dictionary.get(source) or self.dictionary.get(source.lower())


def _source_position(
    indicated: int | None, attention: NDArray[np.floating[Any]] | None, has_text: NDArray[np.bool_]
) -> int | None:
    """Return the source token of an unknown target token: the one that the model indicates, or the most attended one.

    It has text that can be copied. None without attention, if the model indicates no such token.
    """
    if indicated is not None and has_text[indicated]:
        return indicated
    if attention is None:
        return None
    # Columns after the source tokens belong to EOS and padding, which cannot be copied.
    return int(np.where(has_text, attention[: len(has_text)], -np.inf).argmax())


def _is_split(entry: str, before: str, after: str) -> bool:
    """Return True if the translation has the entry's punctuation next to `<unk>`.

    It then translates the components of the entry one by one: `<unk>-Post`, or `<unk>- <unk>` as it is displayed.
    """
    marks = (_MARK_BEFORE.search(before), _MARK_AFTER.match(after))
    return any(mark is not None and mark[1] in entry for mark in marks)


def unknown_word_replacer(config: RunConfig) -> UnknownWordReplacer | None:
    """Return the replacer that `[search]` configures or the model needs, or None if `<unk>` is not replaced.

    Models that spell, copy or indicate source words need one.

    Raises:
        DataError: The dictionary is not valid.
    """
    indicates_source = config.copies_words or config.text.annotation is not None
    spells = config.translation.target_characters is not None
    if config.search.replace_unknown == "none" and not indicates_source and not spells:
        return None
    path = config.search.dictionary
    return UnknownWordReplacer(None if path is None else read_dictionary(config.base / path))


def read_dictionary(path: Path) -> dict[str, str]:
    """Read a dictionary file like `read_entries`, and return the first translation of each word."""
    return {word: translations[0] for word, translations in read_entries(path).items()}


def read_entries(path: Path) -> dict[str, list[str]]:
    """Read a TSV file of source words and translations, and return the translations of each word in order.

    Empty lines are skipped.

    Raises:
        DataError: A line is not valid.
    """
    entries: dict[str, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, _, translation = (field.strip() for field in line.partition("\t"))
        if line.strip() and not (word and translation):
            raise DataError(f'{path}:{number}: must be a source word, a tab and its translation; got "{line[:40]}"')
        if word:
            entries.setdefault(word, []).append(translation.partition("\t")[0].strip())
    return entries
