"""What is done to a corpus chunk by chunk, in any process: cleaning, counting, segmentation.

The cleaned text lies on disk between the passes, as columns (a side each and, if they are aligned, links). A task
carries its lines: it may be done on a machine that does not see these files.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import compress
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.align.aligner import Aligner, Pair
from rnnsearch.config import CleaningConfig, TextConfig
from rnnsearch.data.characters import codes
from rnnsearch.data.cleaning import Tally, fault, row_key
from rnnsearch.data.corpus import Chunk, Row, read_chunks
from rnnsearch.data.links import LINK_TYPE, links_of_rows, ragged_links, strip_links
from rnnsearch.data.split import HELD_OUT, PARTS, TRAIN, Part, Parts, key_fields, split_key
from rnnsearch.data.workers import Workers
from rnnsearch.text.alignments import Link, format_pharaoh
from rnnsearch.text.annotation import annotation
from rnnsearch.text.stretches import StretchIds
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks

CHUNK = 20_000
"""Rows worked on at a time by one process."""

KeyTable = npt.NDArray[Any]
"""Of `key_type`, [rows]; documents are numbered through the corpus."""
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


def clean(rules: Rules, chunk: Chunk) -> Cleaned:
    """Clean a chunk."""
    tally, rows, keys = Tally(), list[Cells](), bytearray()
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
        keys += row_key(texts) if rules.config.drop_duplicates else no_row
        keys += split_key(texts) if rules.to_split else no_split
        keys += pack("<QII", row.line, document, place - 1)
    table = np.frombuffer(keys, dtype=key_type(len(rules.languages)))
    columns = zip(*rows, strict=True) if rows else [()] * (len(rules.languages) + (chunk.links is not None))
    texts_of_columns = ["".join(f"{line}\n" for line in column).encode() for column in columns]
    return Cleaned(texts_of_columns, table, tally, chunk.path, chunk.first == 1, document, place)


def cells_of(row: Row) -> Cells:
    """A row as it is kept."""
    texts = tuple([text.strip() for text in row.texts])
    return texts if row.links is None else (*texts, format_pharaoh(strip_links(row.links, row.source, row.target)))


class Lines(NamedTuple):
    """Cleaned rows as they are kept, a column a side: lines with their ends."""

    columns: tuple[bytes, ...]

    def rows(self) -> list[Cells]:
        """The rows."""
        return list(zip(*map(self.column, range(len(self.columns))), strict=True))

    def column(self, number: int) -> list[str]:
        """One side of the rows."""
        return self.columns[number].decode().split("\n")[:-1]


class Span(NamedTuple):
    """Where a chunk of cleaned pairs lies in the files of its columns, and which file it came from."""

    origin: Path
    paths: tuple[Path, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def read(self) -> Lines:
        """What lies there."""
        return Lines(tuple(map(_read, self.paths, self.starts, self.sizes)))


def _read(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


class CleanedText:
    """The cleaned text of a corpus between the passes: files in `folder`, columns of lines and a table of keys,
    removed at the end; `aligned`: with a column of links."""

    def __init__(self, folder: Path, rules: Rules, aligned: bool) -> None:
        self.rules = rules
        self.aligned = aligned
        columns = (*rules.languages, *(["links"] * aligned))
        self._paths = tuple(folder / f"cleaned.{column}" for column in columns)
        self._keys = folder / "cleaned.keys"
        self._spans: list[tuple[Span, int]] = []
        self._files: list[int] = []
        """Of each span, which file of the corpus it is of."""
        self._count = 0

    def __enter__(self) -> "CleanedText":
        return self

    def __exit__(self, *_: object) -> None:
        for path in (*self._paths, self._keys):
            path.unlink(missing_ok=True)

    def read(self, specs: Sequence[str], base: Path, alignments: Sequence[str] | None, workers: Workers) -> Tally:
        """Clean a corpus into the files; returns what was read and rejected."""
        tally, starts = Tally(), [0] * len(self._paths)
        document = place = 0
        self._count, number = len(specs), -1
        firsts = [base / next((part.strip() for part in spec.split("|") if part.strip()), "") for spec in specs]
        chunks = read_chunks(specs, base, len(self.rules.languages), alignments, CHUNK)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in (*self._paths, self._keys)]
            for found in workers.map(clean, ((chunk,) for chunk in chunks), (self.rules,)):
                tally.add(found.tally)
                if found.begins_file:
                    number = firsts.index(found.origin, number + 1)  # a file without lines has no chunk
                    document, place = document + 1, 0
                found.keys["place"] += np.where(found.keys["document"] == 0, np.uint32(place), np.uint32(0))
                found.keys["document"] += np.uint32(document)
                document += found.ended
                place = found.place + (0 if found.ended else place)
                sizes = tuple(len(column) for column in found.columns)
                for file, block in zip(files, (*found.columns, found.keys.tobytes()), strict=True):
                    file.write(block)
                if len(found.keys):
                    self._spans.append((Span(found.origin, self._paths, tuple(starts), sizes), len(found.keys)))
                    self._files.append(number)
                starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        return tally

    def keys(self) -> KeyTable:
        """The keys of all rows, memory-mapped."""
        kind = key_type(len(self.rules.languages))
        return np.memmap(self._keys, dtype=kind, mode="r") if self._spans else np.zeros(0, dtype=kind)

    def rows_of_files(self, wanted: npt.NDArray[np.bool_]) -> list[int]:
        """Of each file of the corpus, how many of its rows are `wanted` [rows]."""
        counts, begin = [0] * self._count, 0
        for (_, rows), number in zip(self._spans, self._files, strict=True):
            counts[number] += int(wanted[begin : begin + rows].sum())
            begin += rows
        return counts

    def of_files(self, numbers: Collection[int]) -> npt.NDArray[np.bool_]:
        """Which rows [rows] are of these files of the corpus."""
        spans = zip(self._spans, self._files, strict=True)
        return np.concatenate([np.zeros(0, dtype=bool), *(np.full(rows, n in numbers) for (_, rows), n in spans)])

    def chunks(self, parts: Parts) -> Iterator[tuple[Lines, Parts]]:
        """The chunks, each with its piece of `parts`."""
        begin = 0
        for span, rows in self._spans:
            yield span.read(), parts[begin : begin + rows]
            begin += rows

    def row(self, place: int, line: int) -> Row:
        """One row, which stood in that line of some file."""
        for span, rows in self._spans:
            if place < rows:
                return Row(span.read().rows()[place][: len(self.rules.languages)], span.origin, line)
            place -= rows
        raise AssertionError("a place in the text")


class Counted(NamedTuple):
    """What is to be known of a chunk before its symbols are."""

    stretches: list[Counter[str]]
    """Of each side of the training rows, see `words.count_chunks`."""
    text: bytes
    """The training rows as lines with tabs, of which the corpus's digest is made."""
    held: dict[Part, list[Cells]]
    """The rows of other parts than training."""
    shared: list[int]
    """For each set of given sentences: training rows with a sentence in it."""


