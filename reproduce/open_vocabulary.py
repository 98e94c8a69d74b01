"""Compare the treatments of rare and unknown words on the same parallel data, each model trained until convergence.

    python reproduce/open_vocabulary.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/open_vocabulary.py ... --rows words hybrid    some of the rows

All models have the decoder and the recipe of the preset `small`; they differ in their vocabulary and in how they treat
words outside of it.

Output: table.md (test BLEU and chrF with 95% intervals, training and search speed), rare-words.md (fraction of the
reference words that are translated, by training frequency: the figure of the ACL 2016 tutorial on NMT),
open-vocabulary.json, and one model folder per model. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    add_data_options,
    add_run_options,
    cached,
    data_table,
    learn_dictionary,
    prepare_once,
    require_known,
    resolve_config,
    scores_with_intervals,
    sources_and_references,
    train_or_resume,
)

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import WORD_COUNTS_FILE, Prepared, read_word_counts
from rnnsearch.metrics.scores import accuracy_by_frequency
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import best_evaluation, load_training_facts
from rnnsearch.text.alignments import words
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_json, write_text
from rnnsearch.utils.tables import as_markdown

WORDS = {"preset": "small", "text": {"type": "words", "joint": False, "vocabulary": 10_000}}
# The run file of each model.
MODELS: dict[str, dict[str, Any]] = {
    "words": WORDS,
    "source characters": WORDS | {"model": {"source_characters": {"type": "cnn"}}},
    "PosUnk": {"preset": "posunk-small"},
    "pointer": WORDS | {"model": {"pointer": {}}},
    "CopyNet": {"preset": "copynet-small"},
    "hybrid": {"preset": "hybrid-small"},
    "BPE": {"preset": "small"},
    "target characters": {"preset": "characters-out-small"},
}
# The model of each row, and what replaces its unknown words (None: the model's default).
ROWS: dict[str, tuple[str, str | None]] = {
    "words": ("words", "none"),
    "words + copy": ("words", "copy"),
    "words + dictionary": ("words", "dictionary"),
    "PosUnk": ("PosUnk", None),
    "PosUnk + dictionary": ("PosUnk", "dictionary"),
    "pointer": ("pointer", None),
    "pointer + dictionary": ("pointer", "dictionary"),
    "CopyNet": ("CopyNet", None),
    "source characters + dictionary": ("source characters", "dictionary"),
    "hybrid": ("hybrid", None),
    "BPE": ("BPE", None),
    "target characters": ("target characters", None),
}


@dataclass(frozen=True)
class Result:
    """Training facts, speed and test translations of one row."""

    name: str
    parameters: int
    epochs: float
    best: float
    """Epoch of the selected weights."""
    device: str
    pairs_per_second: float
    """Training speed, including evaluations on the dev set."""
    words_per_second: float
    """Source words translated per second with the model's beam."""
    translations: tuple[str, ...]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    add_run_options(parser, output="runs/reproduce-open-vocabulary")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, ROWS)
    return args


def model_config(args: argparse.Namespace, name: str) -> RunConfig:
    """Return the resolved config of a model."""
    return resolve_config(name, {"data": data_table(args), **MODELS[name]}, args.set)


def prepare_text(config: RunConfig, output: Path) -> Prepared:
    """Prepare the corpus, once for all models with the same segmentation."""
    text = config.text
    segmentation = [text.type, text.target_type, text.annotation and text.annotation.type]
    return prepare_once(config, output / "-".join(["text", *filter(None, segmentation)]))


def run_row(args: argparse.Namespace, name: str) -> Result:
    """Train the row's model, or resume its training, and translate the test set."""
    model, unknown = ROWS[name]
    config = model_config(args, model)
    folder = args.output / model.replace(" ", "-")
    prepared = prepare_text(config, args.output)
    train_or_resume(config, prepared, folder, model)
    facts = load_training_facts(folder)
    best = best_evaluation(facts)
    dictionary = learn_dictionary(prepared, args.output / "dictionary.tsv") if unknown == "dictionary" else None
    sources, _ = sources_and_references(prepared.test)
    translator = load(folder, replace_unknown=unknown, dictionary=dictionary)
    translator.translate(sources[:1])  # warm-up
    start = time.perf_counter()
    translations = translator.translate(sources)
    seconds = time.perf_counter() - start
    return Result(
        name=name,
        parameters=facts["parameters"],
        epochs=facts["epochs"],
        best=best["epoch"],
        device=facts["device"],
        pairs_per_second=facts["epochs"] * prepared.facts["pairs"] / (3600 * facts["hours"]),
        words_per_second=sum(len(words(source)) for source in sources) / seconds,
        translations=tuple(translation.text for translation in translations),
    )


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """Return a header and one row per result."""
    rows = [["System", "Parameters", "Epochs (best)", "Training pairs/s", "Search words/s", "BLEU", "chrF"]]
    for r in results:
        scores = paired_bootstrap(r.translations, results[0].translations, references, language=language)
        facts = [f"{r.parameters:,}", f"{r.epochs:.0f} ({r.best:.0f})"]
        speed = [f"{r.pairs_per_second:,.0f}", f"{r.words_per_second:,.0f}"]
        rows.append([r.name, *facts, *speed, *scores_with_intervals(scores)])
    return rows


def rare_word_table(results: Sequence[Result], references: Sequence[str], counts: dict[str, int]) -> list[list[str]]:
    """Return the fraction of the reference words that each system produces, by training frequency."""
    accuracies = [accuracy_by_frequency(r.translations, references, counts) for r in results]
    columns = [index for index, frequency in enumerate(accuracies[0]) if frequency.wanted]
    rows = [["Training frequency", *(accuracies[0][index].label for index in columns)]]
    rows.append(["reference words", *(f"{accuracies[0][index].wanted:,}" for index in columns)])
    for r, frequencies in zip(results, accuracies, strict=True):
        rows.append([r.name, *(f"{frequencies[index].recall or 0.0:.1%}" for index in columns)])
    return rows


def main() -> None:
    """Train and score all rows; the tables are rewritten after each of them."""
    args = parse_arguments()
    results = list[Result]()
    text = ""
    for name in args.rows:
        path = args.output / f"{name.replace(' ', '-')}.json"
        compute = partial(run_row, args, name)
        results.append(Result(**cached(path, lambda compute=compute: asdict(compute()))))
        prepared = prepare_text(model_config(args, ROWS[name][0]), args.output)
        _, references = sources_and_references(prepared.test)
        scores = as_markdown(table(results, references, prepared.direction.target))
        rare_words = as_markdown(
            rare_word_table(results, references, read_word_counts(prepared.folder / WORD_COUNTS_FILE))
        )
        write_text(args.output / "table.md", scores)
        write_text(args.output / "rare-words.md", rare_words)
        text = f"{scores}\n{rare_words}"
        fields = [asdict(r) | {"translations": len(r.translations)} for r in results]
        write_json(args.output / "open-vocabulary.json", fields)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
