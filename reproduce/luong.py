"""The ladder of Luong, Pham & Manning (2015), table 1, on data anyone can have: which steps help here, and by how much.

    python reproduce/luong.py                             Tatoeba English-German, laptop sizes
    python reproduce/luong.py --minutes 60                training time of each step
    python reproduce/luong.py --steps base "+ reverse"    some of them (--list names all)
    python reproduce/luong.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/luong.py --size paper                the paper's exact settings (a GPU and large data)

Each step is the one before it with one thing more: a stacked LSTM without attention; the source reversed; dropout;
global attention with the location score; input feeding; predictive local attention with the general score; unknown
words replaced by the source words they attend to, which needs no training. Every system has the same data and the same
limits. --output gets table.md (perplexity and BLEU of the test set, each step's difference with a paired bootstrap,
beside the paper's), learning-curves.png, bleu-by-length.png, and luong.json.
Interrupted, it goes on where it stopped; a step with a result is not trained again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import add_data, add_run, data_tables, kept, prepared_once, resolved, sides, trained
from matplotlib.figure import Figure

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu
from rnnsearch.metrics.by_length import bleu_by_length
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.plots.by_length import write_plot
from rnnsearch.plots.figures import LIGHT, legend, line, paint, save
from rnnsearch.plots.learning import points
from rnnsearch.systems.card import training_facts
from rnnsearch.text.columns import as_markdown
from rnnsearch.translate import Translator

PRESETS = {"small": "luong-base-small", "paper": "luong-base"}
LOCATION = {"score": "location", "max_source": 200}
LOCAL = {"score": "general", "window": "local-p", "width": 10}
DROPOUT = {"small": 0.3, "paper": 0.2}
RATES_WITH_DROPOUT = {"schedule": {"start": 8}, "max_epochs": 12}
"""The paper's systems with dropout: 12 epochs, the learning rate halved after 8."""


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: what it has besides the one before it, and the BLEU that brought in the paper."""

    name: str
    folder: str
    """Its model's, in the script's output."""
    reverse: bool
    dropout: bool
    attention: dict[str, Any] | None
    decoder: str
    paper: float | None
    replace_unknown: bool = False
    """Whether it is the step before it, searched again with unknown words replaced."""


LADDER = (
    Rung("base", "base", False, False, None, "sutskever", None),
    Rung("+ reverse", "reverse", True, False, None, "sutskever", 1.3),
    Rung("+ dropout", "dropout", True, True, None, "sutskever", 1.4),
    Rung("+ global attention (location)", "global", True, True, LOCATION, "luong", 2.8),
    Rung("+ input feeding", "feeding", True, True, LOCATION, "luong-input-feeding", 1.3),
    Rung("+ local-p attention (general)", "local", True, True, LOCAL, "luong-input-feeding", 0.9),
    Rung("+ UNK replacement", "unknown", True, True, LOCAL, "luong-input-feeding", 1.9, replace_unknown=True),
)


@dataclass(frozen=True)
class Result:
    """What one step scores on the test set."""

    name: str
    parameters: int
    updates: int
    minutes: float
    perplexity: float
    """Of the references, a symbol, EOS counted."""
    bleu: float
    translations: tuple[str, ...]
    curve: tuple[tuple[float, ...], tuple[float, ...]]
    """Minutes of training, and the dev set's perplexity."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [rung.name for rung in LADDER]
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--steps", nargs="+", default=names, choices=names, metavar="STEP")
    parser.add_argument("--list", action="store_true", help="name the steps")
    parser.add_argument("--minutes", type=float, help="most minutes of training of each step")
    parser.add_argument("--size", choices=sorted(PRESETS), default="small")
    add_run(parser, output="runs/reproduce-luong")
    return parser.parse_args()


def rung_config(args: argparse.Namespace, rung: Rung) -> RunConfig:
    """One step's resolved config."""
    tables = run_config.preset(PRESETS[args.size])
    model = tables["model"]
    model["encoder"] = {key: value for key, value in model["encoder"].items() if key != "reverse"}
    if rung.reverse:
        model["encoder"]["reverse"] = True
    share = DROPOUT[args.size] if rung.dropout else 0.0
    model["dropout"] = {"embedding": share, "layers": share, "readout": share}
    model["decoder"]["type"] = rung.decoder
    if rung.attention is not None:
        model["attention"] = rung.attention
        model["decoder"]["readout"] = model["decoder"]["size"]
    limits: dict[str, Any] = {} if args.minutes is None else {"max_minutes": args.minutes}
    if args.size == "paper" and rung.dropout:
        limits = run_config.merge(RATES_WITH_DROPOUT, limits)
    tables = run_config.merge(tables, {"data": data_tables(args), "training": limits})
    return resolved(rung.name, tables, args.set)