Sentences = tuple[frozenset[str], ...]
"""Different sentences of each side."""


def count(given: list[Sentences], sides: int, lines: Lines, parts: Parts) -> Counted:
    """Count the stretches of a chunk's training rows, and those that share a sentence with `given` text."""
    rows = lines.rows()
    train = list(compress(rows, parts == TRAIN))
    held = {part: list(compress(rows, parts == PARTS.index(part))) for part in HELD_OUT}
    columns = [[row[side] for row in train] for side in range(sides)]
    shared = [_rows_among(columns, sets) for sets in given]
    text = "".join("\t".join(row) + "\n" for row in train).encode()
    return Counted([count_chunks(column) for column in columns], text, held, shared)


def _rows_among(columns: list[list[str]], sentences: Sentences) -> int:
    """How many rows have a sentence among these."""
    found = [map(own.__contains__, column) for own, column in zip(sentences, columns, strict=True)]
    return sum(map(any, zip(*found, strict=True)))


class Linking(NamedTuple):
    """What links between the two sides are for."""

    aligner: Aligner | None
    """What finds them where the text has none and they are wanted."""
    kept: bool
    """Whether they are kept beside the ids."""
    text: TextConfig
    """Whether and how rows are annotated by them."""
    copied: bool
    """Whether rows that lack a source get a copy of their target as one."""


