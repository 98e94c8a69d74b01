"""What is done to a corpus chunk by chunk, in any process: cleaning, counting, segmentation.

The cleaned text lies on disk between the passes, as columns (source, target and, if they are aligned, links), so that a
task names where its lines are and does not carry them.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from hashlib import blake2b
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig
from rnnsearch.data.cleaning import Tally, fault, pair_key
from rnnsearch.data.corpus import Chunk, Pair
from rnnsearch.data.links import links_of_rows, of_stripped
from rnnsearch.data.partitions import PARTS, sentence_key
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.text.stretches import StretchIds
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks

Row = tuple[str, ...]
"""Source, target and, of an aligned corpus, links in the Pharaoh format."""
Parts = npt.NDArray[np.uint8]
"""The part of each pair, as its place in `PARTS`."""
KEYS = np.dtype([("pair", "<u8"), ("source", ">u8"), ("target", ">u8"), ("rank", ">u8"), ("line", "<u8")])
"""Of a cleaned pair: what duplicates and a split are told by (see `partitions.Keys`), and its line."""


class Cleaned(NamedTuple):
    """The pairs of a chunk that are fit for training by themselves."""

    columns: list[bytes]
    keys: npt.NDArray[Any]
    """KEYS, [pairs]."""
    tally: Tally
    origin: Path


def clean(chunk: Chunk, config: CleaningConfig, to_split: bool) -> Cleaned:
    """Clean a chunk. Without `to_split` the keys of sentences are 0."""
    tally, rows, keys, lines = Tally(), [], bytearray(), []
    for pair in chunk.pairs():
        tally.read += 1
        reason = fault(pair, config)
        if reason is not None:
            tally.reject(reason, pair)
            continue
        row = row_of(pair)
        rows.append(row)
        lines.append(pair.line)
        keys += pair_key(*row[:2]) if config.drop_duplicates else bytes(8)
        keys += _split_keys(*row[:2]) if to_split else bytes(24)
        keys += bytes(8)
    table = np.frombuffer(keys, dtype=KEYS)
    table["line"] = lines
    columns = zip(*rows, strict=True) if rows else [()] * (2 + (chunk.links is not None))
    return Cleaned(["".join(f"{line}\n" for line in column).encode() for column in columns], table, tally, chunk.path)


def row_of(pair: Pair) -> Row:
    """A pair as it is kept."""
    row = pair.source.strip(), pair.target.strip()
    return row if pair.links is None else (*row, format_pharaoh(of_stripped(pair.links, pair.source, pair.target)))


def _split_keys(source: str, target: str) -> bytes:
    keys = sentence_key(source) + sentence_key(target)
    return keys + blake2b(keys, digest_size=8).digest()


class Span(NamedTuple):
    """Where a chunk of cleaned pairs lies in the files of its columns, and which file it came from."""

    origin: Path
    paths: tuple[Path, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def rows(self) -> list[Row]:
        """The pairs."""
        return list(zip(*(self.column(number) for number in range(len(self.paths))), strict=True))

    def column(self, number: int) -> list[str]:
        """One side of the pairs."""
        with self.paths[number].open("rb") as file:
            file.seek(self.starts[number])
            return file.read(self.sizes[number]).decode().split("\n")[:-1]


class Counted(NamedTuple):
    """What is to be known of a chunk before its symbols are."""

    stretches: list[Counter[str]]
    """Of the training pairs' source and target side, see `words.count_chunks`."""
    text: bytes
    """The training pairs as lines with tabs, of which the corpus's digest is made."""
    held: list[tuple[int, Row]]
    """Pairs of other parts than training (places in `PARTS`)."""
    shared: list[int]
    """For each pair of sets given: training pairs with a sentence in one."""


Sides = tuple[frozenset[str], frozenset[str]]


def count(span: Span, parts: Parts, given: list[Sides]) -> Counted:
    """Count the stretches of a chunk's training pairs, and those that share a sentence with `given` text."""
    rows, training = span.rows(), PARTS.index("train")
    train = list(compress(rows, parts == training))
    held = [(part, rows[place]) for place in np.flatnonzero(parts > training).tolist() for part in [int(parts[place])]]
    shared = [sum(row[0] in sources or row[1] in targets for row in train) for sources, targets in given]
    stretches = [count_chunks(row[side] for row in train) for side in (0, 1)]
    return Counted(stretches, "".join("\t".join(row) + "\n" for row in train).encode(), held, shared)


class Encoded(NamedTuple):
    """Symbols of a chunk's training pairs. Lengths count symbols, links and unknown symbols."""

    ids: list[bytes]
    lengths: list[npt.NDArray[np.uint64]]
    unknown: list[int]
    links: bytes
    link_lengths: npt.NDArray[np.uint64]


class SavedTokenizer(NamedTuple):
    """A tokenizer's file, and which one it is: in the same place there may have been another before."""

    path: Path
    fingerprint: str


def encode(span: Span, parts: Parts, tokenizers: tuple[SavedTokenizer, SavedTokenizer]) -> Encoded:
    """Segment a chunk's training pairs by two saved tokenizers."""
    training = parts == PARTS.index("train")
    columns = [list(compress(span.column(number), training)) for number in range(len(span.paths))]
    ids, lengths, unknown = [], [], []
    for column, saved in zip(columns[:2], tokenizers, strict=True):
        flat, sizes = _stretches(saved).ids(column)
        ids.append(flat.astype(id_type(_loaded(saved))).tobytes())
        lengths.append(sizes.astype(np.uint64))
        unknown.append(int(np.count_nonzero(flat == UNK)))
    flat_links, counts = np.zeros((0, 2), dtype="<u4"), list[int]()
    if len(columns) == 3:
        sides = (_loaded(saved).segment(column) for column, saved in zip(columns[:2], tokenizers, strict=True))
        flat_links, counts = links_of_rows(next(sides), next(sides), columns[2])
    return Encoded(ids, lengths, unknown, flat_links.tobytes(), np.array(counts, dtype=np.uint64))


def id_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    """What ids are stored as."""
    return np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")


@lru_cache(maxsize=2)
def _loaded(saved: SavedTokenizer) -> Tokenizer:
    return Tokenizer.load(saved.path)


@lru_cache(maxsize=2)
def _stretches(saved: SavedTokenizer) -> StretchIds:
    return StretchIds(_loaded(saved))
