"""Prune a model by several schemes to several sparsities and retrain it (See, Luong & Manning 2016).

    python reproduce/compression.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/compression.py ... --sparsities 0.8 0.9 --schemes class-blind 'class-blind, iterative'

The model is that of a preset. Retraining keeps pruned weights at zero, starts with a lower learning rate and ends as
the preset says (--set applies to both, --retrain-set to retraining only). An iterative scheme prunes the model that
was retrained at the previous sparsity, and hence retrains at every sparsity; the other schemes retrain at those of
--retrain, by default at all.

Output: table.md (test BLEU before and after retraining with 95% intervals, and the difference from the unpruned model
with a paired bootstrap test), classes.md (sparsity of each class of weights), bleu-by-sparsity.png, compression.json,
and one model folder per row. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
    sources_and_references,
    train_or_resume,
)
from comparison import translate_with_defaults

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.plots.figures import SparsityPoint, plot_bleu_by_sparsity, save
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.pruning import SchemeName, prune
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

# The scheme that selects weights, and whether pruning is iterative.
SCHEMES: dict[str, tuple[SchemeName, bool]] = {
    "class-blind": ("class-blind", False),
    "class-uniform": ("class-uniform", False),
    "class-distribution": ("class-distribution", False),
    "class-blind, iterative": ("class-blind", True),
    "class-uniform, iterative": ("class-uniform", True),
}
SPARSITIES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
RETRAINING_RATE = 1e-3  # initial learning rate of Adam


class Score(NamedTuple):
    """Test BLEU of a pruned model, compared with the unpruned one."""

    bleu: float
    interval: float  # half the width of the 95% interval
    unpruned: float  # BLEU of the unpruned model
    p: float  # p-value of the difference


@dataclass(frozen=True)
class Result:
    """Scores of one scheme at one sparsity."""

    scheme: str
    sparsity: float
    classes: dict[str, float]
    """Sparsity of each class of weights."""
    pruned: Score
    retrained: Score | None


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small")
    parser.add_argument(
        "--schemes", "--ways", nargs="+", default=list(SCHEMES), metavar="SCHEME", help="; ".join(SCHEMES)
    )
    parser.add_argument(
        "--sparsities",
        "--shares",
        nargs="+",
        type=float,
        default=list(SPARSITIES),
        metavar="SPARSITY",
        help="fractions of the weights to prune, increasing",
    )
    parser.add_argument(
        "--retrain", nargs="+", type=float, metavar="SPARSITY", help="sparsities to retrain at (default: all)"
    )
    parser.add_argument("--retrain-set", nargs="*", default=[], metavar="KEY=VALUE", help="as --set, for retraining")
    add_run_options(parser, output="runs/reproduce-compression")
    args = parser.parse_args()
    require_known(parser, "scheme", args.schemes, SCHEMES)
    if not all(0 < sparsity < 1 for sparsity in args.sparsities) or sorted(set(args.sparsities)) != args.sparsities:
        parser.error("--sparsities must be between 0 and 1 and strictly increasing")
    if unknown := set(args.retrain or ()) - set(args.sparsities):
        parser.error(f"--retrain {min(unknown):g} is not among --sparsities")
    return args


def model_config(args: argparse.Namespace, name: str, begin_from: Path | None = None) -> RunConfig:
    """Return the resolved config of the unpruned model, or of retraining the pruned model in `begin_from`."""
    tables: dict[str, Any] = {"preset": args.preset, "data": data_table(args)}
    if begin_from is None:
        return resolve_config(name, tables, args.set)
    tables["training"] = {
        "begin_from": str(begin_from),
        "keep_zeros": True,
        "optimiser": {"learning_rate": RETRAINING_RATE},
    }
    return resolve_config(name, tables, [*args.set, *args.retrain_set])


def retrained_folder(args: argparse.Namespace, scheme: str, sparsity: float) -> Path:
    """Return the folder of the model retrained at a sparsity."""
    return args.output / f"{scheme.replace(',', '').replace(' ', '-')}-{sparsity:g}"


def prune_and_retrain(
    args: argparse.Namespace, prepared: Prepared, baseline: Sequence[str], scheme: str, sparsity: float
) -> Result:
    """Prune the model, retrain it if requested, and score both.

    Args:
        baseline: Test translations by the unpruned model.
    """
    selection, iterative = SCHEMES[scheme]
    source = args.output / "model"
    lower = [other for other in args.sparsities if other < sparsity]
    if iterative and lower:
        source = retrained_folder(args, scheme, lower[-1])
    target = retrained_folder(args, scheme, sparsity)
    pruned_folder = target.with_name(f"{target.name}-pruned")
    shutil.rmtree(pruned_folder, ignore_errors=True)  # left by an interrupted run; pruning is deterministic
    report = prune(source, pruned_folder, sparsity, selection)
    pruned = score(pruned_folder, prepared, baseline)
    retrained = None
    if iterative or args.retrain is None or sparsity in args.retrain:
        name = f"{scheme}, {sparsity:g}"
        train_or_resume(model_config(args, name, pruned_folder), prepared, target, name)
        retrained = score(target, prepared, baseline)
    classes = {weights.name: weights.zeros / weights.weights for weights in (*report.classes, report.all)}
    return Result(scheme, sparsity, classes, pruned, retrained)


def score(model: Path, prepared: Prepared, baseline: Sequence[str]) -> Score:
    """Score a model's test translations against the references and against those of the unpruned model."""
    sources, references = sources_and_references(prepared.test)
    translations = translate_with_defaults(model, sources)
    bleu = paired_bootstrap(translations, baseline, references, language=prepared.direction.target)["BLEU"]
    return Score(bleu.system, bleu.system_interval, bleu.baseline, bleu.p_value)


