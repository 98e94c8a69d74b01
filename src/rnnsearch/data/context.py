"""Previous sentences of the same document, which models with `[data.context]` read in addition to a sentence.

`ContextRows` are the rows of a prepared corpus with their contexts; `in_context` adds contexts to segmented sentences
in the same way, for dev sets and translation. `CONTEXT_END` follows each context sentence before the sentence itself,
or is between the context sentences if they are a stream of their own.

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
from rnnsearch.config.data import CONTEXT_SUFFIX, StreamsOptions
from rnnsearch.data.id_store import Documents, ParallelIds
from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.text.tokenizer import ContextStreams, Segmented
from rnnsearch.text.vocabulary import CONTEXT_END

BLOCK_ROWS = 1 << 16
"""Rows whose lengths are read together."""


class ContextRows(RaggedArray):
    """Rows with the rows before them, all but the last one followed by a separator. Only requested rows are read."""

    def __init__(self, rows: RaggedArray, num_context: npt.NDArray[np.uint8], has_own: bool = True) -> None:
        """Wrap rows.

        Args:
            rows: The rows without contexts.
            num_context: Number of rows before each row that are its context.
            has_own: False for the contexts without the rows themselves.
        """
        super().__init__(rows.flat, np.zeros(len(rows), np.uint8))
        self._rows = rows
        self._num_context = num_context
        self._has_own = has_own

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        parts, owners, has_separator = self._parts(indices)
        lengths = self._rows.lengths(parts) + has_separator
        totals = np.zeros(len(indices), dtype=np.int64)
        np.add.at(totals, owners, lengths)
        return totals

    def first(self, limit: int) -> tuple[npt.NDArray[Any], Integers]:
        """Return the values of the first rows without their contexts (see `RaggedArray.first`)."""
        return self._rows.first(limit)

    def values(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, Integers]:
        parts, owners, has_separator = self._parts(indices)
        widths = self._rows.lengths(parts) + has_separator
        starts = np.cumsum(widths) - widths
        part_values, part_of_value, positions = self._rows.values(parts)
        # Separators stay where no value is written.
        values = np.full(int(widths.sum()), CONTEXT_END, dtype=np.int64)
        values[starts[part_of_value] + positions] = part_values
        rows = np.repeat(owners, widths)
        row_lengths = self.lengths(indices)
        row_starts = np.cumsum(row_lengths) - row_lengths
        return values, rows, np.arange(len(values)) - row_starts[rows]

    def _parts(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, npt.NDArray[np.bool_]]:
        """Return the rows that each row consists of.

        Returns:
            The rows; for each, the index in `indices` of the row it belongs to; and True if a separator follows it.
        """
        num_parts = self._num_context[indices].astype(np.int64) + self._has_own
        owners = np.repeat(np.arange(len(indices)), num_parts)
        # Parts of a row that follow each part; the row itself is the last one.
        num_following: Integers = np.cumsum(num_parts)[owners] - 1 - np.arange(len(owners))
        last_parts: Integers = np.asarray(indices, dtype=np.int64)[owners] - (not self._has_own)
        return last_parts - num_following, owners, num_following > 0


def context_sizes(
    documents: Documents, rows: RaggedArray, sentences: int, max_length: int | None, has_own: bool = True
) -> npt.NDArray[np.uint8]:
    """Return the number of previous rows that each row of a corpus has as context.

    Args:
        documents: Documents of the rows.
        rows: Source ids.
        sentences: Maximum number of previous rows.
        max_length: Maximum number of tokens of a context with the row itself, if `has_own`, and separators.
        has_own: False if the row itself does not count.
    """
    sizes = np.zeros(len(rows), dtype=np.uint8)
    for start in range(0, len(rows), BLOCK_ROWS):
        block = np.arange(start, min(start + BLOCK_ROWS, len(rows)))
        totals = rows.lengths(block) if has_own else np.full(len(block), -1)
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
    documents = ids.documents
    assert documents is not None, "the prepared data of a config with a context have documents"
    max_length = config.training.max_length
    for name in config.data.context_streams:
        rows = ids.stream(name.removesuffix(CONTEXT_SUFFIX))
        sizes = context_sizes(documents, rows, options.sentences, max_length, has_own=False)
        # To a translation model, a context without sentences is a missing source; a language model has no other source.
        present = sizes > 0 if config.data.sources else None
        ids = ids.with_stream(name, ContextRows(rows, sizes, has_own=False), present)
    if config.data.context_streams:
        # The target is the last stream.
        return ids.select((*config.data.source_streams, config.data.target))
    source = config.data.single_source
    rows = ids.stream(source)
    sizes = context_sizes(documents, rows, options.sentences, max_length)
    return ids.with_stream(source, ContextRows(rows, sizes))


def in_context(
    source: Segmented, previous: Sequence[Segmented], targets: Sequence[Segmented], config: RunConfig
) -> Segmented:
    """Return a source sentence with its context, if the model reads any.

    Args:
        source: The sentence.
        previous: Sentences before it in its document; of a language model, texts.
        targets: Translations of these sentences, or none if they are not known.
        config: Config of the model.
    """
    options = config.data.context
    if options is None or not source.ids:
        return source
    max_length = config.training.max_length
    if not isinstance(options, StreamsOptions):
        context = _fitting(previous, options.sentences, max_length, len(source.ids))
        return replace(source, context=tuple(context)) if context else source
    streams = {}
    for name in config.data.context_streams:
        is_target = bool(config.data.sources) and name == f"{config.data.target}{CONTEXT_SUFFIX}"
        context = _fitting(targets if is_target else previous, options.sentences, max_length, -1)
        if ids := _joined(context):
            streams[name] = ids
    own = (*config.data.sources, config.data.target)[0]
    return replace(source, streams=ContextStreams(own, streams)) if streams else source


def previous_ids(text: Segmented) -> list[int]:
    """Return the ids of the previous sentences of a language model's text; none if there are no sentences."""
    return [] if text.streams is None else next(iter(text.streams.ids.values()))


def _fitting(
    previous: Sequence[Segmented], max_sentences: int, max_length: int | None, num_tokens: int
) -> list[Segmented]:
    """Return the last sentences with at most `max_length` tokens, separators and `num_tokens` included."""
    context: list[Segmented] = []
    for sentence in reversed(previous[-max_sentences:]):
        num_tokens += len(sentence.ids) + 1
        if max_length is not None and num_tokens > max_length:
            break
        if sentence.ids:
            context.insert(0, sentence.by_itself)
    return context


def _joined(context: Sequence[Segmented]) -> list[int]:
    """Return the ids of context sentences as a stream of their own."""
    ids: list[int] = []
    for sentence in context:
        ids += [*([CONTEXT_END] if ids else []), *sentence.ids]
    return ids
