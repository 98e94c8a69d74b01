"""Previous sentences of the same document, which models with `[data.context]` read before a source sentence.

`ContextRows` are the rows of a prepared corpus with their contexts; `with_context` adds contexts to segmented sentences
in the same way, for dev sets and translation. Each context sentence ends with `CONTEXT_END`.

Models depend on the separator and on the choice of the sentences: do not change them. Tests:
tests/data/test_context.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import RunConfig
from rnnsearch.data.id_store import Documents, ParallelIds
from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import CONTEXT_END

BLOCK_ROWS = 1 << 16
"""Rows whose lengths are read together."""


class ContextRows(RaggedArray):
    """Rows that begin with the rows before them, each followed by a separator. Only requested rows are read."""

    def __init__(self, rows: RaggedArray, num_context: npt.NDArray[np.uint8]) -> None:
        """Wrap rows.

        Args:
            rows: The rows without contexts.
            num_context: Number of rows before each row that are its context.
        """
        super().__init__(rows.flat, np.zeros(len(rows), np.uint8))
        self._rows = rows
        self._num_context = num_context

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        parts, owners = self._parts(indices)
        lengths = self._rows.lengths(parts) + (parts < np.asarray(indices)[owners])
        totals = np.zeros(len(indices), dtype=np.int64)
        np.add.at(totals, owners, lengths)
        return totals

    def first(self, limit: int) -> tuple[npt.NDArray[Any], Integers]:
        """Return the values of the first rows without their contexts (see `RaggedArray.first`)."""
        return self._rows.first(limit)

    def values(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, Integers]:
        parts, owners = self._parts(indices)
        is_context = parts < np.asarray(indices)[owners]
        widths = self._rows.lengths(parts) + is_context
        starts = np.cumsum(widths) - widths
        part_values, part_of_value, positions = self._rows.values(parts)
        # Separators stay where no value is written.
        values = np.full(int(widths.sum()), CONTEXT_END, dtype=np.int64)
        values[starts[part_of_value] + positions] = part_values
        rows = np.repeat(owners, widths)
        # The first part of a row is the first value of the row.
        is_first = np.diff(owners, prepend=-1) > 0
        row_starts = starts[is_first]
        return values, rows, np.arange(len(values)) - row_starts[rows]

    def _parts(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers]:
        """Return the rows that each row consists of, and for each, the index in `indices` of the row it belongs to."""
        num_parts = self._num_context[indices].astype(np.int64) + 1
        owners = np.repeat(np.arange(len(indices)), num_parts)
        # Parts of a row that follow each part; the row itself is the last one.
        num_following: Integers = np.cumsum(num_parts)[owners] - 1 - np.arange(len(owners))
        last_parts: Integers = np.asarray(indices, dtype=np.int64)[owners]
        return last_parts - num_following, owners


def context_sizes(
    documents: Documents, rows: RaggedArray, sentences: int, max_length: int | None
) -> npt.NDArray[np.uint8]:
    """Return the number of previous rows that each row of a corpus has as context.

    Args:
        documents: Documents of the rows.
        rows: Source ids.
        sentences: Maximum number of previous rows.
        max_length: Maximum number of tokens of a row with its context and separators.
    """
    sizes = np.zeros(len(rows), dtype=np.uint8)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, len(rows)))
        totals = rows.lengths(block)
        for back in range(1, sentences + 1):
            previous = np.maximum(block - back, 0)
            totals = totals + rows.lengths(previous) + 1  # with a separator
            fits = (block >= back) & (documents.number[previous] == documents.number[block])
            if max_length is not None:
                fits &= totals <= max_length
            # A sentence is left out together with all before it.
            sizes[block] += fits & (sizes[block] == back - 1)
    return sizes


def rows_with_context(ids: ParallelIds, config: RunConfig) -> ParallelIds:
    """Return the rows of a corpus as the model of a run reads them: with their contexts, if it reads any."""
    options = config.data.context
    if options is None:
        return ids
    assert ids.documents is not None, "the prepared data of a config with a context have documents"
    source = config.data.single_source
    rows = ids.stream(source)
    sizes = context_sizes(ids.documents, rows, options.sentences, config.training.max_length)
    return ids.with_stream(source, ContextRows(rows, sizes))


def with_context(
    sources: Sequence[Segmented],
    documents: Sequence[int],
    config: RunConfig,
    previous: Sequence[Segmented] = (),
) -> list[Segmented]:
    """Return source sentences with their contexts, if the model reads any.

    Args:
        sources: The sentences.
        documents: Number of the document of each sentence; sentences of a document are neighbours.
        config: Config of the model.
        previous: Sentences of the first document before the first sentence.
    """
    options = config.data.context
    if options is None or not sources:
        return list(sources)
    sentences = [*previous, *sources]
    numbers = [documents[0]] * len(previous) + list(documents)
    results = []
    for index in range(len(previous), len(sentences)):
        source = sentences[index]
        context: list[Segmented] = []
        num_tokens = len(source.ids)
        for other in range(index - 1, max(index - 1 - options.sentences, -1), -1):
            num_tokens += len(sentences[other].ids) + 1
            max_length = config.training.max_length
            if numbers[other] != numbers[index] or (max_length is not None and num_tokens > max_length):
                break
            if sentences[other].ids:
                context.insert(0, sentences[other].without_context)
        results.append(replace(source, context=tuple(context)) if context and source.ids else source)
    return results
