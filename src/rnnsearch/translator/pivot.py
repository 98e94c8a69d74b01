"""Translation through a third language: one model translates into it, another one out of it.

`PivotTranslator` has the interface of `Translator` for the text of a user, so that commands work with either; `pivot`
creates it from two models (also `rnnsearch.pivot`). Models of one system, such as two directions of a multilingual
one, work like separate ones. Tests: tests/test_pivot.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from rnnsearch.config import RunConfig
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.consensus import Utility
from rnnsearch.search.options import SearchOptions
from rnnsearch.text.alignment_types import AlignedBy
from rnnsearch.text.alignments import Link
from rnnsearch.text.attention_words import WordAttention
from rnnsearch.text.markup.protected import ProtectedType
from rnnsearch.text.sentences import sentence_spans
from rnnsearch.text.several_sources import text_list
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.context import DocumentOrder
from rnnsearch.translator.loading import load
from rnnsearch.translator.texts import FALLBACKS, assign_sentences, sentences_of
from rnnsearch.translator.translation import AlignerLinks, Matrix, Translation, one_line
from rnnsearch.translator.translator import Translator


def pivot(
    first: Translator | str | Path,
    second: Translator | str | Path | None = None,
    n_best: int = 1,
    beam: int | None = None,
    *,
    source: str | None = None,
    language: str | None = None,
    target: str | None = None,
) -> PivotTranslator:
    """Return a translator that translates with one model into a third language, and with another one out of it.

    Args:
        first: The model from the source into the third language, or its folder.
        second: The model from the third into the target language, or its folder; by default the first one, if that
            has several directions.
        n_best: Number of translations into the third language that are translated further.
        beam: Beam size of the first model; by default its own, or `n_best` if that is larger.
        source: Source language, for models with several directions.
        language: The third language, likewise.
        target: Target language, likewise.

    Raises:
        ModelError: The models have no directions from `source` into a third language and from there to `target`, or
            there are several third languages. Directions back into the source language need `target`.
        RnnsearchError: The beam is smaller than `n_best`.
    """
    first = first if isinstance(first, Translator) else load(first)
    if second is None:
        second = first
    second = second if isinstance(second, Translator) else load(second)
    into, out = _route(first.directions, second.directions, source, language, target)
    return PivotTranslator(first.select(*into), second.select(*out), n_best, beam)


def _route(
    first: Sequence[tuple[str, str]],
    second: Sequence[tuple[str, str]],
    source: str | None,
    language: str | None,
    target: str | None,
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return the directions of two models that lead from a source through a third language to a target."""
    routes = []
    for x, z in first:
        routes += [((x, z), (z, y)) for other, y in second if other == z]
    wanted = (source, language, target)
    routes = [
        (into, out)
        for into, out in routes
        if all(code in (None, found) for code, found in zip(wanted, (*into, out[1]), strict=True))
    ]
    if (source is None and len(routes) > 1) or (target is None and len(second) > 1):
        # Back into the source language only if that is requested.
        onward = [(into, out) for into, out in routes if into[0] != out[1]]
        if routes and not onward:
            ways = ", ".join("-".join((*into, out[1])) for into, out in routes)
            raise ModelError(f"the models only lead back into the source language ({ways}); choose it as the target")
        routes = onward
    if not routes:
        names = dict.fromkeys("-".join(direction) for direction in (*first, *second))
        through = " to ".join(code or "any language" for code in wanted)
        raise ModelError(f"no directions of the models lead from {through}; they have {', '.join(names)}")
    if len(routes) > 1:
        found = ", ".join("-".join((*into, out[1])) for into, out in routes)
        raise ModelError(f"several directions lead through a third language ({found}); choose source, third and target")
    return routes[0]


