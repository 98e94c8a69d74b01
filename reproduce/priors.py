"""Measure the effect of priors and penalties on attention: BLEU and alignment error of fully trained systems.

    python reproduce/priors.py                              the Greek New Testament, 6,900 verses
    python reproduce/priors.py --corpus bible-hbo-en        the Hebrew Bible, 18,600 verses
    python reproduce/priors.py --systems additive symmetry  some of the systems; the first one is the baseline

The systems are those of alignment.py, trained until the dev NLL stops improving. Alignment error is that of attention
to the references of the test verses (posterior: conditioned on the target word), against manual alignments.
Differences are from the first system, with p-values of a paired bootstrap over verses. The dev NLL of symmetry is the
mean of both directions.

Output: table.md, priors.json, and one model folder per system. An interrupted run resumes where it stopped; systems
with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from alignment import SYSTEMS, system_config, train_system
from common import (
    add_aligned_corpus_option,
    add_run_options,
    cached,
    prepare_once,
    require_known,
    sources_and_references,
)

from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.text.alignment_types import AlignedBy
from rnnsearch.text.alignments import Links
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

DEFAULT_SYSTEMS = (
    "additive",
    "coverage-linguistic",
    "coverage-neural",
    "coverage-embedding",
    "position",
    "markov",
    "fertility-local",
    "cohn",
    "cohn-fertility-finetuned",
    "doubly-stochastic",
    "symmetry",
    "supervised-squared-error",
)
BOOTSTRAP_SAMPLES = 1000
BOOTSTRAP_SEED = 1

Counts = list[tuple[int, int, int, int]]
"""Counts per verse: predicted links, sure links, predicted links that are sure, predicted links that are possible."""


@dataclass(frozen=True)
class Result:
    """Training facts, test translations and link counts of one system."""

    system: str
    epochs: float
    best: float
    """Epoch of the selected weights."""
    dev_nll: float
    translations: list[str]
    argmax: Counts
    posterior: Counts


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_aligned_corpus_option(parser)
    parser.add_argument(
        "--systems", nargs="+", default=list(DEFAULT_SYSTEMS), metavar="NAME", help=", ".join(DEFAULT_SYSTEMS)
    )
    add_run_options(parser, output="runs/reproduce-priors")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    return args


def link_counts(
    translator: Translator, sources: list[str], references: list[str], gold: Sequence[Links], by: AlignedBy
) -> Counts:
    """Return the counts of each verse that the alignment error rate is computed from."""
    counts = []
    for predicted, verse in zip(map(set, translator.align(sources, references, by=by)), gold, strict=True):
        possible = verse.possible | verse.sure
        counts.append((len(predicted), len(verse.sure), len(predicted & verse.sure), len(predicted & possible)))
    return counts


def run_system(args: argparse.Namespace, prepared: Prepared, system: str) -> Result:
    """Train a system, or resume its training, and translate and align the test verses."""
    folder = train_system(args, system, prepared)
    facts = load_training_facts(folder)
    best = best_evaluation(facts)
    sources, references = sources_and_references(prepared.test)
    translator = load(folder)
    gold = prepared.links("test") or []
    return Result(
        system=system,
        epochs=facts["epochs"],
        best=best["epoch"],
        dev_nll=best["dev_nll"],
        translations=[translation.text for translation in translator.translate(sources)],
        argmax=link_counts(translator, sources, references, gold, "attention"),
        posterior=link_counts(translator, sources, references, gold, "posterior"),
    )


def alignment_error_rate(counts: np.ndarray) -> np.ndarray:
    """Return the alignment error rate (Och & Ney 2003) of counts [*, verses, 4]."""
    predicted, sure, predicted_sure, predicted_possible = np.moveaxis(counts.sum(-2), -1, 0)
    return 1 - (predicted_sure + predicted_possible) / (predicted + sure)


def bootstrap_p_value(counts: np.ndarray, baseline: np.ndarray) -> float:
    """Return the p-value of the difference between the alignment error rates of two systems.

    It is the rate at which differences on resampled verses deviate from their mean by at least the observed difference.
    """
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    verses = rng.integers(len(counts), size=(BOOTSTRAP_SAMPLES, len(counts)))
    differences = alignment_error_rate(counts[verses]) - alignment_error_rate(baseline[verses])
    observed = abs(alignment_error_rate(counts) - alignment_error_rate(baseline))
    return float((1 + (abs(differences - differences.mean()) >= observed).sum()) / (1 + BOOTSTRAP_SAMPLES))


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per system, with its differences from the first one."""
    bleu_header = ["BLEU", "Difference", "p"]
    rows = [["System", "Epochs (best)", "Dev NLL", *bleu_header, "AER", "Difference", "p", "Posterior AER"]]
    first = results[0]
    for r in results:
        bleu = paired_bootstrap(r.translations, first.translations, references, language=language)["BLEU"]
        argmax = np.array(r.argmax)
        baseline = np.array(first.argmax)
        bleu_difference = aer_difference = ["", ""]
        if r is not first:
            difference = 100 * (alignment_error_rate(argmax) - alignment_error_rate(baseline))
            bleu_difference = [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
            aer_difference = [f"{difference:+.1f}", f"{bootstrap_p_value(argmax, baseline):.3f}"]
        rows.append([
            r.system,
            f"{r.epochs:.0f} ({r.best:.0f})",
            f"{r.dev_nll:.1f}",
            f"{bleu.system:.1f} ± {bleu.system_interval:.1f}",
            *bleu_difference,
            f"{100 * alignment_error_rate(argmax):.1f}",
            *aer_difference,
            f"{100 * alignment_error_rate(np.array(r.posterior)):.1f}",
        ])  # fmt: skip
    return rows


def main() -> None:
    """Train, translate and align with all systems; the table is rewritten after each of them."""
    args = parse_arguments()
    results = list[Result]()
    text = ""
    for system in args.systems:
        config = system_config(args, system)
        prepared = prepare_once(config, args.output)
        compute = partial(run_system, args, prepared, system)
        path = args.output / system / "priors.json"
        results.append(Result(**cached(path, lambda compute=compute: asdict(compute()))))
        _, references = sources_and_references(prepared.test)
        text = as_markdown(table(results, references, config.data.target))
        write_text(args.output / "table.md", text)
    write_json(args.output / "priors.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
