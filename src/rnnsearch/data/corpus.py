"""Reading text: lines, and rows of sentences with their translations, as streams, from plain, .gz and .zst files.

Only "\\n" ends a line (one sentence a line, always); a "\\r" before it belongs to the line end. Other
characters that Python would break lines at (U+2028, U+0085, form feed) stay inside the sentence.
"""

import gzip
import io
import zlib
from codecs import BOM_UTF8
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from rnnsearch.errors import DataError
from rnnsearch.metrics.alignment_error import check_range
from rnnsearch.text.alignments import Links, parse_pharaoh, words

INVALID = "invalid UTF-8"
ONE_COLUMN = "one column"
LONGEST = 1 << 20
"""Bytes of a line. A sentence has some hundreds; a file whose lines do not end would fill the memory."""
CUT = LONGEST + 8
"""Bytes of a longer one that are still looked at, to tell that it is: more than that with its last character gone."""
HELD = 1 << 24
"""Bytes of lines that are held at a time, give or take `_STEP` lines: of long lines, fewer than asked for."""
_STEP = 16
_BLOCK = 1 << 11
"""Bytes of a .zst file decompressed at a time: they may become 32,768 times as many."""


class Row(NamedTuple):
    """A sentence and its translations, with where they stand; an empty text where the row lacks a side."""

    texts: tuple[str, ...]
    path: Path
    line: int
    fault: str | None = None
    """Why it cannot be used, if so."""
    links: Links | None = None
    """The word alignment, where the corpus has one."""
    document: int = 0
    """Of a corpus that says where documents end: which one it is of."""

    @property
    def source(self) -> str:
        """The first side."""
        return self.texts[0]

    @property
    def target(self) -> str:
        """The last side."""
        return self.texts[-1]

    @property
    def where(self) -> str:
        """`file:line`, counted from 1."""
        return f"{self.path}:{self.line}"

    @property
    def ends_document(self) -> bool:
        """Whether it is an empty line on all sides."""
        return not any(map(str.strip, self.texts))


def read_lines(path: Path, cut: bool = False) -> Iterator[str]:
    """The lines of a UTF-8 file, empty ones included. With `cut`, of a line of more than `LONGEST` bytes the first
    ones, still more than that.

    Errors: DataError for a missing or damaged file, and for a line that is too long or no UTF-8.
    """
    for number, line in enumerate(_raw_lines(path, cut), 1):
        try:
            yield decoded(line)
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x} at position {error.start}"
            raise DataError(f"{path}:{number}: must be UTF-8; got {wrong}") from None


class Chunk(NamedTuple):
    """Lines of a corpus as they stand in its files, without their ends, one below the other."""

    texts: tuple[bytes | None, ...]
    """Of each side, None where these lines lack it; of a TSV file, whole lines."""
    sides: int
    links: bytes | None
    path: Path
    """The first file."""
    links_path: Path | None
    first: int
    """The number of the first line, from 1."""

    @property
    def given(self) -> int:
        """How many sides there are files of."""
        return self.sides if self._is_table else sum(text is not None for text in self.texts)

    @property
    def _is_table(self) -> bool:
        return len(self.texts) < self.sides

    def rows(self) -> Iterator[Row]:
        """Errors: DataError for a file that is no TSV, a link that is none or points past its sentences."""
        rows = self._of_table() if self._is_table else self._of_files()
        return rows if self.links is None else map(self._aligned, rows, self.links.split(b"\n"))

    def _of_files(self) -> Iterator[Row]:
        try:
            sides = [repeat("") if text is None else text.decode("utf-8").split("\n") for text in self.texts]
        except UnicodeDecodeError:
            raw = zip(*(repeat(b"") if text is None else text.split(b"\n") for text in self.texts), strict=False)
            return (_row(cells, self.path, number) for number, cells in enumerate(raw, self.first))
        return map(Row, zip(*sides, strict=False), repeat(self.path), count(self.first))

    def _of_table(self) -> Iterator[Row]:
        assert self.texts[0] is not None
        for number, line in enumerate(self.texts[0].split(b"\n"), self.first):
            cells = line.split(b"\t", self.sides)[: self.sides]
            if number == 1 and line and len(cells) == 1:
                what, wanted = "two text files", "a source and a target with a tab between"
                if self.sides != 2:
                    what, wanted = "text files", f"{self.sides} columns with tabs between"
                advice = f"{what} are written {written(self.sides)}"
                raise DataError(f"{self.path}:1: must have {wanted} ({advice}); got no tab")
            row = _row((*cells, *[b""] * (self.sides - len(cells))), self.path, number)
            yield row._replace(fault=row.fault or ONE_COLUMN) if line and len(cells) == 1 else row

    def _aligned(self, row: Row, line: bytes) -> Row:
        where = f"{self.links_path}:{row.line}"
        links = parse_pharaoh(line.decode("utf-8", errors="replace"), where)
        if row.fault is not None:
            return row
        check_range(links.possible, len(words(row.source)), len(words(row.target)), where)
        return row._replace(links=links)


def written(sides: int) -> str:
    """How files of so many sides are written."""
    return "source_file|target_file" if sides == 2 else "|".join(["file"] * sides)


