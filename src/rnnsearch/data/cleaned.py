"""The cleaned text of a corpus on its way through: columns of lines and a table of keys, on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import RunConfig
from rnnsearch.data.cleaning import Tally
from rnnsearch.data.corpus import Pair, read_chunks
from rnnsearch.data.passes import KEYS, Parts, Span, clean
from rnnsearch.data.workers import Workers

CHUNK = 20_000
"""Pairs worked on at a time by one process."""

KeyTable = npt.NDArray[Any]
"""KEYS, [pairs]."""
Mask = npt.NDArray[np.bool_]


class CleanedText:
    """Files in `folder`, removed at the end; `aligned`: with a column of links."""

    def __init__(self, folder: Path, aligned: bool) -> None:
        self.aligned = aligned
        self._paths = tuple(folder / f"cleaned.{column}" for column in ("source", "target", *(["links"] * aligned)))
        self._keys = folder / "cleaned.keys"
        self._spans: list[tuple[Span, int]] = []

    def __enter__(self) -> CleanedText:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in (*self._paths, self._keys):
            path.unlink(missing_ok=True)

    def read(
        self,
        config: RunConfig,
        specs: Sequence[str],
        base: Path,
        alignments: Sequence[str] | None,
        to_split: bool,
        workers: Workers,
    ) -> Tally:
        """Clean a corpus into the files; returns what was read and rejected."""
        tally, starts = Tally(), [0] * len(self._paths)
        tasks = ((chunk, config.data.cleaning, to_split) for chunk in read_chunks(specs, base, alignments, CHUNK))
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in (*self._paths, self._keys)]
            for found in workers.map(clean, tasks):
                tally.add(found.tally)
                sizes = tuple(len(column) for column in found.columns)
                for file, block in zip(files, (*found.columns, found.keys.tobytes()), strict=True):
                    file.write(block)
                if len(found.keys):
                    self._spans.append((Span(found.origin, self._paths, tuple(starts), sizes), len(found.keys)))
                starts = [start + size for start, size in zip(starts, sizes, strict=True)]
        return tally

    def keys(self) -> KeyTable:
        """The keys of all pairs, memory-mapped."""
        if not self._spans:
            return np.zeros(0, dtype=KEYS)
        return np.memmap(self._keys, dtype=KEYS, mode="r")

    def spans(self, parts: Parts) -> Iterator[tuple[Span, Parts]]:
        """Where the chunks lie, each with its piece of `parts`."""
        begin = 0
        for span, pairs in self._spans:
            yield span, parts[begin : begin + pairs]
            begin += pairs

    def pair(self, place: int, line: int) -> Pair:
        """One pair, which stood in that line of some file."""
        for span, pairs in self._spans:
            if place < pairs:
                source, target, *_ = span.rows()[place]
                return Pair(source, target, span.origin, line)
            place -= pairs
        raise AssertionError("a place in the text")
