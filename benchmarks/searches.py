"""What each way to search costs beside greedy search by the same model, and what an ensemble costs beside one model.

Run it as `python benchmarks/searches.py --model MODEL --source FILE`; `--lm LM` adds a row of shallow fusion,
`--student MODEL` one of greedy search by another model. Words are the source's; a text is segmented before, and put
together after, as `translate` does. The ways take turns, and the best of `--rounds` counts. Members of the ensembles
are the same model loaded several times, which costs what different ones of its size would.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from harness import machine_line, parsed, parser, publish, table, timed

from rnnsearch.loading import load
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.search.variants import Diverse, Sampling, Variant
from rnnsearch.text.spans import words
from rnnsearch.translate import Translator

Search = Callable[[list[str]], object]
WAYS: dict[str, tuple[int, Variant | None]] = {
    "greedy": (1, None),
    "sampling, 1 chain": (1, Sampling()),
    "sampling, 10 chains": (10, Sampling()),
    "nucleus of 0.9, 1 chain": (1, Sampling(top_p=0.9)),
    "beam 5": (5, None),
    "beam 10": (10, None),
    "diverse, 5 groups of 2": (10, Diverse(5)),
    "stochastic beam 10": (10, Stochastic()),
    "noisy, 10 chains": (10, Noisy(10)),
}
"""A beam, and what is not plain about it."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in a symbol."""
BEAM = 5
"""Of ensembles, fusion and n-gram blocking."""


def searched(translator: Translator, beam: int, variant: Variant | None, texts: list[str]) -> object:
    """The best translations."""
    return translator.translate(texts, translator.options(beam, variant=variant))


def least_risk(translator: Translator, beam: int, variant: Variant | None, texts: list[str]) -> object:
    """The translations of a beam, or of samples, that are most like the others."""
    options = translator.options(beam, n_best=beam, variant=variant)
    return [translator.by_consensus(found, options)[0] for found in translator.n_best(texts, options)]


def unrepeated(translator: Translator, texts: list[str]) -> object:
    """The best translations that have no three symbols twice."""
    return translator.translate(texts, translator.options(BEAM, no_repeat_ngram=3))


def without(translator: Translator, texts: list[str]) -> object:
    """The best translations without any of a thousand banned words: the longest of the vocabulary."""
    symbols = {symbol.strip(SPACE) for symbol in translator.target.symbols()}
    longest = sorted(filter(str.isalpha, symbols), key=lambda symbol: (-len(symbol), symbol))[:1000]
    return translator.translate(texts, translator.options(BEAM, banned=longest))


def with_term(translator: Translator, texts: list[str]) -> object:
    """The best translations that have the word of the target vocabulary that most of them would not."""
    term = max(filter(str.isalpha, (symbol.strip(SPACE) for symbol in translator.target.symbols())), key=len)
    found = translator.n_best(texts, translator.options(BEAM), terms=[(term,)] * len(texts))
    return [own[0] for own in found]


def searches(given: Namespace) -> Iterator[tuple[str, Search]]:
    """Every way, by name."""
    one = load(given.model)
    for name, (beam, variant) in WAYS.items():
        yield name, partial(searched, one, beam, variant)
    yield "least risk of beam 10, chrF", partial(least_risk, one, 10, None)
    yield "least risk of 10 chains, chrF", partial(least_risk, one, 10, Sampling())
    yield f"beam {BEAM}, no trigram twice", partial(unrepeated, one)
    yield f"beam {BEAM}, a thousand words banned", partial(without, one)
    yield f"beam {BEAM}, a term", partial(with_term, one)
    if given.lm is not None:
        yield (
            f"beam {BEAM}, a language model",
            partial(searched, load(given.model, language_model=given.lm), BEAM, None),
        )
    if given.student is not None:
        yield "greedy, the student", partial(searched, load(given.student), 1, None)
    for members in range(1, given.members + 1):
        each = [given.model] * members
        together = load(each, weights=[1.0] * members)
        yield f"ensemble of {members}, beam {BEAM}", partial(searched, together, BEAM, None)
        if members > 1:
            yield (
                f"ensemble of {members}, arithmetic, beam {BEAM}",
                partial(searched, load(each, mean="arithmetic"), BEAM, None),
            )
        yield f"ensemble of {members}, greedy", partial(searched, together, 1, None)


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--model", type=Path, required=True)
    made.add_argument("--source", type=Path, required=True, help="Source text, one sentence a line.")
    made.add_argument("--lm", type=Path, help="A language model of the same target symbols.")
    made.add_argument("--student", type=Path, help="A model that has learned from this one.")
    made.add_argument("--members", type=int, default=3)
    made.add_argument("--sentences", type=int, default=500)
    made.add_argument("--rounds", type=int, default=3)
    given = parsed(made)
    texts = given.source.read_text(encoding="utf-8").split("\n")[: given.sentences]
    count = sum(len(words(text)) for text in texts)
    ways = dict(searches(given))
    seconds = dict.fromkeys(ways, float("inf"))
    for search in ways.values():
        search(texts[:8])
    for _ in range(given.rounds):
        for name, search in ways.items():
            seconds[name] = min(seconds[name], timed(partial(search, texts))[1])
    rows = []
    for name, own in seconds.items():
        alone = seconds["ensemble of 1, greedy" if name.endswith("greedy") else f"ensemble of 1, beam {BEAM}"]
        together = own / alone if name.startswith("ensemble") else None
        rows.append([name, count / own, own / seconds["greedy"], together])
    head = "search | words/s {:,.0f} | time, x greedy {:.2f} | time, x one member {:.2f}"
    publish([machine_line(), "", *table(head, rows)], given.output)


if __name__ == "__main__":
    main()
