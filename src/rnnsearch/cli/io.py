"""Reading of text lines, writing of results and messages to the user, shared by all commands.

Results go to standard output or a file, everything else to standard error. Text is read in chunks, so that a program
that writes a line to `rnnsearch translate` and waits gets its answer, and memory is bounded by the length of lines.

Before changing it: only line feeds end lines, so that line numbers of parallel files agree, and an output file appears
only when it is complete. Tests: tests/commands/test_translate.py, tests/commands/test_outputs.py.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO, TypeVar, cast

from rnnsearch.errors import DataError
from rnnsearch.utils.files import atomic_file, path_conflict
from rnnsearch.utils.stdio import read_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from rnnsearch.config.data import ArrayConfig
    from rnnsearch.data.progress import Progress as StageProgress
    from rnnsearch.data.ragged import RaggedArray
    from rnnsearch.text.several_sources import SourceText

Line = TypeVar("Line")
MAX_CHUNK_SQUARED_CHARACTERS = 1 << 31
"""Limit of the sum of squared line lengths of a chunk, because stored attention weights grow with the squared length.

1,000 lines of 1,400 characters reach it. The line that exceeds it is the last of its chunk.
"""
LIVE_LINES_PER_SECOND = 4
"""Refreshes of live lines on a terminal."""


# Messages and progress.


def print_message(text: str) -> None:
    """Print a message to the user on standard error."""
    sys.stderr.write(f"{text}\n")


def error_console() -> Console:
    """Return a rich console on standard error, for progress bars."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def download_progress() -> Iterator[Callable[[int, int | None], None]]:
    """Provide a function that shows downloaded and total bytes as a progress bar; nothing is shown without a call."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=error_console())

    def show(downloaded: int, total: int | None) -> None:
        if not bar.tasks:
            bar.start()
            bar.add_task("downloading", total=total)
        bar.update(bar.task_ids[0], completed=downloaded, total=total)

    try:
        yield show
    finally:
        if bar.tasks:
            bar.stop()


@contextmanager
def preparation_progress() -> Iterator[StageProgress]:
    """Provide a function that shows the stages of a preparation: live lines on a terminal, otherwise one line each."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from rnnsearch.data.progress import amount, stage_lines

    console = error_console()
    if not console.is_terminal:
        yield stage_lines(print_message)
        return
    columns = (TextColumn("{task.description}"), TextColumn("{task.fields[amount]}"), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, refresh_per_second=LIVE_LINES_PER_SECOND) as lines:

        def show(stage: str, done: int, total: int | None, unit: str) -> None:
            if stage not in tasks:
                if tasks:
                    lines.stop_task(next(reversed(tasks.values())))  # stops the clock of the stage before
                tasks[stage] = lines.add_task(stage, total=None, amount="")
            if text := amount(done, total, unit):
                lines.update(tasks[stage], amount=text)

        yield show


# Reading.


def input_chunks(path: Path | None, size: int) -> Iterator[list[str]]:
    """Yield the lines of a file, or of standard input, in chunks of at most `size` lines.

    From standard input a chunk also ends where no more input is available, so that lines are answered as they come.
    Only a line feed ends a line. A line of more than `corpus.MAX_LINE_BYTES` bytes is cut, but stays longer than that.

    Raises:
        DataError: The file does not exist, or a line is not UTF-8.
    """
    from rnnsearch.data.corpus import read_lines

    lines: Iterator[str | None] = _standard_input_lines() if path is None else read_lines(path, truncate=True)
    return chunked(lines, size)


def _standard_input_lines() -> Iterator[str | None]:
    """Yield the lines of standard input, and None where reading on would wait."""
    from rnnsearch.data.corpus import MAX_READ_BYTES, decode_line

    number = 0
    for line in read_lines(cast(BufferedIOBase, sys.stdin.buffer), MAX_READ_BYTES):
        if line is None:
            yield None
            continue
        number += 1
        try:
            text = decode_line(line)
        except UnicodeDecodeError:
            raise DataError(f"<standard input>:{number}: must be text in UTF-8; got other bytes") from None
        yield text


