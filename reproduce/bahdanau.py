"""RNNencdec against RNNsearch: the tables and the figure of Bahdanau, Cho & Bengio (2015), on data anyone can have.

    python reproduce/bahdanau.py                        Hebrew-English Bible, laptop sizes
    python reproduce/bahdanau.py --corpus tatoeba-en-fr another corpus of `rnnsearch data list`
    python reproduce/bahdanau.py --train a.en|a.fr --dev ... --test ... --source en --target fr
    python reproduce/bahdanau.py --train ... --join 8    and paragraphs of up to eight neighbouring lines of them
    python reproduce/bahdanau.py --size paper           the papers' exact settings (a GPU and large data)

For every length limit L it trains RNNencdec-L and RNNsearch-L on the same data, translates the test set (all
sentences, whatever their length) and writes into --output: table.md (all / no UNK, as table 1), statistics.md
(table 2), bleu-by-length.png (figure 2), an attention heat map (figure 3) and scores.json. Interrupted, it goes
on where it stopped.

Corpora of short sentences have too few long ones for figure 2. With --join N all parts of the corpus stand in it N
times: by lines, and as paragraphs of 2, 3, ..., N lines. What is translated at any length is then the same text.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import add_data, add_run, data_tables, lines, prepared_once, resolved, sides, trained

from rnnsearch.config import RunConfig
from rnnsearch.evaluate.assess import Assessment, assess
from rnnsearch.evaluate.corpus_scores import paper_table
from rnnsearch.evaluate.report import write_assessment
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.by_length import bleu_by_length
from rnnsearch.plots.by_length import write_plot
from rnnsearch.systems.card import statistics, statistics_table, training_facts
from rnnsearch.text.columns import as_markdown

SYSTEMS = ("RNNencdec", "RNNsearch")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="bible-hbo-en")
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--lengths", nargs="+", type=int, default=[30, 50])
    parser.add_argument("--join", type=int, metavar="N", help="lines of the longest paragraphs, of files of your own")
    add_run(parser, output="runs/reproduce-bahdanau")
    args = parser.parse_args()
    if args.join is not None and args.join < 2:
        parser.error(f"--join must be at least 2; got {args.join}")
    if args.join is not None and None in (args.train, args.dev, args.test):
        parser.error("--join needs --train, --dev and --test: the files whose lines are joined")
    return args


def by_paragraphs(args: argparse.Namespace) -> argparse.Namespace:
    """The same of the files whose lines are joined."""
    made = {part: paragraphs(getattr(args, part), args.join, args.output / part) for part in ("dev", "test")}
    train = [paragraphs(spec, args.join, args.output / f"train-{n}") for n, spec in enumerate(args.train)]
    return argparse.Namespace(**vars(args) | made | {"train": train})


def paragraphs(spec: str, most: int, to: Path) -> str:
    """The lines of the files `a|b`, and paragraphs of 2, 3, ..., `most` of them, as files that have `to` in their
    names; returns these as a spec."""
    names = list[str]()
    for n, file in enumerate(spec.split("|")):
        text = lines(Path(file.strip()))
        joined = (" ".join(text[at : at + size]) for size in range(1, most + 1) for at in range(0, len(text), size))
        names.append(f"{to}.{n}.txt")
        write_text(Path(names[-1]), "".join(f"{paragraph}\n" for paragraph in joined))
    return "|".join(names)


def system_config(args: argparse.Namespace, system: str, length: int) -> RunConfig:
    """One system's resolved config: its preset, the same data for all."""
    preset = f"{system.lower()}-{'small' if args.size == 'small' else length}"
    tables = {"preset": preset, "data": data_tables(args), "training": {"max_length": length}}
    return resolved(f"{system}-{length}", tables, args.set)


def run_system(args: argparse.Namespace, system: str, length: int) -> tuple[str, Assessment, Path]:
    """Train (or go on with) one system and score it."""
    name = f"{system}-{length}"
    config = system_config(args, system, length)
    prepared = prepared_once(config, args.output)
    folder = args.output / name
    trained(config, prepared, folder, name)
    translator = load(folder)
    assessment = assess(translator, *sides(prepared.test), name)
    write_assessment(folder / "evaluation", translator, folder, assessment, "the test split")
    return name, assessment, folder


def write_results(output: Path, results: list[tuple[str, Assessment, Path]]) -> None:
    """The two tables, the figure and the scores."""
    evaluations = [assessment.evaluation for _, assessment, _ in results]
    table = as_markdown(paper_table(evaluations))
    learned = as_markdown(statistics_table([statistics(training_facts(folder), name) for name, _, folder in results]))
    write_text(output / "table.md", table)
    write_text(output / "statistics.md", learned)
    write_json(output / "scores.json", [e.as_dict() for e in evaluations])
    first = results[0][1]
    buckets = {
        name: bleu_by_length(a.sources, [t.text for t in a.translations], a.references, width=10)
        for name, a, _ in results
    }
    write_plot(buckets, output, title=f"BLEU by source length, {len(first.sources)} test sentences")
    sys.stdout.write(f"{table}\n{learned}\n")
    for evaluation in evaluations:
        sys.stdout.write(f"{evaluation.name}\n{evaluation.to_text()}\n\n")


def main() -> None:
    """Train, score and write."""
    args = arguments()
    if args.join is not None:
        args = by_paragraphs(args)
    results = [run_system(args, system, length) for length in args.lengths for system in SYSTEMS]
    write_results(args.output, results)


if __name__ == "__main__":
    main()
