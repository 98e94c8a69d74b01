"""The three passes over a corpus, chunk by chunk and in any process: `clean`, `count` and `encode`.

`prepare.py` runs them, in the processes of `workers.py` or on other machines (`rnnsearch.bulk`). Between the passes
the cleaned text is on disk (`CleanedText`): a column of lines per language and, if the corpus is aligned, a column of
links. A task carries its lines, because another machine may not see these files.

Passes without an aligner do not import torch, which takes each process more than a second.

`bulk` stores arguments and results by their declared types (`bulk/encoding.py`): annotate them exactly, and use no
other types than those that are listed there. The names of the functions and the order of the passes identify what a
killed run has stored (`bulk/prepare.py`). Tests: tests/bulk/test_corpora.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import compress
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rnnsearch.config import CleaningConfig, TextConfig
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.cleaning import Tally, rejection_reason, row_key
from rnnsearch.data.code_points import codes
from rnnsearch.data.corpus import Chunk, Row, read_chunks
from rnnsearch.data.links import LINK_TYPE, links_of_rows, ragged_links, strip_links
from rnnsearch.data.split import HELD_OUT, PARTS, TRAIN, Part, Parts, key_fields, split_key
from rnnsearch.data.workers import Workers
from rnnsearch.text.alignments import Link, format_pharaoh
from rnnsearch.text.annotation import build_annotation
from rnnsearch.text.normalization import Normalization
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.tokenizer_cache import CachedTokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_chunks

if TYPE_CHECKING:
    from rnnsearch.align.aligner import Aligner

CHUNK_ROWS = 20_000
"""Rows that one process works on at a time."""

KeyTable = npt.NDArray[Any]
"""Array [rows] of `key_dtype`; documents are numbered through the whole corpus."""
Cells = tuple[str, ...]
"""The text of each language and, if the corpus is aligned, the links in the Pharaoh format."""
SentenceSets = tuple[frozenset[str], ...]
"""The distinct sentences of each language."""
Column = tuple[bytes, npt.NDArray[np.uint64]]
"""The values of some rows as bytes, and the number of values of each row."""


def key_dtype(num_languages: int) -> np.dtype[Any]:
    """Return the type of a row's keys: hashes to find duplicates and to split by, its line, document and position."""
    return np.dtype(
        [("row", "<u8"), *key_fields(num_languages), ("line", "<u8"), ("document", "<u4"), ("position", "<u4")]
    )


# First pass: cleaning.


class CleaningRules(NamedTuple):
    """Rules for cleaning a corpus."""

    languages: tuple[str, ...]
    """Languages of the rows, in order."""
    config: CleaningConfig
    """Thresholds of `[data.cleaning]`."""
    needs_split_keys: bool
    """True if dev or test is split off; otherwise the keys of sentences are 0."""
    documents: bool
    """True if empty lines end documents."""
    arrays: dict[str, ArrayConfig]
    """Options of the streams that are arrays; their cells are names (see `arrays.array_names`), not text."""

    def reason(self, row: Row, min_texts: int) -> str | None:
        """Return why a row is unfit for training, or None; the filters see only text."""
        if not self.arrays:
            return rejection_reason(row, self.config, self.languages, min_texts)
        languages = [language for language in self.languages if language not in self.arrays]
        cells = dict(zip(self.languages, row.texts, strict=True))
        num_arrays = sum(bool(cells[name]) for name in self.arrays)
        texts = tuple([cells[language] for language in languages])
        return rejection_reason(row._replace(texts=texts), self.config, languages, max(1, min_texts - num_arrays))

    def split_key(self, texts: Sequence[str]) -> bytes:
        """Return the key that a row is split by.

        Of a row with arrays it depends only on their names, since many different arrays may have the same text.
        """
        if not self.arrays:
            return split_key(texts)
        cells = dict(zip(self.languages, texts, strict=True))
        names = " ".join(cells[name] for name in self.arrays)
        return split_key([names] * len(texts))