def chunked(lines: Iterable[str | None], size: int) -> Iterator[list[str]]:
    """Yield lines in chunks of at most `size`, or fewer if they are very long or None follows.

    Chunks depend only on the lines since the last chunk, so a chunk that is split off and chunked again stays whole.
    """
    return _chunked(lines, size, len)


def _chunked(lines: Iterable[Line | None], size: int, length: Callable[[Line], int]) -> Iterator[list[Line]]:
    """Yield lines of any type in chunks like `chunked`; `length` returns the characters of a line."""
    chunk: list[Line] = []
    squares = 0
    for line in lines:
        if line is not None:
            chunk.append(line)
            squares += length(line) ** 2
        is_full = len(chunk) == size or squares > MAX_CHUNK_SQUARED_CHARACTERS
        if is_full or (line is None and chunk):
            yield chunk
            chunk = []
            squares = 0
    if chunk:
        yield chunk


def read_parallel_lines(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Return the lines of two files; raise DataError if their numbers of lines differ."""
    from rnnsearch.data.corpus import read_lines

    source_lines = list(read_lines(source))
    target_lines = list(read_lines(target))
    require_equal_lengths(source, len(source_lines), target, len(target_lines))
    return source_lines, target_lines


def read_parallel_documents(first: Path, *others: Path) -> tuple[list[list[str]], list[int]]:
    """Return the lines of parallel files without empty ones, which end documents, and the document of each line.

    Raises:
        DataError: The files have different numbers of lines, or a line is empty in one file only.
    """
    from rnnsearch.data.corpus import read_lines

    files = [list(read_lines(path)) for path in (first, *others)]
    for path, lines in zip(others, files[1:], strict=True):
        require_equal_lengths(first, len(files[0]), path, len(lines))
    kept: list[list[str]] = [[] for _ in files]
    documents: list[int] = []
    document = 0
    for number, row in enumerate(zip(*files, strict=True), start=1):
        is_empty = [not line.strip() for line in row]
        if all(is_empty):
            document += 1
            continue
        if any(is_empty):
            path = (first, *others)[is_empty.index(True)]
            raise DataError(f"{path}:{number}: must not be empty, which would end a document; other files have text")
        documents.append(document)
        for lines, line in zip(kept, row, strict=True):
            lines.append(line)
    return kept, documents


def require_equal_lengths(source: Path, source_lines: int, target: Path, target_lines: int) -> None:
    """Raise DataError if two files have different numbers of lines."""
    if source_lines != target_lines:
        raise DataError(
            f"{source} and {target} must have the same number of lines; got {source_lines:,} and {target_lines:,}"
        )


def source_files(source: Path, sources: Sequence[str]) -> list[Path]:
    """Return the file of each source, given that of a single source or all of them, separated by "|".

    Raises:
        DataError: Several sources have another number of files.
    """
    if len(sources) == 1:
        return [source]
    files = str(source).split("|")
    if len(files) != len(sources) or not all(map(str.strip, files)):
        must = f'must be one file per source ({", ".join(sources)}), separated by "|"'
        raise DataError(f"{source}: {must}; got {len(list(filter(str.strip, files)))}")
    return [Path(name.strip()) for name in files]


def open_source_arrays(
    files: Sequence[Path], sources: Sequence[str], arrays: Mapping[str, ArrayConfig]
) -> dict[str, RaggedArray]:
    """Open the files of the sources that are arrays.

    Args:
        files: File of each source.
        sources: Names of the sources.
        arrays: Options of those that are arrays.

    Raises:
        DataError: A file has text instead of arrays, or the other way round, or its arrays do not fit the options.
    """
    from rnnsearch.data.arrays import is_array_file, open_arrays

    opened = {}
    for name, path in zip(sources, files, strict=True):
        if name in arrays:
            if not is_array_file(path):
                raise DataError(f"{path}: must be a .npy file; the model reads arrays ({name}), not text")
            opened[name] = open_arrays(path, arrays[name])
        elif is_array_file(path):
            raise DataError(f"{path}: must be text; the model reads no arrays in {name}")
    return opened


def read_sources(
    source: Path, target: Path, sources: Sequence[str], arrays: Mapping[str, ArrayConfig] | None = None
) -> tuple[list[SourceText], list[str]]:
    """Return the lines of parallel files: those of each source, if there are several, and the target's.

    Args:
        source: Source file or files (see `source_files`).
        target: Target file.
        sources: Names of the sources.
        arrays: Options of the sources that are arrays.

    Raises:
        DataError: The numbers of files or lines differ, or a file has text instead of arrays or the other way round.
    """
    from rnnsearch.data.arrays import iterate_arrays
    from rnnsearch.data.corpus import read_lines

    files = source_files(source, sources)
    opened = open_source_arrays(files, sources, arrays or {})
    target_lines = list(read_lines(target))
    columns: list[Sequence[str]] = []
    for name, path in zip(sources, files, strict=True):
        if name in opened:
            columns.append(list(iterate_arrays(opened[name], path)))
        else:
            columns.append(list(read_lines(path)))
        require_equal_lengths(path, len(columns[-1]), target, len(target_lines))
    return list(columns[0] if len(sources) == 1 else zip(*columns, strict=True)), target_lines


def parallel_rows(
    files: Sequence[Path], sources: Sequence[str], arrays: Mapping[str, ArrayConfig], size: int
) -> Iterator[list[tuple[str, ...]]]:
    """Return the rows of parallel files in chunks; lines that are too long are cut.

    Args:
        files: File of each source, possibly followed by that of their translations.
        sources: Names of the languages of these files.
        arrays: Options of those that are arrays.
        size: Maximum number of rows of a chunk.

    Raises:
        DataError: As in `open_source_arrays`, or the files have different lengths.
    """
    from rnnsearch.data.arrays import iterate_arrays
    from rnnsearch.data.corpus import read_lines

    opened = open_source_arrays(files, sources, arrays)
    lengths = []
    columns: list[Iterable[str]] = []
    for name, path in zip(sources, files, strict=True):
        if name in opened:
            rows = opened[name]
            lengths.append(len(rows))
            columns.append(iterate_arrays(rows, path))
        else:
            lengths.append(count_lines(path))
            columns.append(read_lines(path, truncate=True))
        require_equal_lengths(files[0], lengths[0], path, lengths[-1])
    return _chunked(zip(*columns, strict=True), size, lambda row: sum(map(len, row)))


def count_lines(first: Path, *others: Path) -> int:
    """Return the number of lines of parallel files; raise DataError if it differs."""
    from rnnsearch.data.corpus import read_lines

    num_lines = sum(1 for _ in read_lines(first, truncate=True))
    for path in others:
        require_equal_lengths(first, num_lines, path, sum(1 for _ in read_lines(path, truncate=True)))
    return num_lines


def count_pairs(source: Path, target: Path) -> int:
    """Return the number of lines of two files; raise DataError if it differs."""
    return count_lines(source, target)


def line_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs; lines that are too long are cut."""
    from rnnsearch.data.corpus import read_lines

    return zip(read_lines(source, truncate=True), read_lines(target, truncate=True), strict=True)


def pair_chunks(source: Path, target: Path, size: int) -> Iterator[list[str]]:
    """Yield the line pairs of two files in chunks; the lines of a pair are joined by a line feed."""
    return chunked(map("\n".join, line_pairs(source, target)), size)


@contextmanager
def rereadable(*paths: Path) -> Iterator[list[Path]]:
    """Yield paths that can be read several times, in place of pipes such as those of `<(...)`.

    Pipes are copied to temporary files, one after the other. Error messages name the pipes.
    """
    with TemporaryDirectory(prefix="rnnsearch-") as folder:
        copies = [Path(folder, str(n)) if path.is_fifo() else path for n, path in enumerate(paths)]
        for path, copy in zip(paths, copies, strict=True):
            if copy is not path:
                with path.open("rb") as pipe, copy.open("wb") as file:
                    shutil.copyfileobj(pipe, file)
        try:
            yield copies
        except DataError as error:
            message = str(error)
            for path, copy in zip(paths, copies, strict=True):
                message = message.replace(str(copy), str(path))
            raise DataError(message) from None


# Writing.


def require_distinct_files(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raise BadParameter if two options name the same output file, or one of them names an input file.

    Args:
        outputs: Output files by option.
    """
    from typer import BadParameter

    if problem := path_conflict(outputs, inputs):
        raise BadParameter(problem)


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """Open standard output, or a file that appears when everything is written."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        yield file
