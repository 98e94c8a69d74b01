"""Protection of text that must stay letter for letter while a sentence is translated.

A model reads substitutes (`text.markup.substitutes`), and each of its translations is checked. A sentence whose
placeholders did not come out is translated again with other substitutes. If these are lost, too, words linked to the
placeholders are replaced by them, or the text around them is translated in pieces, or its translation is its source.
`Translation.fallback` reports the last two.

The torch-free runtime uses it, too, so this module must not import torch. Texts without protected text are not touched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rnnsearch.text.alignments import Link, word_spans
from rnnsearch.text.alignments import words as words_of
from rnnsearch.text.attention_words import WordAttention
from rnnsearch.text.markup.protected import ProtectedType
from rnnsearch.text.markup.substitutes import MAX_SLOTS, NUM_VARIANTS, SubstitutedText, Substitutes
from rnnsearch.text.normalization import NO_NORMALIZATION, Normalization
from rnnsearch.text.prefixes import NO_PREFIX, Prefix
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import EOS, SPECIALS, UNK
from rnnsearch.translator.translation import Translation, one_line

Segment = Callable[[Sequence[str]], list[Segmented]]
"""Returns texts as source tokens."""
Search = Callable[[Sequence[Segmented], Sequence[int] | None], list[list[Translation]]]
"""Returns the translations of sentences: all in the beam, for variants of the sentences of these indices, or the best
ones of pieces of sentences.
"""

_FINAL_PUNCTUATION = ".!?…。！？"


@dataclass(frozen=True)
class FixedLinks:
    """Alignment links of a translation that was put together from others."""

    words: tuple[Link, ...]
    """Links between words."""
    tokens: tuple[Link, ...] = ()
    """Links between tokens; none, because the tokens are those of several searches."""


class Protection:
    """Replaces protected text before the search, and restores it after the search."""

    def __init__(self, source: Tokenizer, target: Tokenizer, segment: Segment, is_calibrated: bool = False) -> None:
        """Choose substitutes for the tokenizers of a model.

        Args:
            source: Tokenizer of the source language.
            target: Tokenizer of the target language.
            segment: Makes source tokens of the model.
            is_calibrated: True if translations have a confidence.
        """
        self._substitutes = Substitutes(source, target)
        self._segment = segment
        self._is_calibrated = is_calibrated

    def segment(
        self,
        texts: Sequence[str],
        types: Collection[ProtectedType],
        grammars: Sequence[str | None] | None = None,
        variant: int = 0,
    ) -> list[Segmented]:
        """Return texts as source tokens, those of substitutes in place of protected text."""
        substituted = []
        for text, grammar in zip(texts, grammars or [None] * len(texts), strict=True):
            substituted.append(self._substitutes.replace(text, types, grammar, variant))
        model_texts = [item.text if item else text for text, item in zip(texts, substituted, strict=True)]
        results = []
        for found, segmented in zip(substituted, self._segment(model_texts), strict=True):
            # The text of a segmented sentence has no inline terms.
            is_shorter = found is not None and found.text != segmented.text
            item = found.relocated(segmented.text) if found is not None and is_shorter else found
            if item is None:
                results.append(segmented)
            elif item.is_translatable:
                results.append(item.source_tokens(segmented))
            else:
                results.append(Segmented(item.source, [], [], [], substituted=item))
        return results

    def complete(
        self, sources: Sequence[Segmented], n_best_lists: list[list[Translation]], search: Search
    ) -> list[list[Translation]]:
        """Return the translations that have all protected text of their sources; at least one per sentence.

        Args:
            sources: The source sentences.
            n_best_lists: Their translations; those that `restored_target` could not restore are incomplete.
            search: Translates other variants of sentences all of whose translations are incomplete.
        """
        results = list(n_best_lists)
        incomplete: list[int] = []
        for index, source in enumerate(sources):
            item = source.substituted
            if item is None or all(translation.blocked for translation in n_best_lists[index]):
                continue
            results[index] = _complete(item, n_best_lists[index])
            if not item.is_translatable:
                results[index] = [self._untranslated(source, None)]
            elif not results[index]:
                incomplete.append(index)
        variants = self._translate_variants({index: sources[index] for index in incomplete}, search)
        for index in incomplete:
            item = sources[index].substituted
            if item is not None and not variants[index]:
                variants[index] = _restored_by_links(item, n_best_lists[index])
        lost = [index for index in incomplete if not variants[index]]
        pieces = self._translate_pieces([sources[index] for index in lost], search)
        variants |= {index: [translation] for index, translation in zip(lost, pieces, strict=True)}
        for index, translations in variants.items():
            results[index] = translations[: len(n_best_lists[index])]
        return results

    def _translate_variants(self, sources: Mapping[int, Segmented], search: Search) -> dict[int, list[Translation]]:
        """Return the complete translations of each sentence with other substitutes, the best one first."""
        results: dict[int, list[Translation]] = {index: [] for index in sources}
        indices: list[int] = []
        texts: list[Segmented] = []
        for index, source in sources.items():
            item = source.substituted
            assert item is not None
            for variant in range(1, NUM_VARIANTS if len(item.slots) <= MAX_SLOTS else 0):
                indices.append(index)
                [text] = self.segment([item.source], item.types, [item.grammar], variant)
                texts.append(replace(text, context=source.context, streams=source.streams))
        if not texts:
            return results
        for index, text, translations in zip(indices, texts, search(texts, indices), strict=True):
            if text.substituted is not None:
                results[index] += _complete(text.substituted, translations)
        for translations in results.values():
            translations.sort(key=lambda translation: -translation.score)
        return results

    def _translate_pieces(self, sources: Sequence[Segmented], search: Search) -> list[Translation]:
        """Return translations that consist of those of the text around the placeholders, which stay in order."""
        texts: list[str] = []
        for source in sources:
            assert source.substituted is not None
            texts += [piece for piece in source.substituted.pieces() if _has_letters(piece)]
        if not texts:
            return []
        cores = [_core(piece)[1] for piece in texts]
        translated = iter([n_best[0] for n_best in search(self._segment(cores), None)])
        results = []
        for source in sources:
            item = source.substituted
            assert item is not None
            pieces = [piece for piece in item.pieces() if _has_letters(piece)]
            translation = _joined(item, source, list(islice(translated, len(pieces))))
            is_complete = item.is_complete(translation.text)
            results.append(translation if is_complete else self._untranslated(source, "source"))
        return results

    def _untranslated(self, source: Segmented, fallback: str | None) -> Translation:
        """Return the source as its own translation: certain if it is only protected text, else not confident at all.

        It has one token per word, because a URL may have more tokens than a sentence is allowed to have.
        """
        words = words_of(source.text)
        links = tuple((word, word) for word in range(len(words)))
        translation = _translation(source, source.text, 0.0, links, fallback, True)
        if not self._is_calibrated:
            return translation
        return replace(translation, word_confidence=(0.0 if fallback else 1.0,) * len(words))


def restored_target(
    source: Segmented,
    target: Segmented,
    normalization: Normalization = NO_NORMALIZATION,
    prefix: Prefix = NO_PREFIX,
) -> Segmented:
    """Return a translation as users see it: with the exact prefix, protected text, and the letter case of its source.

    Args:
        source: The source.
        target: The translation, as its tokens spell it. If not all substitutes are in it, they stay.
        normalization: Normalisation of the target language.
        prefix: Prefix that the translation was forced to start with.
    """
    target = prefix.restored(target, normalization)
    if source.substituted is not None and source.ids:
        target = source.substituted.restored(target) or target
    return target.in_case_of(source, normalization.language, len(prefix.text))


def _complete(item: SubstitutedText, translations: Sequence[Translation]) -> list[Translation]:
    return [translation for translation in translations if item.is_complete(translation.text)]


def _restored_by_links(item: SubstitutedText, translations: Sequence[Translation]) -> list[Translation]:
    """Return the translations in which the words linked to protected text can be replaced by it."""
    results = []
    for translation in translations:
        target = item.restored_by_links(translation.by_attention.target, translation.alignment)
        if target is not None:
            by_attention = replace(translation.by_attention, target=target)
            words = tuple(words_of(target.text))
            results.append(replace(translation, text=target.text, words=words, by_attention=by_attention))
    return results


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _joined(item: SubstitutedText, source: Segmented, translations: Sequence[Translation]) -> Translation:
    """Return the translations of the pieces of a text with the slots between them."""
    remaining = iter(translations)
    slots = [*item.slots, None]
    text = ""
    links: set[tuple[int, int]] = set()  # character offsets of linked words
    position = 0
    for piece, slot in zip(item.pieces(), slots, strict=True):
        prefix, core, suffix = _core(piece)
        start = position + len(prefix)
        if _has_letters(piece):
            translation = next(remaining)
            new = one_line(translation.text).strip().rstrip(_FINAL_PUNCTUATION).rstrip() or core
            # Words that the model has added must not touch the protected text.
            if text and not prefix and _touch(text, new):
                prefix = " "
            source_starts = [start + offset for offset, _ in word_spans(core)]
            target_starts = [len(text) + len(prefix) + offset for offset, _ in word_spans(new)]
            for i, j in translation.alignment:
                if i < len(source_starts) and j < len(target_starts):
                    links.add((source_starts[i], target_starts[j]))
            if slot is not None and not suffix and _touch(new, slot.text):
                suffix = " "
            text += prefix + new + suffix
        else:
            text += piece
        position += len(piece)
        if slot is not None:
            links.add((position, len(text)))
            text += slot.text
            position = slot.source_end
    ends = [[end for _, end in word_spans(side)] for side in (item.source, text)]
    word_links = sorted({(bisect_right(ends[0], i), bisect_right(ends[1], j)) for i, j in links})
    log_prob = sum(translation.log_prob for translation in translations)
    finished = all(translation.finished for translation in translations)
    result = _translation(source, text, log_prob, tuple(word_links), "pieces", finished)
    confidences = [translation.confidence for translation in translations if translation.confidence is not None]
    if not confidences:
        return result
    return replace(result, word_confidence=(sum(confidences) / len(confidences),) * len(result.words))


def _touch(left: str, right: str) -> bool:
    return left[-1:].isalnum() and right[:1].isalnum()


def _core(piece: str) -> tuple[str, str, str]:
    """Return a piece as the text from its first to its last letter or digit, with what is before and after it."""
    start = 0
    end = len(piece)
    while start < end and not piece[start].isalnum():
        start += 1
    while end > start and not piece[end - 1].isalnum():
        end -= 1
    return piece[:start], piece[start:end], piece[end:]


def _translation(
    source: Segmented, text: str, log_prob: float, links: tuple[Link, ...], fallback: str | None, finished: bool
) -> Translation:
    """Return a translation with one token per word, each with the same score."""
    words = words_of(text)
    target = Segmented(text, [UNK] * len(words), words, word_spans(text))
    eos = (SPECIALS[EOS],) if finished else ()
    count = len(words) + len(eos)
    return Translation(
        source=source.text,
        text=text,
        score=log_prob / max(1, count),
        log_prob=log_prob,
        finished=finished,
        tokens=(*words, *eos),
        token_scores=(log_prob / max(1, count),) * count,
        source_tokens=(*source.tokens, SPECIALS[EOS]),
        attention=None,
        source_words=tuple(words_of(source.text)),
        words=tuple(words),
        by_attention=WordAttention(source, target, None),
        aligner_links=FixedLinks(links),
        fallback=fallback,
    )
