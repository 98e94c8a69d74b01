"""Cost of each search method relative to greedy search, and of ensembles relative to one model.

Run it as `python benchmarks/searches.py --model MODEL --source FILE`; `--lm LM` adds a row of shallow fusion,
`--student MODEL` one of greedy search by another model. Speeds are source words per second and include segmentation and
detokenization. The methods take turns, and the best of `--rounds` counts. The members of the ensembles are the same
model loaded several times, which costs as much as different models of that size.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from harness import argument_parser, machine_line, parse_arguments, publish, table, time_call

from rnnsearch.search.noisy import Noisy
from rnnsearch.search.sampling import Diverse, Sampling, Variant
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.text.alignments import words
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator

Search = Callable[[list[str]], object]
METHODS: dict[str, tuple[int, Variant | None]] = {
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
"""Beam size and search variant by name."""
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # represents a space in a token
BEAM = 5  # of ensembles, fusion and constrained search


def translate(translator: Translator, beam: int, variant: Variant | None, texts: list[str]) -> object:
    """Return the best translations."""
    return translator.translate(texts, translator.options(beam, variant=variant))


def translate_by_consensus(translator: Translator, beam: int, variant: Variant | None, texts: list[str]) -> object:
    """Return the translations of a beam, or of samples, that are most similar to the others (minimum Bayes risk)."""
    options = translator.options(beam, n_best=beam, variant=variant)
    return [translator.by_consensus(n_best, options)[0] for n_best in translator.n_best(texts, options)]


def translate_without_repetition(translator: Translator, texts: list[str]) -> object:
    """Return the best translations without repeated trigrams."""
    return translator.translate(texts, translator.options(BEAM, no_repeat_ngram=3))


def translate_with_banned_words(translator: Translator, texts: list[str]) -> object:
    """Return the best translations without the thousand longest words of the vocabulary."""
    tokens = {token.strip(SPACE) for token in translator.target.tokens()}
    longest = sorted(filter(str.isalpha, tokens), key=lambda token: (-len(token), token))[:1000]
    return translator.translate(texts, translator.options(BEAM, banned=longest))


def translate_with_term(translator: Translator, texts: list[str]) -> object:
    """Return the best translations that contain the longest word of the vocabulary, which is rare without the term."""
    term = max(filter(str.isalpha, (token.strip(SPACE) for token in translator.target.tokens())), key=len)
    n_best_lists = translator.n_best(texts, translator.options(BEAM), terms=[(term,)] * len(texts))
    return [n_best[0] for n_best in n_best_lists]


def make_searches(args: Namespace) -> Iterator[tuple[str, Search]]:
    """Yield the name and the function of each search method."""
    single = load(args.model)
    for name, (beam, variant) in METHODS.items():
        yield name, partial(translate, single, beam, variant)
    yield "minimum risk of beam 10, chrF", partial(translate_by_consensus, single, 10, None)
    yield "minimum risk of 10 chains, chrF", partial(translate_by_consensus, single, 10, Sampling())
    yield f"beam {BEAM}, no repeated trigrams", partial(translate_without_repetition, single)
    yield f"beam {BEAM}, a thousand banned words", partial(translate_with_banned_words, single)
    yield f"beam {BEAM}, a term", partial(translate_with_term, single)
    if args.lm is not None:
        fused = load(args.model, language_model=args.lm)
        yield f"beam {BEAM}, a language model", partial(translate, fused, BEAM, None)
    if args.student is not None:
        yield "greedy, the student", partial(translate, load(args.student), 1, None)
    for size in range(1, args.members + 1):
        members = [args.model] * size
        ensemble = load(members, weights=[1.0] * size)
        yield f"ensemble of {size}, beam {BEAM}", partial(translate, ensemble, BEAM, None)
        if size > 1:
            arithmetic = load(members, mean="arithmetic")
            yield f"ensemble of {size}, arithmetic, beam {BEAM}", partial(translate, arithmetic, BEAM, None)
        yield f"ensemble of {size}, greedy", partial(translate, ensemble, 1, None)


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--source", type=Path, required=True, help="source text, one sentence per line")
    parser.add_argument("--lm", type=Path, help="language model with the same target vocabulary")
    parser.add_argument("--student", type=Path, help="model distilled from this one")
    parser.add_argument("--members", type=int, default=3, help="size of the largest ensemble")
    parser.add_argument("--sentences", type=int, default=500, help="sentences to translate")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts")
    args = parse_arguments(parser)
    texts = args.source.read_text(encoding="utf-8").split("\n")[: args.sentences]
    num_words = sum(len(words(text)) for text in texts)
    searches = dict(make_searches(args))
    best = dict.fromkeys(searches, float("inf"))
    for search in searches.values():
        search(texts[:8])
    for _ in range(args.rounds):
        for name, search in searches.items():
            best[name] = min(best[name], time_call(partial(search, texts))[1])
    rows = []
    for name, seconds in best.items():
        one_member = best["ensemble of 1, greedy" if name.endswith("greedy") else f"ensemble of 1, beam {BEAM}"]
        relative = seconds / one_member if name.startswith("ensemble") else None
        rows.append([name, num_words / seconds, seconds / best["greedy"], relative])
    head = "search | words/s {:,.0f} | time, x greedy {:.2f} | time, x one member {:.2f}"
    publish([machine_line(), "", *table(head, rows)], args.output)


if __name__ == "__main__":
    main()
