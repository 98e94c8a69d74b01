"""Reproduce table 1 of Luong, Pham & Manning (2015) on freely available data: how much each step improves the system.

    python reproduce/luong.py                             Tatoeba English-German, laptop-sized models
    python reproduce/luong.py --minutes 60                limit the training time of each system
    python reproduce/luong.py --steps base "+ reverse"    some of the steps (--list prints all names)
    python reproduce/luong.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/luong.py --size paper                the paper's settings (needs a GPU and a large corpus)

Each step adds one thing to the previous system: a stacked LSTM without attention; the source reversed; dropout; global
attention with the location score; input feeding; predictive local attention with the general score; unknown words
replaced by the source words that they attend to, which needs no training. All systems have the same data and limits.

Output: table.md (test perplexity and BLEU, and the gain of each step with a paired bootstrap test, next to the
paper's), learning-curves.png, bleu-by-length.png, luong.json, and one model folder per system. An interrupted run
resumes where it stopped; steps with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import (
    add_data_options,
    add_run_options,
    cached,
    data_table,
    prepare_once,
    resolve_config,
    sources_and_references,
    train_or_resume,
)
from matplotlib.figure import Figure

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.metrics.plots.figures import (
    LIGHT,
    legend,
    line_style,
    log_series,
    save,
    style_axes,
    write_bleu_by_length,
)
from rnnsearch.metrics.scores import bleu_by_length, corpus_bleu
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.translator.translator import Translator
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

PRESETS = {"small": "luong-base-small", "paper": "luong-base"}
LOCATION = {"score": "location", "max_source": 200}
LOCAL = {"score": "general", "window": "local-p", "width": 10}
DROPOUT = {"small": 0.3, "paper": 0.2}
# The paper trains systems with dropout for 12 epochs and halves the learning rate after 8.
SCHEDULE_WITH_DROPOUT = {"schedule": {"start": 8}, "max_epochs": 12}


@dataclass(frozen=True)
class Step:
    """One system of the table, which adds one thing to the previous one."""

    name: str
    folder: str
    """Name of its model folder within the output folder."""
    reverse: bool
    dropout: bool
    attention: dict[str, Any] | None
    decoder: str
    paper: float | None
    """BLEU in the paper: the gain of a step of table 1, or the score of a system of table 4."""
    replace_unknown: bool = False
    """True if it is the previous system, translating again with unknown words replaced."""


STEPS = (
    Step("base", "base", False, False, None, "sutskever", None),
    Step("+ reverse", "reverse", True, False, None, "sutskever", 1.3),
    Step("+ dropout", "dropout", True, True, None, "sutskever", 1.4),
    Step("+ global attention (location)", "global", True, True, LOCATION, "luong", 2.8),
    Step("+ input feeding", "feeding", True, True, LOCATION, "luong-input-feeding", 1.3),
    Step("+ local-p attention (general)", "local", True, True, LOCAL, "luong-input-feeding", 0.9),
    Step("+ UNK replacement", "unknown", True, True, LOCAL, "luong-input-feeding", 1.9, replace_unknown=True),
)


@dataclass(frozen=True)
class Result:
    """Training facts and test scores of one system."""

    name: str
    parameters: int
    updates: int
    minutes: float
    perplexity: float
    """Perplexity of the references per token, EOS included."""
    bleu: float
    translations: tuple[str, ...]
    curve: tuple[tuple[float, ...], tuple[float, ...]]
    """Minutes of training, and the dev perplexity at each of them."""


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.name for step in STEPS]
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--steps", nargs="+", default=names, choices=names, metavar="STEP")
    parser.add_argument("--list", action="store_true", help="print the names of the steps and exit")
    parser.add_argument("--minutes", type=float, help="maximum training time of each system")
    parser.add_argument("--size", choices=sorted(PRESETS), default="small")
    add_run_options(parser, output="runs/reproduce-luong")
    return parser.parse_args()


def step_config(args: argparse.Namespace, step: Step) -> RunConfig:
    """Return the resolved config of a step."""
    tables = run_config.preset(PRESETS[args.size])
    model = tables["model"]
    model["encoder"] = {key: value for key, value in model["encoder"].items() if key != "reverse"}
    if step.reverse:
        model["encoder"]["reverse"] = True
    rate = DROPOUT[args.size] if step.dropout else 0.0
    model["dropout"] = {"embedding": rate, "layers": rate}
    if args.size == "small":
        model["dropout"]["readout"] = rate
    elif step.decoder == "luong-input-feeding":
        model["dropout"]["feeding"] = rate
    model["decoder"]["type"] = step.decoder
    if step.attention is not None:
        model["attention"] = step.attention
        model["decoder"]["readout"] = model["decoder"]["size"]
    training: dict[str, Any] = {} if args.minutes is None else {"max_minutes": args.minutes}
    if args.size == "paper" and step.dropout:
        training = run_config.merge(SCHEDULE_WITH_DROPOUT, training)
    tables = run_config.merge(tables, {"data": data_table(args), "training": training})
    return resolve_config(step.name, tables, args.set)


def run_step(args: argparse.Namespace, step: Step) -> Result:
    """Train a system, or resume its training, translate the test set and score it."""
    folder = args.output / step.folder
    return Result(**cached(folder / "luong.json", lambda: asdict(compute_result(args, step, folder))))


def compute_result(args: argparse.Namespace, step: Step, model: Path) -> Result:
    """Return the result of a step that has no stored one."""
    config = step_config(args, step)
    prepared = prepare_once(config, args.output)
    if step.replace_unknown:
        previous = STEPS[STEPS.index(step) - 1]
        model = args.output / previous.folder
        run_step(args, previous)
    else:
        train_or_resume(config, prepared, model, step.name)
    translator = load(model, replace_unknown="copy" if step.replace_unknown else None)
    translations, perplexity = translate_and_score(translator, prepared)
    _, references = sources_and_references(prepared.test)
    facts = load_training_facts(model)
    history = [] if step.replace_unknown else facts["history"]
    return Result(
        name=step.name,
        parameters=facts["parameters"],
        updates=facts["updates"],
        minutes=60 * facts["hours"],
        perplexity=perplexity,
        bleu=corpus_bleu(list(translations), references, config.data.target),
        translations=translations,
        curve=(tuple(row["seconds"] / 60 for row in history), tuple(log_series(history, "dev_perplexity")[1])),
    )


def translate_and_score(translator: Translator, prepared: Prepared) -> tuple[tuple[str, ...], float]:
    """Return the test translations, and the perplexity of the test references per token."""
    sources, references = sources_and_references(prepared.test)
    translations = tuple(translation.text for translation in translator.translate(sources))
    scored = translator.score(sources, references)
    num_tokens = sum(len(reference.token_scores) for reference in scored)
    return translations, math.exp(-sum(reference.log_prob for reference in scored) / num_tokens)


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per step, with its gain over the previous step of the paper's table."""
    facts = ["Parameters", "Updates", "Minutes", "Test perplexity", "BLEU"]
    rows = [["System", *facts, "Gain", "p", "Gain in the paper", "Same sign"]]
    results_by_name = {r.name: r for r in results}
    names = [step.name for step in STEPS]
    steps = {step.name: step for step in STEPS}
    for r in results:
        position = names.index(r.name)
        previous = results_by_name.get(names[position - 1]) if position else None
        paper_gain = steps[r.name].paper
        gain = p_value = same_sign = ""
        if previous is not None and paper_gain is not None:
            difference = r.bleu - previous.bleu
            bleu = paired_bootstrap(r.translations, previous.translations, references, language=language)["BLEU"]
            gain = f"{difference:+.1f}"
            p_value = f"{bleu.p_value:.3f}"
            same_sign = "yes" if difference * paper_gain > 0 else "no"
            if not bleu.significant:
                same_sign += ", not significant"
        values = [f"{r.parameters:,}", f"{r.updates:,}", f"{r.minutes:.0f}", f"{r.perplexity:.2f}", f"{r.bleu:.1f}"]
        paper = "" if paper_gain is None else f"{paper_gain:+.1f}"
        rows.append([r.name, *values, gain, p_value, paper, same_sign])
    return rows


