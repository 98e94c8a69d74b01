"""Terms of a glossary in translations, each in place of the words that translate its source term.

The sentence is first translated without terms. If a term is not in this translation, there are two ways to a better
one, and the likelier result is taken:

- The words aligned to the source term are replaced by the term. Of several forms of a term, the one that the model
  finds likeliest in this sentence is taken.
- The search is repeated with the terms as constraints (`search.phrases`), so that the words around them can change.
  A result counts only if each term is aligned to its source term and nothing else is: the search may also append a
  term anywhere and translate its source term in addition.

A term that has no aligned words, and that no search puts in its place, is left out and reported
(`Translation.missing_terms`).

`translator.py` calls `TermPlacer`; nothing here changes the translator, because threads of the server use it at the
same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rnnsearch.search.options import SearchOptions
from rnnsearch.text.alignments import bare_word_spans, word_spans
from rnnsearch.text.banned import is_word_character
from rnnsearch.text.languages import is_unspaced_letter
from rnnsearch.text.terms import Forms, TermMatch
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translator.confidence import repeats_more
from rnnsearch.translator.translation import Translation

Match = TermMatch[Forms]
Span = tuple[int, int]
"""Characters [start, end) of a translation."""
Search = Callable[[Sequence[int], SearchOptions, Sequence[Sequence[str]]], list[list[Translation]]]
"""Translates the sentences of these indices with required phrases."""
Score = Callable[[Sequence[Segmented], Sequence[str]], list[Translation]]
"""Returns existing translations with their scores."""

MAX_PLACED_TERMS = 20
"""Maximum number of terms per sentence that are put in place; the others are only looked for."""
MAX_SCORED_FORMS = 40
"""Maximum number of forms per sentence that are compared; further terms have their first form."""
MIN_RELATIVE_WEIGHT = 0.3  # of an aligned word's attention, relative to the word with most attention


@dataclass(frozen=True)
class _Draft:
    """A translation with the positions of terms that are, or could be, in it."""

    translation: Translation
    present: tuple[Span | None, ...]
    """Occurrence of each term."""
    replaceable: tuple[Span | None, ...]
    """Words in place of each term, if it does not occur."""

    @property
    def is_complete(self) -> bool:
        return all(span is not None for span in self.present)

    def text(self, forms: Sequence[str], upper: bool) -> str:
        """Return the text with these forms of the terms in their places."""
        text = self.translation.text
        edits = [(span, form) for span, form in zip(self.replaceable, forms, strict=True) if span is not None]
        for (start, end), form in sorted(edits, reverse=True):
            text = text[:start] + _in_case(form, text[start:end], start == 0, upper) + text[end:]
        return text


class TermPlacer:
    """Puts terms into the translations of sentences."""

    def __init__(self, search: Search, score: Score, can_write: Callable[[str], bool]) -> None:
        """Make a placer from functions of a translator.

        Args:
            search: Translates sentences with required phrases.
            score: Scores existing translations.
            can_write: Returns True if the search can require a phrase.
        """
        self._search = search
        self._score = score
        self._can_write = can_write

    def place(
        self,
        sources: Sequence[Segmented],
        terms: Sequence[Sequence[Match]],
        prefixes: Sequence[str],
        options: SearchOptions,
        n_best_lists: Sequence[list[Translation]],
    ) -> list[list[Translation]]:
        """Return translations of the sentences with their terms, best first.

        Args:
            sources: The sentences.
            terms: The terms of each sentence, from left to right.
            prefixes: Text at the start of each sentence's translations that stays.
            options: How the sentences were translated.
            n_best_lists: The n best translations of each sentence without terms.
        """
        results = list(n_best_lists)
        terms = list(map(_unprotected, sources, terms))
        drafts: dict[int, list[_Draft]] = {}
        for index, matches in enumerate(terms):
            if matches:
                min_start = len(prefixes[index])
                found = [_draft(sources[index], one, matches, min_start) for one in n_best_lists[index]]
                if not all(draft.is_complete for draft in found):
                    drafts[index] = found
        if not drafts:
            return results
        forms = self._choose_forms(sources, terms, drafts)
        candidates = self._replaced(sources, terms, drafts, forms, options)
        for index, translations in self._constrained(sources, terms, drafts, forms, options).items():
            candidates[index] += translations
        for index, translations in candidates.items():
            results[index] = _ranked(translations)[: max(1, options.n_best)]
        return results

    def _choose_forms(
        self, sources: Sequence[Segmented], terms: Sequence[Sequence[Match]], drafts: dict[int, list[_Draft]]
    ) -> dict[int, list[str]]:
        """Return the likeliest form of each term in the best translation, next to the first form of the other terms."""
        chosen = {index: [match.entry[0] for match in terms[index]] for index in drafts}
        rows: list[tuple[int, int, str]] = []
        texts: list[str] = []
        for index, (draft, *_) in drafts.items():
            num_scored = 0
            for number, match in enumerate(terms[index]):
                num_scored += len(match.entry)
                if draft.replaceable[number] is None or len(match.entry) == 1 or num_scored > MAX_SCORED_FORMS:
                    continue
                for form in match.entry:
                    forms = [*chosen[index]]
                    forms[number] = form
                    rows.append((index, number, form))
                    texts.append(draft.text(forms, sources[index].case == "upper"))
        scored = self._score([sources[index] for index, *_ in rows], texts) if rows else []
        best: dict[tuple[int, int], tuple[float, str]] = {}
        for (index, number, form), translation in zip(rows, scored, strict=True):
            # Not by score: the mean over tokens would favour forms with predictable endings.
            if (index, number) not in best or translation.log_prob > best[index, number][0]:
                best[index, number] = (translation.log_prob, form)
        for (index, number), (_, form) in best.items():
            chosen[index][number] = form
        return chosen

    def _replaced(
        self,
        sources: Sequence[Segmented],
        terms: Sequence[Sequence[Match]],
        drafts: dict[int, list[_Draft]],
        forms: dict[int, list[str]],
        options: SearchOptions,
    ) -> dict[int, list[Translation]]:
        """Return the translations of each sentence with aligned words replaced by terms, as far as there are any."""
        candidates: dict[int, list[Translation]] = {index: [] for index in drafts}
        rows: list[tuple[int, _Draft]] = []
        texts: list[str] = []
        for index, sentence_drafts in drafts.items():
            for draft in sentence_drafts:
                text = draft.text(forms[index], sources[index].case == "upper")
                substituted = sources[index].substituted
                is_complete = substituted is None or substituted.is_complete(text)
                if text == draft.translation.text or not is_complete or _is_banned(text, options):
                    missing = [match for match, span in zip(terms[index], draft.present, strict=True) if span is None]
                    candidates[index].append(_without(draft.translation, missing))
                    continue
                rows.append((index, draft))
                texts.append(text)
        scored = self._score([sources[index] for index, _ in rows], texts) if rows else []
        for (index, draft), replaced in zip(rows, scored, strict=True):
            missing = []
            for match, present, replaceable in zip(terms[index], draft.present, draft.replaceable, strict=True):
                if present is None and replaceable is None:
                    missing.append(match)
            # It ends where the translation without terms ends.
            translation = replace(replaced, finished=draft.translation.finished)
            candidates[index].append(_without(translation, missing))
        return candidates

    def _constrained(
        self,
        sources: Sequence[Segmented],
        terms: Sequence[Sequence[Match]],
        drafts: dict[int, list[_Draft]],
        forms: dict[int, list[str]],
        options: SearchOptions,
    ) -> dict[int, list[Translation]]:
        """Return the translations of each sentence that a search with constraints has found, the terms in place."""
        if options.variant is not None or options.beam == 1:
            return {}
        indices: list[int] = []
        phrases: list[list[str]] = []
        for index in drafts:
            required = list(dict.fromkeys(forms[index]))
            if len(terms[index]) <= MAX_PLACED_TERMS and all(map(self._can_write, required)):
                indices.append(index)
                phrases.append(required)
        if not indices:
            return {}
        results: dict[int, list[Translation]] = {}
        for index, n_best in zip(indices, self._search(indices, options, phrases), strict=True):
            source = sources[index]
            results[index] = [one for one in n_best if _is_in_place(source, one, terms[index])]
        return results


def _is_banned(text: str, options: SearchOptions) -> bool:
    return options.banned_phrases is not None and options.banned_phrases.banned.occurs_in(text)


def _ranked(candidates: Sequence[Translation]) -> list[Translation]:
    """Return the distinct candidates: those with most terms first, then by score."""
    by_text: dict[str, Translation] = {}
    for candidate in candidates:
        by_text.setdefault(candidate.text, candidate)
    return sorted(by_text.values(), key=lambda one: (len(one.missing_terms), not one.finished, -one.score))


def _without(translation: Translation, missing: Sequence[Match]) -> Translation:
    """Return a translation that reports the source terms whose target terms it does not contain."""
    source = translation.source
    return replace(translation, missing_terms=tuple(source[match.start : match.end] for match in missing))


def _in_case(form: str, replaced: str, is_first: bool, upper: bool) -> str:
    """Return a form in capital letters like its sentence, or with a capital letter at the start of a sentence.

    Names that are written with other capital letters, such as `iPhone`, stay.
    """
    if upper:
        return form.upper()
    if is_first and replaced[:1].isupper() and form.islower():
        return form[0].upper() + form[1:]
    return form


# Positions of terms.


def _unprotected(source: Segmented, matches: Sequence[Match]) -> list[Match]:
    """Return the terms that are not in protected text, such as a URL, which translations contain unchanged."""
    if source.substituted is None:
        return list(matches)
    protected = [(item.start, item.end) for item in source.substituted.protected]
    return [match for match in matches if not _overlaps((match.start, match.end), protected)]


def _draft(source: Segmented, translation: Translation, matches: Sequence[Match], min_start: int) -> _Draft:
    """Return a translation with the positions of terms.

    Args:
        source: The source sentence.
        translation: Its translation.
        matches: The terms.
        min_start: Number of characters at the start that must not be replaced.
    """
    present = _occurrences(source, translation.text, matches)
    taken = [span for span in present if span is not None]
    replaceable: list[Span | None] = []
    can_change = translation.fallback is None and not translation.blocked
    for number, (match, span) in enumerate(zip(matches, present, strict=True)):
        aligned = None
        if span is None and can_change and number < MAX_PLACED_TERMS:
            aligned = _aligned_span(translation, match, taken)
        if aligned is not None and aligned[0] < min_start:
            aligned = None
        if aligned is not None:
            taken.append(aligned)
        replaceable.append(aligned)
    return _Draft(translation, present, tuple(replaceable))


def _occurrences(source: Segmented, text: str, matches: Sequence[Match]) -> tuple[Span | None, ...]:
    """Return an occurrence of each term, no two of them overlapping."""
    spans: list[Span | None] = []
    taken: list[Span] = []
    for match in matches:
        found = None
        for form in sorted(match.entry, key=len, reverse=True):
            free = (span for span in _spans_of(form, text, source.case == "upper") if not _overlaps(span, taken))
            found = found or next(free, None)
        spans.append(found)
        if found is not None:
            taken.append(found)
    return tuple(spans)


def _spans_of(form: str, text: str, upper: bool) -> Iterator[Span]:
    """Yield the occurrences of a form as whole words, also with a capital letter at the start of the text."""
    form = form.upper() if upper else form
    if text.startswith(_in_case(form, text[:1], is_first=True, upper=upper)) and not _continues(text, len(form)):
        yield 0, len(form)
    start = text.find(form, 1)
    while start >= 0:
        end = start + len(form)
        if not _continues(text, start) and not _continues(text, end):
            yield start, end
        start = text.find(form, start + 1)


def _continues(text: str, position: int) -> bool:
    """Return True if a word goes on at a position between two of its characters."""
    around = text[max(position - 1, 0) : position + 1]
    return len(around) == 2 and all(map(is_word_character, around)) and not any(map(is_unspaced_letter, around))


def _overlaps(span: Span, others: Sequence[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def _aligned_span(translation: Translation, match: Match, taken: Sequence[Span]) -> Span | None:
    """Return the words of a translation that are aligned to a source term, or None if there are none.

    Of separate groups of words, the one with most attention is taken.
    """
    if any(map(is_unspaced_letter, translation.text)):
        return _aligned_tokens(translation, match, taken)
    term_words = _words_in(translation.source, match)
    spans = bare_word_spans(translation.text)
    for links in (translation.alignment, translation.attended):
        words = sorted({j for i, j in links if i in term_words and j < len(spans)})
        words = [word for word in words if not _overlaps(spans[word], taken)]
        if words:
            break
    if not words:
        return None
    weights = [1.0] * len(spans)
    attention = translation.word_attention
    if attention is not None:
        weights = attention[:, sorted(term_words)].sum(1).tolist()
    max_weight = max(weights[word] for word in words)
    words = [word for word in words if weights[word] >= MIN_RELATIVE_WEIGHT * max_weight]
    groups = [[word for _, word in group] for _, group in groupby(enumerate(words), key=lambda item: item[1] - item[0])]
    best = max(groups, key=lambda group: sum(weights[word] for word in group))
    return spans[best[0]][0], spans[best[-1]][1]


def _aligned_tokens(translation: Translation, match: Match, taken: Sequence[Span]) -> Span | None:
    """Return the first group of tokens aligned to a source term, for scripts without spaces between words."""
    source = translation.by_attention.source
    target = translation.by_attention.target
    spans = []
    for i, j in sorted(translation.token_alignment, key=lambda link: link[1]):
        if i >= len(source.offsets) or j >= len(target.offsets):
            continue
        start, end = source.offsets[i]
        if start < match.end and match.start < end and not _overlaps(target.offsets[j], taken):
            spans.append(target.offsets[j])
    if not spans:
        return None
    start, end = spans[0]
    for next_start, next_end in spans[1:]:
        if next_start > end:
            break
        end = max(end, next_end)
    return (start, end) if end > start else None


def _words_in(source: str, match: Match) -> set[int]:
    """Return the indices of the words of a source text that a term consists of."""
    spans = word_spans(source)
    return {word for word, (start, end) in enumerate(spans) if start < match.end and match.start < end}


def _is_in_place(source: Segmented, translation: Translation, matches: Sequence[Match]) -> bool:
    """Return True if a translation has each term once, aligned to its source term, and no other translation of it."""
    if not translation.finished or translation.fallback is not None:
        return False
    if repeats_more(translation.words, translation.source_words):
        return False
    occurrences = _occurrences(source, translation.text, matches)
    spans = word_spans(translation.text)
    term_words: set[int] = set()
    for match, occurrence in zip(matches, occurrences, strict=True):
        if occurrence is None:
            return False
        own_words = {j for j, (start, end) in enumerate(spans) if start < occurrence[1] and occurrence[0] < end}
        source_words = _words_in(translation.source, match)
        links = (*translation.alignment, *translation.attended)
        if not any(i in source_words and j in own_words for i, j in links):
            return False
        term_words |= own_words
    all_source_words = set[int]().union(*(_words_in(translation.source, match) for match in matches))
    return not any(i in all_source_words and j not in term_words for i, j in translation.alignment)
