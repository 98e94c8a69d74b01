"""What text of the target language alone is worth beside few pairs: the tutorial's scenarios, row by row.

    python reproduce/monolingual.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/monolingual.py ... --pairs 10000 --sentences 26000

The first `--pairs` pairs of the training text are the corpus; the target sides of those that come after them, as many
as `--sentences` says, are the text without a translation. It is translated back by a model of the other direction, of
the same pairs; or stands beside the pairs as it is, with a copy of itself or with nothing as its source; or teaches a
language model, which counts in search, stands in the decoder, or chooses among the n best. All systems are trained as
the preset says (`--preset`), until the dev score no longer falls or the preset's last epoch. --output gets table.md
(BLEU and chrF of the test set with 95% intervals, and each row's difference from the pairs alone with a paired
bootstrap), monolingual.json, and a model folder each. Interrupted, it goes on where it stopped; a system with a result
is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from common import add_data, add_run, first_pairs, prepared_once, require_known, resolved, sides, trained
from compared import Compared, Translate, compared, plainly

from rnnsearch.cli.app import app
from rnnsearch.config import RunConfig
from rnnsearch.data.prepared import Prepared
from rnnsearch.evaluate.tuning import Tuning
from rnnsearch.files import write_text
from rnnsearch.loading import load
from rnnsearch.rerank import learn, load_features

ALONE, REVERSE, LANGUAGE_MODEL = "pairs alone", "reverse", "language-model"
N_BEST = 20
"""Of which a reranker chooses."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--pairs", type=int, default=10_000, help="pairs of the training text that are the corpus")
    parser.add_argument("--sentences", type=int, help="of the target side of the others, at most; all if not given")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    add_run(parser, output="runs/reproduce-monolingual")
    parser.add_argument("--lm-set", nargs="*", default=[], metavar="KEY=VALUE", help="as --set, of the language model")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, ROWS)
    if args.train is None:
        parser.error("the corpus must be files (--train), which are cut in two")
    return args


def turned(data: dict[str, Any]) -> dict[str, Any]:
    """`[data]` of the other direction."""
    files = {part: [data[part]] if isinstance(data[part], str) else data[part] for part in ("train", "dev", "test")}
    other = {part: ["|".join(reversed(spec.split("|"))) for spec in specs] for part, specs in files.items()}
    return {
        "source": data["target"],
        "target": data["source"],
        **other,
        "dev": other["dev"][0],
        "test": other["test"][0],
    }


class Scenario:
    """A corpus, text of its target language alone, and what is made of them, each once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.output = args, Path(args.output)
        self.data, others = first_pairs(args, args.pairs)
        self.sentences = others[: args.sentences]
        self.rest = self.output / f"rest.{args.target}"
        """The text without a translation."""
        write_text(self.rest, "".join(f"{line}\n" for line in self.sentences))

    def config(self, name: str, data: dict[str, Any], tables: dict[str, Any] | None = None) -> RunConfig:
        """A system's."""
        return resolved(name, {"preset": self.args.preset, "data": data, **(tables or {})}, self.args.set)

    def prepared(self, name: str, config: RunConfig) -> Prepared:
        """The corpus of that name."""
        return prepared_once(config, self.output / f"data, {name}")

    def of(self, name: str, data: dict[str, Any]) -> Compared:
        """A system of these data."""
        config = self.config(name, data)
        return Compared(name, config, self.prepared(name, config))

    def alone(self, name: str = ALONE, translate: Translate = plainly) -> Compared:
        """That of the pairs alone, perhaps with something beside it when it translates."""
        config = self.config(ALONE, self.data)
        return Compared(name, config, self.prepared(ALONE, config), translate, ALONE)

    def reverse(self) -> Path:
        """A model of the other direction, of the same pairs."""
        config = self.config(REVERSE, turned(self.data))
        folder = self.output / REVERSE
        trained(config, self.prepared(REVERSE, config), folder, REVERSE)
        return folder

    def language_model(self) -> Path:
        """A language model of both texts, with the translation model's symbols."""
        own = self.alone()
        trained(own.config, own.prepared, self.output / own.folder, own.name)
        target, held_out = self.args.target, self.data["dev"].split("|")[1]
        texts = [self.data["train"][0].split("|")[1], str(self.rest)]
        tables = {
            "preset": "lm-lstm",
            "data": {"target": target, "train": texts, "dev": held_out, "test_size": 0},
            "text": {"tokenizers": str(self.output / own.folder)},
        }
        config = resolved(LANGUAGE_MODEL, tables, self.args.lm_set)
        folder = self.output / LANGUAGE_MODEL
        trained(config, self.prepared(LANGUAGE_MODEL, config), folder, LANGUAGE_MODEL)
        return folder

    def dev(self) -> tuple[list[str], list[str]]:
        """Its sources and references."""
        return sides(self.alone().prepared.dev)


