"""Sentences in several source languages: the forms in which callers give them, and their segmentation.

`SourceText` is public API (docs/python.md). Tests: tests/training/test_several_sources.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from rnnsearch.errors import RnnsearchError
from rnnsearch.text.tokenizer import Segmented

Sentence = TypeVar("Sentence")
SourceText = str | Sequence[str | None] | Mapping[str, str | None]
"""A source sentence: a text or, for a model with several sources, the text in each, in their order or by name.

None and text without a visible character mean that the sentence does not have the source; names may be left out.
"""


def require_text(value: object) -> None:
    """Raise RnnsearchError if a sentence is not a string."""
    if not isinstance(value, str):
        raise RnnsearchError(f"a sentence must be a string; got {type(value).__name__}")


def _require_list(values: object) -> None:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise RnnsearchError(f"sentences must be a list, such as [text] for one text; got {type(values).__name__}")


def sentence_list(values: Iterable[Sentence]) -> list[Sentence]:
    """Return sentences as a list.

    Raises:
        RnnsearchError: They are one sentence, whose characters would be sentences, or cannot be iterated.
    """
    _require_list(values)
    return list(values)


def text_list(values: object) -> list[str]:
    """Return sentences as a list of strings.

    Raises:
        RnnsearchError: They are not a list of strings.
    """
    _require_list(values)
    texts = list(cast(Iterable[Any], values))
    for text in texts:
        require_text(text)
    return texts


def texts_by_source(text: SourceText, sources: Sequence[str]) -> dict[str, str]:
    """Return the text in each source, "" for a source that the sentence does not have.

    Args:
        text: The sentence; a single text is that of the first source.
        sources: Names of the sources.

    Raises:
        RnnsearchError: A name is no source, or the number of texts differs from that of the sources.
    """
    if isinstance(text, str):
        text = {sources[0]: text}
    if isinstance(text, Mapping):
        for name in text:
            if name not in sources:
                raise RnnsearchError(f"a sentence must have texts in {' and '.join(sources)}; got one in {name}")
        return {name: text.get(name) or "" for name in sources}
    if len(text) != len(sources):
        raise RnnsearchError(f"a sentence must have one text per source ({', '.join(sources)}); got {len(text)}")
    return {name: one or "" for name, one in zip(sources, text, strict=True)}


def single_texts(texts: Sequence[SourceText], sources: Sequence[str]) -> list[str]:
    """Return the texts of sentences in the only source of a model.

    Raises:
        RnnsearchError: A sentence has several texts.
    """
    return [text if isinstance(text, str) else texts_by_source(text, sources)[sources[0]] for text in texts]


def all_texts(text: SourceText) -> list[str]:
    """Return the texts that a sentence has."""
    if isinstance(text, str):
        return [text]
    return list(filter(None, text.values() if isinstance(text, Mapping) else text))


def shown_text(text: SourceText) -> str:
    """Return the first text that a sentence has, by which reports name it; empty if it has none."""
    return next(iter(all_texts(text)), "")


def segment_several(
    texts: Sequence[SourceText], sources: Sequence[str], segmenters: Sequence[Callable[[list[str]], list[Segmented]]]
) -> list[Segmented]:
    """Return sentences as the tokens of all sources that they have (see `Segmented.by_source`).

    Args:
        texts: The sentences.
        sources: Names of the sources.
        segmenters: For each source, the function that segments its texts.

    Raises:
        RnnsearchError: As in `texts_by_source`.
    """
    rows = [texts_by_source(text, sources) for text in texts]
    columns = []
    for name, segment in zip(sources, segmenters, strict=True):
        columns.append(segment([row[name] for row in rows]))
    results = []
    for row in zip(*columns, strict=True):
        by_source = {name: segmented for name, segmented in zip(sources, row, strict=True) if segmented.text}
        first = row[0]
        results.append(
            Segmented(first.text, first.ids, first.tokens, first.offsets, case=first.case, by_source=by_source)
        )
    return results
