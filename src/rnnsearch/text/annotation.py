"""Annotation of unknown target words with the source words that they translate.

After Luong, Sutskever, Le, Vinyals & Zaremba 2015, "Addressing the Rare Word Problem in Neural
Machine Translation", section 3. Three schemes (`[text.annotation]`) annotate the sentence pairs for
training; after search, `source_positions` reads the annotations of a translation.

A distance is the source position minus the target position, in tokens: the annotated translation of
"The <unk> portico in <unk>" is "Le <unk+1> <unk-1> de <unk+0>".

`data/prepare.py` adds the tokens to vocabularies, `data/preprocess.py` annotates training rows, and `systems/system.py`
reads the annotations of translations. The names of annotation tokens are stored in tokenizers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

from rnnsearch.config import TextConfig, data
from rnnsearch.config.data import CopyableOptions, PosAllOptions, PosUnkOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.text.alignments import Link
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import POSITION_PREFIX, SPECIALS, UNK, UNKNOWN_PREFIX, is_unknown

NULL_DISTANCE = "?"
"""Replaces the number or distance of a word without a usable link (unk_null and p_n in the paper)."""


class Annotation(ABC):
    """A scheme that annotates sentence pairs of two vocabularies which contain its tokens."""

    tokens_per_word: ClassVar[int] = 1
    """Number of annotated tokens per target token."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source_ids = source.annotation_ids
        self._target_ids = target.annotation_ids

    @staticmethod
    @abstractmethod
    def new_tokens(options: Any) -> tuple[list[str], list[str]]:
        """Return the tokens that the scheme adds to the source and target vocabularies."""

    def annotate_source(self, text: Segmented) -> Segmented:
        """Return a source sentence as the model reads it."""
        return text

    def annotate_target(self, text: Segmented, links: Collection[Link], source: Segmented) -> Segmented:
        """Return a target sentence as the model writes it.

        Args:
            text: The target sentence.
            links: Links (source token, target token).
            source: The source sentence as the model reads it.
        """
        ids = list(text.ids)
        tokens = list(text.tokens)
        nearest = _nearest_links(links, text, source)
        for i, id in enumerate(text.ids):
            if id == UNK:
                name = self._annotation_token(i, nearest[i], source) if i in nearest else ""
                # Distances beyond the window and numbers beyond the maximum have no token.
                tokens[i] = name if name in self._target_ids else f"{UNKNOWN_PREFIX}{NULL_DISTANCE}>"
                ids[i] = self._target_ids[tokens[i]]
        return replace(text, ids=ids, tokens=tokens)

    def source_positions(self, target: Segmented, source: Segmented) -> dict[int, int]:
        """Return the source token that each unknown token of a translation refers to, by target index."""
        positions = {}
        for i, token in enumerate(target.tokens):
            j = self._source_position(token, i, source) if is_unknown(token) else None
            if j is not None and 0 <= j < len(source.tokens):
                positions[i] = j
        return positions

    @abstractmethod
    def _annotation_token(self, i: int, j: int, source: Segmented) -> str:
        """Return the token that says that target token i translates source token j."""

    @abstractmethod
    def _source_position(self, token: str, i: int, source: Segmented) -> int | None:
        """Return the source position that the annotation of target token i refers to."""


@implements(CopyableOptions)
class CopyableAnnotation(Annotation):
    """Section 3.1: the unknown words of a source sentence are numbered, and keep their numbers in the translation."""

    @staticmethod
    def new_tokens(options: CopyableOptions) -> tuple[list[str], list[str]]:
        numbers = [f"{UNKNOWN_PREFIX}{n}>" for n in range(1, options.numbers + 1)]
        return numbers, [*numbers, f"{UNKNOWN_PREFIX}{NULL_DISTANCE}>"]

    def annotate_source(self, text: Segmented) -> Segmented:
        numbers: dict[str, int] = {}
        ids = list(text.ids)
        tokens = list(text.tokens)
        for j, (id, word) in enumerate(zip(text.ids, text.texts, strict=True)):
            if id == UNK:
                # A word that occurs again keeps its number.
                number = numbers.setdefault(word, len(numbers) + 1)
                name = f"{UNKNOWN_PREFIX}{number}>"
                if name in self._source_ids:
                    ids[j] = self._source_ids[name]
                    tokens[j] = name
        return replace(text, ids=ids, tokens=tokens)

    def _annotation_token(self, i: int, j: int, source: Segmented) -> str:
        return source.tokens[j]

    def _source_position(self, token: str, i: int, source: Segmented) -> int | None:
        if token in self._source_ids and token in source.tokens:
            return source.tokens.index(token)
        return None