def learning_curves(results: Sequence[Result]) -> Figure:
    """Return a plot of dev perplexity over training time, one line per trained system."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    trained = [r for r in results if r.curve[0]]
    for index, r in enumerate(trained):
        axes.plot(*r.curve, **line_style(LIGHT, index) | {"marker": ""})
    style_axes(figure, axes, LIGHT)
    axes.set_yscale("log")
    axes.set_xlabel("minutes of training", color=LIGHT.text)
    axes.set_ylabel("dev perplexity", color=LIGHT.text)
    legend(axes, LIGHT, [r.name for r in trained])
    return figure


def write_results(args: argparse.Namespace, results: Sequence[Result]) -> str:
    """Write the table, the two figures and the JSON results; return the table."""
    config = step_config(args, STEPS[0])
    language = config.data.target
    sources, references = sources_and_references(prepare_once(config, args.output).test)
    text = as_markdown(table(results, references, language))
    write_text(args.output / "table.md", text)
    save(learning_curves(results), args.output / "learning-curves.png")
    buckets = {r.name: bleu_by_length(sources, list(r.translations), references, language=language) for r in results}
    write_bleu_by_length(buckets, args.output, title=f"BLEU by source length, {len(sources)} test sentences")
    write_json(args.output / "luong.json", [without_translations(asdict(r)) for r in results])
    return text


def without_translations(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a result except the translations."""
    return {name: value for name, value in fields.items() if name != "translations"}


def main() -> None:
    """Train and score all steps; tables and figures are rewritten after each of them."""
    args = parse_arguments()
    if args.list:
        sys.stdout.write("".join(f"{step.name}\n" for step in STEPS))
        return
    results: list[Result] = []
    text = ""
    for step in STEPS:
        if step.name in args.steps:
            results.append(run_step(args, step))
            text = write_results(args, results)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