def encode(
    tokenizers: tuple[Tokenizer, ...], linking: Linking, lines: Lines, parts: Parts
) -> tuple[list[tuple[bytes, npt.NDArray[np.uint64]]], list[tuple[int, int]]]:
    """Segment a chunk's training rows by the sides' tokenizers: the symbols of each side, then links, where they
    are kept, as the values and how many each row has; and of each side's text the unknown symbols, and all of them.
    Between symbols and links stand the unknown words of sides that have words, see `spelling.codes`."""
    texts = [list(compress(lines.column(number), parts == TRAIN)) for number in range(len(lines.columns))]
    if linking.copied:
        texts[0] = [source or target for source, target in zip(*texts, strict=True)]
    columns, spelled, unknown = [], [], []
    for column, tokenizer in zip(texts, tokenizers, strict=False):
        flat, sizes = _stretches(tokenizer).ids(column)
        columns.append((flat.astype(id_type(tokenizer)).tobytes(), sizes.astype(np.uint64)))
        unknown.append((int(np.count_nonzero(flat == UNK)), len(flat)))
        if tokenizer.type == "words":
            having = np.repeat(np.arange(len(sizes)), sizes)[flat == UNK]
            values, lengths = codes(_unknown_words(tokenizer, column, set(having.tolist())))
            spelled.append((values.tobytes(), lengths))
    columns += spelled
    if linking.kept or linking.text.annotation is not None:
        rows = _linked(texts, tokenizers, linking)
        if linking.text.annotation is not None:
            columns[:2] = map(_ids, (rows.sources, rows.targets), tokenizers)
        if linking.kept:
            links = ragged_links(rows.links)
            counts = links.lengths(np.arange(len(links))).astype(np.uint64)
            columns.append((links.flat.astype(LINK_TYPE).tobytes(), counts))
    return columns, unknown


def _ids(rows: list[Segmented], tokenizer: Tokenizer) -> tuple[bytes, npt.NDArray[np.uint64]]:
    flat = np.fromiter((id for row in rows for id in row.ids), dtype=id_type(tokenizer))
    return flat.tobytes(), np.fromiter((len(row.ids) for row in rows), dtype=np.uint64)


class _Linked(NamedTuple):
    """Rows as a model reads and writes them, and the links of their symbols."""

    sources: list[Segmented]
    targets: list[Segmented]
    links: list[set[Link]]


def _linked(texts: list[list[str]], tokenizers: tuple[Tokenizer, ...], linking: Linking) -> _Linked:
    """The rows of a source and a target, annotated where that is asked for."""
    sources, targets = (side.segment(column) for side, column in zip(tokenizers, texts, strict=False))
    if len(texts) > len(tokenizers):
        links = links_of_rows(sources, targets, texts[-1])
    else:
        assert linking.aligner is not None
        if linking.kept:
            links = links_of_rows(sources, targets, _aligned(linking.aligner, *texts))
        else:
            links = linking.aligner.links(list(map(Pair.from_tokens, sources, targets)))
    annotated = annotation(linking.text, *tokenizers)
    if annotated is None:
        return _Linked(sources, targets, links)
    sources = [annotated.source(text) for text in sources]
    targets = [annotated.target(*row) for row in zip(targets, links, sources, strict=True)]
    return _Linked(sources, targets, [{(j, annotated.symbols_a_word * i) for j, i in own} for own in links])


def _unknown_words(tokenizer: Tokenizer, texts: list[str], having: set[int]) -> list[list[str]]:
    """The unknown words of each text, of which only these have any."""
    found = iter(tokenizer.segment([texts[number] for number in sorted(having)]))
    return [next(found).spelled.unknown if number in having else [] for number in range(len(texts))]


def _aligned(guide: Aligner, sources: list[str], targets: list[str]) -> list[str]:
    """The links of rows by an aligner, in the Pharaoh format; a row that lacks a side has none."""
    pairs = list(map(Pair.from_words, sources, targets))
    return [format_pharaoh(links) for links in guide.links(pairs)]


def id_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    """What ids are stored as."""
    return np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")


@lru_cache(maxsize=16)
def _stretches(tokenizer: Tokenizer) -> StretchIds:
    return StretchIds(tokenizer)