def table(results: Sequence[Result]) -> list[list[str]]:
    """Return a header, a row of the unpruned model, and one row per scheme and sparsity."""
    rows = [["Scheme", "Sparsity", "BLEU, pruned", "BLEU, retrained", "Difference", "p"]]
    rows.append(["unpruned", "0%", f"{results[0].pruned.unpruned:.1f}", "", "", ""])
    for r in results:
        pruned = f"{r.pruned.bleu:.1f} ± {r.pruned.interval:.1f}"
        retrained = ["", "", ""]
        if r.retrained:
            retrained = [
                f"{r.retrained.bleu:.1f} ± {r.retrained.interval:.1f}",
                f"{r.retrained.bleu - r.retrained.unpruned:+.1f}",
                f"{r.retrained.p:.3f}",
            ]
        rows.append([r.scheme, f"{r.sparsity:.0%}", pruned, *retrained])
    return rows


def class_table(results: Sequence[Result]) -> list[list[str]]:
    """Return a table of the sparsity of each class of weights, with one column per scheme and sparsity."""
    rows = [["class", *(f"{r.scheme}, {r.sparsity:.0%}" for r in results)]]
    return rows + [[name, *(f"{r.classes[name]:.0%}" for r in results)] for name in results[0].classes]


def curves(results: Sequence[Result]) -> dict[str, list[SparsityPoint]]:
    """Return BLEU before and after retraining by sparsity, one curve per scheme, starting at the unpruned model."""
    points = dict[str, list[SparsityPoint]]()
    for r in results:
        start = SparsityPoint(0.0, r.pruned.unpruned, r.pruned.unpruned)
        retrained = r.retrained.bleu if r.retrained else None
        points.setdefault(r.scheme, [start]).append(SparsityPoint(r.sparsity, r.pruned.bleu, retrained))
    return points


def result_from_json(fields: dict[str, Any]) -> Result:
    """Return a result from its JSON representation."""
    retrained = fields["retrained"]
    scores = {"pruned": Score(*fields["pruned"]), "retrained": Score(*retrained) if retrained else None}
    return Result(**fields | scores)


def main() -> None:
    """Train, prune, retrain and score; all outputs are rewritten after each row."""
    args = parse_arguments()
    config = model_config(args, "model")
    model = args.output / "model"
    prepared = prepare_once(config, args.output)
    train_or_resume(config, prepared, model, "model")
    sources, _ = sources_and_references(prepared.test)
    baseline = cached(args.output / "model.json", lambda: translate_with_defaults(model, sources))
    results = list[Result]()
    text = ""
    for scheme in args.schemes:
        for sparsity in args.sparsities:
            path = args.output / f"{retrained_folder(args, scheme, sparsity).name}.json"
            compute = partial(prune_and_retrain, args, prepared, baseline, scheme, sparsity)
            results.append(result_from_json(cached(path, lambda compute=compute: asdict(compute()))))
            text = as_markdown(table(results))
            write_text(args.output / "table.md", text)
            write_text(args.output / "classes.md", as_markdown(class_table(results)))
            save(plot_bleu_by_sparsity(curves(results)), args.output / "bleu-by-sparsity.png")
            write_json(args.output / "compression.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
