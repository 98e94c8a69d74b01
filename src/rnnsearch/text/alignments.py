"""Word alignments: the Pharaoh format, and from attention over symbols to links between words.

A link (i, j) says that source word i and target word j correspond; both count from zero over the words of the
raw sentences (`spans.word_spans`).
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ConfigError, DataError, must_be_one_of
from rnnsearch.text.alignment_types import Unit
from rnnsearch.text.tokenizer import Segmented

# The words of a raw sentence, which alignments count, and the word that each symbol lies in.

# ASCII white space alone, as the tools that write Pharaoh files split: a no-break space is part of a word.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")
NO_WORD = -1
"""The word of a symbol that lies in none: EOS, or a space that does not begin a word."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word of a raw sentence; ASCII white space is what separates words."""
    return [match.span() for match in _WORD.finditer(text)]


def words(text: str) -> list[str]:
    """The words of a raw sentence, as `word_spans` finds them."""
    return _WORD.findall(text)


def word_of_symbol(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """The index of the word that each symbol lies in, from its characters [start, end); NO_WORD for none.

    A symbol that covers no character (a mere space) is of the word that begins right after it, if one does.
    """
    spans = word_spans(text)
    ends = [end for _, end in spans]
    found = []
    for start, end in offsets:
        word = bisect_right(ends, start)
        inside = word < len(spans) and spans[word][0] < max(end, start + 1)
        found.append(word if inside else NO_WORD)
    return found


def spoken_spans(text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of each word without the punctuation around it; of mere punctuation, all."""
    found = []
    for start, end in word_spans(text):
        letters = [place for place in range(start, end) if not _is_punctuation(text[place])]
        found.append((letters[0], letters[-1] + 1) if letters else (start, end))
    return found


def without_punctuation(found: Sequence[int], text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """What `word_of_symbol` found, for alignments: punctuation that has a symbol of its own beside others in its word
    is of none, for a full stop's attention says nothing of the word before it."""
    marks = [_is_punctuation(text[start:end]) for start, end in offsets]
    spoken = {word for word, mark in zip(found, marks, strict=True) if not mark}
    return [NO_WORD if mark and word in spoken else word for word, mark in zip(found, marks, strict=True)]


def _is_punctuation(symbol: str) -> bool:
    if symbol.isalnum():  # most are, and this is soon told
        return False
    characters = symbol.strip()
    return bool(characters) and all(unicodedata.category(c)[0] in "PS" for c in characters)


Link = tuple[int, int]
Weights = npt.NDArray[Any]
"""Attention: a row a target position, a column a source position."""
_LINK = re.compile(r"([0-9]{1,9})([-p?])([0-9]{1,9})")
_AROUND = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


@dataclass(frozen=True)
class Links:
    """The links of one sentence pair as annotators give them (Och & Ney, 2003)."""

    sure: frozenset[Link]
    possible: frozenset[Link]
    """All links that are not wrong: the sure ones too."""

    def turned(self) -> "Links":
        """The same with source and target exchanged."""
        sure, possible = (frozenset((j, i) for i, j in links) for links in (self.sure, self.possible))
        return Links(sure, possible)


def parse_pharaoh(line: str, where: str) -> Links:
    """The links of one line: `i-j` is sure; `ipj` and `i?j` are possible only. An empty line has none.

    Errors: DataError that begins with `where` (file:line) for anything else.
    """
    sure, possible = set(), set()
    for item in line.split():
        match = _LINK.fullmatch(item)
        if match is None:
            raise DataError(f'{where}: a link must be i-j, or ipj or i?j where merely possible; got "{item[:40]}"')
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def format_pharaoh(links: Links | Collection[Link]) -> str:
    """One line of links in order of i, then j: `i-j`, or `ipj` for those that are merely possible."""
    if not isinstance(links, Links):
        return " ".join(f"{i}-{j}" for i, j in sorted(links))
    return " ".join(f"{i}{'-' if (i, j) in links.sure else 'p'}{j}" for i, j in sorted(links.possible))


def read_pharaoh(path: Path) -> list[Links]:
    """The links of each line of a file.

    Errors: DataError that names the file, and the line of a bad link.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: the alignment file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: an alignment file must be text in UTF-8; got other bytes") from None
    lines = text.removesuffix("\n").split("\n") if text else []
    return [parse_pharaoh(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


blas_noise_ignored = np.errstate(invalid="ignore")
"""OpenBLAS at times says "invalid" of products of small matrices whose numbers are all sound (numpy issue 24067)."""


@blas_noise_ignored
def symbols_to_words(attention: Weights, source_words: Sequence[int], target_words: Sequence[int]) -> Weights:
    """Attention over words [Iw, Jw]: the mean over a target word's symbols of the sum over a source word's symbols.

    `attention[i, j]` [I, J] is what target symbol i gives source symbol j; `source_words` and `target_words` say
    which word each symbol lies in (`spans.word_of_symbol`), one for each column and row. Symbols in no word
    (NO_WORD: EOS, mere spaces) are left out, so a row's sum may stay below 1.
    """
    assert attention.shape == (len(target_words), len(source_words))
    target = _members(target_words, attention.dtype)
    symbols = target.sum(axis=1, keepdims=True)
    means = target / np.maximum(symbols, 1)
    words: np.ndarray = means @ attention @ _members(source_words, attention.dtype).T
    return words


def links_of_words(attention: Weights, source_words: Sequence[int], target_words: Sequence[int]) -> set[Link]:
    """(source, target) links of words, of attention and words as `symbols_to_words` has them: each target symbol links
    its word to that of the source symbol that it attends to most, the first of equals.

    The greatest sum over a word's symbols would be that of a word of several wherever attention is nearly even.
    """
    columns = [place for place, word in enumerate(source_words) if word != NO_WORD]
    if not columns:
        return set()
    own = attention[:, columns]
    most = zip(own.argmax(axis=1), own.max(axis=1), target_words, strict=True)
    return {(source_words[columns[j]], word) for j, weight, word in most if word != NO_WORD and weight > 0}


def _members(words: Sequence[int], dtype: np.dtype) -> Weights:
    """[words, symbols]: 1 where a symbol (column) lies in a word (row), else 0."""
    members = np.zeros((max(words, default=NO_WORD) + 1, len(words)), dtype=dtype)
    for symbol, word in enumerate(words):
        if word != NO_WORD:
            members[word, symbol] = 1
    return members


def attention_of_symbols(attention: Weights, count: int, read: bool) -> Weights:
    """The rows of attention [T, J] that are a sentence's `count` target symbols', without EOS: one each, in order.

    With `read`, of a model supervised with the links of read words, each is the row after the symbol's own; zeros where
    the translation was cut before it.
    """
    rows = attention[1 : count + 1] if read else attention[:count]
    if len(rows) == count:
        return rows
    found = np.zeros((count, attention.shape[1]), dtype=attention.dtype)
    found[: len(rows)] = rows
    return found


LEAST_INFORMATION = 0.08
"""Of attention that aligns. After one epoch on 36,000 pairs it was 0.05, and links were worse than the diagonal's;
after four 0.12, and they were better."""


def information(attention: Weights) -> float | None:
    """What attention [I, J] tells of where it stands in the target, 0 (every row alike: links from it mean nothing) to
    1: the mutual information of row and column, all rows as likely, by its greatest possible, the log of the fewer.

    None where there is nothing to tell: fewer than two rows or columns.
    """
    rows = attention[attention.sum(axis=1) > 0].astype(np.float64)
    if min(rows.shape) < 2:
        return None
    p = rows / rows.sum(axis=1, keepdims=True)
    mean = p.mean(axis=0)
    bits = np.log(np.divide(p, mean, out=np.ones_like(p), where=p > 0))
    return float((p * bits).sum(axis=1).mean() / np.log(min(p.shape)))


def links_from_attention(attention: Weights, threshold: float | None = None) -> set[Link]:
    """Each target unit (row of [I, J]) linked to the source unit (column) that it attends to most, the first of
    equals; with a threshold, to every other that it gives as much or more too. A row of zeros has no link."""
    if attention.size == 0:
        return set()
    links = {(int(i), j) for j, i in enumerate(attention.argmax(axis=1)) if attention[j, i] > 0}
    if threshold is not None:
        rows, columns = np.nonzero((attention >= threshold) & (attention > 0))
        links |= {(int(i), int(j)) for j, i in zip(rows, columns, strict=True)}
    return links


def symmetrise(forward: Collection[Link], backward: Collection[Link], method: str) -> set[Link]:
    """One alignment from those of two directions, both given as (source, target) links.

    `intersection`, `union`, or `grow-diag` (Koehn et al., 2003): the intersection, grown by links of the
    union that are next to a link, diagonally too, while one of their words has no link yet. `grow-diag-final-and`
    (Koehn et al., 2005) then adds the links, first of `forward`, both of whose words have none yet.

    Errors: ConfigError for an unknown method.
    """
    if method not in SYMMETRISATIONS:
        raise ConfigError([f"symmetrisation {must_be_one_of(SYMMETRISATIONS, method)}"])
    return SYMMETRISATIONS[method](set(forward), set(backward))


def _grow_diag(forward: set[Link], backward: set[Link]) -> set[Link]:
    grown, union = forward & backward, forward | backward
    sources, targets = {i for i, _ in grown}, {j for _, j in grown}
    added = True
    while added:
        added = False
        for i, j in sorted(grown):
            for di, dj in _AROUND:
                link = (i + di, j + dj)
                free = link[0] not in sources or link[1] not in targets
                if free and link in union and link not in grown:
                    grown.add(link)
                    sources.add(link[0])
                    targets.add(link[1])
                    added = True
    return grown


def _grow_diag_final_and(forward: set[Link], backward: set[Link]) -> set[Link]:
    grown = _grow_diag(forward, backward)
    sources, targets = {i for i, _ in grown}, {j for _, j in grown}
    for i, j in (*sorted(forward), *sorted(backward)):
        if i not in sources and j not in targets:
            grown.add((i, j))
            sources.add(i)
            targets.add(j)
    return grown


SYMMETRISATIONS: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": _grow_diag,
    "grow-diag-final-and": _grow_diag_final_and,
}


# Source words that were copied into a translation: each is linked to its copy, whatever else aligns the two.


def with_copies(links: tuple[Link, ...], source: Segmented, target: Segmented, unit: Unit) -> tuple[Link, ...]:
    """The links of a translation's words or symbols, in order, those of what was copied in the place of others'."""
    own = set(_copies(source, target, unit))
    if not own:
        return links
    sources, targets = ({link[side] for link in own} for side in (0, 1))
    return tuple(sorted(own | {(s, t) for s, t in links if s not in sources and t not in targets}))


def _copies(source: Segmented, target: Segmented, unit: Unit) -> Iterator[Link]:
    copied = [(one.source_token, one.token) for one in target.replaced if one.by == "copy"]
    if unit == "symbols" or not copied:
        yield from copied
        return
    sources, targets = word_spans(source.text), word_spans(target.text)
    for s, t in copied:
        here, there = _words(sources, source.offsets[s]), _words(targets, target.offsets[t])
        yield from zip(here, there, strict=True) if len(here) == len(there) else product(here, there)


def _words(spans: list[tuple[int, int]], covered: tuple[int, int]) -> range:
    """Those that have one of these characters."""
    start, end = covered
    first = bisect_right(spans, start, key=lambda span: span[1])
    return range(first, bisect_left(spans, end, lo=first, key=lambda span: span[0]))
