"""Tags: a token before each source sentence that tells a model which language to write (Johnson et al. 2017).

Models with one decoder for all languages (`model.sharing.decoders`) read them. A tag is the token of a control
character, followed by `CONTEXT_END`, like a previous sentence (`Segmented.context`): attention and other results per
source token leave it out.

Models depend on the tokens and their order: do not change them. Tests: tests/data/test_tags.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config.data import LANGUAGE_TAGS
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.ragged import Integers, RaggedArray
from rnnsearch.errors import ConfigError
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import CONTEXT_END

NUM_TAG_IDS = 2
"""Number of ids before a sentence: the tag and the separator."""


def tag_id(tag: str, tokenizer: Tokenizer) -> int:
    """Return the id of a tag, or raise ConfigError if the vocabulary has no tokens of single bytes."""
    names = tokenizer.names()
    if tag not in names:
        raise ConfigError([f"data.tag: {tag} needs a vocabulary with tokens of single bytes; this one has none"])
    return names.index(tag)


def tagged(sentences: Sequence[Segmented], tag: str, tokenizer: Tokenizer) -> list[Segmented]:
    """Return source sentences with a tag; sentences without tokens have none, because they are not translated."""
    context = (Segmented("", [tag_id(tag, tokenizer)], [tag], [(0, 0)]),)
    return [replace(sentence, context=context) if sentence.ids else sentence for sentence in sentences]


def tagged_rows(ids: ParallelIds, source: str, tag: str, tokenizer: Tokenizer) -> ParallelIds:
    """Return the rows of a corpus with a tag before each source sentence."""
    rows = TaggedRows(ids.stream(source), [tag_id(tag, tokenizer), CONTEXT_END])
    return ids.with_stream(source, rows)


class TaggedRows(RaggedArray):
    """Rows that all begin with the same values. Only requested rows are read."""

    def __init__(self, rows: RaggedArray, start: Sequence[int]) -> None:
        super().__init__(rows.flat, np.zeros(len(rows), np.uint8))
        self._rows = rows
        self._start = np.array(start, dtype=np.int64)

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        return self._rows.lengths(indices) + len(self._start)

    def first(self, limit: int) -> tuple[npt.NDArray[Any], Integers]:
        """Return the values of the first rows without their start (see `RaggedArray.first`)."""
        return self._rows.first(limit)

    def values(self, indices: npt.NDArray[Any]) -> tuple[Integers, Integers, Integers]:
        lengths = self.lengths(indices)
        row_starts = np.cumsum(lengths) - lengths
        rows = np.repeat(np.arange(len(lengths)), lengths)
        own, own_rows, own_positions = self._rows.values(indices)
        values = np.empty(len(rows), dtype=np.int64)
        values[row_starts[:, None] + np.arange(len(self._start))] = self._start
        values[row_starts[own_rows] + own_positions + len(self._start)] = own
        return values, rows, np.arange(len(rows)) - row_starts[rows]


class AfterTag:
    """A random segmentation of each sentence after its tag, which stays."""

    def __init__(self, resegment: Callable[[Sequence[int], Random], list[int]]) -> None:
        self._resegment = resegment

    def __call__(self, ids: Sequence[int], random: Random) -> list[int]:
        """Return other ids of the same sentence."""
        return [*ids[:NUM_TAG_IDS], *self._resegment(ids[NUM_TAG_IDS:], random)]


def tag_of(target: str, targets: Sequence[str]) -> str:
    """Return the tag of a target language of a multi-way model, by its position among all of them."""
    return LANGUAGE_TAGS[list(targets).index(target)]