class CleanedChunk(NamedTuple):
    """The rows of a chunk that pass the filters."""

    columns: list[bytes]
    """Lines of each column, with line ends."""
    keys: bytes
    """Records of `key_dtype`, one per row; documents are counted from the start of the chunk."""
    tally: Tally
    """Rejected rows by reason."""
    path: Path
    """File of the chunk."""
    starts_file: bool
    """True if the chunk is the first of its file."""
    documents_ended: int
    """Number of documents that end in the chunk."""
    position: int
    """Number of rows after the last end of a document, including rejected rows."""


def clean(rules: CleaningRules, chunk: Chunk) -> CleanedChunk:
    """Return the rows of a chunk that pass the filters, with their keys."""
    tally = Tally()
    rows: list[Cells] = []
    keys = bytearray()
    num_languages = len(rules.languages)
    # Keys of 0 where they are not needed, so that the table has one type.
    no_row_key = bytes(8)
    no_split_key = bytes(8 * num_languages + 8)
    # Files of target text without a source have rows of one text.
    min_texts = min(2, chunk.num_present)
    document = 0
    position = 0
    for row in chunk.rows():
        if rules.documents and row.ends_document:
            document += 1
            position = 0
            continue
        tally.read += 1
        # Rejected rows count, too: positions are those in the original document.
        position += 1
        reason = rules.reason(row, min_texts)
        if reason is not None:
            tally.reject(reason, row)
            continue
        cells = cleaned_cells(row)
        texts = cells[:num_languages]
        rows.append(cells)
        keys += row_key(texts) if rules.config.drop_duplicates else no_row_key
        keys += rules.split_key(texts) if rules.needs_split_keys else no_split_key
        keys += pack("<QII", row.line, document, position - 1)  # the rest of `key_dtype`
    num_columns = num_languages + (chunk.links is not None)
    columns = zip(*rows, strict=True) if rows else [()] * num_columns
    return CleanedChunk(
        columns=["".join(f"{line}\n" for line in column).encode() for column in columns],
        keys=bytes(keys),
        tally=tally,
        path=chunk.path,
        starts_file=chunk.first_line == 1,
        documents_ended=document,
        position=position,
    )


def cleaned_cells(row: Row) -> Cells:
    """Return the stripped texts of a row and its links, as they are stored."""
    texts = tuple([text.strip() for text in row.texts])
    if row.links is None:
        return texts
    return (*texts, format_pharaoh(strip_links(row.links, row.source, row.target)))


# The cleaned text on disk.


class CleanedLines(NamedTuple):
    """Cleaned rows as they are stored: for each column, its lines with line ends."""

    columns: tuple[bytes, ...]
    """Lines of each column, with line ends."""

    def rows(self) -> list[Cells]:
        """Return the cells of each row."""
        return list(zip(*map(self.column, range(len(self.columns))), strict=True))

    def column(self, index: int) -> list[str]:
        """Return the lines of one column."""
        return self.columns[index].decode().split("\n")[:-1]


class ChunkSpan(NamedTuple):
    """Location of a cleaned chunk in the files of the columns."""

    origin: Path
    """Corpus file that the chunk was read from."""
    paths: tuple[Path, ...]
    """File of each column."""
    starts: tuple[int, ...]
    """Offset in bytes of the chunk in each file."""
    sizes: tuple[int, ...]
    """Size in bytes of the chunk in each file."""

    def read(self) -> CleanedLines:
        """Read the chunk."""
        return CleanedLines(tuple(map(_read_span, self.paths, self.starts, self.sizes)))


