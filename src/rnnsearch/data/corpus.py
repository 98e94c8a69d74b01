r"""Readers of text files: lines, and rows of sentences with their translations, from plain and compressed files.

All commands read text through this module. Only "\n" ends a line, and a "\r" before it belongs to the line end, so
that every line is one sentence: other characters at which Python breaks lines (U+2028, U+0085, form feed) stay inside
the sentence. Files are streamed; memory is bounded even for files without line ends.

Line numbers in messages are those of the files. Files may be invalid or enormous: tests/data/test_corpus.py,
tests/stress/bombs.py.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import zstandard

from rnnsearch.errors import DataError
from rnnsearch.metrics.alignment_error import check_range
from rnnsearch.text.alignments import Links, parse_pharaoh, words

if TYPE_CHECKING:
    from rnnsearch.config.data import ArrayConfig
    from rnnsearch.data.pair_formats import Reader

INVALID_UTF8 = "invalid UTF-8"
"""Problem of a row whose line is not UTF-8."""
ONE_COLUMN = "one column"
"""Problem of a row without a second column."""
MAX_LINE_BYTES = 1 << 20
"""Limit for a line. Sentences have some hundred bytes; a file without line ends would fill the memory."""
MAX_READ_BYTES = MAX_LINE_BYTES + 8
"""Bytes read of a longer line: after an incomplete last character is dropped, they are still above the limit."""
MAX_BUFFERED_BYTES = 1 << 24
"""Bytes after which a chunk ends early, give or take `_LINES_PER_READ` lines."""
_LINES_PER_READ = 16
_COMPRESSED_BLOCK_BYTES = 1 << 11
"""Bytes of a compressed file that are decompressed at a time; those of .zst can expand 32,768-fold."""
MAX_XZ_BYTES = 1 << 28
"""Memory limit of the dictionary of .xz files; `xz -9` needs a quarter of it."""


class Row(NamedTuple):
    """A sentence and its translations, with their location; a missing text is empty."""

    texts: tuple[str, ...]
    """Sentence in each language."""
    path: Path
    """File of the row."""
    line: int
    """Number of its line, counted from 1."""
    problem: str | None = None
    """Reason why the row cannot be used, if there is one."""
    links: Links | None = None
    """Word alignment, if the corpus has one."""
    document: int = 0
    """Number of its document, if the corpus marks the ends of documents."""

    @property
    def source(self) -> str:
        """The first text."""
        return self.texts[0]

    @property
    def target(self) -> str:
        """The last text."""
        return self.texts[-1]

    @property
    def location(self) -> str:
        """`file:line`, counted from 1."""
        return f"{self.path}:{self.line}"

    @property
    def ends_document(self) -> bool:
        """True if all texts are empty."""
        return not any(map(str.strip, self.texts))


def read_lines(path: Path, truncate: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, including empty ones.

    Args:
        path: File, which may be a pipe.
        truncate: Truncate lines of more than `MAX_LINE_BYTES` bytes, to a length that is still above the limit.

    Raises:
        DataError: The file is missing or damaged, or a line is too long or not UTF-8.
    """
    for number, line in enumerate(_raw_lines(path, truncate), 1):
        try:
            yield decode_line(line)
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x} at position {error.start}"
            raise DataError(f"{path}:{number}: must be UTF-8; got {wrong}") from None


def decode_line(line: bytes) -> str:
    """Return the text of a line, without the incomplete last character of a truncated one.

    Raises:
        UnicodeDecodeError: The line is not UTF-8.
    """
    return line.decode("utf-8", errors="ignore" if len(line) > MAX_LINE_BYTES else "strict")


def read_rows(
    specs: Sequence[str],
    base: Path,
    num_texts: int = 2,
    alignments: Sequence[str] | None = None,
    documents: bool = False,
    languages: Sequence[str] = (),
    arrays: Mapping[str, ArrayConfig] | None = None,
) -> Iterator[Row]:
    """Yield the rows of several files, one after the other.

    Rows with invalid UTF-8 or a missing column are included, with their `problem`.

    Args:
        specs: For each part of the corpus, a text file per language, separated by "|" (`source_file|target_file`), or
            a TSV file, whose first columns count. An empty file name means that these rows do not have that text (of
            two languages, only the source may be missing); with three languages or more, so does an empty cell.
        base: Folder that paths are relative to.
        num_texts: Number of languages.
        alignments: Files of links in the Pharaoh format, one for each spec.
        documents: Skip lines that are empty in all languages: they end a document, like the end of a file.
        languages: Codes of the languages, for files that contain several (TMX, XLIFF, PO, CSV and XLSX), or names of
            streams of arrays.
        arrays: Options of the streams of arrays, whose "texts" are the names of the arrays (see `arrays.array_names`).

    Raises:
        DataError: A file is missing, damaged or not TSV, files differ in their number of lines, or a link is invalid
            or points outside its sentences.
    """
    document = 0
    for chunk in read_chunks(specs, base, num_texts, alignments, languages=languages, arrays=arrays):
        # The start of a file starts a document.
        document += chunk.first_line == 1
        for row in chunk.rows():
            if documents and row.ends_document:
                document += 1
            else:
                yield row._replace(document=document) if documents else row