Row = Callable[[Scenario, str], Compared]


def with_as_many_updates(scenario: Scenario, name: str) -> Compared:
    """An epoch has the pairs as often as makes up for the text that the others have."""
    weight = 1 + len(scenario.sentences) / scenario.args.pairs
    config = scenario.config(name, scenario.data | {"weights": [weight]})
    return Compared(name, config, scenario.alone().prepared)


def translated_back(*options: str) -> Row:
    """Pairs of the text and its translations, by `rnnsearch backtranslate` with these options."""

    def row(scenario: Scenario, name: str) -> Compared:
        made = scenario.output / f"{name}.{scenario.args.source}".replace(" ", "-")
        if not made.is_file():
            reverse = scenario.reverse()
            app(["backtranslate", str(reverse), str(scenario.rest), "-o", str(made), *options], standalone_mode=False)
        return scenario.of(name, scenario.data | {"train": [*scenario.data["train"], f"{made}|{scenario.rest}"]})

    return row


def beside_pairs(kind: str, weight: float = 1.0) -> Row:
    """The text without a source (`data.target_only`); an epoch has so much of it."""

    def row(scenario: Scenario, name: str) -> Compared:
        train = [*scenario.data["train"], f"|{scenario.rest}"]
        return scenario.of(name, scenario.data | {"train": train, "target_only": kind, "weights": [1.0, weight]})

    return row


def shallow(scenario: Scenario, name: str) -> Compared:
    """The language model counts in search, with the weight that is best on the dev set."""
    language_model = scenario.language_model()

    def translate(folder: Path, sources: list[str]) -> list[str]:
        values = {"language_model_weight": (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)}
        tuning = Tuning(folder, *scenario.dev(), language_model=language_model, values=values)
        weight = float(tuning.run().settings["language_model_weight"])
        write_text(scenario.output / f"{name}.md", tuning.table())
        fused = load(folder, language_model=language_model, language_model_weight=weight) if weight else load(folder)
        return [translation.text for translation in fused.translate(sources)]

    return scenario.alone(name, translate)


def inside(type: str) -> Row:
    """The language model stands in the decoder (`[model.language_model]`)."""

    def row(scenario: Scenario, name: str) -> Compared:
        fusion: dict[str, Any] = {"model": {"language_model": {"type": type, "folder": str(scenario.language_model())}}}
        if type == "deep":
            fusion["training"] = {"begin_from": str(scenario.output / scenario.alone().folder)}
        config = scenario.config(name, scenario.data, fusion)
        return Compared(name, config, scenario.alone().prepared)

    return row


def reranked(method: Any, language_model: bool = True, reverse: bool = True) -> Row:
    """The best of an n-best list by weights that are learned from the dev set's."""

    def row(scenario: Scenario, name: str) -> Compared:
        folders = scenario.reverse() if reverse else None, scenario.language_model() if language_model else None

        def translate(folder: Path, sources: list[str]) -> list[str]:
            translator = load(folder)
            learned = learn(translator, *scenario.dev(), load_features(*folders), method, n_best=N_BEST)
            write_text(scenario.output / f"{name}.md", learned.table())
            options = learned.reranker.wide_enough(translator.options())
            found = translator.n_best(sources, translator.options(options.beam, options.beam))
            return [own[0].text for own in learned.reranker.ordered(found)]

        return scenario.alone(name, translate)

    return row


ROWS: dict[str, Row] = {
    "pairs alone, as many updates": with_as_many_updates,
    "back-translated, greedy": translated_back("--beam", "1"),
    "back-translated, beam 5": translated_back("--beam", "5"),
    "back-translated, sampled": translated_back("--sample"),
    "back-translated, sampled, tagged": translated_back("--sample", "--tag", "<bt>"),
    "copied": beside_pairs("copied"),
    "no source": beside_pairs("null"),
    "no source, a half of it": beside_pairs("null", 0.5),
    "shallow fusion": shallow,
    "deep fusion": inside("deep"),
    "cold fusion": inside("cold"),
    "reranked, language model": reranked("mert", reverse=False),
    "reranked, reverse model": reranked("mert", language_model=False),
    "reranked, both": reranked("mert"),
    "reranked, both, PRO": reranked("pro"),
}


def main() -> None:
    """Train, translate back, score and write."""
    args = arguments()
    scenario = Scenario(args)
    rows = (ROWS[name](scenario, name) for name in args.rows)
    sys.stdout.write(f"{compared(chain([scenario.alone()], rows), args.output, 'monolingual')}\n")


if __name__ == "__main__":
    main()