def _read_span(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


class CleanedText:
    """The cleaned text of a corpus between the passes: files of lines and a table of keys.

    The files are in `folder` and are removed when the context ends.
    """

    def __init__(self, folder: Path, rules: CleaningRules, aligned: bool) -> None:
        """Choose the paths of the files; if `aligned`, there is a column of links."""
        self.rules = rules
        self.aligned = aligned
        columns = (*rules.languages, "links") if aligned else rules.languages
        self._paths = tuple(folder / f"cleaned.{column}" for column in columns)
        self._keys_path = folder / "cleaned.keys"
        self._spans: list[tuple[ChunkSpan, int]] = []  # with the number of rows
        self._span_files: list[int] = []  # for each span, the index of its corpus file
        self._num_files = 0

    def __enter__(self) -> CleanedText:
        return self

    def __exit__(self, *_: object) -> None:
        for path in (*self._paths, self._keys_path):
            path.unlink(missing_ok=True)

    def read(
        self,
        specs: Sequence[str],
        base: Path,
        alignments: Sequence[str] | None,
        workers: Workers,
        progress: Callable[[int], None],
    ) -> Tally:
        """Clean a corpus into the files and return the counts of rows that were read and rejected.

        `progress` is called after each chunk, with the number of rows read so far.
        """
        tally = Tally()
        document = 0
        position = 0
        starts = [0] * len(self._paths)
        self._num_files = len(specs)
        file_index = -1
        first_paths = [base / next((name.strip() for name in spec.split("|") if name.strip()), "") for spec in specs]
        languages = self.rules.languages
        chunks = read_chunks(
            specs, base, len(languages), alignments, CHUNK_ROWS, languages, self.rules.arrays, requires_target=False
        )
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in (*self._paths, self._keys_path)]
            for cleaned in workers.map(clean, ((chunk,) for chunk in chunks), (self.rules,)):
                tally.add(cleaned.tally)
                progress(tally.read)
                if cleaned.starts_file:
                    file_index = first_paths.index(cleaned.path, file_index + 1)  # an empty file has no chunk
                    document += 1
                    position = 0
                # The chunk's first document may have started in an earlier chunk.
                keys = np.frombuffer(bytearray(cleaned.keys), key_dtype(len(self.rules.languages)))
                keys["position"] += np.where(keys["document"] == 0, np.uint32(position), np.uint32(0))
                keys["document"] += np.uint32(document)
                document += cleaned.documents_ended
                # Without the end of a document, the chunk continues the document of the chunks before it.
                position = cleaned.position + (0 if cleaned.documents_ended else position)
                sizes = tuple(len(column) for column in cleaned.columns)
                for file, block in zip(files, (*cleaned.columns, keys.tobytes()), strict=True):
                    file.write(block)
                if len(keys):
                    self._spans.append((ChunkSpan(cleaned.path, self._paths, tuple(starts), sizes), len(keys)))
                    self._span_files.append(file_index)
                starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        return tally

    @property
    def chunk_sizes(self) -> list[int]:
        """Number of rows of each chunk."""
        return [num_rows for _, num_rows in self._spans]

    def keys(self) -> KeyTable:
        """Return the keys of all rows, memory-mapped."""
        dtype = key_dtype(len(self.rules.languages))
        if not self._spans:
            return np.zeros(0, dtype=dtype)
        return np.memmap(self._keys_path, dtype=dtype, mode="r")

    def count_rows_per_file(self, selected: npt.NDArray[np.bool_]) -> list[int]:
        """Return the number of selected rows of each corpus file; `selected` is a mask [rows]."""
        counts = [0] * self._num_files
        start = 0
        for (_, num_rows), file_index in zip(self._spans, self._span_files, strict=True):
            counts[file_index] += int(selected[start : start + num_rows].sum())
            start += num_rows
        return counts

    def rows_in_files(self, file_indices: Collection[int]) -> npt.NDArray[np.bool_]:
        """Return the mask [rows] of the rows of some corpus files."""
        masks = [np.zeros(0, dtype=bool)]
        for (_, num_rows), file_index in zip(self._spans, self._span_files, strict=True):
            masks.append(np.full(num_rows, file_index in file_indices))
        return np.concatenate(masks)

    def chunks(self, parts: Parts) -> Iterator[tuple[CleanedLines, Parts]]:
        """Yield the chunks, each with its slice of `parts` [rows]."""
        start = 0
        for span, num_rows in self._spans:
            yield span.read(), parts[start : start + num_rows]
            start += num_rows

    def text_chunks(self, parts: Parts) -> Iterator[tuple[CleanedLines, Parts]]:
        """Yield the chunks without the columns of arrays."""
        is_text = [name not in self.rules.arrays for name in self.rules.languages] + [True] * self.aligned
        for lines, chunk_parts in self.chunks(parts):
            yield CleanedLines(tuple(compress(lines.columns, is_text))), chunk_parts

    def names(self, stream: str, parts: Parts) -> Iterator[str]:
        """Yield the names of the arrays of a stream in the training rows."""
        column = self.rules.languages.index(stream)
        for lines, chunk_parts in self.chunks(parts):
            yield from compress(lines.column(column), chunk_parts == TRAIN)

    def row(self, position: int, line: int) -> Row:
        """Return the cleaned row at a position, which was read from this line of its file."""
        for span, num_rows in self._spans:
            if position < num_rows:
                return Row(span.read().rows()[position][: len(self.rules.languages)], span.origin, line)
            position -= num_rows
        raise AssertionError("the position must be in the text")


