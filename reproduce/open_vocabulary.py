"""Rare and unknown words: the ways to translate them side by side on the same pairs, each model trained to its end.

    python reproduce/open_vocabulary.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/open_vocabulary.py ... --rows words hybrid    some rows alone

Every row has the preset `small`'s decoder and recipe; what differs is how text becomes symbols, and what becomes of
words that are none. --output gets table.md (BLEU and chrF of the test set with 95% intervals, training and search
speed), rare-words.md (the share of the references' words that are found, by how often training saw them: the figure of
the ACL 2016 tutorial on NMT), open-vocabulary.json, and a model folder each. Interrupted, it goes on where it stopped.
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
    add_data,
    add_run,
    data_tables,
    dictionary,
    kept,
    prepared_once,
    require_known,
    resolved,
    sides,
    trained,
    with_intervals,
)

from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.data.word_counts import COUNTS, read_counts
from rnnsearch.files import write_json, write_text
from rnnsearch.loading import load
from rnnsearch.metrics.rare_words import accuracy_by_frequency
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import best_evaluation, training_facts
from rnnsearch.text.columns import as_markdown
from rnnsearch.text.spans import words

WORDS = {"preset": "small", "text": {"type": "words", "joint": False, "vocabulary": 10_000}}
HYBRID = {"preset": "hybrid-small"}
MODELS: dict[str, dict[str, Any]] = {
    "words": WORDS,
    "characters in": WORDS | {"model": {"source_characters": {"type": "cnn"}}},
    "PosUnk": {"preset": "posunk-small"},
    "pointer": WORDS | {"model": {"pointer": {}}},
    "CopyNet": {"preset": "copynet-small"},
    "hybrid": HYBRID,
    "BPE": {"preset": "small"},
    "characters out": {"preset": "characters-out-small"},
}
"""The run file of each model."""
ROWS: dict[str, tuple[str, str | None]] = {
    "words": ("words", "none"),
    "+ copied": ("words", "copy"),
    "+ dictionary": ("words", "dictionary"),
    "PosUnk": ("PosUnk", None),
    "PosUnk, + dictionary": ("PosUnk", "dictionary"),
    "pointer": ("pointer", None),
    "pointer, + dictionary": ("pointer", "dictionary"),
    "CopyNet": ("CopyNet", None),
    "characters in, + dictionary": ("characters in", "dictionary"),
    "hybrid": ("hybrid", None),
    "BPE": ("BPE", None),
    "characters out": ("characters out", None),
}
"""Of each row the model, and what takes the place of its unknown words, where that is asked for."""


@dataclass(frozen=True)
class Result:
    """What one row scores on the test set, and what that took."""

    name: str
    parameters: int
    epochs: float
    best: float
    """The epoch of the weights that were kept."""
    device: str
    pairs_a_second: float
    """Of training, the dev set's evaluations among it."""
    words_a_second: float
    """Source words translated at the model's beam."""
    translations: tuple[str, ...]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    add_run(parser, output="runs/reproduce-open-vocabulary")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, ROWS)
    return args


def model_config(args: argparse.Namespace, name: str) -> RunConfig:
    """One model's resolved config."""
    return resolved(name, {"data": data_tables(args), **MODELS[name]}, args.set)


def prepared_for(config: RunConfig, output: Path) -> Prepared:
    """The corpus, once for all models that cut text alike."""
    text = config.text
    cut = [text.type, text.target_type, text.annotation and text.annotation.type]
    return prepared_once(config, output / "-".join(["text", *filter(None, cut)]))


def scored(args: argparse.Namespace, name: str) -> Result:
    """Train (or go on with) the row's model, and translate the test set."""
    model, unknown = ROWS[name]
    config, folder = model_config(args, model), args.output / model.replace(" ", "-")
    prepared = prepared_for(config, args.output)
    trained(config, prepared, folder, model)
    facts = training_facts(folder)
    best = best_evaluation(facts)
    entries = dictionary(prepared, args.output / "dictionary.tsv") if unknown == "dictionary" else None
    sources, _ = sides(prepared.test)
    translator = load(folder, replace_unknown=unknown, dictionary=entries)
    translator.translate(sources[:1])
    begin = time.perf_counter()
    found = translator.translate(sources)
    seconds = time.perf_counter() - begin
    return Result(
        name=name,
        parameters=facts["parameters"],
        epochs=facts["epochs"],
        best=best["epoch"],
        device=facts["device"],
        pairs_a_second=facts["epochs"] * prepared.facts["pairs"] / (3600 * facts["hours"]),
        words_a_second=sum(len(words(source)) for source in sources) / seconds,
        translations=tuple(translation.text for translation in found),
    )


def table(results: Sequence[Result], references: Sequence[str], language: str) -> list[list[str]]:
    """One row a way."""
    rows = [["", "Parameters", "Epochs (best)", "Pairs/s, training", "Words/s, search", "BLEU", "chrF"]]
    for r in results:
        scores = paired_bootstrap(r.translations, results[0].translations, references, language=language)
        speed = [f"{r.pairs_a_second:,.0f}", f"{r.words_a_second:,.0f}"]
        rows.append([r.name, f"{r.parameters:,}", f"{r.epochs:.0f} ({r.best:.0f})", *speed, *with_intervals(scores)])
    return rows


def rare_words(results: Sequence[Result], references: Sequence[str], counts: dict[str, int]) -> list[list[str]]:
    """The share of the references' words that each finds, by how often training saw them."""
    each = [accuracy_by_frequency(r.translations, references, counts) for r in results]
    told = [place for place, one in enumerate(each[0]) if one.wanted]
    rows = [["seen in training", *(each[0][place].label for place in told)]]
    rows.append(["words of the references", *(f"{each[0][place].wanted:,}" for place in told)])
    for r, classes in zip(results, each, strict=True):
        rows.append([r.name, *(f"{classes[place].recall or 0.0:.1%}" for place in told)])
    return rows


def main() -> None:
    """Train, score and write; the tables are written anew after each row."""
    args, results, text = arguments(), list[Result](), ""
    for name in args.rows:
        path, make = args.output / f"{name.replace(' ', '-')}.json", partial(scored, args, name)
        results.append(Result(**kept(path, lambda make=make: asdict(make()))))
        prepared = prepared_for(model_config(args, ROWS[name][0]), args.output)
        _, references = sides(prepared.test)
        text = as_markdown(table(results, references, prepared.direction.target))
        bands = as_markdown(rare_words(results, references, read_counts(prepared.folder / COUNTS)))
        write_text(args.output / "table.md", text)
        write_text(args.output / "rare-words.md", bands)
        text += f"\n{bands}"
        rows = [asdict(r) | {"translations": len(r.translations)} for r in results]
        write_json(args.output / "open-vocabulary.json", rows)
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()