class PivotTranslator:
    """Translates through a third language. One sentence in is one translation out.

    With several intermediate translations z of a sentence x, the probability of a translation y is their sum
    p(y | x) = sum_z p(z | x) p(y | z), over those z. The score is that of the second model, with p(z | x) normalised
    over them; so one intermediate translation gives the second model's translations of it.
    """

    def __init__(self, first: Translator, second: Translator, n_best: int = 1, beam: int | None = None) -> None:
        """Combine two models (see `pivot`)."""
        for model in (first, second):
            model.require_one_source("translating through a third language")
        if first.languages[1] != second.languages[0]:
            must = f"must translate from {first.languages[1]}, into which the first one translates"
            raise ModelError(f"the second model of a pivot {must}; got {' to '.join(second.languages)}")
        if first.system.reads_translations:
            # The results of a pivot are in another language than the translations that this model reads.
            raise ModelError(
                "the first model of a pivot must not read translations of previous sentences (data.context.target)"
            )
        if n_best < 1:
            raise RnnsearchError(f"n_best must be at least 1; got {n_best}")
        self.models = first, second
        """The two models."""
        self.languages = first.languages[0], second.languages[1]
        """Codes of the source and target language."""
        self.config: RunConfig = first.config
        """Run file of the first model."""
        self.source = first.source
        """Tokenizer of the source language."""
        self.target = second.target
        """Tokenizer of the target language."""
        self._first_options = first.options(beam=beam, n_best=n_best)

    def __repr__(self) -> str:
        """Return the languages and the sizes of the models, on one line."""
        first, second = self.models
        size = (first.parameters + second.parameters) / 1e6
        languages = " to ".join((first.languages[0], *second.languages))
        return f"<PivotTranslator {languages}, {size:.1f} million parameters>"

    @property
    def protect(self) -> tuple[ProtectedType, ...]:
        """Types of text that translations contain unchanged."""
        return self.models[0].protect

    @protect.setter
    def protect(self, types: tuple[ProtectedType, ...]) -> None:
        for model in self.models:
            model.protect = types

    def prepare(self) -> None:
        """Make everything now that would be made at the first translation."""
        for model in self.models:
            model.prepare()

    def require_confidence(self) -> None:
        """Raise ModelError: no calibration is valid for both models together."""
        raise ModelError("this needs a single calibrated model; translations through a third language have none")

    def require_alignments(self, by: str | None = None) -> AlignedBy:
        """Return the source of alignments of the first model; raise errors like `Translator.require_alignments`."""
        by_first, _ = (model.require_alignments(by) for model in self.models)
        return by_first

    def require_context(self) -> None:
        """Raise ModelError if the first model does not read the previous sentences of a document."""
        self.models[0].require_context()

    def document_order(self) -> DocumentOrder:
        """Return an object that adds the contexts of the first model (see `Translator.document_order`)."""
        return self.models[0].document_order()

    def options(self, *args: Any, **options: Any) -> SearchOptions:
        """Return the search options of the second model (see `Translator.options`)."""
        return self.models[1].options(*args, **options)

    def segment(
        self,
        texts: Sequence[str | Segmented],
        protect: Sequence[ProtectedType] | None = None,
        grammars: Sequence[str | None] | None = None,
    ) -> list[Segmented]:
        """Return sentences as tokens of the first model (see `Translator.segment`)."""
        return self.models[0].segment(texts, protect, grammars)

    @overload
    def translate(self, text: str, options: SearchOptions | None = None) -> Translation: ...
    @overload
    def translate(self, text: list[str], options: SearchOptions | None = None) -> list[Translation]: ...

    def translate(self, text: str | list[str], options: SearchOptions | None = None) -> Translation | list[Translation]:
        """Return the best translation of a sentence, or of each sentence of a list."""
        if isinstance(text, str):
            return self.n_best([text], options)[0][0]
        return [translations[0] for translations in self.n_best(text, options)]

    @overload
    def translate_text(self, text: str, options: SearchOptions | None = None) -> Translation: ...
    @overload
    def translate_text(self, text: list[str], options: SearchOptions | None = None) -> list[Translation]: ...

    def translate_text(
        self, text: str | list[str], options: SearchOptions | None = None
    ) -> Translation | list[Translation]:
        """Return the best translation of a text of any number of sentences, or of each text of a list."""
        texts = [text] if isinstance(text, str) else text_list(text)
        spans = [sentence_spans(text, self.languages[0]) for text in texts]
        order = self.document_order()
        n_best_lists = order.n_best(*sentences_of(texts, spans), lambda sources: self.n_best(sources, options))
        results = assign_sentences(texts, spans, n_best_lists, self.languages[1])
        translations = [result.translations()[0] for result in results]
        return translations[0] if isinstance(text, str) else translations

    def n_best(
        self,
        texts: Sequence[str | Segmented],
        options: SearchOptions | None = None,
        batch_sentences: int | None = None,
    ) -> list[list[Translation]]:
        """Return the n best translations of each sentence, best first; fewer if the searches found fewer.

        Args:
            texts: The sentences.
            options: How the second model searches; `options.n_best` is the number of translations.
            batch_sentences: Maximum number of sentences per batch.
        """
        first, second = self.models
        options = options or self.options()
        sources = self.segment(texts)
        intermediates = [weighted(n_best) for n_best in first.n_best(sources, self._first_options, batch_sentences)]
        rows: list[Segmented] = []
        for source, some in zip(sources, intermediates, strict=True):
            rows += self._segment_intermediates(source, [one.translation for one in some])
        count = num_continuations(options, self._first_options.n_best)
        translations = second.n_best(rows, replace(options, n_best=count), batch_sentences)
        return combine(intermediates, translations, options)

    def by_consensus(
        self, translations: Sequence[Translation], options: SearchOptions, utility: Utility = "chrf"
    ) -> list[Translation]:
        """Return translations of one sentence by expected utility (see `Translator.by_consensus`)."""
        return self.models[1].by_consensus(translations, options, utility)

    def _segment_intermediates(self, source: Segmented, translations: Sequence[Translation]) -> list[Segmented]:
        """Return intermediate translations as tokens of the second model, with the protected text of their source."""
        texts = [one_line(translation.text) for translation in translations]
        protected = source.substituted
        if protected is None:
            return self.models[1].segment(texts, protect=())
        return self.models[1].segment(texts, protected.types, [protected.grammar] * len(texts))