# Second pass: counting.


class ChunkCounts(NamedTuple):
    """Counts and texts of a chunk that the split and the tokenizers need."""

    text_chunks: list[Counter[str]]
    """Counts of text chunks (`words.count_chunks`) in the training rows, by language."""
    text: bytes
    """The training rows as tab-separated lines, for the digest of the corpus."""
    held_out: dict[Part, list[Cells]]
    """The rows of dev and test."""
    shared: list[int]
    """Number of training rows that contain a sentence of each of `sentence_sets`."""


def count(
    sentence_sets: list[SentenceSets], num_languages: int, normalize: str, lines: CleanedLines, parts: Parts
) -> ChunkCounts:
    """Count the text chunks between spaces of a chunk's training rows, and the rows that share sentences.

    Args:
        sentence_sets: The sentences of the dev and test sets that are given as files.
        num_languages: Number of columns that are text.
        normalize: Level of normalisation of the text whose chunks are counted.
        lines: The rows.
        parts: Part of each row.
    """
    rows = lines.rows()
    train = list(compress(rows, parts == TRAIN))
    columns = [[row[index] for row in train] for index in range(num_languages)]
    normalization = Normalization(normalize)
    return ChunkCounts(
        text_chunks=[count_chunks(map(normalization.text, column)) for column in columns],
        text="".join("\t".join(row) + "\n" for row in train).encode(),
        held_out={part: list(compress(rows, parts == PARTS.index(part))) for part in HELD_OUT},
        shared=[_count_rows_with(sentences, columns) for sentences in sentence_sets],
    )


def _count_rows_with(sentences: SentenceSets, columns: list[list[str]]) -> int:
    """Return the number of rows that contain one of the sentences."""
    matches = [map(known.__contains__, column) for known, column in zip(sentences, columns, strict=True)]
    return sum(map(any, zip(*matches, strict=True)))


# Third pass: segmentation into ids.


class LinkOptions(NamedTuple):
    """Origin and use of the links between two languages."""

    aligner: Aligner | None
    """Aligner that computes links, if the text has none and they are needed."""
    store_links: bool
    """True if links are stored next to the ids."""
    text: TextConfig
    """Settings of annotations, which follow links."""
    copy_missing_source: bool
    """True if the target is copied to the source of rows without source text."""