def read_chunks(
    specs: Sequence[str],
    base: Path,
    num_texts: int = 2,
    alignments: Sequence[str] | None = None,
    chunk_rows: int = 1000,
    languages: Sequence[str] = (),
    arrays: Mapping[str, ArrayConfig] | None = None,
    requires_target: bool = True,
) -> Iterator[Chunk]:
    """Yield the lines of `read_rows` in chunks that are not parsed yet.

    Args:
        specs: See `read_rows`.
        base: See `read_rows`.
        num_texts: See `read_rows`.
        alignments: See `read_rows`.
        chunk_rows: Maximum number of lines per chunk.
        languages: See `read_rows`.
        arrays: See `read_rows`.
        requires_target: False if one of two files may be the source only.

    Raises:
        DataError: A file is missing or damaged, or files differ in their number of lines.
    """
    for index, spec in enumerate(specs):
        names = [name.strip() for name in spec.split("|")]
        if len(names) == 1 and languages and (reader := _unit_reader(names[0])) is not None:
            if alignments is not None:
                raise DataError(f"{names[0]}: word alignments need text files, whose lines they belong to")
            yield from _read_unit_chunks(base / names[0], reader, languages, chunk_rows)
            continue
        is_target_missing = requires_target and num_texts == 2 and not names[-1]
        if len(names) == num_texts > 2 and not any(names):
            raise DataError(f'training text must name at least one file; got "{spec}"')
        has_columns = len(names) == 1 and not arrays
        if not (has_columns or len(names) == num_texts) or not any(names) or is_target_missing:
            what = "a pair of text files" if num_texts == 2 else f"text files in {num_texts} languages"
            raise DataError(f'{what} must be written {spec_format(num_texts)}; got "{spec}"')
        paths = [base / name if name else None for name in names]
        links_path = None if alignments is None else base / alignments[index]
        lines = [_raw_lines(path) for path in paths if path is not None]
        if arrays:
            from rnnsearch.data.arrays import array_names  # imports the config, which most users do not need

            lines = []
            for path, name, language in zip(paths, names, languages, strict=True):
                if path is not None:
                    options = arrays.get(language)
                    lines.append(_raw_lines(path) if options is None else array_names(path, name, options))
        yield from _read_chunks(paths, lines, num_texts, links_path, chunk_rows)


def spec_format(num_texts: int) -> str:
    """Return how the files of a corpus in so many languages are written in a run file."""
    return "source_file|target_file" if num_texts == 2 else "|".join(["file"] * num_texts)


def check_files(paths: Sequence[Path]) -> None:
    """Raise DataError for the first path that is not a file."""
    for path in paths:
        if not path.is_file():
            problem = "is a folder, not a file" if path.is_dir() else "no such file"
            if path.is_fifo():
                problem = "is a pipe, which can be read only once; write its text to a file first"
            raise DataError(f"{path}: {problem}")


