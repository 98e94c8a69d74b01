"""Continue the training of a model with each method beyond likelihood, and compare greedy and beam translations.

    python reproduce/beyond_likelihood.py --corpus multi30k-en-de --seeds 1 2 3
    python reproduce/beyond_likelihood.py --corpus tatoeba-de-en --methods likelihood mrt --seeds 1 --updates 500

The base model is trained by likelihood, with seed 1. Each method then trains it for the same number of updates (option
--updates), as does `likelihood`, the first row, so that a difference is not due to more training. The dev score is the
BLEU of greedy translations. Columns, for greedy search and for the beam of the preset:

- BLEU and chrF on the test set, with the difference from `likelihood` of the same seed and the p-value of a paired
  bootstrap test over sentences
- length: words of the translations relative to the references
- repeats: translations that repeat a word at once, per 100
- rare: words of the translations that occur fewer than ten times in the training text, per 100 words

Output: SEED/table.md, SEED/translations of each method, and one model folder per method. An interrupted run resumes
where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    training_text,
)

from rnnsearch.config import merge
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_text
from rnnsearch.utils.tables import as_markdown

BASE = "base"
"""Folder of the model that all methods begin from."""
MAX_RARE_COUNT = 9
"""Occurrences in the training text up to which a word is rare."""
METHODS: dict[str, dict[str, Any] | None] = {
    "likelihood": None,
    "scheduled-sampling": {
        "type": "scheduled-sampling",
        "decay": {"type": "linear", "start": 1.0, "minimum": 0.7, "updates": 500},
    },
    "mrt": {"type": "mrt"},
    "self-critical": {"type": "reinforce", "baseline": {"type": "self-critical"}},
    "mixer": {"type": "mixer"},
    "actor-critic": {"type": "actor-critic", "critic_updates": 4000},
    "bso": {"type": "bso", "epochs_per_beam": 0.1},
}
"""Table `[objective.sequence]` by the name of the method."""
UNNORMALISED_SEARCH = {"search": {"beam": 5, "length_penalty": 0.0, "stop": "top"}}
"""Tables that beam-search optimisation requires, whose scores are no log-probabilities."""
HEADER = ["Method", "Search", "BLEU", "chrF", "Difference in BLEU", "p", "Length", "Repeats", "Rare", "Minutes"]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="multi30k-en-de")
    parser.add_argument("--preset", default="demo", help="preset of the base model")
    parser.add_argument("--base-epochs", type=float, default=12, help="epochs of the base model")
    parser.add_argument("--updates", type=int, default=2_000, help="updates of each method (without a critic's)")
    parser.add_argument("--samples", type=int, help="generated translations per sentence; default: that of the method")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="learning rate of each method")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="seeds of the methods")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD", help="; ".join(METHODS))
    add_run_options(parser, output="runs/reproduce-beyond-likelihood")
    args = parser.parse_args()
    require_known(parser, "method", args.methods, METHODS)
    return args


def base_tables(args: argparse.Namespace) -> dict[str, Any]:
    """Return the tables of the base model."""
    training = {
        "max_epochs": args.base_epochs,
        "max_minutes": "unset",
        "dev_bleu": True,
        "seed": 1,
        "schedule": {"type": "linear", "warmup": 200},
    }
    return {"preset": args.preset, "data": {**data_table(args), "aligner": False}, "training": training}


def method_tables(args: argparse.Namespace, name: str, seed: int) -> dict[str, Any]:
    """Return the tables of a method that begins from the base model."""
    tables = base_tables(args)
    sequence = METHODS[name]
    critic_updates = 0 if sequence is None else sequence.get("critic_updates", 0)
    tables["training"] = {
        "begin_from": str(args.output / BASE),
        "seed": seed,
        "max_updates": critic_updates + args.updates,
        "max_epochs": "unset",
        "max_minutes": "unset",
        "evaluate_every": max(1, args.updates // 5),
        "optimiser": {"learning_rate": args.learning_rate},
        "schedule": {"type": "constant"},
        "label_smoothing": 0.0,
        "metric": "bleu",
        "dev_bleu": True,
        "average": 0,
    }
    if sequence is not None:
        has_samples = args.samples is not None and name in ("mrt", "self-critical")
        tables["objective"] = {"sequence": {**sequence, **({"samples": args.samples} if has_samples else {})}}
    return merge(tables, UNNORMALISED_SEARCH) if name == "bso" else tables


def translate(folder: Path, prepared: Prepared) -> dict[str, list[str]]:
    """Return the test translations by greedy search and by the model's beam."""
    sources, _ = sources_and_references(prepared.test)
    translator = load(folder)
    searches = {"greedy": SearchOptions(beam=1), "beam": None}
    return {name: [t.text for t in translator.translate(sources, options)] for name, options in searches.items()}


