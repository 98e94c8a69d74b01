"""What is done to a corpus chunk by chunk, in any process: cleaning, counting, segmentation.

The cleaned text lies on disk between the passes, as columns (a side each and, if they are aligned, links), so that a
task names where its lines are and does not carry them.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig
from rnnsearch.data.cleaning import Tally, fault, row_key
from rnnsearch.data.corpus import Chunk, Row
from rnnsearch.data.links import LINK_TYPE, links_of_rows, of_stripped
from rnnsearch.data.partitions import PARTS, Parts, key_fields, split_key
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.text.stretches import StretchIds
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks

Cells = tuple[str, ...]
"""The text of each side and, of an aligned corpus, links in the Pharaoh format."""


def key_type(sides: int) -> np.dtype[Any]:
    """Of a cleaned row: what duplicates and a split are told by, its line, and its document and place there."""
    return np.dtype([("row", "<u8"), *key_fields(sides), ("line", "<u8"), ("document", "<u4"), ("place", "<u4")])


class Rules(NamedTuple):
    """How a corpus is cleaned."""

    languages: tuple[str, ...]
    config: CleaningConfig
    to_split: bool
    """Without it the keys of sentences are 0."""
    documents: bool


class Cleaned(NamedTuple):
    """The rows of a chunk that are fit for training by themselves."""

    columns: list[bytes]
    keys: npt.NDArray[Any]
    """Of `key_type`; documents are counted from the chunk's beginning."""
    tally: Tally
    origin: Path
    begins_file: bool
    ended: int
    """Documents that end in it."""
    place: int
    """Rows since the last end of a document, those left out among them."""


def clean(chunk: Chunk, rules: Rules) -> Cleaned:
    """Clean a chunk."""
    tally, rows, keys, counts = Tally(), [], bytearray(), list[tuple[int, int, int]]()
    needed, document, place = min(2, chunk.given), 0, 0
    no_row, no_split = bytes(8), bytes(8 * len(rules.languages) + 8)
    for row in chunk.rows():
        if rules.documents and row.ends_document:
            document, place = document + 1, 0
            continue
        tally.read += 1
        place += 1
        reason = fault(row, rules.config, rules.languages, needed)
        if reason is not None:
            tally.reject(reason, row)
            continue
        cells = cells_of(row)
        texts = cells[: len(rules.languages)]
        rows.append(cells)
        counts.append((row.line, document, place - 1))
        keys += row_key(texts) if rules.config.drop_duplicates else no_row
        keys += split_key(texts) if rules.to_split else no_split
        keys += bytes(16)
    table = np.frombuffer(keys, dtype=key_type(len(rules.languages)))
    table["line"], table["document"], table["place"] = np.array(counts, dtype=np.int64).reshape(-1, 3).T
    columns = zip(*rows, strict=True) if rows else [()] * (len(rules.languages) + (chunk.links is not None))
    texts_of_columns = ["".join(f"{line}\n" for line in column).encode() for column in columns]
    return Cleaned(texts_of_columns, table, tally, chunk.path, chunk.first == 1, document, place)


def cells_of(row: Row) -> Cells:
    """A row as it is kept."""
    texts = tuple([text.strip() for text in row.texts])
    return texts if row.links is None else (*texts, format_pharaoh(of_stripped(row.links, row.source, row.target)))


class Span(NamedTuple):
    """Where a chunk of cleaned pairs lies in the files of its columns, and which file it came from."""

    origin: Path
    paths: tuple[Path, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def rows(self) -> list[Cells]:
        """The rows."""
        return list(zip(*(self.column(number) for number in range(len(self.paths))), strict=True))

    def column(self, number: int) -> list[str]:
        """One side of the rows."""
        with self.paths[number].open("rb") as file:
            file.seek(self.starts[number])
            return file.read(self.sizes[number]).decode().split("\n")[:-1]


class Counted(NamedTuple):
    """What is to be known of a chunk before its symbols are."""

    stretches: list[Counter[str]]
    """Of each side of the training rows, see `words.count_chunks`."""
    text: bytes
    """The training rows as lines with tabs, of which the corpus's digest is made."""
    held: list[tuple[int, Cells]]
    """Rows of other parts than training (places in `PARTS`)."""
    shared: list[int]
    """For each set of given sentences: training rows with a sentence in it."""


Sentences = tuple[frozenset[str], ...]
"""Different sentences of each side."""


def count(span: Span, parts: Parts, given: list[Sentences], sides: int) -> Counted:
    """Count the stretches of a chunk's training rows, and those that share a sentence with `given` text."""
    rows, training = span.rows(), PARTS.index("train")
    train = list(compress(rows, parts == training))
    held = [(part, rows[place]) for place in np.flatnonzero(parts > training).tolist() for part in [int(parts[place])]]
    columns = [[row[side] for row in train] for side in range(sides)]
    shared = [_rows_among(columns, sets) for sets in given]
    text = "".join("\t".join(row) + "\n" for row in train).encode()
    return Counted([count_chunks(column) for column in columns], text, held, shared)


def _rows_among(columns: list[list[str]], sentences: Sentences) -> int:
    """How many rows have a sentence among these."""
    found = [map(own.__contains__, column) for own, column in zip(sentences, columns, strict=True)]
    return sum(map(any, zip(*found, strict=True)))


class Encoded(NamedTuple):
    """Symbols of a chunk's training rows, side by side, then their links: the values, and how many each row has."""

    columns: list[tuple[bytes, npt.NDArray[np.uint64]]]
    unknown: list[int]
    """Unknown symbols of each side."""


class SavedTokenizer(NamedTuple):
    """A tokenizer's file, and which one it is: in the same place there may have been another before."""

    path: Path
    fingerprint: str


def encode(span: Span, parts: Parts, tokenizers: tuple[SavedTokenizer, ...]) -> Encoded:
    """Segment a chunk's training rows by the sides' saved tokenizers."""
    training = parts == PARTS.index("train")
    texts = [list(compress(span.column(number), training)) for number in range(len(span.paths))]
    columns, unknown = [], []
    for column, saved in zip(texts, tokenizers, strict=False):
        flat, sizes = _stretches(saved).ids(column)
        columns.append((flat.astype(id_type(_loaded(saved))).tobytes(), sizes.astype(np.uint64)))
        unknown.append(int(np.count_nonzero(flat == UNK)))
    if len(texts) > len(tokenizers):
        source, target = (_loaded(saved).segment(column) for column, saved in zip(texts, tokenizers, strict=False))
        links = links_of_rows(source, target, texts[-1])
        counts = links.lengths(np.arange(len(links))).astype(np.uint64)
        columns.append((links.flat.astype(LINK_TYPE).tobytes(), counts))
    return Encoded(columns, unknown)


def id_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    """What ids are stored as."""
    return np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")


@lru_cache(maxsize=16)
def _loaded(saved: SavedTokenizer) -> Tokenizer:
    return Tokenizer.load(saved.path)


@lru_cache(maxsize=16)
def _stretches(saved: SavedTokenizer) -> StretchIds:
    return StretchIds(_loaded(saved))
