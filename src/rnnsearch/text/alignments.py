"""Word alignments: words of a sentence, links between them, the Pharaoh format, and links from attention.

A link (i, j) says that source word i and target word j correspond; both are counted from zero over the words of the raw
sentences (`word_spans`). It needs NumPy but no PyTorch.

The Pharaoh format is that of files of users.

Axes: J source and I target positions; attention is [I, J] (target, source), while links are (source, target).
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
from rnnsearch.utils.files import read_text

Link = tuple[int, int]
AttentionMatrix = npt.NDArray[Any]
"""Attention weights [I, J]: one row per target position, one column per source position."""
NO_WORD = -1
"""Word index of a token that lies in no word: EOS, or a space that does not start a word."""
MIN_INFORMATION = 0.08
"""Minimum `attention_information` of attention that aligns words.

Measured on 36,000 pairs: after one epoch it was 0.05, and links were worse than those on the diagonal; after
four epochs it was 0.12, and they were better.
"""
MAX_PRODUCT = 1 << 16
"""Maximum number of multiplications for which `sparse_product` skips no zeros; OpenBLAS uses one thread for these."""

# Only ASCII white space separates words, as in the tools that write Pharaoh files; a no-break space does not.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")
_LINK = re.compile(r"([0-9]{1,9})([-p?])([0-9]{1,9})")
_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))

ignore_blas_warnings = np.errstate(invalid="ignore")
"""Decorator against "invalid value" warnings of OpenBLAS for small matrices of valid values (numpy issue 24067)."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the character span [start, end) of each word; words are separated by ASCII white space."""
    return [match.span() for match in _WORD.finditer(text)]


def words(text: str) -> list[str]:
    """Return the words of a raw sentence."""
    return _WORD.findall(text)


