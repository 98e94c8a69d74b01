"""Compare the uses of target-language text without translations for a small parallel corpus.

    python reproduce/monolingual.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/monolingual.py ... --pairs 10000 --sentences 26000

The first `--pairs` training pairs are the parallel corpus; the target sides of the pairs that follow, at most
`--sentences` of them, are the monolingual text. It is back-translated by a model of the reverse direction trained on
the same pairs; or added to the training data as it is, with a copy of itself or nothing as its source; or used to
train a language model, for shallow fusion, inside the decoder, or for reranking. All systems are trained as the preset
(`--preset`) says.

Output: table.md (test BLEU and chrF with 95% intervals, and the difference from the parallel data only with a paired
bootstrap test), monolingual.json, and one model folder per system. An interrupted run resumes where it stopped;
systems with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from common import (
    add_data_options,
    add_run_options,
    first_pairs,
    prepare_once,
    require_known,
    resolve_config,
    sources_and_references,
    train_or_resume,
)
from comparison import System, Translate, compare_systems, translate_with_defaults

from rnnsearch.cli.app import app
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.evaluation.tuning import Tuning
from rnnsearch.translator.loading import load
from rnnsearch.translator.rerank import learn, load_features
from rnnsearch.utils.files import write_text

BASELINE = "parallel data only"
REVERSE = "reverse"
LANGUAGE_MODEL = "language-model"
RERANKED_N_BEST = 20


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, default=10_000, help="training pairs that are the parallel corpus")
    parser.add_argument("--sentences", type=int, help="maximum number of monolingual sentences (default: all)")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    add_run_options(parser, output="runs/reproduce-monolingual")
    parser.add_argument("--lm-set", nargs="*", default=[], metavar="KEY=VALUE", help="as --set, for the language model")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, ROWS)
    if args.train is None:
        parser.error("the corpus must be given as files (--train), which are split in two")
    return args


def reverse_direction(data: dict[str, Any]) -> dict[str, Any]:
    """Return the `[data]` table of the reverse direction."""
    specs = {part: [data[part]] if isinstance(data[part], str) else data[part] for part in ("train", "dev", "test")}
    swapped = {part: ["|".join(reversed(spec.split("|"))) for spec in files] for part, files in specs.items()}
    return {
        "source": data["target"],
        "target": data["source"],
        "train": swapped["train"],
        "dev": swapped["dev"][0],
        "test": swapped["test"][0],
    }


class Scenario:
    """A parallel corpus and monolingual text, with the models trained on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.output = Path(args.output)
        self.data, remaining = first_pairs(args, args.pairs)
        self.sentences = remaining[: args.sentences]
        self.monolingual = self.output / f"rest.{args.target}"
        write_text(self.monolingual, "".join(f"{line}\n" for line in self.sentences))

    def config(self, name: str, data: dict[str, Any], tables: dict[str, Any] | None = None) -> RunConfig:
        """Return the resolved config of a system."""
        return resolve_config(name, {"preset": self.args.preset, "data": data, **(tables or {})}, self.args.set)

    def prepare(self, name: str, config: RunConfig) -> Prepared:
        """Prepare the corpus of this name, or open it."""
        return prepare_once(config, self.output / f"data, {name}")

    def system(self, name: str, data: dict[str, Any]) -> System:
        """Return a system trained on these data."""
        config = self.config(name, data)
        return System(name, config, self.prepare(name, config))

    def baseline(self, name: str = BASELINE, translate: Translate = translate_with_defaults) -> System:
        """Return the system trained on the parallel data only, possibly with another way of translating."""
        config = self.config(BASELINE, self.data)
        return System(name, config, self.prepare(BASELINE, config), translate, BASELINE)

    def reverse(self) -> Path:
        """Train a model of the reverse direction on the same pairs and return its folder."""
        config = self.config(REVERSE, reverse_direction(self.data))
        folder = self.output / REVERSE
        train_or_resume(config, self.prepare(REVERSE, config), folder, REVERSE)
        return folder

    def language_model(self) -> Path:
        """Train a language model with the baseline's vocabulary on all target text and return its folder."""
        baseline = self.baseline()
        train_or_resume(baseline.config, baseline.prepared, self.output / baseline.folder, baseline.name)
        tables = {
            "preset": "lm-lstm",
            "data": {
                "target": self.args.target,
                "train": [self.data["train"][0].split("|")[1], str(self.monolingual)],
                "dev": self.data["dev"].split("|")[1],
                "test_size": 0,
            },
            "text": {"tokenizers": str(self.output / baseline.folder)},
        }
        config = resolve_config(LANGUAGE_MODEL, tables, self.args.lm_set)
        folder = self.output / LANGUAGE_MODEL
        train_or_resume(config, self.prepare(LANGUAGE_MODEL, config), folder, LANGUAGE_MODEL)
        return folder

    def dev(self) -> tuple[list[str], list[str]]:
        """Return the sources and references of the dev set."""
        return sources_and_references(self.baseline().prepared.dev)


