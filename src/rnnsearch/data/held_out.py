"""Rows of the dev or test set while a corpus is prepared: read from files, or split off the corpus by `prepare.py`.

`prepare.py` creates `HeldOut` and writes the rows as text files of prepared data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rnnsearch.config import DataConfig
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.arrays import SUFFIX, ArrayFiles, ArrayWriter
from rnnsearch.data.corpus import read_rows
from rnnsearch.data.preprocess import Cells, SentenceSets
from rnnsearch.data.split import Part
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import format_pharaoh


@dataclass
class HeldOut:
    """Rows of dev or test. Rows from files are used unchanged, except that incomplete rows are dropped."""

    part: Part
    """Dev or test."""
    rows: list[Cells]
    """Texts, and the links as text if aligned; never empty."""
    documents: Sequence[int] | npt.NDArray[np.uint32]
    """Document number of each row."""
    dropped: int = 0
    """Number of rows with an empty text, or with fewer than two texts of three or more languages."""
    shared: int = 0
    """Number of training rows that share a sentence; `prepare.py` counts it, for rows from files only."""

    @property
    def aligned(self) -> bool:
        """True if the rows have links in addition to two texts."""
        return len(self.rows[0]) == 3

    @classmethod
    def read(cls, part: Part, spec: str, links: str | None, data: DataConfig, base: Path) -> HeldOut:
        """Read the rows of files.

        Args:
            part: Dev or test.
            spec: Text files (see `corpus.read_rows`).
            links: File of links.
            data: `[data]`.
            base: Folder that the files are relative to.

        Raises:
            DataError: A row is invalid, or no row is complete.
        """
        link_files = None if links is None else [links]
        languages = data.languages
        rows = list(read_rows([spec], base, len(languages), link_files, data.documents, languages, data.arrays))
        for row in rows:
            if row.problem:
                raise DataError(f"{row.location}: every {part} pair must be usable; got {row.problem}")
        # With three or more languages, a row needs two of them, like rows of the training text.
        num_needed = min(2, len(data.languages))
        complete = [row for row in rows if sum(bool(text.strip()) for text in row.texts) >= num_needed]
        if not complete:
            raise DataError(f"{spec}: must hold {part} sentence pairs; got none")
        cells = [row.texts if row.links is None else (*row.texts, format_pharaoh(row.links)) for row in complete]
        return cls(part, cells, [row.document for row in complete], dropped=len(rows) - len(complete))

    def write(
        self,
        folder: Path,
        suffixes: Sequence[str],
        separate_documents: bool,
        arrays: Mapping[str, ArrayConfig] | None = None,
        base: Path = Path(),
    ) -> None:
        """Write a file per language and, if the rows have links, a file of links.

        Args:
            folder: Folder to write to.
            suffixes: Suffix of each column's file.
            separate_documents: Write an empty line between the rows of two documents.
            arrays: Options of the columns that are names of arrays, by suffix; the arrays are written.
            base: Folder that the files of arrays are relative to.
        """
        files = ArrayFiles(base, arrays or {})
        # First rows of documents but the first; signed, because differences of unsigned numbers would wrap around.
        changes = np.flatnonzero(np.diff(np.array(self.documents, dtype=np.int64))) + 1
        for column, suffix in zip(zip(*self.rows, strict=True), suffixes, strict=False):
            if arrays and suffix in arrays:
                with ArrayWriter(folder / f"{self.part}.{suffix}{SUFFIX}", arrays[suffix].features) as writer:
                    for name in column:
                        writer.add(files.find(suffix, name))
                continue
            lines: Sequence[str] | npt.NDArray[np.object_] = column
            if separate_documents and suffix != "align":  # links have exactly a line per row
                lines = np.insert(np.array(column, dtype=object), changes, "")
            path = folder / f"{self.part}.{suffix}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")

    def sentence_sets(self, num_languages: int) -> SentenceSets:
        """Return the distinct sentences of each language."""
        columns = list(zip(*self.rows, strict=True))[:num_languages]
        # Without the empty texts of languages that some rows do not have.
        return tuple(frozenset(map(str.strip, column)) - {""} for column in columns)

    def warnings(self) -> list[str]:
        """Return warnings about dropped rows and shared sentences."""
        warnings = []
        if self.dropped:
            warnings.append(f"{self.dropped} {self.part} pairs with an empty side were left out")
        if self.shared:
            problem = f"training pairs share a sentence with {self.part}, so scores on {self.part} are too good"
            warnings.append(f"{self.shared} {problem}")
        return warnings
