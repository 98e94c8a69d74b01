"""Compare search strategies for one model and for ensembles: what they find and how fast they are.

    python reproduce/search.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/search.py ... --members 8          ensembles of up to eight models

The ensemble members are models of the preset `small` (or `--preset`) with the seeds 1, 2, ..., trained until
convergence; the first one is used for the comparison of search strategies.

Output: decoding.md (the decoding table of the ACL 2016 tutorial: sampling, greedy search, beams; NLL is -log p of the
translation under the model, in nats, averaged over sentences), ensembles.md (one model up to all of them, with
geometric and arithmetic means), search.json, and one model folder per seed. An interrupted run resumes where it
stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    add_data_options,
    add_run_options,
    cached,
    data_table,
    prepare_once,
    require_known,
    resolve_config,
    scores_with_intervals,
    sources_and_references,
    train_or_resume,
)

from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.search.noisy import Noisy
from rnnsearch.search.sampling import Diverse, Sampling, Variant
from rnnsearch.search.stochastic import Stochastic
from rnnsearch.text.alignments import words
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown


class Strategy(NamedTuple):
    """A way to search with one model."""

    beam: int
    variant: Variant | None = None
    utility: str | None = None
    """Metric of minimum Bayes risk decoding."""


STRATEGIES: dict[str, Strategy] = {
    "1 sample": Strategy(1, Sampling()),
    "best of 50 samples": Strategy(50, Sampling()),
    "greedy": Strategy(1),
    "beam 2": Strategy(2),
    "beam 5": Strategy(5),
    "beam 10": Strategy(10),
    "beam 25": Strategy(25),
    "beam 50": Strategy(50),
    "beam 100": Strategy(100),
    "diverse, 5 groups of 2": Strategy(10, Diverse(5)),
    "stochastic beam 10": Strategy(10, Stochastic()),
    "stochastic beam 50": Strategy(50, Stochastic()),
    "noisy, 10 chains, sigma 0.3": Strategy(10, Noisy(10, 0.3)),
    "noisy, 50 chains, sigma 0.1": Strategy(50, Noisy(50, 0.1)),
    "noisy, 50 chains, sigma 0.3": Strategy(50, Noisy(50, 0.3)),
    "noisy, 50 chains, sigma 0.5": Strategy(50, Noisy(50, 0.5)),
    "noisy, 10 chains of beam 5, sigma 0.3": Strategy(50, Noisy(10, 0.3)),
    "MBR, beam 10, chrF": Strategy(10, None, "chrf"),
    "MBR, 50 samples, chrF": Strategy(50, Sampling(), "chrf"),
    "MBR, 50 samples, temperature 0.7, chrF": Strategy(50, Sampling(temperature=0.7), "chrf"),
    "MBR, 50 samples, BLEU": Strategy(50, Sampling(), "bleu"),
    "MBR, stochastic beam 50, chrF": Strategy(50, Stochastic(), "chrf"),
}
ENSEMBLE_STRATEGY = Strategy(beam=5)


@dataclass(frozen=True)
class Result:
    """Test translations by one strategy, and its speed."""

    name: str
    nll: float
    """-log p of the translations under the model, averaged over sentences."""
    words_per_second: float
    """Source words translated per second."""
    translations: tuple[str, ...]


def run_search(name: str, translator: Translator, strategy: Strategy, sources: list[str]) -> Result:
    """Translate the test set."""
    options = translator.options(strategy.beam, variant=strategy.variant)
    translator.translate(sources[:1], options)  # warm-up
    start = time.perf_counter()
    if strategy.utility is None:
        best = [candidates[0] for candidates in translator.n_best(sources, options)]
    else:
        lists = translator.n_best(sources, replace(options, n_best=strategy.beam))
        best = [translator.by_consensus(candidates, options, strategy.utility)[0] for candidates in lists]
    seconds = time.perf_counter() - start
    return Result(
        name=name,
        nll=-sum(translation.log_prob for translation in best) / len(best),
        words_per_second=sum(len(words(source)) for source in sources) / seconds,
        translations=tuple(translation.text for translation in best),
    )


def table(results: Sequence[Result], baseline: Result, references: Sequence[str], language: str) -> str:
    """Return a table with one row per result: BLEU and chrF with 95% intervals, and p of BLEU against the baseline."""
    rows = [["Search", "NLL", "Words/s", "BLEU", "chrF", "p (BLEU)"]]
    for r in results:
        scores = paired_bootstrap(r.translations, baseline.translations, references, language=language)
        p_value = "" if r is baseline else f"{scores['BLEU'].p_value:.3f}"
        rows.append([r.name, f"{r.nll:.2f}", f"{r.words_per_second:,.0f}", *scores_with_intervals(scores), p_value])
    return as_markdown(rows)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small")
    parser.add_argument(
        "--strategies",
        "--ways",
        nargs="+",
        default=list(STRATEGIES),
        metavar="STRATEGY",
        help="; ".join(STRATEGIES),
    )
    parser.add_argument("--members", type=int, default=1, help="number of models, trained with the seeds 1, 2, ...")
    add_run_options(parser, output="runs/reproduce-search")
    args = parser.parse_args()
    require_known(parser, "strategy", args.strategies, STRATEGIES)
    if args.members < 1:
        parser.error(f"--members must be at least 1; got {args.members}")
    return args


def main() -> None:
    """Train the models, search with them, and write the tables, which are rewritten after each model."""
    args = parse_arguments()
    tables: dict[str, Any] = {"data": data_table(args), "preset": args.preset}
    prepared = prepare_once(resolve_config("data", tables, args.set), args.output)
    sources, references = sources_and_references(prepared.test)
    make_table = partial(table, references=references, language=prepared.direction.target)

    def run(name: str, folders: Sequence[Path], strategy: Strategy, mean: str | None = None) -> Result:
        path = args.output / f"{name.replace(' ', '-')}.json"
        model = [*folders] if len(folders) > 1 else folders[0]
        return Result(**cached(path, lambda: asdict(run_search(name, load(model, mean=mean), strategy, sources))))

    folders = list[Path]()
    single = list[Result]()
    ensembles = list[Result]()
    strategy_table = ensemble_table = ""
    for seed in range(1, args.members + 1):
        folders.append(args.output / f"seed-{seed}")
        config = resolve_config(f"seed {seed}", tables, [*args.set, f"training.seed={seed}"])
        train_or_resume(config, prepared, folders[-1], f"seed {seed}")
        if seed == 1:
            single = [run(name, folders, STRATEGIES[name]) for name in args.strategies]
            baseline = next((r for r in single if r.name == "greedy"), single[0])
            strategy_table = make_table(single, baseline)
            write_text(args.output / "decoding.md", strategy_table)
            ensembles.append(run("1 model", folders, ENSEMBLE_STRATEGY))
        else:
            for mean in ("geometric", "arithmetic"):
                ensembles.append(run(f"{seed} models, {mean}", folders, ENSEMBLE_STRATEGY, mean))
        ensemble_table = make_table(ensembles, ensembles[0])
        write_text(args.output / "ensembles.md", ensemble_table)
        fields = [asdict(r) | {"translations": len(r.translations)} for r in single + ensembles]
        write_json(args.output / "search.json", fields)
    sys.stdout.write(f"{strategy_table}\n{ensemble_table}\n")


if __name__ == "__main__":
    main()
