"""Ways to search with one model, and models that search together: what each finds, and how long it takes.

    python reproduce/search.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/search.py ... --members 8          ensembles of up to eight models

The members are models of the preset `small` (`--preset` names another) with the seeds 1, 2, ..., trained to their ends.
--output gets decoding.md (the decoding table of the tutorial: samples, greedy, beams; NLL is -log p of what is found,
the mean of a sentence by its model, in nats), ensembles.md (one model to all of them, by either mean), search.json, and
a model folder each. Interrupted, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    add_data,
    add_run,
    data_tables,
    kept,
    prepared_once,
    require_known,
    resolved,
    sides,
    trained,
    with_intervals,
)

from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.search.variants import Diverse, Sampling, Variant
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.spans import words
from rnnsearch.translate import Translator

Way = tuple[int, Variant | None, str | None]
"""The beam, what is not plain about it, and the utility of least risk."""
WAYS: dict[str, Way] = {
    "sampling, 1 chain": (1, Sampling(), None),
    "sampling, 50 chains": (50, Sampling(), None),
    "greedy": (1, None, None),
    "beam 2": (2, None, None),
    "beam 5": (5, None, None),
    "beam 10": (10, None, None),
    "beam 25": (25, None, None),
    "beam 50": (50, None, None),
    "beam 100": (100, None, None),
    "diverse, 5 groups of 2": (10, Diverse(5), None),
    "stochastic beam 10": (10, Stochastic(), None),
    "stochastic beam 50": (50, Stochastic(), None),
    "noisy, 10 chains, sigma 0.3": (10, Noisy(10, 0.3), None),
    "noisy, 50 chains, sigma 0.1": (50, Noisy(50, 0.1), None),
    "noisy, 50 chains, sigma 0.3": (50, Noisy(50, 0.3), None),
    "noisy, 50 chains, sigma 0.5": (50, Noisy(50, 0.5), None),
    "noisy, 10 chains of beam 5, sigma 0.3": (50, Noisy(10, 0.3), None),
    "least risk of beam 10, chrF": (10, None, "chrf"),
    "least risk of 50 chains, chrF": (50, Sampling(), "chrf"),
    "least risk of 50 chains, temperature 0.7, chrF": (50, Sampling(temperature=0.7), "chrf"),
    "least risk of 50 chains, BLEU": (50, Sampling(), "bleu"),
    "least risk of stochastic beam 50, chrF": (50, Stochastic(), "chrf"),
}
"""The ways to search with one model."""
BEAM = 5
"""Of ensembles."""


@dataclass(frozen=True)
class Result:
    """What one way finds of the test set, and how fast."""

    name: str
    nll: float
    """-log p of a translation by the model that searched, the mean of a sentence."""
    words_a_second: float
    """Source words."""
    translations: tuple[str, ...]


def searched(name: str, translator: Translator, way: Way, sources: list[str]) -> Result:
    """The test set, translated."""
    beam, variant, utility = way
    options = translator.options(beam, variant=variant)
    every = options if utility is None else replace(options, n_best=beam)
    translator.translate(sources[:1], options)
    begin = time.perf_counter()
    found = translator.n_best(sources, every)
    best = [own[0] if utility is None else translator.by_consensus(own, options, utility)[0] for own in found]
    seconds = time.perf_counter() - begin
    return Result(
        name=name,
        nll=-sum(translation.log_prob for translation in best) / len(best),
        words_a_second=sum(len(words(source)) for source in sources) / seconds,
        translations=tuple(translation.text for translation in best),
    )


def table(results: Sequence[Result], base: Result, references: Sequence[str], language: str) -> str:
    """One row a way; BLEU and chrF with 95% intervals, and p that BLEU's distance to the base is chance."""
    rows = [["", "NLL", "Words/s", "BLEU", "chrF", "p of BLEU"]]
    for r in results:
        scores = paired_bootstrap(r.translations, base.translations, references, language=language)
        p = "" if r is base else f"{scores['BLEU'].p_value:.3f}"
        rows.append([r.name, f"{r.nll:.2f}", f"{r.words_a_second:,.0f}", *with_intervals(scores), p])
    return as_markdown(rows)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="WAY", help="some alone: " + ", ".join(WAYS))
    parser.add_argument("--members", type=int, default=1, help="models, of the seeds 1, 2, ...")
    add_run(parser, output="runs/reproduce-search")
    args = parser.parse_args()
    require_known(parser, "way", args.ways, WAYS)
    if args.members < 1:
        parser.error(f"--members must be at least 1; got {args.members}")
    return args


def main() -> None:
    """Train, search, write; the tables are written anew after each member."""
    args = arguments()
    tables: dict[str, Any] = {"data": data_tables(args), "preset": args.preset}
    prepared = prepared_once(resolved("data", tables, args.set), args.output)
    sources, references = sides(prepared.test)
    finish = partial(table, references=references, language=prepared.direction.target)

    def result(name: str, folders: Sequence[Path], way: Way, mean: str | None = None) -> Result:
        path = args.output / f"{name.replace(' ', '-')}.json"
        many = [*folders] if len(folders) > 1 else folders[0]
        return Result(**kept(path, lambda: asdict(searched(name, load(many, mean=mean), way, sources))))

    folders, ensembles, text = list[Path](), list[Result](), ""
    for seed in range(1, args.members + 1):
        folders.append(args.output / f"seed-{seed}")
        config = resolved(f"seed {seed}", tables, [*args.set, f"training.seed={seed}"])
        trained(config, prepared, folders[-1], f"seed {seed}")
        if seed == 1:
            ways = [result(name, folders, WAYS[name]) for name in args.ways]
            base = next((r for r in ways if r.name == "greedy"), ways[0])
            text = finish(ways, base)
            write_text(args.output / "decoding.md", text)
        means = ["geometric", "arithmetic"] if seed > 1 else [None]
        names = [f"{seed} models, {mean}" if mean else "1 model" for mean in means]
        ensembles += [result(n, folders, (BEAM, None, None), mean) for n, mean in zip(names, means, strict=True)]
        together = finish(ensembles, ensembles[0])
        write_text(args.output / "ensembles.md", together)
        write_json(
            args.output / "search.json", [asdict(r) | {"translations": len(r.translations)} for r in ways + ensembles]
        )
    sys.stdout.write(f"{text}\n{together}\n")


if __name__ == "__main__":
    main()