def run_rung(args: argparse.Namespace, rung: Rung) -> Result:
    """Train (or go on with) one step, translate and score the test set."""
    folder = args.output / rung.folder
    return Result(**kept(folder / "luong.json", lambda: asdict(_scored(args, rung, folder))))


def _scored(args: argparse.Namespace, rung: Rung, model: Path) -> Result:
    config = rung_config(args, rung)
    prepared = prepared_once(config, args.output)
    if rung.replace_unknown:
        before = LADDER[LADDER.index(rung) - 1]
        model = args.output / before.folder
        run_rung(args, before)
    else:
        trained(config, prepared, model, rung.name)
    found, perplexity = translated(load(model, replace_unknown="copy" if rung.replace_unknown else None), prepared)
    _, references = sides(prepared.test)
    facts = training_facts(model)
    history = [] if rung.replace_unknown else facts["history"]
    return Result(
        name=rung.name,
        parameters=facts["parameters"],
        updates=facts["updates"],
        minutes=60 * facts["hours"],
        perplexity=perplexity,
        bleu=corpus_bleu(list(found), references, config.data.target),
        translations=found,
        curve=(tuple(row["seconds"] / 60 for row in history), tuple(points(history, "dev_perplexity")[1])),
    )


def translated(translator: Translator, prepared: Prepared) -> tuple[tuple[str, ...], float]:
    """The test set's translations, and the perplexity a symbol of its references."""
    sources, references = sides(prepared.test)
    found = tuple(t.text for t in translator.translate(sources))
    forced = translator.score(sources, references)
    return found, math.exp(-sum(t.log_prob for t in forced) / sum(len(t.token_scores) for t in forced))


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a step, with its difference from the step before it in the paper's order."""
    head = ["System", "Parameters", "Updates", "Minutes", "Test perplexity", "BLEU", "Step", "p", "Step in the paper"]
    rows = [[*head, "Sign"]]
    paper = {rung.name: rung.paper for rung in LADDER}
    before_it = dict(zip([rung.name for rung in LADDER[1:]], [rung.name for rung in LADDER], strict=False))
    by_name = {r.name: r for r in results}
    for r in results:
        step = chance = sign = ""
        in_paper, before = paper[r.name], by_name.get(before_it.get(r.name, ""))
        if before is not None and in_paper is not None:
            difference = r.bleu - before.bleu
            verdict = paired_bootstrap(r.translations, before.translations, references, language=language)["BLEU"]
            step, chance = f"{difference:+.1f}", f"{verdict.p_value:.3f}"
            same = "as in the paper" if difference * in_paper > 0 else "the other way"
            sign = same if verdict.significant else f"{same}, not significant"
        counts = [f"{r.parameters:,}", f"{r.updates:,}", f"{r.minutes:.0f}"]
        scores = [f"{r.perplexity:.2f}", f"{r.bleu:.1f}"]
        rows.append([r.name, *counts, *scores, step, chance, "" if in_paper is None else f"{in_paper:+.1f}", sign])
    return rows


def learning_curves(results: Sequence[Result]) -> Figure:
    """Dev perplexity over minutes of training, one line a step."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    trained = [r for r in results if r.curve[0]]
    for number, r in enumerate(trained):
        axes.plot(*r.curve, **line(LIGHT, number) | {"marker": ""})
    paint(figure, axes, LIGHT)
    axes.set_yscale("log")
    axes.set_xlabel("minutes of training", color=LIGHT.text)
    axes.set_ylabel("dev perplexity", color=LIGHT.text)
    legend(axes, LIGHT, [r.name for r in trained])
    return figure


def write_results(args: argparse.Namespace, results: Sequence[Result]) -> str:
    """The table, the two figures and the numbers; returns the table."""
    config = rung_config(args, LADDER[0])
    sources, references = sides(prepared_once(config, args.output).test)
    text = as_markdown(table(results, references, config.data.target))
    write_text(args.output / "table.md", text)
    save(learning_curves(results), args.output / "learning-curves.png")
    language = config.data.target
    buckets = {r.name: bleu_by_length(sources, list(r.translations), references, language=language) for r in results}
    write_plot(buckets, args.output, title=f"BLEU by source length, {len(sources)} test sentences")
    numbers = [{k: v for k, v in asdict(r).items() if k != "translations"} for r in results]
    write_json(args.output / "luong.json", numbers)
    return text


def main() -> None:
    """Train, score and write; tables and figures are written anew after each step."""
    args = arguments()
    if args.list:
        sys.stdout.write("".join(f"{rung.name}\n" for rung in LADDER))
        return
    results: list[Result] = []
    text = ""
    for rung in LADDER:
        if rung.name in args.steps:
            results.append(run_rung(args, rung))
            text = write_results(args, results)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
