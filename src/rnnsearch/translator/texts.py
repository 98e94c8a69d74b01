"""Translations of whole texts: their sentences are translated one by one and joined, with the layout preserved.

`translate_texts` finds the sentences, and a `TextTranslation` joins their translations. `join_sentences` makes one
`Translation` of a text, whose scores, tokens and links are those of all sentences.

The torch-free runtime uses it, too, so this module must not import torch. Spans are offsets of characters in Python
strings; clients rely on text that joins to exactly the same layout. Tests: tests/serve/test_v1.py,
tests/commands/test_split.py.

Axes: W words of a text, in its source and its translation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from rnnsearch.text.alignments import Link, word_spans
from rnnsearch.text.alignments import words as words_of
from rnnsearch.text.attention_words import WordAttention
from rnnsearch.text.sentences import rejoin, sentence_spans
from rnnsearch.text.tokenizer import Replacement, Segmented
from rnnsearch.text.vocabulary import EOS, SPECIALS
from rnnsearch.translator.translation import AlignerLinks, Matrix, Translation, one_line

MAX_LINE_SENTENCES = 10_000
"""Maximum number of sentences of one line of a file, whose translations are in memory together."""
FALLBACKS = ("source", "pieces")
"""Values of `Translation.fallback`, worst first."""
Span = tuple[int, int]
"""Characters [start, end)."""


@dataclass(frozen=True)
class TextTranslation:
    """A text and the translations of its sentences."""

    source: str
    spans: list[Span]
    """Characters of each sentence in `source`."""
    n_best: list[list[Translation]]
    """The n best translations of each sentence; at least one."""
    target_language: str
    """Code of the target language."""
    min_confidence: float | None = None
    """Confidence below which a sentence's translation is omitted from the text's translation."""

    def joined(self, rank: int = 0) -> tuple[str, list[Span]]:
        """Return the translation of the text and the characters of each sentence in it.

        Args:
            rank: Rank of the translation to use for each sentence, from 0; the last one if it has fewer.
        """
        translations = []
        for translation in self._at_rank(rank):
            translations.append(one_line(translation.text) if self._is_confident(translation) else "")
        return rejoin(self.source, self.spans, translations, self.target_language)

    @property
    def is_untranslated(self) -> bool:
        """True if a sentence is not translated, because its placeholders were lost in all attempts."""
        return any(translations[0].fallback == "source" for translations in self.n_best)

    def text(self, rank: int = 0) -> str:
        """Return the translation of the text (see `joined`)."""
        return self.joined(rank)[0]

    def links(self, rank: int = 0) -> list[Link]:
        """Return the links between the words of the text and of its translation (see `joined`)."""
        text, target_spans = self.joined(rank)
        parts = _parts(self.source, self.spans, text, target_spans, self._at_rank(rank))
        # A set: words that belong to two sentences may be linked twice.
        links = set[Link]()
        for part in parts:
            links.update(part.word_links(part.translation.alignment))
        return sorted(links)

    def translations(self) -> list[Translation]:
        """Return the n best translations of the whole text, best first.

        A text that is exactly one sentence has the translations of that sentence.
        """
        if self.spans == [(0, len(self.source))]:
            return self.n_best[0]
        num_ranks = max(map(len, self.n_best), default=1)
        return [
            join_sentences(self.source, self.spans, self._at_rank(rank), self.target_language)
            for rank in range(num_ranks)
        ]

    def _at_rank(self, rank: int) -> list[Translation]:
        return [translations[min(rank, len(translations) - 1)] for translations in self.n_best]

    def _is_confident(self, translation: Translation) -> bool:
        if self.min_confidence is None or translation.confidence is None:
            return True
        return translation.confidence >= self.min_confidence


def translate_texts(
    texts: Sequence[str],
    languages: tuple[str, str],
    n_best: Callable[[list[str]], list[list[Translation]]],
) -> list[TextTranslation]:
    """Split texts into sentences and translate all of them together.

    Args:
        texts: The texts.
        languages: Codes of the source and target language.
        n_best: Returns the n best translations of each sentence.
    """
    source, target = languages
    spans = [sentence_spans(text, source) for text in texts]
    sentences, _ = sentences_of(texts, spans)
    return assign_sentences(texts, spans, n_best(sentences), target)


def sentences_of(texts: Sequence[str], spans: Sequence[list[Span]]) -> tuple[list[str], list[int]]:
    """Return the sentences of all texts and, for each, the index of its text."""
    sentences: list[str] = []
    indices: list[int] = []
    for index, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        sentences += [text[start:end] for start, end in text_spans]
        indices += [index] * len(text_spans)
    return sentences, indices


def line_spans(line: str, language: str) -> list[Span]:
    """Return the sentences of one line of a file; the whole line, with the white space around it, for only one."""
    spans = sentence_spans(line, language, ends_at_line_breaks=False)
    return spans if len(spans) > 1 else [(0, len(line))]


def assign_sentences(
    texts: Sequence[str], spans: Sequence[list[Span]], n_best: Sequence[list[Translation]], target_language: str
) -> list[TextTranslation]:
    """Return the translation of each text, from those of the sentences of all texts together.

    Args:
        texts: The texts.
        spans: The sentences of each text.
        n_best: The n best translations of each sentence, in the order of the texts.
        target_language: Code of the target language.
    """
    results = []
    position = 0
    for text, text_spans in zip(texts, spans, strict=True):
        end = position + len(text_spans)
        results.append(TextTranslation(text, text_spans, list(n_best[position:end]), target_language))
        position = end
    return results


# One translation of several sentences.


class _Part(NamedTuple):
    """A sentence and its position in a text and in its translation."""

    translation: Translation
    source_words: list[int]
    """Index in the text of each source word."""
    target_words: list[int]
    """Index in the translated text of each target word."""
    first_source_token: int
    """Index of the first source token; every sentence ends with EOS."""
    first_target_token: int
    """Index of the first target token."""

    def word_links(self, links: Sequence[Link]) -> list[Link]:
        """Return links between words of the sentence as links between words of the text."""
        return [(self.source_words[i], self.target_words[j]) for i, j in links]

    def token_links(self, links: Sequence[Link]) -> list[Link]:
        """Return links between tokens of the sentence as links between tokens of the text."""
        return [(self.first_source_token + i, self.first_target_token + j) for i, j in links]


@dataclass(frozen=True)
class _JoinedAttention(WordAttention):
    """Attention over the words of a text: that of each sentence over its words."""

    parts: tuple[_Part, ...] = ()

    @cached_property
    def weights(self) -> Matrix | None:
        """Attention [target words, source words]; None without attention."""
        weights = [part.translation.word_attention for part in self.parts]
        if all(sentence_weights is None for sentence_weights in weights):
            return None
        joined = np.zeros((len(word_spans(self.target.text)), len(word_spans(self.source.text))), np.float32)
        for part, sentence_weights in zip(self.parts, weights, strict=True):
            if sentence_weights is not None:
                # `add.at`: two words of a sentence may be in one word of a text without spaces.
                np.add.at(joined, np.ix_(part.target_words, part.source_words), sentence_weights)
        return joined

    @cached_property
    def word_links(self) -> tuple[Link, ...]:
        """Sorted links of words by attention."""
        return _united(part.word_links(part.translation.attended) for part in self.parts)

    @cached_property
    def token_links(self) -> tuple[Link, ...]:
        """Sorted links of tokens by attention."""
        return _united(part.token_links(part.translation.attended_tokens) for part in self.parts)


@dataclass(frozen=True)
class _JoinedLinks:
    """Links of an aligner (`AlignerLinks`) of all sentences."""

    parts: tuple[_Part, ...]

    @cached_property
    def words(self) -> tuple[Link, ...]:
        """Links between words."""
        return _united(part.word_links(part.translation.alignment) for part in self.parts)

    @cached_property
    def tokens(self) -> tuple[Link, ...]:
        """Links between tokens."""
        return _united(part.token_links(part.translation.token_alignment) for part in self.parts)


def join_sentences(
    text: str, spans: Sequence[Span], translations: Sequence[Translation], target_language: str | None = None
) -> Translation:
    """Return one translation of a text from those of its sentences, which are its `sentences`.

    Tokens, scores and links are those of all sentences, with an EOS after each. The score is the mean of their scores,
    weighted by length. `attention` is None, because it would grow with the square of the text; the sentences have it.

    Args:
        text: The text.
        spans: Characters of each sentence in the text.
        translations: The translation of each sentence.
        target_language: Code of the target language.
    """
    new_texts = [one_line(translation.text) for translation in translations]
    target_text, target_spans = rejoin(text, spans, new_texts, target_language)
    parts = _parts(text, spans, target_text, target_spans, translations)
    attention = _JoinedAttention(
        _join_segmented(text, spans, parts, is_source=True),
        _join_segmented(target_text, target_spans, parts, is_source=False),
        attention=None,
        read=any(translation.by_attention.read for translation in translations),
        parts=tuple(parts),
    )
    links: AlignerLinks | None = None
    if any(translation.aligner_links is not None for translation in translations):
        links = _JoinedLinks(tuple(parts))
    weights = [max(1, len(translation.token_scores)) for translation in translations]
    scores = (weight * translation.score for weight, translation in zip(weights, translations, strict=True))
    return Translation(
        source=text,
        text=target_text,
        score=sum(scores, 0.0) / max(1, sum(weights)),
        log_prob=sum((translation.log_prob for translation in translations), 0.0),
        finished=all(translation.finished for translation in translations),
        tokens=tuple(token for translation in translations for token in translation.tokens),
        token_scores=tuple(score for translation in translations for score in translation.token_scores),
        source_tokens=tuple(token for translation in translations for token in translation.source_tokens),
        attention=None,
        source_words=tuple(words_of(text)),
        words=tuple(words_of(target_text)),
        by_attention=attention,
        aligner_links=links,
        replaced=attention.target.replaced,
        word_confidence=_join_confidence(parts, len(word_spans(target_text))),
        rationale=_join_rationales(parts),
        fallback=min((part.fallback for part in translations if part.fallback), key=FALLBACKS.index, default=None),
        missing_terms=tuple(chain.from_iterable(translation.missing_terms for translation in translations)),
        sentences=tuple(translations),
    )


def _parts(
    text: str,
    spans: Sequence[Span],
    target_text: str,
    target_spans: Sequence[Span],
    translations: Sequence[Translation],
) -> list[_Part]:
    """Return the sentences with their positions in a text and in its translation."""
    source_word_ends = [end for _, end in word_spans(text)]
    target_word_ends = [end for _, end in word_spans(target_text)]
    parts = []
    first_source_token = 0
    first_target_token = 0
    for span, target_span, translation in zip(spans, target_spans, translations, strict=True):
        source_words = _words_in_text(translation.source, span[0], source_word_ends)
        target_words = _words_in_text(translation.text, target_span[0], target_word_ends)
        parts.append(_Part(translation, source_words, target_words, first_source_token, first_target_token))
        first_source_token += len(translation.source_tokens)
        first_target_token += len(translation.tokens)
    return parts


def _words_in_text(sentence: str, start: int, word_ends: list[int]) -> list[int]:
    """Return the index in the text of each word of a sentence.

    The sentence's own words may be parts of the text's, because sentences may follow each other without a space.

    Args:
        sentence: The sentence.
        start: Its first character in the text.
        word_ends: The end of each word of the text.
    """
    return [bisect_right(word_ends, start + word_start) for word_start, _ in word_spans(one_line(sentence))]


def _join_segmented(text: str, spans: Sequence[Span], parts: Sequence[_Part], is_source: bool) -> Segmented:
    """Return the tokens of all sentences, with an EOS that covers no character of a word after each but the last."""
    ids: list[int] = []
    tokens: list[str] = []
    offsets: list[Span] = []
    replaced: list[Replacement] = []
    for (first, _), part in zip(spans, parts, strict=True):
        translation = part.translation
        attention = translation.by_attention
        segmented = attention.source if is_source else attention.target
        num_tokens = len(translation.source_tokens if is_source else translation.tokens)
        has_eos = num_tokens > len(segmented.ids)
        ids += [*segmented.ids, *[EOS] * has_eos]
        tokens += [*segmented.tokens, *[SPECIALS[EOS]] * has_eos]
        offsets += [(first + start, first + end) for start, end in segmented.offsets]
        offsets += [(len(text), len(text))] * has_eos
        for word in segmented.replaced:
            token = part.first_target_token + word.token
            replaced.append(replace(word, token=token, source_token=part.first_source_token + word.source_token))
    if ids and ids[-1] == EOS:
        # As in a `Segmented` of one sentence.
        del ids[-1], tokens[-1], offsets[-1]
    return Segmented(text, ids, tokens, offsets, tuple(replaced))


def _join_confidence(parts: Sequence[_Part], num_words: int) -> tuple[float, ...] | None:
    """Return the confidence of each word of a text, or None for a model that is not calibrated.

    A word that contains words of two sentences has their mean.
    """
    if not parts or any(part.translation.word_confidence is None for part in parts):
        return None
    totals = np.zeros(num_words)
    counts = np.zeros(num_words)
    for part in parts:
        np.add.at(totals, part.target_words, part.translation.word_confidence or ())
        np.add.at(counts, part.target_words, 1)
    # Words of no sentence, such as format characters between them, are copied.
    return tuple(np.where(counts > 0, totals / np.maximum(counts, 1), 1.0).tolist())


def _join_rationales(parts: Sequence[_Part]) -> tuple[int, ...] | None:
    if any(part.translation.rationale is None for part in parts) or not parts:
        return None
    return tuple(sorted({part.source_words[word] for part in parts for word in part.translation.rationale or ()}))


def _united(links: Iterable[Sequence[Link]]) -> tuple[Link, ...]:
    # A set: words that belong to two sentences may be linked twice.
    return tuple(sorted(set(chain.from_iterable(links))))
