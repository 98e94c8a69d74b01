"""Rows of dev and test while a corpus is prepared: given as files, or split off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rnnsearch.config import DataConfig
from rnnsearch.data.corpus import read_rows
from rnnsearch.data.preprocess import Cells, Sentences
from rnnsearch.data.split import Part
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import format_pharaoh


@dataclass
class HeldOut:
    """Rows of dev or test. Those that were given are used as they are, but for rows with an empty side."""

    part: Part
    rows: list[Cells]
    documents: Sequence[int] | npt.NDArray[np.uint32]
    """Which one each row is of."""
    dropped: int = 0
    shared: int = 0
    """Training rows that have a sentence in common with it."""

    @property
    def aligned(self) -> bool:
        """Whether its rows have links beside two texts."""
        return len(self.rows[0]) == 3

    @classmethod
    def read(cls, part: Part, spec: str, links: str | None, data: DataConfig, base: Path) -> HeldOut:
        """Those of given files. Errors: DataError for a row that cannot be used, and where none is left."""
        aligned = None if links is None else [links]
        rows = list(read_rows([spec], base, len(data.languages), aligned, data.documents))
        for row in rows:
            if row.fault:
                raise DataError(f"{row.where}: every {part} pair must be usable; got {row.fault}")
        whole = [row for row in rows if all(map(str.strip, row.texts))]
        if not whole:
            raise DataError(f"{spec}: must hold {part} sentence pairs; got none")
        cells = [row.texts if row.links is None else (*row.texts, format_pharaoh(row.links)) for row in whole]
        return cls(part, cells, [row.document for row in whole], len(rows) - len(whole))

    def write(self, folder: Path, suffixes: Sequence[str], ends: bool) -> None:
        """A file a side and, where there are any, of links; with `ends`, an empty line between two documents'
        rows.
        """
        changes = np.flatnonzero(np.diff(np.array(self.documents, dtype=np.int64))) + 1
        for column, suffix in zip(zip(*self.rows, strict=True), suffixes, strict=False):
            ended = ends and suffix != "align"  # which has a line a row
            lines = np.insert(np.array(column, dtype=object), changes, "") if ended else column
            path = folder / f"{self.part}.{suffix}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")

    def sentences(self, sides: int) -> Sentences:
        """Its different sentences."""
        return tuple(frozenset(row[side].strip() for row in self.rows) for side in range(sides))

    def warnings(self) -> list[str]:
        """What is to be said of them."""
        warnings = []
        if self.dropped:
            warnings.append(f"{self.dropped} {self.part} pairs with an empty side were left out")
        if self.shared:
            told = f"training pairs share a sentence with {self.part}, so scores on {self.part} are too good"
            warnings.append(f"{self.shared} {told}")
        return warnings