class Chunk(NamedTuple):
    """Consecutive lines of a corpus as they are in its files, without the last line end."""

    texts: tuple[bytes | None, ...]
    """Lines in each language, None if these are missing; or the lines of one TSV file."""
    num_texts: int
    """Number of languages."""
    links: bytes | None
    """Lines of links; None without links."""
    path: Path
    """First file."""
    links_path: Path | None
    """File of links; None without links."""
    first_line: int
    """Number of the first line, counted from 1."""

    @property
    def num_present(self) -> int:
        """Number of languages that have a file."""
        return self.num_texts if self._is_tsv else sum(text is not None for text in self.texts)

    @property
    def _is_tsv(self) -> bool:
        return len(self.texts) < self.num_texts

    def rows(self) -> Iterator[Row]:
        """Parse the lines.

        Raises:
            DataError: The file is not TSV, or a link is invalid or points outside its sentences.
        """
        rows = self._tsv_rows() if self._is_tsv else self._text_rows()
        return rows if self.links is None else map(self._add_links, rows, self.links.split(b"\n"))

    def _text_rows(self) -> Iterator[Row]:
        """Yield the rows of text files; decoding whole files at once is fast, but fails if one line is invalid."""
        try:
            columns = [repeat("") if text is None else text.decode("utf-8").split("\n") for text in self.texts]
        except UnicodeDecodeError:
            raw_columns = [repeat(b"") if text is None else text.split(b"\n") for text in self.texts]
            raw_rows = enumerate(zip(*raw_columns, strict=False), self.first_line)
            return (_decode_row(cells, self.path, number) for number, cells in raw_rows)
        return map(Row, zip(*columns, strict=False), repeat(self.path), count(self.first_line))

    def _tsv_rows(self) -> Iterator[Row]:
        """Yield the rows of a TSV file."""
        assert self.texts[0] is not None
        for number, line in enumerate(self.texts[0].split(b"\n"), self.first_line):
            # Further columns, such as identifiers and licences, are ignored.
            cells = line.split(b"\t", self.num_texts)[: self.num_texts]
            if number == 1 and line:
                self._require_columns(line.count(b"\t") + 1)
            padding = [b""] * (self.num_texts - len(cells))
            row = _decode_row((*cells, *padding), self.path, number)
            has_one_column = bool(line) and len(cells) == 1
            yield row._replace(problem=row.problem or ONE_COLUMN) if has_one_column else row

    def _require_columns(self, num_columns: int) -> None:
        """Raise DataError if the first row of a TSV file does not have the columns of its languages."""
        # A pair may be followed by further columns.
        if num_columns == self.num_texts or num_columns > self.num_texts == 2:
            return
        wanted = f"{self.num_texts} columns, one per language in the order of data.source and data.target"
        what = "text files"
        if self.num_texts == 2:
            wanted = "a source and a target with a tab between"
            what = "two text files"
        got = "no tab" if num_columns == 1 else f"{num_columns} columns"
        raise DataError(
            f"{self.path}:1: must have {wanted} ({what} are written {spec_format(self.num_texts)}); got {got}"
        )

    def _add_links(self, row: Row, line: bytes) -> Row:
        location = f"{self.links_path}:{row.line}"
        # Parsed before the test below, so that invalid links are reported on unusable rows, too.
        links = parse_pharaoh(line.decode("utf-8", errors="replace"), location)
        if row.problem is not None:
            return row
        check_range(links.possible, len(words(row.source)), len(words(row.target)), location)
        return row._replace(links=links)


def _decode_row(cells: Sequence[bytes], path: Path, line: int) -> Row:
    """Return a row; if it is not UTF-8, with replacement characters and a problem."""
    try:
        return Row(tuple(cell.decode("utf-8") for cell in cells), path, line)
    except UnicodeDecodeError:
        return Row(tuple(cell.decode("utf-8", errors="replace") for cell in cells), path, line, INVALID_UTF8)


def _unit_reader(name: str) -> Reader | None:
    """Return the reader of a file of units, by its suffix without that of a compression; None for text."""
    from rnnsearch.data.pair_formats import READERS  # with all formats, which most users of this module do not need

    path = PurePath(name.lower())
    if path.suffix == ".gz" or path.suffix in _DECOMPRESSORS:
        path = path.with_suffix("")
    return READERS.get(path.suffix)


def _read_unit_chunks(path: Path, reader: Reader, languages: Sequence[str], chunk_rows: int) -> Iterator[Chunk]:
    """Yield the chunks of a file that contains all languages."""
    check_files([path])
    try:
        with _open(path) as file:
            rows = reader(path, file, languages)
            for first in count(1, chunk_rows):
                columns = list(zip(*islice(rows, chunk_rows), strict=True))
                if not columns:
                    return
                texts = tuple("\n".join(column).encode("utf-8", "replace") for column in columns)
                yield Chunk(texts, len(languages), None, path, None, first)
    except _READ_ERRORS as error:
        raise _read_error(path, error) from None


def _read_chunks(
    text_paths: list[Path | None],
    lines: Sequence[Generator[bytes, None, None]],
    num_texts: int,
    links_path: Path | None,
    chunk_rows: int,
) -> Iterator[Chunk]:
    """Yield the chunks of one part of a corpus, given the lines of the files that it has."""
    paths = [path for path in (*text_paths, links_path) if path is not None]
    check_files(paths)
    if links_path is not None:
        lines = [*lines, _raw_lines(links_path)]
    with ExitStack() as stack:
        files = [stack.enter_context(closing(generator)) for generator in lines]
        first_line = 1
        while True:
            # All files advance together, so that a missing line is noticed where it is missing.
            columns = _next_lines(files, chunk_rows)
            num_rows = len(columns[0])
            for path, file, column in zip(paths, files, columns, strict=True):
                if len(column) != num_rows:
                    # Count the remaining lines, for the message.
                    first_total = first_line - 1 + num_rows + sum(1 for _ in files[0])
                    total = first_line - 1 + len(column) + sum(1 for _ in file)
                    wanted = f"{paths[0]} and {path} must have the same number of lines"
                    raise DataError(f"{wanted}; got {first_total} and {total}")
            if not num_rows:
                return
            blocks = iter([b"\n".join(column) for column in columns])
            texts = tuple(None if path is None else next(blocks) for path in text_paths)
            yield Chunk(texts, num_texts, next(blocks, None), paths[0], links_path, first_line)
            first_line += num_rows