def encode(
    tokenizers: tuple[Tokenizer, ...], linking: LinkOptions, lines: CleanedLines, parts: Parts
) -> tuple[list[Column], list[tuple[int, int]]]:
    """Segment the training rows of a chunk.

    Returns:
        The columns to store: the ids of each language, the unknown words of each language whose tokens are words (see
        `characters.codes`) and, if they are stored, the links. Then, for each language, the number of unknown tokens
        of its text and the number of all tokens.
    """
    texts = [list(compress(lines.column(index), parts == TRAIN)) for index in range(len(lines.columns))]
    if linking.copy_missing_source:
        texts[0] = [source or target for source, target in zip(*texts, strict=True)]
    ids: list[Column] = []
    unknown_words: list[Column] = []
    unknown_counts: list[tuple[int, int]] = []
    for column, tokenizer in zip(texts, tokenizers, strict=False):
        flat, sizes = _cached_tokenizer(tokenizer).ids(column)
        is_unknown = flat == UNK
        ids.append((flat.astype(id_dtype(tokenizer)).tobytes(), sizes.astype(np.uint64)))
        unknown_counts.append((int(np.count_nonzero(is_unknown)), len(flat)))
        if tokenizer.type == "words":
            rows_with_unknown = np.repeat(np.arange(len(sizes)), sizes)[is_unknown]
            words = _unknown_words(tokenizer, column, set(rows_with_unknown.tolist()))
            values, lengths = codes(words)
            unknown_words.append((values.tobytes(), lengths))
    links: list[Column] = []
    if linking.store_links or linking.text.annotation is not None:
        linked = _link_rows(texts, tokenizers, linking)
        if linking.text.annotation is not None:
            # Annotated rows replace those of both languages.
            ids[:2] = map(_id_column, (linked.sources, linked.targets), tokenizers)
        if linking.store_links:
            stored = ragged_links(linked.links)
            lengths = stored.lengths(np.arange(len(stored))).astype(np.uint64)
            links.append((stored.flat.astype(LINK_TYPE).tobytes(), lengths))
    return ids + unknown_words + links, unknown_counts


def id_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """Return the type that a tokenizer's ids are stored as."""
    return np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")


def _id_column(rows: list[Segmented], tokenizer: Tokenizer) -> Column:
    flat = np.fromiter((id for row in rows for id in row.ids), dtype=id_dtype(tokenizer))
    return flat.tobytes(), np.fromiter((len(row.ids) for row in rows), dtype=np.uint64)


class _LinkedRows(NamedTuple):
    """Rows as a model reads and writes them, and the links between their tokens."""

    sources: list[Segmented]
    targets: list[Segmented]
    links: list[set[Link]]


def _link_rows(texts: list[list[str]], tokenizers: tuple[Tokenizer, ...], linking: LinkOptions) -> _LinkedRows:
    """Return the rows of a source and a target with their links, annotated if the config says so."""
    sources, targets = (tokenizer.segment(column) for tokenizer, column in zip(tokenizers, texts, strict=False))
    if len(texts) > len(tokenizers):  # the last column holds links
        links = links_of_rows(sources, targets, texts[-1])
    else:
        assert linking.aligner is not None
        if linking.store_links:
            links = links_of_rows(sources, targets, _align_rows(linking.aligner, *texts))
        else:
            from rnnsearch.align.aligner import Pair  # imports torch

            links = linking.aligner.links(list(map(Pair.from_tokens, sources, targets)))
    annotation = build_annotation(linking.text, *tokenizers)
    if annotation is None:
        return _LinkedRows(sources, targets, links)
    sources = [annotation.annotate_source(text) for text in sources]
    targets = [annotation.annotate_target(*row) for row in zip(targets, links, sources, strict=True)]
    # An annotated target has several tokens per word, the first of which keeps the links.
    step = annotation.tokens_per_word
    return _LinkedRows(sources, targets, [{(j, step * i) for j, i in row_links} for row_links in links])


def _unknown_words(tokenizer: Tokenizer, texts: list[str], rows: set[int]) -> list[list[str]]:
    """Return the unknown words of each text; only the texts of these rows have any."""
    words: list[list[str]] = [[] for _ in texts]
    indices = sorted(rows)
    for index, segmented in zip(indices, tokenizer.segment([texts[index] for index in indices]), strict=True):
        words[index] = segmented.spelled_ids.unknown
    return words


def _align_rows(aligner: Aligner, sources: list[str], targets: list[str]) -> list[str]:
    """Return an aligner's links in the Pharaoh format; a row without source or target text has none."""
    from rnnsearch.align.aligner import Pair  # imports torch

    pairs = list(map(Pair.from_words, sources, targets))
    return [format_pharaoh(links) for links in aligner.links(pairs)]


@lru_cache(maxsize=16)
def _cached_tokenizer(tokenizer: Tokenizer) -> CachedTokenizer:
    return CachedTokenizer(tokenizer)