@implements(PosUnkOptions)
class PosUnkAnnotation(Annotation):
    """Section 3.3: an unknown word is `<unk+d>`, where d is the distance of its source word."""

    @staticmethod
    def new_tokens(options: PosUnkOptions) -> tuple[list[str], list[str]]:
        return [], _distance_tokens(UNKNOWN_PREFIX, options.window)

    def _annotation_token(self, i: int, j: int, source: Segmented) -> str:
        return f"{UNKNOWN_PREFIX}{j - i:+d}>"

    def _source_position(self, token: str, i: int, source: Segmented) -> int | None:
        return _annotated_position(UNKNOWN_PREFIX, token, i)


@implements(PosAllOptions)
class PosAllAnnotation(Annotation):
    """Section 3.2: every word is followed by `<at+d>`, where d is the distance of its source word."""

    tokens_per_word = 2

    @staticmethod
    def new_tokens(options: PosAllOptions) -> tuple[list[str], list[str]]:
        return [], _distance_tokens(POSITION_PREFIX, options.window)

    def annotate_target(self, text: Segmented, links: Collection[Link], source: Segmented) -> Segmented:
        ids: list[int] = []
        tokens: list[str] = []
        offsets: list[tuple[int, int]] = []
        nearest = _nearest_links(links, text, source)
        for i, (id, token, (start, end)) in enumerate(zip(text.ids, text.tokens, text.offsets, strict=True)):
            name = self._annotation_token(i, nearest[i], source) if i in nearest else ""
            if name not in self._target_ids:
                name = f"{POSITION_PREFIX}{NULL_DISTANCE}>"
            ids += [id, self._target_ids[name]]
            tokens += [token, name]
            # The annotation covers no characters.
            offsets += [(start, end), (end, end)]
        return replace(text, ids=ids, tokens=tokens, offsets=offsets)

    def source_positions(self, target: Segmented, source: Segmented) -> dict[int, int]:
        positions: dict[int, int] = {}
        num_words = 0  # target tokens so far without annotations
        for n, (token, following) in enumerate(pairwise([*target.tokens, ""])):
            j = self._source_position(following, num_words, source) if is_unknown(token) else None
            if j is not None and 0 <= j < len(source.tokens):
                positions[n] = j
            # Distances count words, not annotations, as in training.
            num_words += not token.startswith(POSITION_PREFIX)
        return positions

    def _annotation_token(self, i: int, j: int, source: Segmented) -> str:
        return f"{POSITION_PREFIX}{j - i:+d}>"

    def _source_position(self, token: str, i: int, source: Segmented) -> int | None:
        return _annotated_position(POSITION_PREFIX, token, i)


def _distance_tokens(prefix: str, window: int) -> list[str]:
    return [*(f"{prefix}{d:+d}>" for d in range(-window, window + 1)), f"{prefix}{NULL_DISTANCE}>"]


def _annotated_position(prefix: str, token: str, i: int) -> int | None:
    """Return the source position that the annotation of target token i refers to, or None."""
    if not token.startswith(prefix) or token in (SPECIALS[UNK], f"{prefix}{NULL_DISTANCE}>"):
        return None
    return i + int(token[len(prefix) : -1])


def _nearest_links(links: Collection[Link], target: Segmented, source: Segmented) -> dict[int, int]:
    """Return one source token per linked target token.

    Links between two words or two punctuation marks are preferred, then the smallest distance.
    """
    source_is_word = [any(map(str.isalnum, text)) for text in source.texts]
    target_is_word = [any(map(str.isalnum, text)) for text in target.texts]

    def rank(link: Link) -> tuple[bool, int, Link]:
        j, i = link
        # The link itself breaks ties, so that the order of a set does not matter.
        return source_is_word[j] != target_is_word[i], abs(j - i), link

    nearest: dict[int, int] = {}
    for j, i in sorted(links, key=rank):
        nearest.setdefault(i, j)
    return nearest


ANNOTATIONS: Implementations[type[Annotation]] = Implementations(data.ANNOTATIONS)
"""Class by `type` of `[text.annotation]`; names are stored in model folders."""


def build_annotation(config: TextConfig, source: Tokenizer, target: Tokenizer) -> Annotation | None:
    """Return the annotation scheme of `[text.annotation]`, or None."""
    return None if config.annotation is None else ANNOTATIONS[config.annotation.type](source, target)


def annotation_tokens(config: TextConfig) -> tuple[list[str], list[str]]:
    """Return the tokens that `[text]` adds to the source and target vocabularies."""
    return ([], []) if config.annotation is None else ANNOTATIONS[config.annotation.type].new_tokens(config.annotation)