def _next_lines(files: Sequence[Iterator[bytes]], max_lines: int) -> list[list[bytes]]:
    """Return the next lines of each file: `max_lines`, or fewer if they reach `MAX_BUFFERED_BYTES`."""
    columns: list[list[bytes]] = [[] for _ in files]
    num_lines = 0
    num_bytes = 0
    while (
        num_lines < max_lines
        and num_bytes < MAX_BUFFERED_BYTES
        and all(len(column) == num_lines for column in columns)  # no file has ended
    ):
        step = min(_LINES_PER_READ, max_lines - num_lines)
        for file, column in zip(files, columns, strict=True):
            column.extend(islice(file, step))
            num_bytes += sum(map(len, column[num_lines:]))
        num_lines += step
    return columns


def _raw_lines(path: Path, truncate: bool = False) -> Generator[bytes, None, None]:
    """Yield the lines of a file, without line ends and without a byte order mark at its start."""
    if path.is_dir() or not path.exists():
        check_files([path])  # raises; a pipe exists but is not a file
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_READ_BYTES), b""), 1):
                if len(line) > MAX_LINE_BYTES + line.endswith(b"\n"):
                    if not truncate:
                        wanted = f"a line must have at most {MAX_LINE_BYTES:,} bytes"
                        raise DataError(f"{path}:{number}: {wanted}; it has more (must be text, a sentence a line)")
                    block = line
                    while block and not block.endswith(b"\n"):  # skip the rest of the line
                        block = file.readline(MAX_READ_BYTES)
                if number == 1 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                    raise DataError(f"{path}: must be UTF-8; got UTF-16 (convert it: iconv -f UTF-16 -t UTF-8)")
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                # Only \n and \r\n end a line. Other separators of Unicode are text, or parallel files could differ in
                # lines.
                yield text.removesuffix(b"\n").removesuffix(b"\r")
    except _READ_ERRORS as error:
        raise _read_error(path, error, number + 1) from None


_READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
"""Errors of files that cannot be read, and of damaged compressed files."""


def _read_error(path: Path, error: Exception, line: int | None = None) -> DataError:
    """Return the error for a file that could not be read; the next line is given if lines are read."""
    # bz2 and gzip raise OSError without a number for damaged content.
    if isinstance(error, OSError) and error.errno is not None:
        return DataError(f"{path}: cannot be read: {error.strerror or error}")
    if line is None:
        return DataError(f"{path}: the compressed file is damaged: {error}")
    return DataError(f"{path}:{line}: the compressed file is damaged here or a little before: {error}")


def _open(path: Path) -> io.BufferedIOBase:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(path, "rb")
    if suffix in _DECOMPRESSORS:
        return io.BufferedReader(_CompressedFile(path, _DECOMPRESSORS[suffix]), 1 << 20)
    return path.open("rb")


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".bz2": bz2.BZ2Decompressor,
    ".xz": partial(lzma.LZMADecompressor, memlimit=MAX_XZ_BYTES),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
"""Decompressor of one stream by suffix, with the interface of `bz2.BZ2Decompressor`."""


class _CompressedFile(io.RawIOBase):
    """The content of a compressed file with any number of streams.

    Raises EOFError at the end of a truncated file, which the library of .zst does not notice.
    """

    def __init__(self, path: Path, make_decompressor: Callable[[], Any]) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._make_decompressor = make_decompressor
        self._stream: Any = None
        self._unused = b""  # compressed bytes after the end of a stream
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            block = self._unused or self._file.read(_COMPRESSED_BLOCK_BYTES)
            if not block:
                if self._stream is not None and not self._stream.eof:
                    raise EOFError("its last stream is not whole")
                return 0
            # Concatenated files, and those of parallel compressors, have several streams.
            if self._stream is None or self._stream.eof:
                self._stream = self._make_decompressor()
            self._ready = memoryview(self._stream.decompress(block))
            # The start of the next stream, if this one ends within the block.
            self._unused = self._stream.unused_data
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()
