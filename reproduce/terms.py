"""Compare ways to enforce terminology: constrained search, terms put in place, and inline terms (Dinu et al. 2019).

    python reproduce/terms.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/terms.py --model runs/en-de --sentences 500 --max-terms 3

Two models of the preset `small` are trained until convergence, one of them with `text.inline_terms`. With `--model`, a
trained model is used instead, with the test set and the aligner of its `data` folder, and inline terms are left out.
The terms of a test sentence (two, or `--max-terms`) are sampled from a dictionary learned from the training text: terms
whose translation is in the reference (`exact`), or whose translation is in the reference in another form (`inflected`),
where a good translation has the form of the reference and not that of the dictionary.

Output: table.md, terms.json, learned.tsv, and the two model folders. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from common import (
    add_data_options,
    add_run_options,
    data_table,
    learn_dictionary,
    prepare_once,
    resolve_config,
    scores_with_intervals,
    sources_and_references,
    train_or_resume,
    training_text,
)

from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.search.unknown_words import read_entries
from rnnsearch.text.alignments import words
from rnnsearch.text.terms import TermMatch, TermMatcher, contains_term, insert_terms, term_words
from rnnsearch.text.vocabulary import BOS, EOS
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

TERM_SETS = ("exact", "inflected")
MAX_TERMS_PER_SENTENCE = 2
MIN_TERM_LENGTH = 4  # characters of the source term
CONSTRAINED_BEAM = 10
SEED = 1
DISCOUNT = 0.75  # of the n-gram counts of the language model


class TrigramModel:
    """Interpolated trigram language model with absolute discounting, over the tokens of a tokenizer."""

    def __init__(self, sentences: Iterable[Sequence[int]], vocabulary: int) -> None:
        """Count the n-grams of sentences."""
        self._vocabulary = vocabulary
        self._counts = Counter[tuple[int, ...]]()  # of n-grams
        self._totals = Counter[tuple[int, ...]]()  # of n-grams by context
        self._distinct = Counter[tuple[int, ...]]()  # different continuations of a context
        for ids in sentences:
            tokens = (BOS, BOS, *ids, EOS)
            for end in range(3, len(tokens) + 1):
                for start in range(end - 3, end):
                    ngram = tokens[start:end]
                    self._distinct[ngram[:-1]] += ngram not in self._counts
                    self._counts[ngram] += 1
                    self._totals[ngram[:-1]] += 1

    def perplexity(self, sentences: Iterable[Sequence[int]]) -> float:
        """Return the perplexity per token, EOS included."""
        log_p = 0.0
        count = 0
        for ids in sentences:
            tokens = (BOS, BOS, *ids, EOS)
            for end in range(3, len(tokens) + 1):
                log_p += math.log(self._probability(tokens[end - 3 : end]))
                count += 1
        return math.exp(-log_p / max(count, 1))

    def _probability(self, ngram: tuple[int, ...]) -> float:
        if not ngram:
            return 1 / self._vocabulary
        shorter = self._probability(ngram[1:])
        total = self._totals[ngram[:-1]]
        if not total:
            return shorter
        discounted = max(self._counts[ngram] - DISCOUNT, 0.0) / total
        return discounted + DISCOUNT * self._distinct[ngram[:-1]] / total * shorter


class Term(NamedTuple):
    """A term of a test sentence, with its translation in the dictionary and in the reference."""

    place: TermMatch[str]
    reference: str


@dataclass(frozen=True)
class Result:
    """Test translations by one method with one set of terms."""

    terms: str
    method: str
    count: int
    """Number of terms."""
    glossary: float
    """Fraction of the terms translated as in the dictionary."""
    reference: float
    """Fraction of the terms translated as in the reference."""
    perplexity: float
    """Perplexity of the translations under a trigram model of the training text."""
    words_per_second: float
    """Source words translated per second."""
    translations: tuple[str, ...]


def candidate_terms(source: str, reference: str, dictionary: TermMatcher[list[str]], inflected: bool) -> list[Term]:
    """Return the terms of a sentence pair that belong to a set."""
    terms = []
    reference_words = term_words(reference)
    for place in dictionary.matches(source):
        if place.end - place.start < MIN_TERM_LENGTH:
            continue
        exact = [text for text in place.entry if contains_term(term_words(text), reference_words, exact=True)]
        if exact and not inflected:
            terms.append(Term(TermMatch(place.start, place.end, exact[0]), exact[0]))
        if exact or not inflected:
            continue
        single_words = [text for text in place.entry if len(term_words(text)) == 1]
        other_forms = [text for text in single_words if contains_term(term_words(text), reference_words)]
        if other_forms:
            form = next(word for word in reference_words if contains_term(term_words(other_forms[0]), (word,)))
            terms.append(Term(TermMatch(place.start, place.end, other_forms[0]), form))
    return terms


def sample_terms(
    sources: Sequence[str],
    references: Sequence[str],
    dictionary: TermMatcher[list[str]],
    term_set: str,
    max_terms: int = MAX_TERMS_PER_SENTENCE,
) -> list[list[Term]]:
    """Return the sampled terms of each sentence, from left to right."""
    sampled = []
    for index, pair in enumerate(zip(sources, references, strict=True)):
        candidates = candidate_terms(*pair, dictionary, term_set == "inflected")
        # The seed includes the former name of the set `exact`, so that the terms are those of published results.
        random = Random(f"{SEED} {index} {'inflected' if term_set == 'inflected' else 'as they are'}")
        terms = random.sample(candidates, min(max_terms, len(candidates)))
        sampled.append(sorted(terms, key=lambda term: term.place.start))
    return sampled


def translation_methods(
    baseline: Translator, inline: Translator | None, sources: list[str], terms: list[list[Term]]
) -> dict[str, Callable[[], Any]]:
    """Return functions that translate the sources with their terms, by name of the method."""
    in_place = []
    with_reference_form = []
    for sentence in terms:
        in_place.append([replace(term.place, entry=(term.place.entry,)) for term in sentence])
        with_reference_form.append([replace(term.place, entry=(term.place.entry, term.reference)) for term in sentence])
    methods: dict[str, Callable[[], Any]] = {
        "no terms": lambda: baseline.n_best(sources),
        "constrained": lambda: baseline.n_best(sources, baseline.options(beam=CONSTRAINED_BEAM), terms=constraints),
        "in place": lambda: baseline.n_best(sources, terms=in_place),
        "in place, greedy": lambda: baseline.n_best(sources, baseline.options(beam=1), terms=in_place),
        "in place, both forms": lambda: baseline.n_best(sources, terms=with_reference_form),
    }
    constraints = [tuple(dict.fromkeys(term.place.entry for term in sentence)) for sentence in terms]
    if inline is None:
        return methods
    inline_sources = []
    for source, sentence in zip(sources, terms, strict=True):
        inline_sources.append(insert_terms(source, [term.place for term in sentence]))
    return methods | {
        "inline model, no terms": lambda: inline.n_best(sources),
        "inline model": lambda: inline.n_best(inline_sources),
        "inline model, greedy": lambda: inline.n_best(inline_sources, inline.options(beam=1)),
    }


def measure(
    term_set: str,
    method: str,
    translate: Callable[[], Any],
    sources: list[str],
    terms: list[list[Term]],
    perplexity: Callable[[list[str]], float],
) -> Result:
    """Translate by one method and count the terms in the translations."""
    start = time.perf_counter()
    translations = [candidates[0].text for candidates in translate()]
    seconds = time.perf_counter() - start
    in_glossary_form = in_reference_form = 0
    for translation, sentence in zip(translations, terms, strict=True):
        translated = term_words(translation)
        for term in sentence:
            in_glossary_form += contains_term(term_words(term.place.entry), translated, exact=True)
            in_reference_form += contains_term(term_words(term.reference), translated, exact=True)
    count = sum(map(len, terms))
    return Result(
        terms=term_set,
        method=method,
        count=count,
        glossary=in_glossary_form / max(count, 1),
        reference=in_reference_form / max(count, 1),
        perplexity=perplexity(translations),
        words_per_second=sum(len(words(source)) for source in sources) / seconds,
        translations=tuple(translations),
    )


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per set of terms and method."""
    rows = [["Terms", "Method", "Count", "Glossary form", "Reference form", "Perplexity", "Words/s", "BLEU", "chrF"]]
    for r in results:
        baseline = next(other for other in results if other.terms == r.terms)
        scores = paired_bootstrap(r.translations, baseline.translations, references, language=language)
        fractions = [f"{r.glossary:.1%}", f"{r.reference:.1%}"]
        values = [f"{r.perplexity:.0f}", f"{r.words_per_second:,.0f}"]
        rows.append([r.terms, r.method, f"{r.count:,}", *fractions, *values, *scores_with_intervals(scores)])
    return rows


