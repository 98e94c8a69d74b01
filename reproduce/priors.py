"""What priors and penalties on attention bring in BLEU and in alignment error, each system trained to its end.

    python reproduce/priors.py                              the Greek New Testament, 6,900 verses
    python reproduce/priors.py --corpus bible-hbo-en        the Hebrew Bible, 18,600 verses
    python reproduce/priors.py --systems additive symmetry  some of them; the first is what others are compared with

The systems are those of alignment.py, each trained until its dev NLL no longer falls. Alignments are of the test
verses' references, by attention (Posterior: given the target word), against the links made by hand. Differences
are from the first system, with p of a paired bootstrap over verses. Symmetry's dev NLL is the mean of both directions'.
--output gets table.md and priors.json.
Interrupted, it goes on where it stopped; a system with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from alignment import SYSTEMS, learned, system_config
from common import add_aligned, add_run, kept, prepared_once, require_known, sides

from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import best_evaluation, training_facts
from rnnsearch.text.alignments import Links
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.spans import AlignedBy
from rnnsearch.translate import Translator

PRIORS = (
    *("additive", "coverage-linguistic", "coverage-neural", "coverage-embedding", "position", "markov"),
    *("fertility-local", "cohn", "cohn-fertility-after", "doubly-stochastic", "symmetry", "supervised-squared-error"),
)
SAMPLES, SEED = 1000, 1

Counts = list[tuple[int, int, int, int]]
"""Of each verse: links proposed, sure links, and those of the proposed that are sure and that are possible."""


@dataclass(frozen=True)
class Result:
    """What one system scores on the test verses. argmax, posterior: `Counts` of each way from weights to links."""

    system: str
    epochs: float
    best: float
    """The epoch of the weights that were kept."""
    dev_nll: float
    translations: list[str]
    argmax: Counts
    posterior: Counts


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_aligned(parser)
    parser.add_argument("--systems", nargs="+", default=list(PRIORS), metavar="NAME", help=", ".join(PRIORS))
    add_run(parser, output="runs/reproduce-priors")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    return args


def counts(
    translator: Translator, sources: list[str], references: list[str], gold: Sequence[Links], by: AlignedBy
) -> Counts:
    """Each verse's, of a model's links of its words."""
    of_each = zip(map(set, translator.align(sources, references, by=by)), gold, strict=True)
    return [
        (len(a), len(truth.sure), len(a & truth.sure), len(a & (truth.possible | truth.sure))) for a, truth in of_each
    ]


def run_system(args: argparse.Namespace, prepared: Prepared, system: str) -> Result:
    """Train (or go on with) one system, translate and align the test verses."""
    folder = learned(args, system, prepared)
    facts, (sources, references) = training_facts(folder), sides(prepared.test)
    best = best_evaluation(facts)
    translator, gold = load(folder), prepared.links("test") or []
    return Result(
        system=system,
        epochs=facts["epochs"],
        best=best["epoch"],
        dev_nll=best["dev_nll"],
        translations=[t.text for t in translator.translate(sources)],
        argmax=counts(translator, sources, references, gold, "attention"),
        posterior=counts(translator, sources, references, gold, "posterior"),
    )


def error(rows: np.ndarray) -> np.ndarray:
    """The alignment error rate (Och & Ney 2003) of [*, verses, 4] counts."""
    proposed, sure, of_sure, of_possible = np.moveaxis(rows.sum(-2), -1, 0)
    return 1 - (of_sure + of_possible) / (proposed + sure)


def chance(own: np.ndarray, other: np.ndarray) -> float:
    """p of the difference of two systems' error rates: how often resampled verses stray as far from it."""
    picked = np.random.default_rng(SEED).integers(len(own), size=(SAMPLES, len(own)))
    strays = error(own[picked]) - error(other[picked])
    seen = abs(error(own) - error(other))
    return float((1 + (abs(strays - strays.mean()) >= seen).sum()) / (1 + SAMPLES))


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a system, with its differences from the first."""
    head = ["System", "Epochs (best)", "Dev NLL", "BLEU", "Difference", "p", "AER", "Difference", "p", "Posterior AER"]
    rows, first = [head], results[0]
    for r in results:
        bleu = paired_bootstrap(r.translations, first.translations, references, language=language)["BLEU"]
        argmax, base = np.array(r.argmax), np.array(first.argmax)
        scores = [f"{bleu.system:.1f} ± {bleu.system_interval:.1f}", "", "", f"{100 * error(argmax):.1f}", "", ""]
        if r is not first:
            scores[1:3] = f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"
            scores[4:] = f"{100 * (error(argmax) - error(base)):+.1f}", f"{chance(argmax, base):.3f}"
        posterior = f"{100 * error(np.array(r.posterior)):.1f}"
        rows.append([r.system, f"{r.epochs:.0f} ({r.best:.0f})", f"{r.dev_nll:.1f}", *scores, posterior])
    return rows


def main() -> None:
    """Train, translate, align and write; the table is written anew after each system."""
    args, results, text = arguments(), list[Result](), ""
    for system in args.systems:
        config, folder = system_config(args, system), args.output / system
        prepared = prepared_once(config, args.output)
        make = partial(run_system, args, prepared, system)
        results.append(Result(**kept(folder / "priors.json", lambda make=make: asdict(make()))))
        _, references = sides(prepared.test)
        text = as_markdown(table(results, references, config.data.target))
        write_text(args.output / "table.md", text)
    write_json(args.output / "priors.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