class Intermediate(NamedTuple):
    """A translation into the third language."""

    translation: Translation
    log_weight: float
    """Logarithm of its probability, normalised over the translations of its sentence."""


def weighted(n_best: Sequence[Translation]) -> list[Intermediate]:
    """Return those of the n best translations of a sentence that are to be translated further.

    They have different texts, and if one of them is finished, all are.
    """
    by_text: dict[str, list[Translation]] = {}
    for translation in [translation for translation in n_best if translation.finished] or n_best:
        by_text.setdefault(translation.text, []).append(translation)
    log_probs = [_log_sum([same.log_prob for same in translations]) for translations in by_text.values()]
    total = _log_sum(log_probs)
    intermediates = []
    for translations, log_prob in zip(by_text.values(), log_probs, strict=True):
        intermediates.append(Intermediate(replace(translations[0], log_prob=log_prob), log_prob - total))
    return intermediates


def _log_sum(log_probs: Sequence[float]) -> float:
    """Return the logarithm of the sum of probabilities."""
    largest = max(log_probs)
    if len(log_probs) == 1 or math.isinf(largest):
        return largest
    return largest + math.log(sum(math.exp(log_prob - largest) for log_prob in log_probs))


def _combined(pairs: Sequence[tuple[Intermediate, Translation]], options: SearchOptions) -> list[Translation]:
    """Return the translations of one sentence from those of its intermediate translations, best first.

    Translations with equal texts are one, with the tokens and links of the most probable intermediate translation.
    """
    by_text: dict[str, list[tuple[Intermediate, Translation]]] = {}
    for one, translation in pairs:
        by_text.setdefault(translation.text, []).append((one, translation))
    results = []
    for same in by_text.values():
        one, best = max(same, key=lambda pair: pair[0].log_weight + pair[1].log_prob)
        log_prob = _log_sum([first.translation.log_prob + second.log_prob for first, second in same])
        conditional = _log_sum([first.log_weight + second.log_prob for first, second in same])
        length = max(1, len(best.token_scores))
        # The difference, because the second model's score may include coverage.
        gain = options.ranking.score(conditional, length) - options.ranking.score(best.log_prob, length)
        results.append(_through(one.translation, best, best.score + gain, log_prob))
    return sorted(results, key=lambda translation: (not translation.finished, -translation.score))


def num_continuations(options: SearchOptions, num_intermediates: int) -> int:
    """Return the number of translations to search for from each intermediate translation, for `combine`.

    With several intermediate translations, it is the whole beam, in which those with equal texts are added up.

    Args:
        options: Search options of the second model.
        num_intermediates: Maximum number of intermediate translations per sentence.
    """
    return options.beam if num_intermediates > 1 and options.variant is None else options.n_best


