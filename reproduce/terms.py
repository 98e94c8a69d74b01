"""A glossary's terms: forced by constrained search, and read inline by a model that has learned to (Dinu et al. 2019).

    python reproduce/terms.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de

Two models of the preset `small`, one of them with `text.inline_terms`, trained to their ends. The terms of a test
sentence are drawn from a dictionary that was learned from the training text: up to two that stand in it and in its
reference (`as they are`); or whose translation stands there in another form (`inflected`), where a good translation has
the reference's form and not the glossary's. --output gets table.md and terms.json. Interrupted, it goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, NamedTuple

from common import add_data, add_run, data_tables, dictionary, prepared_once, resolved, sides, trained, with_intervals

from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.search.unknown_words import read_entries
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.glossary import Place, Terms, words_of
from rnnsearch.text.inline_terms import inlined, stands_in
from rnnsearch.text.spans import words
from rnnsearch.translate import Translator

SETS = ("as they are", "inflected")
MOST, SHORTEST, BEAM, SEED = 2, 4, 10, 1
"""Terms a sentence; letters of a source term; the beam that forces terms; of the drawing."""


class Term(NamedTuple):
    """A term of a test sentence: where, what the glossary has, and what the reference has."""

    place: Place[str]
    wanted: str


@dataclass(frozen=True)
class Result:
    """Of one way and one set of terms."""

    terms: str
    way: str
    count: int
    glossary: float
    """The share that came out as the glossary has them."""
    reference: float
    """The share that came out as the reference has them."""
    words_a_second: float
    """Source words."""
    translations: tuple[str, ...]


def candidates(source: str, reference: str, entries: Terms[list[str]], inflected: bool) -> list[Term]:
    """The terms that a sentence pair has of one set."""
    found, there = [], words_of(reference)
    for place in entries.places(source):
        if place.end - place.start < SHORTEST:
            continue
        exact = [text for text in place.entry if stands_in(words_of(text), there, exactly=True)]
        if exact and not inflected:
            found.append(Term(Place(place.start, place.end, exact[0]), exact[0]))
        if exact or not inflected:
            continue
        one = [text for text in place.entry if len(words_of(text)) == 1 and stands_in(words_of(text), there)]
        if one:
            wanted = next(word for word in there if stands_in(words_of(one[0]), (word,)))
            found.append(Term(Place(place.start, place.end, one[0]), wanted))
    return found


def draw(sources: Sequence[str], references: Sequence[str], entries: Terms[list[str]], name: str) -> list[list[Term]]:
    """Each sentence's terms of a set."""
    drawn = []
    for number, pair in enumerate(zip(sources, references, strict=True)):
        own = candidates(*pair, entries, name == "inflected")
        random = Random(f"{SEED} {number} {name}")
        drawn.append(sorted(random.sample(own, min(MOST, len(own))), key=lambda term: term.place.start))
    return drawn


def ways(
    plain: Translator, reading: Translator, sources: list[str], terms: list[list[Term]]
) -> dict[str, Callable[[], Any]]:
    """Each way to translate the sources under their terms."""
    forced = [tuple(dict.fromkeys(term.place.entry for term in own)) for own in terms]
    told = [inlined(source, [term.place for term in own]) for source, own in zip(sources, terms, strict=True)]
    return {
        "without": lambda: plain.n_best(sources),
        "forced": lambda: plain.n_best(sources, plain.options(beam=BEAM), terms=forced),
        "reads terms, without": lambda: reading.n_best(sources),
        "reads terms, inline": lambda: reading.n_best(told),
        "reads terms, inline, greedy": lambda: reading.n_best(told, reading.options(beam=1)),
    }


def measured(name: str, way: str, run: Callable[[], Any], sources: list[str], terms: list[list[Term]]) -> Result:
    """What comes of it."""
    begin = time.perf_counter()
    found = [best[0].text for best in run()]
    seconds = time.perf_counter() - begin
    count = sum(map(len, terms))
    met = {"glossary": 0, "reference": 0}
    for text, own in zip(found, terms, strict=True):
        there = words_of(text)
        met["glossary"] += sum(stands_in(words_of(term.place.entry), there, exactly=True) for term in own)
        met["reference"] += sum(stands_in(words_of(term.wanted), there, exactly=True) for term in own)
    shares = {form: number / max(count, 1) for form, number in met.items()}
    speed = sum(len(words(source)) for source in sources) / seconds
    return Result(name, way, count, **shares, words_a_second=speed, translations=tuple(found))


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a way and set."""
    rows = [
        ["terms", "", "how many", "as the glossary has them", "as the reference has them", "words/s", "BLEU", "chrF"]
    ]
    for r in results:
        base = next(other for other in results if other.terms == r.terms)
        scores = paired_bootstrap(r.translations, base.translations, references, language=language)
        shares = f"{r.glossary:.1%}", f"{r.reference:.1%}"
        rows.append([r.terms, r.way, f"{r.count:,}", *shares, f"{r.words_a_second:,.0f}", *with_intervals(scores)])
    return rows


def main() -> None:
    """Train, translate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    add_run(parser, output="runs/reproduce-terms")
    args = parser.parse_args()
    learned = args.output / "learned.tsv"
    plain = {"data": data_tables(args), "preset": "small"}
    inline = plain | {"text": {"inline_terms": {"dictionary": str(learned.absolute())}}}
    prepared = prepared_once(resolved("plain", plain, args.set), args.output / "data")
    dictionary(prepared, learned, most=3)
    models = {"reads-terms": inline, "plain": plain}
    for name, tables in models.items():
        trained(resolved(name, tables, args.set), prepared, args.output / name, name)
    both = load(args.output / "plain"), load(args.output / "reads-terms")
    sources, references = sides(prepared.test)
    entries, results = Terms(read_entries(learned)), list[Result]()
    for name in SETS:
        terms = draw(sources, references, entries, name)
        for way, run in ways(*both, sources, terms).items():
            results.append(measured(name, way, run, sources, terms))
    text = as_markdown(table(results, references, prepared.direction.target))
    write_text(args.output / "table.md", text)
    write_json(args.output / "terms.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
