"""Reading text: lines and sentence pairs, as streams, from plain, .gz and .zst files.

Only "\\n" ends a line (one sentence a line, always); a "\\r" before it belongs to the line end. Other
characters that Python would break lines at (U+2028, U+0085, form feed) stay inside the sentence.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from rnnsearch.errors import DataError
from rnnsearch.metrics.alignment_error import check_range
from rnnsearch.text.alignments import Links, parse_pharaoh
from rnnsearch.text.spans import words

INVALID = "invalid UTF-8"
ONE_COLUMN = "one column"
_BOM = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """A sentence and its translation, with where they stand. `fault` says why it cannot be used, if so."""

    source: str
    target: str
    path: Path
    line: int
    fault: str | None = None
    links: Links | None = None
    """The word alignment, where the corpus has one."""

    @property
    def where(self) -> str:
        """`file:line`, counted from 1."""
        return f"{self.path}:{self.line}"


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file, empty ones included.

    Errors: DataError for a missing or damaged file, and for invalid UTF-8, with the line.
    """
    for number, line in enumerate(_raw_lines(path), 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = f"byte 0x{line[error.start]:02x} at position {error.start}"
            raise DataError(f"{path}:{number}: must be UTF-8; got {wrong}") from None


class Chunk(NamedTuple):
    """Lines of a corpus as they stand in its files, without their ends, one below the other."""

    source: bytes
    """Of a TSV file, whole lines."""
    target: bytes | None
    links: bytes | None
    path: Path
    """The source's file."""
    links_path: Path | None
    first: int
    """The number of the first line, from 1."""

    def pairs(self) -> Iterator[Pair]:
        """Errors: DataError for a file that is no TSV, a link that is none or points past its sentences."""
        pairs = self._tsv() if self.target is None else self._two_files(self.target)
        if self.links is None:
            return pairs
        return map(self._aligned, pairs, self.links.split(b"\n"))

    def _two_files(self, target: bytes) -> Iterator[Pair]:
        try:
            sides = [side.decode("utf-8").split("\n") for side in (self.source, target)]
        except UnicodeDecodeError:
            lines = zip(self.source.split(b"\n"), target.split(b"\n"), strict=True)
            return (_pair(left, right, self.path, number) for number, (left, right) in enumerate(lines, self.first))
        return map(Pair, *sides, repeat(self.path), count(self.first))

    def _tsv(self) -> Iterator[Pair]:
        for number, line in enumerate(self.source.split(b"\n"), self.first):
            source, *columns = line.split(b"\t")
            if number == 1 and line and not columns:
                advice = "two text files are written source_file|target_file"
                wanted = "must have a source and a target with a tab between"
                raise DataError(f"{self.path}:1: {wanted} ({advice}); got no tab")
            pair = _pair(source, columns[0] if columns else b"", self.path, number)
            yield pair if columns or not line else pair._replace(fault=pair.fault or ONE_COLUMN)

    def _aligned(self, pair: Pair, line: bytes) -> Pair:
        where = f"{self.links_path}:{pair.line}"
        links = parse_pharaoh(line.decode("utf-8", errors="replace"), where)
        if pair.fault is not None:
            return pair
        check_range(links.possible, len(words(pair.source)), len(words(pair.target)), where)
        return pair._replace(links=links)


def read_pairs(specs: Sequence[str], base: Path, alignments: Sequence[str] | None = None) -> Iterator[Pair]:
    """The pairs of several files one after the other; paths are relative to `base`.

    A spec is `source_file|target_file` or one TSV file, whose first two columns count. Pairs with
    invalid UTF-8 or a missing column come too, with their fault. `alignments` are files in the Pharaoh format, one
    for each spec.
    Errors: DataError for a missing or damaged file, different line counts, a file that is no TSV, a link that is none
    or points past its sentences.
    """
    for chunk in read_chunks(specs, base, alignments):
        yield from chunk.pairs()


def read_chunks(
    specs: Sequence[str], base: Path, alignments: Sequence[str] | None = None, size: int = 1000
) -> Iterator[Chunk]:
    """The lines of `read_pairs`, `size` at a time, not yet looked at. Errors: as there, but for faults of lines."""
    for number, spec in enumerate(specs):
        source, bar, target = (part.strip() for part in spec.partition("|"))
        if bar and not (source and target and "|" not in target):
            raise DataError(f'a pair of text files must be written source_file|target_file; got "{spec}"')
        links = None if alignments is None else base / alignments[number]
        yield from _chunks(base / source, base / target if bar else None, links, size)


def _chunks(source: Path, target: Path | None, links: Path | None, size: int) -> Iterator[Chunk]:
    paths = [path for path in (source, target, links) if path is not None]
    check_files(paths)
    with ExitStack() as stack:
        files = [stack.enter_context(closing(_raw_lines(path))) for path in paths]
        first = 1
        while True:
            columns = [list(islice(file, size)) for file in files]
            for path, file, column in zip(paths, files, columns, strict=True):
                if len(column) != len(columns[0]):
                    here = first - 1 + len(columns[0]) + sum(1 for _ in files[0])
                    there = first - 1 + len(column) + sum(1 for _ in file)
                    raise _lengths(source, here, path, there)
            if not columns[0]:
                return
            texts = [b"\n".join(column) for column in columns]
            below = iter(texts[1:])
            yield Chunk(
                texts[0],
                None if target is None else next(below),
                None if links is None else next(below),
                source,
                links,
                first,
            )
            first += len(columns[0])


def files_of(specs: Sequence[str], base: Path) -> list[Path]:
    """All files that the specs name."""
    return [base / part.strip() for spec in specs for part in spec.split("|")]


def check_files(paths: Sequence[Path]) -> None:
    """Errors: DataError for the first path that is not a file."""
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")


def _lengths(source: Path, sources: int, target: Path, targets: int) -> DataError:
    return DataError(f"{source} and {target} must have the same number of lines; got {sources} and {targets}")


def _pair(source: bytes, target: bytes, path: Path, line: int) -> Pair:
    try:
        return Pair(source.decode("utf-8"), target.decode("utf-8"), path, line)
    except UnicodeDecodeError:
        sides = (side.decode("utf-8", errors="replace") for side in (source, target))
        return Pair(next(sides), next(sides), path, line, INVALID)


def _raw_lines(path: Path) -> Generator[bytes, None, None]:
    """The lines without their ends, nor a byte order mark at the beginning of the file."""
    check_files([path])
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                text = line.removeprefix(_BOM) if number == 1 else line
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
            block = self._rest or self._file.read(1 << 17)
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