def combine(
    intermediates: Sequence[Sequence[Intermediate]],
    n_best_lists: Iterable[Sequence[Translation]],
    options: SearchOptions,
) -> list[list[Translation]]:
    """Return the n best translations of each sentence through the third language.

    Args:
        intermediates: Translations of each sentence into the third language.
        n_best_lists: Translations of each of these.
        options: Search options of the second model; `options.n_best` is the number of translations.
    """
    remaining = iter(n_best_lists)
    results = []
    for some in intermediates:
        pairs = [(one, translation) for one in some for translation in next(remaining)]
        results.append(_combined(pairs, options)[: options.n_best])
    return results


def _through(first: Translation, second: Translation, score: float, log_prob: float) -> Translation:
    """Return the second model's translation of the first one's as a translation of its source."""
    if first.blocked or first.fallback == "source":
        # There is nothing in the third language to translate.
        return first
    source = first.by_attention.source
    # Replacements copy words of the third language.
    target = replace(second.by_attention.target, replaced=())
    links: AlignerLinks | None = None
    if first.aligner_links is not None or second.aligner_links is not None:
        links = _PivotLinks(first, second)
    fallbacks = [one.fallback for one in (first, second) if one.fallback is not None]
    return replace(
        second,
        source=first.source,
        score=score,
        log_prob=log_prob,
        finished=first.finished and second.finished,
        source_tokens=first.source_tokens,
        attention=None,
        source_words=first.source_words,
        by_attention=_PivotAttention(source, target, None, steps=(first, second)),
        aligner_links=links,
        replaced=(),
        word_confidence=None,
        rationale=first.rationale,
        fallback=min(fallbacks, key=FALLBACKS.index, default=None),
        pivot=first.text,
    )


# Alignments through the third language.


@dataclass(frozen=True)
class _PivotAttention(WordAttention):
    """Attention over words through those of the third language: the product of both models' weights."""

    steps: tuple[Translation, ...] = ()
    """The two translations."""

    @cached_property
    def weights(self) -> Matrix | None:
        """Attention [target words, source words]; None if a model has none."""
        first, second = (step.word_attention for step in self.steps)
        if first is None or second is None:
            return None
        product: Matrix = np.matmul(second, first)
        return product

    @cached_property
    def word_links(self) -> tuple[Link, ...]:
        """Sorted links of words by attention."""
        first, second = self.steps
        return compose_links(first.attended, second.attended)

    @cached_property
    def token_links(self) -> tuple[Link, ...]:
        """Sorted links of tokens by attention."""
        first, second = self.steps
        return _compose_token_links(first, first.attended_tokens, second, second.attended_tokens)


@dataclass(frozen=True)
class _PivotLinks:
    """Links of aligners (`AlignerLinks`), or of attention if one model has no aligner, through the third language."""

    first: Translation
    second: Translation

    @cached_property
    def words(self) -> tuple[Link, ...]:
        """Links between words."""
        return compose_links(self.first.alignment, self.second.alignment)

    @cached_property
    def tokens(self) -> tuple[Link, ...]:
        """Links between tokens."""
        first, second = self.first, self.second
        return _compose_token_links(first, first.token_alignment, second, second.token_alignment)


def compose_links(first: Sequence[Link], second: Sequence[Link]) -> tuple[Link, ...]:
    """Return the sorted links (i, j) for which some k has the links (i, k) in the first and (k, j) in the second."""
    targets: dict[int, list[int]] = {}
    for middle, target in second:
        targets.setdefault(middle, []).append(target)
    return tuple(sorted({(source, target) for source, middle in first for target in targets.get(middle, ())}))


def _compose_token_links(
    first: Translation, first_links: Sequence[Link], second: Translation, second_links: Sequence[Link]
) -> tuple[Link, ...]:
    """Return links of tokens; tokens of the two models in the third language are the same if they share a character."""
    written = first.by_attention.target.offsets
    read = second.by_attention.source.offsets
    same = []
    start = 0
    for index, (begin, end) in enumerate(written):
        # Both lists are sorted; tokens of one character may cover the same one.
        while start < len(read) and read[start][1] <= begin:
            start += 1
        for other in range(start, len(read)):
            if read[other][0] >= end:
                break
            same.append((index, other))
    return compose_links(compose_links(first_links, same), second_links)