def run_method(args: argparse.Namespace, name: str, seed: int, prepared: Prepared) -> dict[str, Any]:
    """Train a method, or resume its training, and translate the test set."""
    folder = args.output / str(seed) / name
    train_or_resume(
        resolve_config(name, method_tables(args, name, seed), args.set), prepared, folder, f"{name}, {seed}"
    )
    return result_of(folder, prepared)


def run_base(args: argparse.Namespace, prepared: Prepared) -> dict[str, Any]:
    """Train the base model, or resume its training, and translate the test set."""
    config = resolve_config(BASE, base_tables(args), args.set)
    train_or_resume(config, prepared, args.output / BASE, BASE)
    return result_of(args.output / BASE, prepared)


def result_of(folder: Path, prepared: Prepared) -> dict[str, Any]:
    """Return the minutes of training, the best dev BLEU, and the translations by search."""
    facts = load_training_facts(folder)
    dev_bleu = best_evaluation(facts)["dev_bleu"]
    return {"minutes": 60 * facts["hours"], "dev_bleu": dev_bleu, "translations": translate(folder, prepared)}


def rare_words(prepared: Prepared) -> set[str]:
    """Return the words of the target training text that occur at most MAX_RARE_COUNT times."""
    counts = Counter[str]()
    for _, target in training_text(prepared):
        counts.update(target.split())
    return {word for word, count in counts.items() if count <= MAX_RARE_COUNT}


def side_effects(translations: Sequence[str], references: Sequence[str], rare: set[str]) -> list[str]:
    """Return the length ratio, translations with a repeated word per 100, and rare words per 100, as text."""
    words = [line.split() for line in translations]
    total = sum(map(len, words))
    length = total / sum(len(line.split()) for line in references)
    repeats = sum(any(a == b for a, b in pairwise(line)) for line in words)
    num_rare = sum(word in rare for line in words for word in line)
    return [f"{length:.3f}", f"{100 * repeats / len(words):.1f}", f"{100 * num_rare / max(1, total):.2f}"]


def table_rows(
    results: dict[str, dict[str, Any]], prepared: Prepared, rare: set[str], language: str
) -> list[list[str]]:
    """Return a header and two rows per method, with the difference from likelihood if it was trained."""
    _, references = sources_and_references(prepared.test)
    rows = [HEADER]
    for name, result in results.items():
        for search, translations in result["translations"].items():
            first = results.get("likelihood", result)["translations"][search]
            scores = paired_bootstrap(translations, first, references, language=language)
            bleu = scores["BLEU"]
            difference = ["", ""]
            if name not in (BASE, "likelihood") and "likelihood" in results:
                difference = [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
            effects = side_effects(translations, references, rare)
            minutes = f"{result['minutes']:.0f}"
            rows.append([name, search, *scores_with_intervals(scores), *difference, *effects, minutes])
    return rows


def main() -> None:
    """Train and score the base model and all methods, and write the tables."""
    args = parse_arguments()
    args.output = args.output.absolute()
    config = resolve_config(BASE, base_tables(args), args.set)
    prepared = prepare_once(config, args.output)
    base = cached(args.output / "base.json", partial(run_base, args, prepared))
    rare = rare_words(prepared)
    for seed in args.seeds:
        results = {BASE: base}
        for name in args.methods:
            path = args.output / str(seed) / f"{name}.json"
            results[name] = cached(path, partial(run_method, args, name, seed, prepared))
            table = as_markdown(table_rows(results, prepared, rare, config.data.target))
            write_text(args.output / str(seed) / "table.md", table)
        sys.stdout.write(f"seed {seed}\n\n{table}\n")


if __name__ == "__main__":
    main()