def trained_models(args: argparse.Namespace, dictionary_file: Path) -> tuple[Prepared, Translator, Translator]:
    """Return the corpus, and the two models after training."""
    baseline = {"data": data_table(args), "preset": "small"}
    inline = baseline | {"text": {"inline_terms": {"dictionary": str(dictionary_file.absolute())}}}
    prepared = prepare_once(resolve_config("baseline", baseline, args.set), args.output / "data")
    learn_dictionary(prepared, dictionary_file, max_words=3)
    for name, tables in {"inline": inline, "baseline": baseline}.items():
        train_or_resume(resolve_config(name, tables, args.set), prepared, args.output / name, name)
    return prepared, load(args.output / "baseline"), load(args.output / "inline")


def main() -> None:
    """Train both models, translate by all methods and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    add_run_options(parser, output="runs/reproduce-terms")
    parser.add_argument("--model", type=Path, help="trained model folder, instead of training two models")
    parser.add_argument("--sentences", type=int, help="use the first test sentences that have a term")
    parser.add_argument("--max-terms", type=int, default=MAX_TERMS_PER_SENTENCE, help="terms per sentence")
    args = parser.parse_args()
    dictionary_file = args.output / "learned.tsv"
    args.output.mkdir(parents=True, exist_ok=True)
    if args.model is None:
        prepared, *translators = trained_models(args, dictionary_file)
    else:
        prepared = Prepared.open(args.model / "data")
        learn_dictionary(prepared, dictionary_file, max_words=3)
        translators = [load(args.model), None]
    all_sources, all_references = sources_and_references(prepared.test)
    dictionary = TermMatcher(read_entries(dictionary_file))
    train_targets = prepared.target.ids([pair[-1] for pair in training_text(prepared)])
    model = TrigramModel(train_targets, len(prepared.target))

    def perplexity(texts: list[str]) -> float:
        return model.perplexity(prepared.target.ids(texts))

    results = list[Result]()
    table_rows: list[list[str]] = []
    for term_set in TERM_SETS:
        all_terms = sample_terms(all_sources, all_references, dictionary, term_set, args.max_terms)
        rows = list(zip(all_sources, all_references, all_terms, strict=True))
        if args.sentences is not None:
            rows = [row for row in rows if row[2]][: args.sentences]
        sources = [source for source, _, _ in rows]
        references = [reference for _, reference, _ in rows]
        terms = [sentence_terms for _, _, sentence_terms in rows]
        set_results = list[Result]()
        for method, translate in translation_methods(*translators, sources, terms).items():
            set_results.append(measure(term_set, method, translate, sources, terms, perplexity))
        header, *lines = table(set_results, references, prepared.direction.target)
        table_rows += lines if table_rows else [header, *lines]
        results += set_results
    text = as_markdown(table_rows)
    write_text(args.output / "table.md", text)
    write_json(args.output / "terms.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