Row = Callable[[Scenario, str], System]
"""Function that returns the system of a row, given the scenario and the row's name."""


def equal_updates(scenario: Scenario, name: str) -> System:
    """Return the baseline with epochs as long as those of the systems with monolingual text."""
    weight = 1 + len(scenario.sentences) / scenario.args.pairs
    config = scenario.config(name, scenario.data | {"weights": [weight]})
    return System(name, config, scenario.baseline().prepared)


def back_translated(*options: str) -> Row:
    """Add the text with its translations by `rnnsearch backtranslate` with these options."""

    def row(scenario: Scenario, name: str) -> System:
        sources = scenario.output / f"{name}.{scenario.args.source}".replace(" ", "-")
        if not sources.is_file():
            command = ["backtranslate", str(scenario.reverse()), str(scenario.monolingual), "-o", str(sources)]
            app([*command, *options], standalone_mode=False)
        return scenario.system(
            name, scenario.data | {"train": [*scenario.data["train"], f"{sources}|{scenario.monolingual}"]}
        )

    return row


def target_only(type: str, weight: float = 1.0) -> Row:
    """Add the text without translations (`data.target_only`), with this weight in each epoch."""

    def row(scenario: Scenario, name: str) -> System:
        train = [*scenario.data["train"], f"|{scenario.monolingual}"]
        return scenario.system(name, scenario.data | {"train": train, "target_only": type, "weights": [1.0, weight]})

    return row


def shallow_fusion(scenario: Scenario, name: str) -> System:
    """Combine the baseline with the language model in search, with the weight that is best on the dev set."""
    language_model = scenario.language_model()

    def translate(folder: Path, sources: list[str]) -> list[str]:
        values = {"language_model_weight": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)}
        tuning = Tuning(folder, *scenario.dev(), language_model=language_model, values=values)
        weight = float(tuning.run().settings["language_model_weight"])
        write_text(scenario.output / f"{name}.md", tuning.table())
        fused = load(folder, language_model=language_model, language_model_weight=weight) if weight else load(folder)
        return [translation.text for translation in fused.translate(sources)]

    return scenario.baseline(name, translate)


def decoder_fusion(type: str) -> Row:
    """Train with the language model inside the decoder (`[model.language_model]`)."""

    def row(scenario: Scenario, name: str) -> System:
        folder = str(scenario.language_model())
        tables: dict[str, Any] = {"model": {"language_model": {"type": type, "folder": folder}}}
        if type == "deep":
            tables["training"] = {"begin_from": str(scenario.output / scenario.baseline().folder)}
        config = scenario.config(name, scenario.data, tables)
        return System(name, config, scenario.baseline().prepared)

    return row


def reranked(method: Any, language_model: bool = True, reverse: bool = True) -> Row:
    """Rerank the baseline's n-best lists with weights learned on the dev set."""

    def row(scenario: Scenario, name: str) -> System:
        reverse_model = scenario.reverse() if reverse else None
        lm = scenario.language_model() if language_model else None

        def translate(folder: Path, sources: list[str]) -> list[str]:
            translator = load(folder)
            features = load_features(reverse_model, lm)
            learned = learn(translator, *scenario.dev(), features, method, n_best=RERANKED_N_BEST)
            write_text(scenario.output / f"{name}.md", learned.table())
            options = learned.reranker.wide_enough(translator.options())
            lists = translator.n_best(sources, translator.options(options.beam, options.beam))
            return [candidates[0].text for candidates in learned.reranker.ordered(lists)]

        return scenario.baseline(name, translate)

    return row


ROWS: dict[str, Row] = {
    "parallel data only, equal updates": equal_updates,
    "back-translated, greedy": back_translated("--beam", "1"),
    "back-translated, beam 5": back_translated("--beam", "5"),
    "back-translated, sampled": back_translated("--sample"),
    "back-translated, sampled, tagged": back_translated("--sample", "--tag", "<bt>"),
    "copied": target_only("copied"),
    "no source": target_only("null"),
    "no source, half of the text": target_only("null", 0.5),
    "shallow fusion": shallow_fusion,
    "deep fusion": decoder_fusion("deep"),
    "cold fusion": decoder_fusion("cold"),
    "reranked, language model": reranked("mert", reverse=False),
    "reranked, reverse model": reranked("mert", language_model=False),
    "reranked, both": reranked("mert"),
    "reranked, both, PRO": reranked("pro"),
}


def main() -> None:
    """Train and score all systems and write the table."""
    args = parse_arguments()
    scenario = Scenario(args)
    rows = (ROWS[name](scenario, name) for name in args.rows)
    sys.stdout.write(f"{compare_systems(chain([scenario.baseline()], rows), args.output, 'monolingual')}\n")


if __name__ == "__main__":
    main()
