"""Which system should a user take? The families side by side on the same pairs, each trained to its end.

    python reproduce/systems.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/systems.py ... --pairs 10000 --systems RNNsearch low-resource    a part of the training text

Every system is of laptop size, is trained as its own run file says, and stops when its dev score no longer falls. The
text is cut as that run file says, so NLL is compared a sentence. --output gets table.md (BLEU and chrF of the test set
with 95% intervals, and each system's difference from the first one with a paired bootstrap), systems.json, and a model
folder each. Interrupted, it goes on where it stopped; a system with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from common import add_data, add_run, data_tables, kept, lines, prepared_once, resolved, sides, trained, write_json

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.errors import did_you_mean
from rnnsearch.files import write_text
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import training_facts
from rnnsearch.text.columns import as_markdown
from rnnsearch.translate import load

GRU = {"cell": "gru", "size": 512}
STACKED = {"type": "stacked", "size": 256, "layers": 2, "direction": "both"}
LSTMS = {"type": "luong-input-feeding", "cell": "lstm", "size": 512, "layers": 2}
SYSTEMS: dict[str, dict[str, Any]] = {
    "RNNsearch": {},
    "cGRU": {"model": {"tie": "none", "decoder": {"type": "cgru", **GRU, "maxout": "unset", "readout": 256}}},
    "BiDeep": {
        "model": {
            "tie": "none",
            "encoder": STACKED | {"cell": "gru"},
            "decoder": {"type": "bideep", **GRU, "layers": 2, "transitions": 1, "maxout": "unset", "readout": 256},
        }
    },
    "deep LSTM": {
        "model": {
            "tie": "none",
            "encoder": STACKED | {"cell": "lstm"},
            "attention": {"score": "general", "size": "unset"},
            "decoder": LSTMS | {"bridge": "learned", "maxout": "unset", "readout": 256},
            "dropout": {"layers": 0.3},
        }
    },
    "RNMT+": {"preset": "rnmt-plus-small"},
    "low-resource": {"preset": "low-resource-small"},
}
"""What each has in the place of the preset `small`'s."""


@dataclass(frozen=True)
class Result:
    """What one system scores on the test set, and what that took."""

    name: str
    parameters: int
    epochs: float
    hours: float
    device: str
    best: float
    """The epoch of the lowest dev NLL: where it is the last one, training had not come to its end."""
    dev_nll: float
    """The lowest, in nats a sentence."""
    translations: tuple[str, ...]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, help="take so many training pairs alone, from the first on")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help=", ".join(SYSTEMS))
    add_run(parser, output="runs/reproduce-systems")
    args = parser.parse_args()
    for name in args.systems:
        if name not in SYSTEMS:
            parser.error(
                f"there is no system {name}{did_you_mean(name, SYSTEMS)}; those there are: {', '.join(SYSTEMS)}"
            )
    if args.pairs is not None and args.train is None:
        parser.error("--pairs needs files (--train)")
    return args


def first_pairs(args: argparse.Namespace) -> dict[str, Any]:
    """`[data]`, of the first pairs alone where only some are wanted."""
    data = data_tables(args)
    if args.pairs is None:
        return data
    args.output.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*(spec.split("|") for spec in data["train"]), strict=True))
    names = [args.output / f"train.{language}" for language in (args.source, args.target)]
    for files, name in zip(columns, names, strict=True):
        rows = chain.from_iterable(lines(Path(file.strip())) for file in files)
        write_text(name, "".join(f"{row}\n" for row in islice(rows, args.pairs)))
    return data | {"train": ["|".join(map(str, names))]}


def system_config(args: argparse.Namespace, name: str, data: dict[str, Any]) -> RunConfig:
    """One system's resolved config."""
    return resolved(name, {"preset": "small", "data": data, **SYSTEMS[name]}, args.set)


def prepared_for(config: RunConfig, output: Path) -> Prepared:
    """The corpus, once for all systems that cut text alike."""
    return prepared_once(config, output / "-".join(map(str, config.text.model_dump().values())))


def scored(config: RunConfig, output: Path, name: str) -> Result:
    """Train (or go on with) one system, and translate the test set."""
    prepared, folder = prepared_for(config, output), output / name.replace(" ", "-")
    trained(config, prepared, folder, name)
    facts = training_facts(folder)
    best = min(facts["history"], key=lambda row: row["dev_nll"])
    sources, _ = sides(prepared.test)
    return Result(
        name=name,
        parameters=facts["parameters"],
        epochs=facts["epochs"],
        hours=facts["hours"],
        device=facts["device"],
        best=best["epoch"],
        dev_nll=best["dev_nll"],
        translations=tuple(t.text for t in load(folder).translate(sources)),
    )


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a system, with its difference from the first."""
    rows = [["System", "Parameters", "Epochs (best)", "Hours", "Dev NLL", "BLEU", "chrF", "Difference in BLEU", "p"]]
    for r in results:
        found = paired_bootstrap(r.translations, results[0].translations, references, language=language)
        bleu, chrf = found["BLEU"], found["chrF2"]
        scores = [f"{score.system:.1f} ± {score.system_interval:.1f}" for score in (bleu, chrf)]
        difference = ["", ""] if r is results[0] else [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
        counts = [f"{r.parameters:,}", f"{r.epochs:.0f} ({r.best:.0f})", f"{r.hours:.2f}", f"{r.dev_nll:.1f}"]
        rows.append([r.name, *counts, *scores, *difference])
    return rows


def main() -> None:
    """Train, score and write; the table is written anew after each system."""
    args = arguments()
    data, results, text = first_pairs(args), list[Result](), ""
    for name in args.systems:
        config = system_config(args, name, data)
        make = partial(scored, config, args.output, name)
        results.append(Result(**kept(args.output / f"{name}.json", lambda make=make: asdict(make()))))
        _, references = sides(prepared_for(config, args.output).test)
        text = as_markdown(table(results, references, config.data.target))
        write_text(args.output / "table.md", text)
        write_json(args.output / "systems.json", [asdict(r) | {"translations": len(r.translations)} for r in results])
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
