"""The cleaned text of a corpus on its way through: columns of lines and a table of keys, on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.data.cleaning import Tally
from rnnsearch.data.corpus import Row, read_chunks
from rnnsearch.data.partitions import Parts
from rnnsearch.data.passes import Rules, Span, clean, key_type
from rnnsearch.data.workers import Workers

CHUNK = 20_000
"""Rows worked on at a time by one process."""

KeyTable = npt.NDArray[Any]
"""Of `key_type`, [rows]; documents are numbered through the corpus."""
Mask = npt.NDArray[np.bool_]


class CleanedText:
    """Files in `folder`, removed at the end; `aligned`: with a column of links."""

    def __init__(self, folder: Path, rules: Rules, aligned: bool) -> None:
        self.rules = rules
        self.aligned = aligned
        columns = (*rules.languages, *(["links"] * aligned))
        self._paths = tuple(folder / f"cleaned.{column}" for column in columns)
        self._keys = folder / "cleaned.keys"
        self._spans: list[tuple[Span, int]] = []

    def __enter__(self) -> CleanedText:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in (*self._paths, self._keys):
            path.unlink(missing_ok=True)

    def read(self, specs: Sequence[str], base: Path, alignments: Sequence[str] | None, workers: Workers) -> Tally:
        """Clean a corpus into the files; returns what was read and rejected."""
        tally, starts = Tally(), [0] * len(self._paths)
        document = place = 0
        chunks = read_chunks(specs, base, len(self.rules.languages), alignments, CHUNK)
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in (*self._paths, self._keys)]
            for found in workers.map(clean, ((chunk, self.rules) for chunk in chunks)):
                tally.add(found.tally)
                if found.begins_file:
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
                starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        return tally

    def keys(self) -> KeyTable:
        """The keys of all rows, memory-mapped."""
        kind = key_type(len(self.rules.languages))
        return np.memmap(self._keys, dtype=kind, mode="r") if self._spans else np.zeros(0, dtype=kind)

    def spans(self, parts: Parts) -> Iterator[tuple[Span, Parts]]:
        """Where the chunks lie, each with its piece of `parts`."""
        begin = 0
        for span, rows in self._spans:
            yield span, parts[begin : begin + rows]
            begin += rows

    def row(self, place: int, line: int) -> Row:
        """One row, which stood in that line of some file."""
        for span, rows in self._spans:
            if place < rows:
                return Row(span.rows()[place][: len(self.rules.languages)], span.origin, line)
            place -= rows
        raise AssertionError("a place in the text")