def read_rows(
    specs: Sequence[str], base: Path, sides: int = 2, alignments: Sequence[str] | None = None, documents: bool = False
) -> Iterator[Row]:
    """The rows of several files one after the other; paths are relative to `base`.

    A spec is a text file a side, `source_file|target_file`, or one TSV file, whose first columns count. An empty part
    (of two sides, of the source alone) means that these rows lack that side; so does, of three sides and more, an
    empty cell. Rows with invalid UTF-8 or a missing column come too, with their fault. `alignments` are files in the
    Pharaoh format, one for each spec. With `documents`, lines that are empty on all sides end a document and are no
    rows; a file ends one, too. Errors: DataError for a missing or damaged file, different line counts, a file that is
    no TSV, a link that is none or points past its sentences.
    """
    document = 0
    for chunk in read_chunks(specs, base, sides, alignments):
        document += chunk.first == 1
        for row in chunk.rows():
            if documents and row.ends_document:
                document += 1
            else:
                yield row._replace(document=document) if documents else row


def read_chunks(
    specs: Sequence[str], base: Path, sides: int = 2, alignments: Sequence[str] | None = None, size: int = 1000
) -> Iterator[Chunk]:
    """The lines of `read_rows`, `size` at a time, not yet looked at. Errors: as there, but for faults of lines."""
    for number, spec in enumerate(specs):
        parts = [part.strip() for part in spec.split("|")]
        wrong = len(parts) not in (1, sides) or not any(parts) or (sides == 2 and not parts[-1])
        if wrong:
            what = "a pair of text files" if sides == 2 else f"text files of {sides} sides"
            raise DataError(f'{what} must be written {written(sides)}; got "{spec}"')
        links = None if alignments is None else base / alignments[number]
        yield from _chunks([base / part if part else None for part in parts], sides, links, size)


def _chunks(sides: list[Path | None], count: int, links: Path | None, size: int) -> Iterator[Chunk]:
    paths = [path for path in (*sides, links) if path is not None]
    check_files(paths)
    with ExitStack() as stack:
        files = [stack.enter_context(closing(_raw_lines(path))) for path in paths]
        first = 1
        while True:
            columns = _columns(files, size)
            for path, file, column in zip(paths, files, columns, strict=True):
                if len(column) != len(columns[0]):
                    here = first - 1 + len(columns[0]) + sum(1 for _ in files[0])
                    there = first - 1 + len(column) + sum(1 for _ in file)
                    wanted = f"{paths[0]} and {path} must have the same number of lines"
                    raise DataError(f"{wanted}; got {here} and {there}")
            if not columns[0]:
                return
            below = iter([b"\n".join(column) for column in columns])
            texts = tuple(None if path is None else next(below) for path in sides)
            yield Chunk(texts, count, next(below, None), paths[0], links, first)
            first += len(columns[0])


def _columns(files: Sequence[Iterator[bytes]], size: int) -> list[list[bytes]]:
    """The next lines of each file: `size`, or as many as are held at a time."""
    columns, taken, held = [list[bytes]() for _ in files], 0, 0
    while taken < size and held < HELD and all(len(column) == taken for column in columns):
        step = min(_STEP, size - taken)
        for file, column in zip(files, columns, strict=True):
            column.extend(islice(file, step))
            held += sum(map(len, column[taken:]))
        taken += step
    return columns


def decoded(line: bytes) -> str:
    """A line as text; the end of one that was cut may be part of a character. Errors: UnicodeDecodeError."""
    return line.decode("utf-8", errors="ignore" if len(line) > LONGEST else "strict")


def check_files(paths: Sequence[Path]) -> None:
    """Errors: DataError for the first path that is not a file."""
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")


def _row(cells: Sequence[bytes], path: Path, line: int) -> Row:
    try:
        return Row(tuple(cell.decode("utf-8") for cell in cells), path, line)
    except UnicodeDecodeError:
        return Row(tuple(cell.decode("utf-8", errors="replace") for cell in cells), path, line, INVALID)


def _raw_lines(path: Path, cut: bool = False) -> Generator[bytes, None, None]:
    """The lines without their ends, nor a byte order mark at the beginning of the file, which may be a pipe."""
    if path.is_dir() or not path.exists():
        check_files([path])
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(iter(partial(file.readline, CUT), b""), 1):
                if len(line) > LONGEST + line.endswith(b"\n"):
                    if not cut:
                        what = (
                            f"a line must have at most {LONGEST:,} bytes; it has more (must be text, a sentence a line)"
                        )
                        raise DataError(f"{path}:{number}: {what}")
                    rest = line
                    while rest and not rest.endswith(b"\n"):
                        rest = file.readline(CUT)
                text = line.removeprefix(BOM_UTF8) if number == 1 else line
                yield text.removesuffix(b"\n").removesuffix(b"\r")
    except (gzip.BadGzipFile, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DataError(
            f"{path}:{number + 1}: the compressed file is damaged here or a little before: {error}"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(path, "rb")
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdFrames(path), 1 << 20)
    return path.open("rb")


class _ZstdFrames(io.RawIOBase):
    """The content of a .zst file of any number of frames. The library's own reader takes a file that was
    cut short for a whole one; this raises ZstdError there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._frame: Any = None
        self._rest = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._ready:
            block = self._rest or self._file.read(_BLOCK)
            if not block:
                if self._frame is not None and not self._frame.eof:
                    raise zstandard.ZstdError("its last frame is not whole")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(block))
            self._rest = self._frame.unused_data
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()
