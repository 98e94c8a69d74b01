"""Word alignments: the Pharaoh format, and from attention over symbols to links between words.

A link (i, j) says that source word i and target word j correspond; both count from zero over the words of the
raw sentences (`spans.word_spans`).
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ConfigError, DataError, must_be_one_of
from rnnsearch.text.spans import NO_WORD

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
