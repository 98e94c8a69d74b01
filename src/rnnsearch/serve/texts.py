"""Translation of whole texts: split into sentences, translated, and joined again with their layout preserved.

Used by all routes and by `files`. Models translate sentences; everything about texts is here.

Spans are offsets of characters in Python strings; clients rely on text that joins to exactly the same layout. Tests:
`tests/serve/test_v1.py`, `tests/serve/test_libretranslate.py`, `tests/serve/test_files.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rnnsearch.serve.limits import ServeError, split_sentences
from rnnsearch.serve.registry import BatchOptions, ServedModel, Translations
from rnnsearch.text.alignments import Link, word_spans
from rnnsearch.text.markup.protected import DEFAULT_PROTECTED, ProtectedType
from rnnsearch.text.sentences import rejoin
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.translation import Translation, one_line

Span = tuple[int, int]
"""Characters [start, end)."""


@dataclass(frozen=True)
class TextTranslation:
    """A text and the translations of its sentences."""

    source: str
    """The text."""
    spans: list[Span]
    """Characters of each sentence in `source`."""
    n_best: list[Translations]
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
        source_word_ends = [end for _, end in word_spans(self.source)]
        target_word_ends = [end for _, end in word_spans(text)]
        links = set[Link]()
        for span, target_span, translation in zip(self.spans, target_spans, self._at_rank(rank), strict=True):
            source_words = _words_in_text(translation.source, span[0], source_word_ends)
            target_words = _words_in_text(translation.text, target_span[0], target_word_ends)
            # A set: words that belong to two sentences may be linked twice.
            links |= {(source_words[i], target_words[j]) for i, j in translation.alignment}
        return sorted(links)

    def _at_rank(self, rank: int) -> list[Translation]:
        return [translations[min(rank, len(translations) - 1)] for translations in self.n_best]

    def _is_confident(self, translation: Translation) -> bool:
        if self.min_confidence is None or translation.confidence is None:
            return True
        return translation.confidence >= self.min_confidence


def _words_in_text(sentence: str, start: int, word_ends: list[int]) -> list[int]:
    """Return the index in the text of each word of a sentence.

    The sentence's own words may be parts of the text's, because sentences may follow each other without a space.

    Args:
        sentence: The sentence.
        start: Its first character in the text.
        word_ends: The end of each word of the text.
    """
    return [bisect_right(word_ends, start + word_start) for word_start, _ in word_spans(one_line(sentence))]


async def translate_texts(
    model: ServedModel,
    texts: Sequence[str],
    options: BatchOptions,
    prefixes: Sequence[str] | None = None,
    patient: bool = False,
    glossary: Glossary | None = None,
    protect: Collection[ProtectedType] = DEFAULT_PROTECTED,
    grammars: Sequence[str | None] | None = None,
) -> list[TextTranslation]:
    """Translate texts; all their sentences are in the same queue.

    Args:
        model: The model.
        texts: The texts.
        options: How to search.
        prefixes: Text that the translations begin with, one per text; a text with a prefix must be one sentence.
        patient: True if the sentences are accepted even if the queue is full.
        glossary: Terms that translations must contain.
        protect: Types of text that translations contain unchanged.
        grammars: Grammar of the placeholders of each text (see `text.markup.protected`).

    Raises:
        ServeError: With status 400 for a prefix of a text that is not one sentence, and as in `ServedModel.translate`.
    """
    spans = await split_sentences(texts, model.info.source)
    sentence_prefixes: list[str] | None = None
    if prefixes is not None:
        sentence_prefixes = []
        for text_spans, prefix in zip(spans, prefixes, strict=True):
            if prefix and len(text_spans) != 1:
                raise ServeError(400, f"a text with a prefix must be one sentence; got {len(text_spans)}")
            require_line("prefix", prefix)
            sentence_prefixes += [prefix] * len(text_spans)
    sentences = []
    sentence_grammars: list[str | None] = []
    for text, text_spans, grammar in zip(texts, spans, grammars or [None] * len(texts), strict=True):
        sentences += [text[start:end] for start, end in text_spans]
        sentence_grammars += [grammar] * len(text_spans)
    n_best: list[Translations] = []
    if sentences:
        n_best = await model.translate(
            sentences, options, sentence_prefixes, patient, glossary, protect, sentence_grammars
        )
    results = []
    position = 0
    for text, text_spans in zip(texts, spans, strict=True):
        end = position + len(text_spans)
        results.append(TextTranslation(text, text_spans, n_best[position:end], model.info.target))
        position = end
    return results


async def require_one_sentence(model: ServedModel, text: str) -> str:
    """Return the only sentence of a text, without the white space around it.

    Raises:
        ServeError: With status 400 if the text is not one sentence.
    """
    [spans] = await split_sentences([text], model.info.source)
    if len(spans) != 1:
        raise ServeError(400, f"text must be one sentence; got {len(spans)}")
    start, end = spans[0]
    return text[start:end]


def require_line(name: str, text: str) -> None:
    """Raise ServeError with status 400 if a field's text has several lines."""
    if one_line(text) != text:
        raise ServeError(400, f"{name} must be one line; got several")
