"""How many weights can go (See, Luong & Manning 2016): one model pruned by three schemes at many shares, trained on.

    python reproduce/compression.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/compression.py ... --shares 0.8 0.9 --ways class-blind 'class-blind, step by step'

The model is that of a preset; trained on, it keeps the zeros, begins with a lower learning rate and stops as the preset
says (--set is for both, --retrain-set for what is trained on). "Step by step" prunes what the share before has become
after training, and so trains on at every share; the other ways do at those of --retrain, if given. --output gets
table.md (BLEU of the test set before and after training on, with 95% intervals, and the difference from the model as it
was with a paired bootstrap), classes.md (what share of each class of weights is zero), bleu-by-share.png,
compression.json, and a model folder each. Interrupted, it goes on where it stopped.
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
    add_data,
    add_run,
    data_tables,
    kept,
    prepared_once,
    require_known,
    resolved,
    sides,
    trained,
)
from compared import plainly

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.plots.by_share import Point, plot
from rnnsearch.plots.figures import save
from rnnsearch.systems.pruning import SchemeName, prune
from rnnsearch.text.columns import as_markdown

WAYS: dict[str, tuple[SchemeName, bool]] = {
    "class-blind": ("class-blind", False),
    "class-uniform": ("class-uniform", False),
    "class-distribution": ("class-distribution", False),
    "class-blind, step by step": ("class-blind", True),
    "class-uniform, step by step": ("class-uniform", True),
}
"""The scheme of each, and whether it prunes what the share before has become."""
SHARES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
RATE = 1e-3
"""Adam's, of training on."""


class Score(NamedTuple):
    """BLEU of the test set with half its 95% interval, that of the model as it was, and how often chance alone would
    make such a difference."""

    bleu: float
    interval: float
    whole: float
    p: float


@dataclass(frozen=True)
class Result:
    """A way at a share: the zeros' share of each class, and the scores as pruned and trained on."""

    way: str
    share: float
    classes: dict[str, float]
    before: Score
    after: Score | None


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="WAY", help="; ".join(WAYS))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES), metavar="SHARE")
    parser.add_argument(
        "--retrain", nargs="+", type=float, metavar="SHARE", help="shares to train on at; all, if not given"
    )
    parser.add_argument("--retrain-set", nargs="*", default=[], metavar="KEY=VALUE", help="of what is trained on")
    add_run(parser, output="runs/reproduce-compression")
    args = parser.parse_args()
    require_known(parser, "way", args.ways, WAYS)
    if not all(0 < share < 1 for share in args.shares) or sorted(set(args.shares)) != args.shares:
        parser.error("--shares must be between 0 and 1 and rise")
    if strange := set(args.retrain or ()) - set(args.shares):
        parser.error(f"--retrain {min(strange):g} is not among --shares")
    return args


def config(args: argparse.Namespace, name: str, begin_from: Path | None = None) -> RunConfig:
    """The resolved config of the model, or of one that is trained on."""
    tables: dict[str, Any] = {"preset": args.preset, "data": data_tables(args)}
    if begin_from is None:
        return resolved(name, tables, args.set)
    tables["training"] = {"begin_from": str(begin_from), "keep_zeros": True, "optimiser": {"learning_rate": RATE}}
    return resolved(name, tables, [*args.set, *args.retrain_set])


def folder(args: argparse.Namespace, way: str, share: float) -> Path:
    """Of what a way at a share becomes when it is trained on."""
    return args.output / f"{way.replace(',', '').replace(' ', '-')}-{share:g}"


def pruned(args: argparse.Namespace, prepared: Prepared, whole: Sequence[str], way: str, share: float) -> Result:
    """Prune, translate the test set, train on and translate it again; `whole`: what the model as it was makes of it."""
    scheme, steps = WAYS[way]
    shares, source = [one for one in args.shares if one < share], args.output / "model"
    if steps and shares:
        source = folder(args, way, shares[-1])
    after = folder(args, way, share)
    before = after.with_name(f"{after.name}-pruned")
    shutil.rmtree(before, ignore_errors=True)  # of a run that was interrupted; it is made the same again
    made = prune(source, before, share, scheme)
    first, second = scored(before, prepared, whole), None
    if steps or args.retrain is None or share in args.retrain:
        name = f"{way}, {share:g}"
        trained(config(args, name, before), prepared, after, name)
        second = scored(after, prepared, whole)
    zeros = {one.name: one.zeros / one.weights for one in (*made.classes, made.all)}
    return Result(way, share, zeros, first, second)


def scored(model: Path, prepared: Prepared, whole: Sequence[str]) -> Score:
    """A model folder's translations of the test set beside those of the model as it was."""
    sources, references = sides(prepared.test)
    language = prepared.direction.target
    found = paired_bootstrap(plainly(model, sources), whole, references, language=language)["BLEU"]
    return Score(found.system, found.system_interval, found.baseline, found.p_value)


def table(results: Sequence[Result]) -> list[list[str]]:
    """One row a way and share, below the model as it was."""
    rows = [["Pruned", "Share", "BLEU before", "BLEU trained on", "Difference", "p"]]
    rows.append(["nothing", "0%", f"{results[0].before.whole:.1f}", "", "", ""])
    for r in results:
        scores = [f"{score.bleu:.1f} ± {score.interval:.1f}" if score else "" for score in (r.before, r.after)]
        last = [f"{r.after.bleu - r.after.whole:+.1f}", f"{r.after.p:.3f}"] if r.after else ["", ""]
        rows.append([r.way, f"{r.share:.0%}", *scores, *last])
    return rows


def classes(results: Sequence[Result]) -> list[list[str]]:
    """The zeros' share of each class, a column a way and share."""
    rows = [["class", *(f"{r.way}, {r.share:.0%}" for r in results)]]
    return rows + [[name, *(f"{r.classes[name]:.0%}" for r in results)] for name in results[0].classes]


def curves(results: Sequence[Result]) -> dict[str, list[Point]]:
    """BLEU before and after by share, a curve a way, each from the model as it was on."""
    found = dict[str, list[Point]]()
    for r in results:
        start = Point(0.0, r.before.whole, r.before.whole)
        after = r.after.bleu if r.after else None
        found.setdefault(r.way, [start]).append(Point(r.share, r.before.bleu, after))
    return found


def read(found: dict[str, Any]) -> Result:
    """A result as it was kept."""
    after = found["after"]
    return Result(**found | {"before": Score(*found["before"]), "after": Score(*after) if after else None})


def main() -> None:
    """Train, prune, train on, score and write; everything is written anew after each row."""
    args, results, text = arguments(), list[Result](), ""
    first, model = config(args, "model"), args.output / "model"
    prepared = prepared_once(first, args.output)
    trained(first, prepared, model, "model")
    whole = kept(args.output / "model.json", lambda: plainly(model, sides(prepared.test)[0]))
    for way in args.ways:
        for share in args.shares:
            path, make = args.output / f"{folder(args, way, share).name}.json", partial(pruned, args, prepared, whole)
            results.append(read(kept(path, lambda make=make, at=(way, share): asdict(make(*at)))))
            text = as_markdown(table(results))
            write_text(args.output / "table.md", text)
            write_text(args.output / "classes.md", as_markdown(classes(results)))
            save(plot(curves(results)), args.output / "bleu-by-share.png")
            write_json(args.output / "compression.json", [asdict(r) for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
