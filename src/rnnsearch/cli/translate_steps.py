"""Steps of `translate` around the search: glossary terms, reranking and the confidence filter.

`LineTranslator` (`translate_lines.py`) creates the steps. Glossary terms and the confidence filter add to its
dictionary `counts`, which they share with `pairs.LinkWriter`: sums by name over one chunk of lines. It clears the
dictionary before each chunk; callers add up the counts of all chunks (of all shards in a bulk run), and the `report_`
functions print them at the end. A step runs in each worker of a bulk run, so it may change no state but `counts`.

Tests: tests/commands/test_translate.py, tests/commands/test_inline_terms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from rnnsearch.cli.io import print_message

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts
    from rnnsearch.cli.options import SearchGroup
    from rnnsearch.search.options import SearchOptions
    from rnnsearch.text.tokenizer import Segmented
    from rnnsearch.translator.pivot import PivotTranslator
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

    Rerank = Callable[[Sequence[Sequence[Translation]]], list[list[Translation]]]
    # The texts are `str` or `Segmented`.
    Search = Callable[[list[Any]], list[list[Translation]]]

# Names of counts; prefixes are followed by what is counted.
BELOW_CONFIDENCE = "below confidence"
WARNING_PREFIX = "warning: "
REPLACED_PREFIX = "replaced: "
TERMS = "terms"
MISSING_TERMS = "missing terms"
INLINE_TERMS = "inline terms"
TERMS_USED = "terms used"

REPLACEMENT_VERBS = {"dictionary": "by the dictionary", "copy": "copied", "spelled": "spelled"}


def models_of(translator: Translator | PivotTranslator) -> tuple[Translator, ...]:
    """Return the models that translate one after the other."""
    from rnnsearch.translator.translator import Translator

    return (translator,) if isinstance(translator, Translator) else translator.models


# Reranking.


def choose_reranking(
    translator: Translator | PivotTranslator, options: SearchOptions, group: SearchGroup, device: str
) -> tuple[SearchOptions, Rerank | None]:
    """Return the function that reorders n-best lists, if one is requested, and the search options that it needs.

    The default beam grows to the number of translations that a reranker was trained on.

    Raises:
        BadParameter: The search finds a single translation.
        ModelError: The folder is not a reranker, or it is for other languages.
    """
    if group.reranker is not None:
        from rnnsearch.translator.rerank import load_reranker

        reranker = load_reranker(group.reranker, device)
        [model] = models_of(translator)  # not with --pivot (`load_translator`)
        reranker.require_languages(model)
        if group.beam is None:
            options = reranker.wide_enough(options)
        require_several(options, "--reranker")
        return options, reranker.ordered
    if group.mbr is not None:
        utility = group.mbr
        require_several(options, "--mbr")
        return options, lambda lists: [translator.by_consensus(n_best, options, utility) for n_best in lists]
    return options, None


def require_several(options: SearchOptions, option: str) -> None:
    """Raise BadParameter if the search finds a single translation."""
    if options.beam == 1:
        raise typer.BadParameter(f"{option} needs several translations to choose from; use a --beam of 2 or more")


def build_search(
    translator: Translator | PivotTranslator | GlossaryTranslator,
    options: SearchOptions,
    batch: int,
    rerank: Rerank | None,
) -> Search:
    """Return a function that finds the n best translations of texts, after reranking all that the beam has found."""
    if rerank is None:
        return lambda texts: translator.n_best(texts, options, batch)
    beam_options = replace(options, n_best=options.beam)  # as many translations as the beam holds

    def search(texts: list[Any]) -> list[list[Translation]]:
        reranked = rerank(translator.n_best(texts, beam_options, batch))
        return [n_best[: options.n_best] for n_best in reranked]

    return search


# Glossary terms.


class GlossaryTranslator:
    """Translates with the terms of a glossary: in the source, if the model reads inline terms, else put in place."""

    def __init__(self, path: Path, translator: Translator, options: SearchOptions, force: bool, counts: Counts) -> None:
        """Read the glossary.

        Args:
            force: Write the exact terms also with a model that reads inline terms.

        Raises:
            DataError: The file cannot be read, or an entry is not valid.
            RnnsearchError: A term contains a banned phrase.
        """
        from rnnsearch.translator.glossaries import read_glossary

        self._translator = translator
        self._counts = counts
        self._inline = translator.reads_terms and not force
        self._glossary = read_glossary(path)
        if not self._inline:
            # Errors come before the first line is translated.
            translator.constraints.require_allowed(self._glossary.all_forms(), options)

    def n_best(self, texts: Sequence[str | Segmented], options: SearchOptions, batch: int) -> list[list[Translation]]:
        """Return the n best translations of each text, like `Translator.n_best`."""
        raw_texts = [text if isinstance(text, str) else text.text for text in texts]
        if not self._inline:
            matches = [list(self._glossary.matches(text)) for text in raw_texts]
            translations = self._translator.n_best(texts, options, batch, terms=matches)
            self._count(TERMS, sum(map(len, matches)))
            self._count(MISSING_TERMS, sum(len(n_best[0].missing_terms) for n_best in translations))
            return translations
        # A model that reads inline terms reads no context (`config.rules`).
        texts_with_terms = [self._translator.with_terms(text, self._glossary) for text in raw_texts]
        translations = self._translator.n_best(texts_with_terms, options, batch)
        self._count_terms(raw_texts, translations)
        return translations

    def _count_terms(self, texts: Sequence[str], translations: Sequence[Sequence[Translation]]) -> None:
        """Count the inline terms, and those that occur unchanged in the best translation."""
        from rnnsearch.text.terms import contains_term, term_words

        for text, n_best in zip(texts, translations, strict=True):
            words = term_words(n_best[0].text)
            for term in self._glossary.terms(text):
                is_used = contains_term(term_words(term), words, exact=True)
                self._count(INLINE_TERMS, 1)
                self._count(TERMS_USED, is_used)

    def _count(self, name: str, number: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + number


def report_terms(counts: Counts) -> None:
    """Print how many inline terms occur unchanged in the translations, and how many terms could not be placed."""
    if counts.get(MISSING_TERMS):
        print_message(
            f"{counts[TERMS]:,.0f} glossary terms, {counts[MISSING_TERMS]:,.0f} could not be placed "
            "(`missing_terms` of --format json)"
        )
    if INLINE_TERMS in counts:
        print_message(
            f"{counts[INLINE_TERMS]:,.0f} glossary terms, {counts[TERMS_USED]:,.0f} unchanged in the translations"
        )


# Confidence and warnings.


class ConfidenceFilter:
    """Replaces or marks low-confidence translations, and counts them and the warnings."""

    def __init__(self, threshold: float | None, action: Literal["empty", "mark"] | None, counts: Counts) -> None:
        self._threshold = threshold
        self._marks = action == "mark"
        self._counts = counts

    def words_before(self, translation: Translation) -> int | None:
        """Return the number of words before the translation in its output line, or None if the line is empty."""
        if not self._is_low(translation):
            return 0
        return 1 if self._marks else None

    def line(self, translation: Translation, text: str) -> str:
        """Return the output line of a translation with this text, and count its warnings.

        Call it exactly once per translation.
        """
        from rnnsearch.translator.confidence import warnings

        for warning in warnings(translation):
            self._count(WARNING_PREFIX + warning)
        if not self._is_low(translation):
            return text
        self._count(BELOW_CONFIDENCE)
        return f"[?] {text}" if self._marks else ""

    def _is_low(self, translation: Translation) -> bool:
        if self._threshold is None or translation.confidence is None:
            return False
        return translation.confidence < self._threshold

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1


def report_confidence(threshold: float | None, action: str | None, counts: Counts) -> None:
    """Print how many lines were below the threshold, and how many translations have warnings."""
    if threshold is not None:
        output = "marked" if action == "mark" else "left empty"
        print_message(f"{counts.get(BELOW_CONFIDENCE, 0):,.0f} lines below confidence {threshold:g}: {output}")
    warned = [
        f"{count:,.0f} {name.removeprefix(WARNING_PREFIX)}"
        for name, count in sorted(counts.items())
        if name.startswith(WARNING_PREFIX)
    ]
    if warned:
        print_message(f"translations that look wrong: {', '.join(warned)} (`warnings` of --format json)")


def report_replaced_words(counts: Counts) -> None:
    """Print how many unknown words were replaced, by source of the replacement."""
    replaced = {
        verb: counts[REPLACED_PREFIX + name]
        for name, verb in REPLACEMENT_VERBS.items()
        if REPLACED_PREFIX + name in counts
    }
    if replaced:
        details = ", ".join(f"{count:,.0f} {verb}" for verb, count in replaced.items())
        print_message(f"{sum(replaced.values()):,.0f} unknown words replaced: {details}")
