"""`DocumentOrder`: translation of documents sentence by sentence, with the context that the model reads.

`Translator`, the commands and the server translate the sentences of documents with it. A model without `[data.context]`
translates them one by one. Tests: tests/test_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rnnsearch.config.data import MAX_CONTEXT_SENTENCES
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import Segmented


class DocumentOrder:
    """Adds contexts to the sentences of documents.

    A document may come in several calls: its last sentences are kept until another document follows.
    """

    def __init__(self, system: System[Any], segment: Callable[[Sequence[str | Segmented]], list[Segmented]]) -> None:
        """Start before the first document; `segment` makes source tokens of sentences."""
        self._system = system
        self._segment = segment
        self._document: int | None = None
        self._previous: list[Segmented] = []

    def with_context(self, sentences: Sequence[str | Segmented], documents: Sequence[int]) -> list[str | Segmented]:
        """Return sentences as source tokens with their contexts; unchanged if the model reads none.

        Args:
            sentences: The next sentences.
            documents: Number of the document of each sentence; sentences of a document are neighbours.
        """
        if not sentences or not self._system.reads_context:
            return list(sentences)
        segmented = self._segment(sentences)
        continues = documents[0] == self._document
        previous = self._previous if continues else []
        results = self._system.with_context(segmented, documents, previous)
        self._document = documents[-1]
        in_last = [source for source, number in zip(segmented, documents, strict=True) if number == self._document]
        carried = previous if continues and self._document == documents[0] else []
        self._previous = [*carried, *in_last][-MAX_CONTEXT_SENTENCES:]
        return list(results)