def word_of_token(text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return the index of the word that each token lies in, or NO_WORD.

    A token that covers no character (only a space) belongs to the word that starts right after it, if any.

    Args:
        text: The raw sentence.
        offsets: Character span [start, end) of each token.
    """
    spans = word_spans(text)
    ends = [end for _, end in spans]
    indices = []
    for start, end in offsets:
        # The first word that ends after the token's start.
        word = bisect_right(ends, start)
        # max: a token without characters looks at the character after it.
        is_inside = word < len(spans) and spans[word][0] < max(end, start + 1)
        indices.append(word if is_inside else NO_WORD)
    return indices


def bare_word_spans(text: str) -> list[tuple[int, int]]:
    """Return the character span [start, end) of each word without the punctuation around it.

    A word that consists of punctuation only keeps its whole span.
    """
    spans = []
    for start, end in word_spans(text):
        letters = [position for position in range(start, end) if not _is_punctuation(text[position])]
        spans.append((letters[0], letters[-1] + 1) if letters else (start, end))
    return spans


def drop_punctuation(token_words: Sequence[int], text: str, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Set the word of punctuation tokens to NO_WORD, unless their word consists of punctuation only.

    Used for alignments: the attention of a full stop says nothing about the word before it.

    Args:
        token_words: Word index of each token, from `word_of_token`.
        text: The raw sentence.
        offsets: Character span of each token.
    """
    is_punctuation = [_is_punctuation(text[start:end]) for start, end in offsets]
    words_with_letters = {word for word, mark in zip(token_words, is_punctuation, strict=True) if not mark}
    remaining = []
    for word, mark in zip(token_words, is_punctuation, strict=True):
        remaining.append(NO_WORD if mark and word in words_with_letters else word)
    return remaining


def _is_punctuation(token: str) -> bool:
    if token.isalnum():  # a fast answer for most tokens
        return False
    characters = token.strip()
    return bool(characters) and all(unicodedata.category(c)[0] in "PS" for c in characters)


@dataclass(frozen=True)
class Links:
    """Gold links of one sentence pair with sure and possible links (Och & Ney, 2003)."""

    sure: frozenset[Link]
    """Links that the annotators are sure of; recall counts only these."""
    possible: frozenset[Link]
    """All links that are not wrong, including the sure ones."""

    def reversed(self) -> "Links":
        """Return the links with source and target exchanged."""
        return Links(frozenset((j, i) for i, j in self.sure), frozenset((j, i) for i, j in self.possible))


def parse_pharaoh(line: str, where: str) -> Links:
    """Parse one line of links: `i-j` is sure, `ipj` and `i?j` are only possible.

    Args:
        line: The line; an empty one has no links.
        where: Position for error messages, "file:line".

    Raises:
        DataError: The line has another format.
    """
    sure, possible = set(), set()
    for item in line.split():
        match = _LINK.fullmatch(item)
        if match is None:
            raise DataError(f'{where}: a link must be i-j, or ipj or i?j if it is only possible; got "{item[:40]}"')
        link = (int(match[1]), int(match[3]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Links(frozenset(sure), frozenset(possible))


def format_pharaoh(links: Links | Collection[Link]) -> str:
    """Return links as one line, sorted by i and j: `i-j`, or `ipj` for links that are only possible."""
    if not isinstance(links, Links):
        return " ".join(f"{i}-{j}" for i, j in sorted(links))
    return " ".join(f"{i}{'-' if (i, j) in links.sure else 'p'}{j}" for i, j in sorted(links.possible))


def read_pharaoh(path: Path) -> list[Links]:
    """Read the links of each line of a file.

    Raises:
        DataError: The file cannot be read, is not UTF-8, or has a malformed link; the message names file and line.
    """
    try:
        text = read_text(path)
    except OSError as error:
        raise DataError(f"{path}: the alignment file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: an alignment file must be text in UTF-8; got other bytes") from None
    # Not `splitlines`, which also splits at characters such as U+2028 and would shift all later lines.
    lines = text.removesuffix("\n").split("\n") if text else []
    return [parse_pharaoh(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


@ignore_blas_warnings
def attention_over_words(
    attention: AttentionMatrix, source_words: Sequence[int], target_words: Sequence[int]
) -> AttentionMatrix:
    """Return attention between words: the sum over a source word's tokens, averaged over a target word's tokens.

    Tokens in no word (NO_WORD) are left out, so the sum of a row may be below 1.

    Args:
        attention: Weights of source tokens for each target token.
        source_words: Word index of each source token (`word_of_token`).
        target_words: Word index of each target token.

    Shape:
        attention: [I, J] tokens. Returns: [target words, source words].
    """
    assert attention.shape == (len(target_words), len(source_words))
    target = _membership(target_words, attention.dtype)
    num_tokens = target.sum(axis=1, keepdims=True)
    mean = target / np.maximum(num_tokens, 1)  # [target words, I]
    return sparse_product(_membership(source_words, attention.dtype), sparse_product(mean, attention).T).T


def sparse_product(left: AttentionMatrix, right: AttentionMatrix) -> AttentionMatrix:
    """Return left @ right, where the left matrix has few values other than 0 in each column.

    Large products of all values take cubic time, and OpenBLAS uses all cores for each, so that threads wait.
    """
    product: AttentionMatrix
    if len(left) * right.size <= MAX_PRODUCT:
        product = left @ right
        return product
    rows, columns = np.nonzero(left)
    product = np.zeros((len(left), right.shape[1]), right.dtype)
    if len(rows):
        starts = np.concatenate(([0], np.flatnonzero(rows[1:] != rows[:-1]) + 1))
        product[rows[starts]] = np.add.reduceat(left[rows, columns][:, None] * right[columns], starts, axis=0)
    return product


def word_links(attention: AttentionMatrix, source_words: Sequence[int], target_words: Sequence[int]) -> set[Link]:
    """Return (source, target) links of words: each target token links its word to that of the most attended token.

    The first of equally attended tokens is taken. (Linking to the word with the largest sum over its tokens would
    prefer words of many tokens wherever attention is nearly uniform.) For the arguments see `attention_over_words`.
    """
    columns = [column for column, word in enumerate(source_words) if word != NO_WORD]
    if not columns:
        return set()
    # Only tokens in words compete, not spaces or punctuation.
    in_words = attention[:, columns]
    links = set()
    for column, weight, target_word in zip(in_words.argmax(axis=1), in_words.max(axis=1), target_words, strict=True):
        if target_word != NO_WORD and weight > 0:
            links.add((source_words[columns[column]], target_word))
    return links


def _membership(token_words: Sequence[int], dtype: np.dtype) -> AttentionMatrix:
    """Return a matrix [words, tokens] with 1 where a token lies in a word, else 0."""
    members = np.zeros((max(token_words, default=NO_WORD) + 1, len(token_words)), dtype=dtype)
    for token, word in enumerate(token_words):
        if word != NO_WORD:
            members[word, token] = 1
    return members


def token_attention(attention: AttentionMatrix, count: int, read: bool) -> AttentionMatrix:
    """Return the attention rows of a sentence's target tokens, without EOS.

    Args:
        attention: [T, J], one row per decoder step.
        count: Number of target tokens without EOS.
        read: True for a model that is supervised with the links of words it has read; a token's row is then
            that of the next step. It is zero if the translation was cut off before that step.
    """
    rows = attention[1 : count + 1] if read else attention[:count]
    if len(rows) == count:
        return rows
    padded = np.zeros((count, attention.shape[1]), dtype=attention.dtype)
    padded[: len(rows)] = rows
    return padded


def attention_information(attention: AttentionMatrix) -> float | None:
    """Return how much attention [I, J] depends on the target position, from 0 to 1.

    This is the mutual information of row and column, with equally likely rows, divided by its maximum, the
    logarithm of the smaller dimension. It is 0 if all rows are equal; links from such attention are meaningless.
    Returns None for fewer than two rows or columns.
    """
    # Rows of zeros are padding of a translation that was cut off.
    rows = attention[attention.sum(axis=1) > 0].astype(np.float64)
    if min(rows.shape) < 2:
        return None
    p = rows / rows.sum(axis=1, keepdims=True)
    mean = p.mean(axis=0)
    # p log(p / mean) is 0 for p = 0: the ratio is set to 1 there.
    log_ratio = np.log(np.divide(p, mean, out=np.ones_like(p), where=p > 0))
    return float((p * log_ratio).sum(axis=1).mean() / np.log(min(p.shape)))


def links_from_attention(attention: AttentionMatrix, threshold: float | None = None) -> set[Link]:
    """Return the links from each target unit (row) to the source unit (column) that it attends to most.

    The first of equally attended units is taken; a row of zeros has no link.

    Args:
        attention: [I, J].
        threshold: If set, also link every source unit with at least this weight.
    """
    if attention.size == 0:
        return set()
    links = {(int(i), j) for j, i in enumerate(attention.argmax(axis=1)) if attention[j, i] > 0}
    if threshold is not None:
        rows, columns = np.nonzero((attention >= threshold) & (attention > 0))
        links |= {(int(i), int(j)) for j, i in zip(rows, columns, strict=True)}
    return links


def symmetrise(forward: Collection[Link], backward: Collection[Link], method: str) -> set[Link]:
    """Combine the alignments of two directions, both given as (source, target) links.

    `grow-diag` (Koehn et al., 2003) starts from the intersection and adds links of the union that are next to
    a link, also diagonally, if one of their words has no link yet. `grow-diag-final-and` (Koehn et al., 2005)
    then adds links, first those of `forward`, if neither of their words has a link.

    Args:
        forward: Links of one direction.
        backward: Links of the other direction.
        method: `intersection`, `union`, `grow-diag` or `grow-diag-final-and`.

    Raises:
        ConfigError: The method is unknown.
    """
    if method not in SYMMETRISATIONS:
        raise ConfigError([f"symmetrisation {must_be_one_of(SYMMETRISATIONS, method)}"])
    return SYMMETRISATIONS[method](set(forward), set(backward))


def _grow_diag(forward: set[Link], backward: set[Link]) -> set[Link]:
    links = forward & backward
    union = forward | backward
    linked_sources = {i for i, _ in links}
    linked_targets = {j for _, j in links}
    added = True
    while added:
        added = False
        # Sorted, because the result depends on the order; a set's order would differ between processes.
        for i, j in sorted(links):
            for di, dj in _NEIGHBOURS:
                link = (i + di, j + dj)
                has_free_word = link[0] not in linked_sources or link[1] not in linked_targets
                if has_free_word and link in union and link not in links:
                    links.add(link)
                    linked_sources.add(link[0])
                    linked_targets.add(link[1])
                    added = True
    return links


def _grow_diag_final_and(forward: set[Link], backward: set[Link]) -> set[Link]:
    links = _grow_diag(forward, backward)
    linked_sources = {i for i, _ in links}
    linked_targets = {j for _, j in links}
    for i, j in (*sorted(forward), *sorted(backward)):
        if i not in linked_sources and j not in linked_targets:
            links.add((i, j))
            linked_sources.add(i)
            linked_targets.add(j)
    return links


SYMMETRISATIONS: dict[str, Callable[[set[Link], set[Link]], set[Link]]] = {
    "intersection": lambda forward, backward: forward & backward,
    "union": lambda forward, backward: forward | backward,
    "grow-diag": _grow_diag,
    "grow-diag-final-and": _grow_diag_final_and,
}
"""Function by name of `Symmetrisation`, from the links of both directions to their combination."""


def with_copy_links(links: tuple[Link, ...], source: Segmented, target: Segmented, unit: Unit) -> tuple[Link, ...]:
    """Link copied source words to their copies, in place of any other links of these words.

    Args:
        links: Links of a translation's words or tokens.
        source: The source sentence.
        target: The translation, whose `replaced` lists the copies.
        unit: Unit that the links count.
    """
    copies = set(_copy_links(source, target, unit))
    if not copies:
        return links
    sources = {i for i, _ in copies}
    targets = {j for _, j in copies}
    return tuple(sorted(copies | {(i, j) for i, j in links if i not in sources and j not in targets}))


def _copy_links(source: Segmented, target: Segmented, unit: Unit) -> Iterator[Link]:
    copied_tokens = [(item.source_token, item.token) for item in target.replaced if item.by == "copy"]
    if unit == "symbols" or not copied_tokens:
        yield from copied_tokens
        return
    source_spans = word_spans(source.text)
    target_spans = word_spans(target.text)
    for source_token, target_token in copied_tokens:
        source_words = _overlapping_words(source_spans, source.offsets[source_token])
        target_words = _overlapping_words(target_spans, target.offsets[target_token])
        # Word by word for a copy of several words, otherwise all with all.
        if len(source_words) == len(target_words):
            yield from zip(source_words, target_words, strict=True)
        else:
            yield from product(source_words, target_words)


def _overlapping_words(spans: list[tuple[int, int]], characters: tuple[int, int]) -> range:
    start, end = characters
    first = bisect_right(spans, start, key=lambda span: span[1])
    return range(first, bisect_left(spans, end, lo=first, key=lambda span: span[0]))
