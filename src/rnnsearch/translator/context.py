"""`DocumentOrder`: translation of documents sentence by sentence, with the context that the model reads.

`Translator`, the commands and the server translate the sentences of documents with it. A model without `[data.context]`
translates them one by one, one that reads only previous source sentences all at once. A model that reads translations
of previous sentences translates in waves: the first sentence of each document, then the second, and so on. Tests:
tests/test_documents.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from rnnsearch.config.data import MAX_CONTEXT_SENTENCES
from rnnsearch.search.decode import waves
from rnnsearch.systems.system import System
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.translation import Translation

Wave = tuple[list[int], list[Segmented]]
"""Indices of the sentences of a wave, and the sentences with their contexts."""
Waves = Generator[Wave, Sequence[str], None]
"""Waves of sentences; the translations of each wave must be sent before the next one."""
Result = TypeVar("Result")


class DocumentOrder:
    """Adds contexts to the sentences of documents.

    A document may come in several calls: its last sentences are kept until another document follows.
    """

    def __init__(self, system: System[Any], segment: Callable[[Sequence[Any]], list[Segmented]]) -> None:
        """Start before the first document; `segment` makes source tokens of sentences."""
        self._system = system
        self._segment = segment
        self._document: int | None = None
        self._previous: list[Segmented] = []
        self._targets: list[Segmented] = []

    def n_best(
        self,
        sentences: Sequence[Any],
        documents: Sequence[int],
        search: Callable[[list[Any]], list[list[Translation]]],
    ) -> list[list[Translation]]:
        """Return the n best translations of the next sentences.

        Args:
            sentences: The sentences.
            documents: Number of the document of each sentence; sentences of a document are neighbours.
            search: Returns the n best translations of sentences, which may be `Segmented`.
        """
        if not sentences or not self._system.reads_context:
            return search(list(sentences))
        results: dict[int, list[Translation]] = {}
        steps = self.waves(self._segment(sentences), documents)
        indices, sources = next(steps)
        try:
            while True:
                n_best_lists = search(list(sources))
                results |= dict(zip(indices, n_best_lists, strict=True))
                indices, sources = steps.send([n_best[0].text for n_best in n_best_lists])
        except StopIteration:
            return [results[index] for index in range(len(sentences))]

    def waves(self, sources: Sequence[Segmented], documents: Sequence[int]) -> Waves:
        """Yield the next sentences in waves with their contexts; takes the translations of each wave.

        Args:
            sources: The next sentences; at least one.
            documents: Number of the document of each sentence.
        """
        previous, targets = self._history(documents[0])
        start = len(previous)
        all_sources = [*previous, *sources]
        all_targets = [*targets, *sources]  # replaced by translations, wave by wave
        numbers = [documents[0]] * start + list(documents)
        depends_on = {}
        if self._system.reads_translations:
            depends_on = {n: [n - 1] for n in range(1, len(sources)) if documents[n] == documents[n - 1]}
        for wave in waves(depends_on, len(sources)):
            inputs = []
            for index in wave:
                before = slice(start + index - _num_before(numbers, start + index), start + index)
                inputs.append(self._system.in_context(sources[index], all_sources[before], all_targets[before]))
            texts = yield wave, inputs
            if self._system.reads_translations:
                for index, target in zip(wave, self._system.target.segment(list(texts)), strict=True):
                    all_targets[start + index] = target
        self._remember(numbers, all_sources, all_targets)

    def with_context(
        self, sentences: Sequence[Any], documents: Sequence[int], targets: Sequence[str] | None = None
    ) -> list[Any]:
        """Return the next sentences with their contexts; unchanged if the model reads none.

        Args:
            sentences: The sentences.
            documents: Number of the document of each sentence.
            targets: Translations of the sentences; None if they are not known.
        """
        if not sentences or not self._system.reads_context:
            return list(sentences)
        segmented = self._segment(sentences)
        previous, previous_targets = self._history(documents[0])
        numbers = [documents[0]] * len(previous) + list(documents)
        all_sources = [*previous, *segmented]
        all_targets: list[Segmented] = []
        if targets is not None and len(previous_targets) == len(previous):
            all_targets = [*previous_targets, *self._system.target.segment(list(targets))]
        results = self._system.with_context(all_sources, numbers, all_targets)
        self._remember(numbers, all_sources, all_targets)
        return list(results[len(previous) :])

    def start_after(self, document: int, pairs: Iterable[tuple[str, str]]) -> None:
        """Continue a document after some sentences and their translations."""
        texts = list(pairs)
        self._document = document
        self._previous = self._segment([source for source, _ in texts])
        self._targets = self._system.target.segment([target for _, target in texts])

    def _history(self, document: int) -> tuple[list[Segmented], list[Segmented]]:
        """Return the sentences before the next one, and their translations, if it continues the last document."""
        return (self._previous, self._targets) if document == self._document else ([], [])

    def _remember(self, numbers: Sequence[int], sources: Sequence[Segmented], targets: Sequence[Segmented]) -> None:
        """Keep the last sentences of the last document."""
        self._document = numbers[-1]
        # All sentences before the next one, if it continues the document.
        first = len(sources) - _num_before([*numbers, numbers[-1]], len(numbers))
        self._previous = list(sources[first:])
        self._targets = list(targets[first:])


def _num_before(documents: Sequence[int], index: int) -> int:
    """Return the number of sentences of the same document before a sentence, at most `MAX_CONTEXT_SENTENCES`."""
    count = 0
    while count < min(index, MAX_CONTEXT_SENTENCES) and documents[index - count - 1] == documents[index]:
        count += 1
    return count
