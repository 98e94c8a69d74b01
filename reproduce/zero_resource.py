"""Compare ways to translate German into French without German-French text, on Tatoeba sentences.

    python reproduce/zero_resource.py --sizes 10000 --seeds 1 2 3

The training text is the first German-English pairs, and the first English-French pairs whose English is in none of
them. Systems:

- pivot: a German-English model, then an English-French model
- pivot, 5 best: the five best English translations, with the sum of the probabilities
- pseudo-parallel: German by an English-German model, and the French sentences
- zero-shot, shared attention: a multi-way model of German-English and English-French, in both directions
- zero-shot, target tags: one encoder and one decoder for the same directions (Johnson et al. 2017)
- fine-tuned, shared attention and fine-tuned, target tags: continued on the pseudo-parallel text in addition
- German-French text: as many real pairs, for comparison

Output: table.md (test BLEU and chrF, and the difference from the first system with a paired bootstrap test), the
translations, and the model folders. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    FEW_UNITS,
    add_run_options,
    cached,
    prepare_once,
    read_lines,
    require_known,
    resolve_config,
    scores_with_intervals,
    train_or_resume,
)
from multiway import SYSTEMS as MULTIWAY
from multiway import Corpus, write_lines

from rnnsearch.cli.app import app
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.translator.pivot import pivot
from rnnsearch.utils.files import write_text
from rnnsearch.utils.tables import as_markdown

SOURCE, PIVOT, TARGET = "de", "en", "fr"
LANGUAGES = (SOURCE, PIVOT, TARGET)
DIRECTIONS = ("de-en", "en-de", "en-fr", "fr-en")
"""Directions of the multi-way models."""


class Scenario:
    """The corpus of a size and the models of a seed, which are trained when they are first used."""

    def __init__(self, args: argparse.Namespace, corpus: Corpus, size: int, seed: int) -> None:
        self.args = args
        self.corpus = corpus
        self.seed = seed
        self.folder = args.output / f"{size or 'all'}-{seed}"
        self.text = args.output / f"text-{size or 'all'}"
        self.real = corpus.common_rows([SOURCE, TARGET], size)
        if not (self.text / "complete").is_file():
            self._write(size)
            write_text(self.text / "complete", "")

    def _write(self, size: int) -> None:
        german = self.corpus.train_files(SOURCE, size)
        french = self.corpus.train_files(TARGET, 0)
        english = read_lines(german[PIVOT])
        used = set(english)
        columns = (read_lines(french[PIVOT]), read_lines(french[TARGET]))
        pairs = [pair for pair in zip(*columns, strict=True) if pair[0] not in used][: size or None]
        write_lines(self.text / "de-en.de", read_lines(german[SOURCE]))
        write_lines(self.text / "de-en.en", english)
        write_lines(self.text / "en-fr.en", [pair[0] for pair in pairs])
        write_lines(self.text / "en-fr.fr", [pair[1] for pair in pairs])

    def train(self, name: str, data: dict[str, Any], tables: dict[str, Any] | None = None) -> Path:
        """Train a model, or resume its training, and return its folder."""
        all_tables = {"preset": self.args.preset, "data": data, "model": FEW_UNITS, "training": {}, **(tables or {})}
        all_tables["training"] = {**all_tables["training"], "seed": self.seed}
        settings = self.args.set
        if "text" in all_tables:  # the tokenizers of another model, whose size is given
            settings = [setting for setting in settings if not setting.startswith("text.vocabulary=")]
        config = resolve_config(name, all_tables, settings)
        folder: Path = self.folder / name
        train_or_resume(config, prepare_once(config, self.folder / f"data-{name}"), folder, name)
        return folder

    def bilingual(self, source: str, target: str, files: dict[str, Path]) -> Path:
        """Return the folder of a bilingual model that is trained on these files."""
        train = "|".join(str(files[language]) for language in (source, target))
        held_out = self.corpus.held_out([source, target])
        data = {"source": source, "target": target, "train": [train], "aligner": False, **held_out}
        return self.train(f"{source}-{target}" if files is not self.real else "real", data)

    def files(self, first: str, second: str) -> dict[str, Path]:
        """Return the training files of two languages."""
        name = f"{first}-{second}"
        return {language: self.text / f"{name}.{language}" for language in (first, second)}

    def pseudo_parallel(self) -> dict[str, Path]:
        """Return the files of the French sentences and the German translations of their English."""
        model = self.bilingual(PIVOT, SOURCE, self.files(SOURCE, PIVOT))
        english_french = self.files(PIVOT, TARGET)
        files = {language: self.folder / f"pseudo.{language}" for language in (SOURCE, TARGET)}
        if not all(file.is_file() for file in files.values()):
            pairs = self.folder / "pseudo.tsv"
            command = ["synthesise", str(model), *map(str, english_french.values()), "-o", str(pairs)]
            app(command, standalone_mode=False)
            rows = [line.split("\t", 1) for line in read_lines(pairs)]
            for file, column in zip(files.values(), zip(*rows, strict=True), strict=True):
                write_lines(file, column)
        return files

    def multiway(self, system: str, pseudo: dict[str, Path] | None = None) -> Path:
        """Return the folder of a multi-way model, which may continue from another one with further text."""
        files: list[dict[str, Path]] = [self.files(SOURCE, PIVOT), self.files(PIVOT, TARGET)]
        directions = [*DIRECTIONS]
        tables: dict[str, Any] = {"model": {**FEW_UNITS, **MULTIWAY[system]}}
        name = system.replace(" ", "-")
        if pseudo is not None:
            parent = str(self.multiway(system))
            name = f"{name}-fine-tuned"
            files.append(pseudo)
            directions.append(f"{SOURCE}-{TARGET}")
            tables |= {"text": {"tokenizers": parent, "joint": "unset"}, "training": {"begin_from": parent}}
        data = {
            "source": [SOURCE, PIVOT],
            "target": TARGET,
            "train": ["|".join(str(row.get(language, "")) for language in LANGUAGES) for row in files],
            "directions": directions,
            **self.corpus.held_out(LANGUAGES),
        }
        return self.train(name, data, tables)

    def translate_multiway(self, folder: Path, zero_shot: bool) -> list[str]:
        """Return the test translations by a multi-way model."""
        translator = load(folder).select(SOURCE, TARGET, zero_shot=zero_shot)
        return [result.text for result in translator.translate(self.corpus.lines("test", SOURCE))]

    def result(self, folders: list[Path], translations: list[str]) -> dict[str, Any]:
        """Return the translations of a system with the facts of the models that it needs at test time."""
        facts = [load_training_facts(folder) for folder in folders]
        return {
            **{name: sum(fact[name] for fact in facts) for name in ("parameters", "hours")},
            "translations": translations,
        }


def run_pivot(scenario: Scenario, n_best: int) -> dict[str, Any]:
    """Translate through English."""
    first = scenario.bilingual(SOURCE, PIVOT, scenario.files(SOURCE, PIVOT))
    second = scenario.bilingual(PIVOT, TARGET, scenario.files(PIVOT, TARGET))
    results = pivot(first, second, n_best).translate(scenario.corpus.lines("test", SOURCE))
    return scenario.result([first, second], [result.text for result in results])


def run_bilingual(scenario: Scenario, is_real: bool) -> dict[str, Any]:
    """Translate with a German-French model of real or pseudo-parallel text."""
    files = scenario.real if is_real else scenario.pseudo_parallel()
    folder = scenario.bilingual(SOURCE, TARGET, files)
    results = load(folder).translate(scenario.corpus.lines("test", SOURCE))
    return scenario.result([folder], [result.text for result in results])


def run_multiway(scenario: Scenario, system: str, is_fine_tuned: bool) -> dict[str, Any]:
    """Translate with a multi-way model."""
    pseudo = scenario.pseudo_parallel() if is_fine_tuned else None
    folder = scenario.multiway(system, pseudo)
    return scenario.result([folder], scenario.translate_multiway(folder, zero_shot=not is_fine_tuned))


SYSTEMS: dict[str, Callable[[Scenario], dict[str, Any]]] = {
    "pivot": partial(run_pivot, n_best=1),
    "pivot, 5 best": partial(run_pivot, n_best=5),
    "pseudo-parallel": partial(run_bilingual, is_real=False),
    "zero-shot, shared attention": partial(run_multiway, system="shared attention", is_fine_tuned=False),
    "zero-shot, target tags": partial(run_multiway, system="target tags", is_fine_tuned=False),
    "fine-tuned, shared attention": partial(run_multiway, system="shared attention", is_fine_tuned=True),
    "fine-tuned, target tags": partial(run_multiway, system="target tags", is_fine_tuned=True),
    "German-French text": partial(run_bilingual, is_real=True),
}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000], help="pairs of each corpus; 0: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--dev-rows", type=int, default=500, help="sentences of the dev set")
    parser.add_argument("--test-rows", type=int, default=1_000, help="sentences of the test set")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    add_run_options(parser, output="runs/reproduce-zero-resource")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    return args


HEADER = ["Pairs", "Seed", "System", "Parameters", "Hours", "BLEU", "chrF", "Difference in BLEU", "p"]


def main() -> None:
    """Train and score all systems and write the table."""
    args = parse_arguments()
    args.output = args.output.absolute()
    corpus = Corpus(args.output / "text", args.dev_rows, args.test_rows)
    references = corpus.lines("test", TARGET)
    rows = [HEADER]
    for size in args.sizes:
        for seed in args.seeds:
            scenario = Scenario(args, corpus, size, seed)
            baseline: list[str] | None = None
            for name in args.systems:
                file = scenario.folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"
                result = cached(file, partial(SYSTEMS[name], scenario))
                baseline = baseline or result["translations"]
                scores = paired_bootstrap(result["translations"], baseline, references, language=TARGET)
                bleu = scores["BLEU"]
                is_first = name == args.systems[0]
                change = ["", ""] if is_first else [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
                facts = [f"{result['parameters']:,}", f"{result['hours']:.2f}"]
                rows.append([str(size or "all"), str(seed), name, *facts, *scores_with_intervals(scores), *change])
                write_text(args.output / "table.md", as_markdown(rows))
    sys.stdout.write(as_markdown(rows))


if __name__ == "__main__":
    main()
