"""Conversion of the tokens of a hypothesis to text, with copied, spelled and replaced words.

`Translator` calls it after every search. Only some models copy words from the source or spell words that are not in
their vocabulary; the others' `<unk>` may be replaced by an aligned source word or its entry in a dictionary.

A `Postprocessor` changes only texts: tokens and scores of the hypotheses stay, and copied attention replaces the
attention. Tests: tests/text/test_copied_words.py, tests/properties/test_spelled.py, tests/commands/test_hybrid.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.unknown_words import UnknownWordReplacer
from rnnsearch.systems.system import System
from rnnsearch.text.alignments import token_attention
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.vocabulary import UNK

KnownWords = Mapping[int, str]
"""Text of unknown words by their position among the tokens of a translation."""
Item = TypeVar("Item")


class Postprocessor:
    """Makes texts from the hypotheses of a system."""

    def __init__(self, system: System[Any], replacer: UnknownWordReplacer | None) -> None:
        """Make a postprocessor; without `replacer`, `<unk>` stays in the text."""
        self._system = system
        self._replacer = replacer

    def add_copy_attention(
        self, sources: Sequence[Segmented], hypotheses: Sequence[Hypothesis], columns: ColumnChooser | None = None
    ) -> list[Hypothesis]:
        """Return hypotheses whose attention says where words were copied from, if the model copies.

        Args:
            sources: Source of each hypothesis.
            hypotheses: The hypotheses.
            columns: The candidates among which the search has found them, or None for the whole vocabulary.
        """
        results = list(hypotheses)
        if not self._system.can("copy"):
            return results
        indices = [index for index, hypothesis in enumerate(hypotheses) if hypothesis.attention]
        if not indices:
            return results
        source_ids = [sources[index].spelled_ids for index in indices]
        target_ids = [hypotheses[index].ids for index in indices]
        copy_attention = self._system.copy_attention(source_ids, target_ids, columns)
        for index, weights_by_source in zip(indices, copy_attention, strict=True):
            hypothesis = hypotheses[index]
            # Forced decoding adds a row for EOS, which a hypothesis that was cut off does not have.
            length = len(hypothesis.token_scores)
            copied = {name: weights[:length] for name, weights in weights_by_source.items()}
            results[index] = replace(hypothesis, attention={**hypothesis.attention, **copied})
        return results

    def target_texts(
        self,
        sources: Sequence[Segmented],
        hypotheses: Sequence[Hypothesis],
        known_words: Sequence[KnownWords],
        beam: int,
    ) -> list[Segmented]:
        """Return the text of each hypothesis.

        Args:
            sources: Source of each hypothesis.
            hypotheses: The hypotheses.
            known_words: Unknown words whose text is known, such as those of a prefix. The others are spelled by the
                model or replaced.
            beam: Beam size for spelling.
        """
        spelled_words: list[KnownWords] = [{} for _ in hypotheses]
        if self._system.can("spell"):
            indices = []
            for index, (hypothesis, known) in enumerate(zip(hypotheses, known_words, strict=True)):
                # Spelling runs the model again, so only hypotheses that need it take part.
                if _unknown_positions(hypothesis) - known.keys():
                    indices.append(index)
            source_ids = [sources[index].spelled_ids for index in indices]
            target_ids = [hypotheses[index].ids for index in indices]
            for index, words in zip(indices, self._system.spell(source_ids, target_ids, beam), strict=True):
                spelled_words[index] = words
        rows = zip(sources, hypotheses, known_words, spelled_words, strict=True)
        return [self._target_text(source, hypothesis, known, spelled) for source, hypothesis, known, spelled in rows]

    def _target_text(
        self, source: Segmented, hypothesis: Hypothesis, known: KnownWords, spelled: KnownWords
    ) -> Segmented:
        # Known words, such as those of a prefix, take precedence over the model's spelling.
        target = self._system.target.join_with_offsets(hypothesis.ids, {**spelled, **known})
        if self._replacer is None:
            return target
        attention = None
        if hypothesis.weights is not None:
            aligns_previous_word = self._system.config.aligns_previous_word
            attention = token_attention(hypothesis.weights, len(hypothesis.ids), aligns_previous_word)
        annotation = self._system.annotation
        annotated_positions = {} if annotation is None else annotation.source_positions(target, source)
        return self._replacer.replace(source, target, attention, known, spelled, annotated_positions)


def without_context(hypothesis: Hypothesis, source: Segmented) -> Hypothesis:
    """Return a hypothesis with attention over the tokens of its source sentence only, without those of its context.

    The weights are not normalised again: the rest of their sum was on the context.
    """
    start = source.num_context_ids
    if not start or not hypothesis.attention:
        return hypothesis
    attention = {name: weights[:, start:] for name, weights in hypothesis.attention.items()}
    return replace(hypothesis, attention=attention)


def _unknown_positions(hypothesis: Hypothesis) -> set[int]:
    return {position for position, id in enumerate(hypothesis.ids) if id == UNK}


def regroup(items: Iterable[Item], lists: Sequence[Sequence[Any]]) -> list[list[Item]]:
    """Return a flat sequence as lists of the same lengths as others."""
    remaining = iter(items)
    return [list(islice(remaining, len(other))) for other in lists]
