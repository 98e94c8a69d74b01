"""Reproduce the tables and figures of Bahdanau, Cho & Bengio (2015) on freely available data: RNNencdec and RNNsearch.

    python reproduce/bahdanau.py                        Hebrew-English Bible, laptop-sized models
    python reproduce/bahdanau.py --corpus tatoeba-en-fr another corpus of `rnnsearch data list`
    python reproduce/bahdanau.py --train 'a.en|a.fr' --dev ... --test ... --source en --target fr
    python reproduce/bahdanau.py --train ... --join 8    also with paragraphs of up to eight consecutive lines
    python reproduce/bahdanau.py --size paper           the paper's settings (needs a GPU and a large corpus)

For every length limit L, RNNencdec-L and RNNsearch-L are trained on the same data and translate the whole test set,
whatever the sentence length. Output: table.md (BLEU on all sentences and on those without unknown words, table 1),
statistics.md (table 2), bleu-by-length.png (figure 2), an attention heat map (figure 3) and scores.json. An
interrupted run resumes where it stopped.

Corpora of short sentences have too few long ones for figure 2. With --join N, each part of the corpus contains its text
N times: line by line, and as paragraphs of 2, 3, ..., N lines. The text to translate is then the same at every length.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import (
    add_data_options,
    add_run_options,
    data_table,
    prepare_once,
    read_lines,
    resolve_config,
    sources_and_references,
    train_or_resume,
)

from rnnsearch.config import RunConfig
from rnnsearch.evaluation.assess import Assessment, assess
from rnnsearch.evaluation.corpus_scores import paper_table
from rnnsearch.evaluation.report import write_assessment
from rnnsearch.metrics.plots.figures import write_bleu_by_length
from rnnsearch.metrics.scores import bleu_by_length
from rnnsearch.systems.card import load_training_facts, statistics, statistics_table
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

SYSTEMS = ("RNNencdec", "RNNsearch")


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="bible-hbo-en")
    parser.add_argument("--size", choices=("small", "paper"), default="small")
    parser.add_argument("--lengths", nargs="+", type=int, default=[30, 50], help="length limits in training")
    parser.add_argument(
        "--join", type=int, metavar="N", help="also use paragraphs of up to N lines; needs your own files"
    )
    add_run_options(parser, output="runs/reproduce-bahdanau")
    args = parser.parse_args()
    if args.join is not None and args.join < 2:
        parser.error(f"--join must be at least 2; got {args.join}")
    if args.join is not None and None in (args.train, args.dev, args.test):
        parser.error("--join needs --train, --dev and --test: the files whose lines are joined")
    return args


def with_paragraphs(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with files that contain the lines and the paragraphs of the original ones."""
    held_out = {part: write_paragraphs(getattr(args, part), args.join, args.output / part) for part in ("dev", "test")}
    train = [write_paragraphs(spec, args.join, args.output / f"train-{n}") for n, spec in enumerate(args.train)]
    return argparse.Namespace(**vars(args) | held_out | {"train": train})


def write_paragraphs(spec: str, max_lines: int, prefix: Path) -> str:
    """Write the lines of the files `a|b`, then their paragraphs of 2, 3, ..., `max_lines` lines.

    Returns:
        The spec of the new files, whose names start with `prefix`.
    """
    names = list[str]()
    for n, file in enumerate(spec.split("|")):
        lines = read_lines(Path(file.strip()))
        paragraphs = list[str]()
        for size in range(1, max_lines + 1):
            paragraphs += [" ".join(lines[start : start + size]) for start in range(0, len(lines), size)]
        names.append(f"{prefix}.{n}.txt")
        write_text(Path(names[-1]), "".join(f"{paragraph}\n" for paragraph in paragraphs))
    return "|".join(names)


def system_config(args: argparse.Namespace, system: str, length: int) -> RunConfig:
    """Return the resolved config of a system: its preset on the common data."""
    preset = f"{system.lower()}-{'small' if args.size == 'small' else length}"
    tables = {"preset": preset, "data": data_table(args), "training": {"max_length": length}}
    return resolve_config(f"{system}-{length}", tables, args.set)


def run_system(args: argparse.Namespace, system: str, length: int) -> tuple[str, Assessment, Path]:
    """Train a system, or resume its training, and evaluate it on the test set."""
    name = f"{system}-{length}"
    config = system_config(args, system, length)
    prepared = prepare_once(config, args.output)
    folder = args.output / name
    train_or_resume(config, prepared, folder, name)
    translator = load(folder)
    assessment = assess(translator, *sources_and_references(prepared.test), name)
    write_assessment(folder / "evaluation", translator, folder, assessment, "the test split")
    return name, assessment, folder


def write_results(output: Path, results: list[tuple[str, Assessment, Path]]) -> None:
    """Write the two tables, the figure and the scores, and print the tables."""
    evaluations = [assessment.evaluation for _, assessment, _ in results]
    scores = as_markdown(paper_table(evaluations))
    facts = [statistics(load_training_facts(folder), name) for name, _, folder in results]
    training = as_markdown(statistics_table(facts))
    write_text(output / "table.md", scores)
    write_text(output / "statistics.md", training)
    write_json(output / "scores.json", [evaluation.as_dict() for evaluation in evaluations])
    buckets = {}
    for name, assessment, _ in results:
        translations = [translation.text for translation in assessment.translations]
        buckets[name] = bleu_by_length(assessment.sources, translations, assessment.references, width=10)
    num_sentences = len(results[0][1].sources)
    write_bleu_by_length(buckets, output, title=f"BLEU by source length, {num_sentences} test sentences")
    sys.stdout.write(f"{scores}\n{training}\n")
    for evaluation in evaluations:
        sys.stdout.write(f"{evaluation.name}\n{evaluation.to_text()}\n\n")


def main() -> None:
    """Train and evaluate all systems and write the results."""
    args = parse_arguments()
    if args.join is not None:
        args = with_paragraphs(args)
    results = [run_system(args, system, length) for length in args.lengths for system in SYSTEMS]
    write_results(args.output, results)


if __name__ == "__main__":
    main()
