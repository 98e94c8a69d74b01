"""Compare bilingual with multi-way models on Tatoeba sentences in English, German, French, Spanish and Japanese.

    python reproduce/multiway.py --sizes 5000 10000 --seeds 1 2 3
    python reproduce/multiway.py --languages de fr es --sizes 3000 --seeds 1

Dev and test have sentences in all five languages; no training row shares a sentence with them. For each size, the
first rows that have both languages are the training text of a pair; size 0 is all rows. Systems:

- bilingual: one model per direction
- shared attention: an encoder and a decoder per language, one attention (Firat et al. 2016)
- target tags: one encoder and one decoder for all languages (Johnson et al. 2017)

Output: table.md (test BLEU and chrF per direction, and the difference from the first system with a paired bootstrap
test), runs.md (the means over seeds, with a bootstrap over seeds and sentences), the translations, and one model folder
per system. An interrupted run resumes where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    add_run_options,
    cached,
    prepare_once,
    read_lines,
    require_known,
    resolve_config,
    scores_with_intervals,
    train_or_resume,
)
from comparison import compare_runs

from rnnsearch.data.corpora.catalog import read_tatoeba_rows
from rnnsearch.data.split import DEV, PARTS, TEST, TRAIN, SplitKeys, split
from rnnsearch.metrics.significance import paired_bootstrap
from rnnsearch.systems.card import load_training_facts
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_text
from rnnsearch.utils.tables import as_markdown

OTHERS = ("de", "fr", "es", "ja")
PIVOT = "en"
LANGUAGES = (*OTHERS, PIVOT)
SYSTEMS: dict[str, dict[str, Any]] = {
    "bilingual": {},
    "shared attention": {"kind": "multiway"},
    "target tags": {"kind": "multiway", "sharing": {"encoders": "all", "decoders": "all"}},
}
"""Settings of `[model]` by the name of the system."""


class Direction(NamedTuple):
    """A source and a target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


DIRECTIONS = ("to-en", "from-en", "both")
"""Choices of `--directions`."""


def directions_of(choice: str, languages: Sequence[str]) -> list[Direction]:
    """Return the directions between English and other languages, for a choice of `--directions`."""
    to_english = [Direction(language, PIVOT) for language in languages]
    from_english = [Direction(PIVOT, language) for language in languages]
    return {"to-en": to_english, "from-en": from_english, "both": to_english + from_english}[choice]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[5_000, 10_000, 0], help="pairs per language; 0: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--languages", nargs="+", default=list(OTHERS), choices=OTHERS, help="in addition to English")
    parser.add_argument("--directions", default="to-en", choices=DIRECTIONS)
    parser.add_argument("--dev-rows", type=int, default=500, help="sentences of the dev set")
    parser.add_argument("--test-rows", type=int, default=1_000, help="sentences of the test set")
    parser.add_argument("--preset", default="low-resource-small")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="SYSTEM", help="; ".join(SYSTEMS))
    add_run_options(parser, output="runs/reproduce-multiway")
    args = parser.parse_args()
    require_known(parser, "system", args.systems, SYSTEMS)
    return args


class Corpus:
    """The text of all languages, written to files in one folder."""

    def __init__(self, folder: Path, dev_rows: int, test_rows: int) -> None:
        self.folder = folder
        if not (folder / "complete").is_file():
            self._write(dev_rows, test_rows)
            write_text(folder / "complete", "")

    def _write(self, dev_rows: int, test_rows: int) -> None:
        rows = list(dict.fromkeys(row for row in read_tatoeba_rows(LANGUAGES) if row[-1] and any(row[:-1])))
        parts = split(SplitKeys.from_texts(rows), dev_rows, test_rows)
        for part in (DEV, TEST):
            name = str(PARTS[part])
            for language, column in zip(LANGUAGES, zip(*compress(rows, parts == part), strict=True), strict=True):
                write_lines(self.folder / f"{name}.{language}", column)
        train = list(compress(rows, parts == TRAIN))
        for language, column in zip(LANGUAGES, zip(*train, strict=True), strict=True):
            write_lines(self.folder / f"train.{language}", column)
        for index, language in enumerate(OTHERS):
            pairs = list(dict.fromkeys((row[index], row[-1]) for row in train if row[index]))
            write_lines(self.folder / f"train-{language}.{language}", [pair[0] for pair in pairs])
            write_lines(self.folder / f"train-{language}.{PIVOT}", [pair[1] for pair in pairs])

    def lines(self, part: str, language: str) -> list[str]:
        """Return the sentences of dev or test in a language."""
        return read_lines(self.folder / f"{part}.{language}")

    def train_files(self, language: str, size: int) -> dict[str, Path]:
        """Return the files of the first pairs of a language and English by language."""
        files = {}
        for column in (language, PIVOT):
            full = self.folder / f"train-{language}.{column}"
            files[column] = full if size == 0 else full.with_name(f"train-{language}-{size}.{column}")
            if not files[column].is_file():
                write_lines(files[column], read_lines(full)[:size])
        return files

    def bilingual(self, direction: Direction, size: int) -> dict[str, Any]:
        """Return the `[data]` table of one direction."""
        language = direction.source if direction.target == PIVOT else direction.target
        files = self.train_files(language, size)
        train = "|".join(str(files[name]) for name in direction)
        return {"source": direction.source, "target": direction.target, "train": [train], **self.held_out(direction)}

    def multiway(self, directions: Sequence[Direction], size: int) -> dict[str, Any]:
        """Return the `[data]` table of several directions."""
        others = [name for name in OTHERS if any(name in direction for direction in directions)]
        train = []
        for language in others:
            files = self.train_files(language, size)
            train.append("|".join(str(files.get(name, "")) for name in (*others, PIVOT)))
        names = [str(direction) for direction in directions]
        held_out = self.held_out([*others, PIVOT])
        return {"source": others, "target": PIVOT, "train": train, "directions": names, **held_out}

    def held_out(self, languages: Sequence[str]) -> dict[str, str]:
        """Return the `dev` and `test` files of some languages."""
        return {part: "|".join(f"{self.folder}/{part}.{name}" for name in languages) for part in ("dev", "test")}

    def common_rows(self, languages: Sequence[str], size: int) -> dict[str, Path]:
        """Return the files, by language, of the first training rows that have all of these languages."""
        prefix = self.folder / f"train-{'+'.join(languages)}-{size or 'all'}"
        files = {language: prefix.with_name(f"{prefix.name}.{language}") for language in languages}
        if not all(file.is_file() for file in files.values()):
            columns = [read_lines(self.folder / f"train.{language}") for language in languages]
            rows = list(dict.fromkeys(row for row in zip(*columns, strict=True) if all(row)))
            for file, column in zip(files.values(), zip(*rows[: size or None], strict=True), strict=True):
                write_lines(file, column)
        return files


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write one line per sentence."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


class Experiment(NamedTuple):
    """One model to train and to translate the test set with."""

    system: str
    directions: Sequence[Direction]
    size: int
    """Training pairs per language; 0 for all."""
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the model folder."""
        directions = "+".join(map(str, self.directions))
        return f"{self.system.replace(' ', '-')}-{directions}-{self.size or 'all'}-{self.seed}"

    def run(self, args: argparse.Namespace, corpus: Corpus) -> dict[str, Any]:
        """Train the model and return its test translations by direction, with the facts of its training."""
        is_bilingual = self.system == "bilingual"
        if is_bilingual:
            data = corpus.bilingual(self.directions[0], self.size)
        else:
            data = corpus.multiway(self.directions, self.size)
        tables = {
            "preset": args.preset,
            "data": data,
            "model": SYSTEMS[self.system],
            "training": {"seed": self.seed},
        }
        config = resolve_config(self.name, tables, args.set)
        folder = args.output / self.name
        train_or_resume(config, prepare_once(config, args.output / f"{self.name}-data"), folder, self.name)
        facts = load_training_facts(folder)
        translations = {}
        for direction in self.directions:
            choice = {} if is_bilingual else {"source": direction.source, "target": direction.target}
            results = load(folder, **choice).translate(corpus.lines("test", direction.source))
            translations[str(direction)] = [result.text for result in results]
        return {"parameters": facts["parameters"], "hours": facts["hours"], "translations": translations}


def plan_experiments(args: argparse.Namespace) -> Iterator[Experiment]:
    """Yield all experiments; within a size and a seed, those of the first system come first."""
    directions = directions_of(args.directions, args.languages)
    for size in args.sizes:
        for seed in args.seeds:
            for system in args.systems:
                groups = [[direction] for direction in directions] if system == "bilingual" else [directions]
                for group in groups:
                    yield Experiment(system, group, size, seed)


Runs = defaultdict[tuple[int, Direction], defaultdict[str, list[list[str]]]]
"""Test translations of each run of a system, by size and direction."""
HEADER = ["Pairs", "Seed", "Direction", "System", "Parameters", "Hours", "BLEU", "chrF", "Difference in BLEU", "p"]


def compare_over_seeds(runs: Runs, corpus: Corpus) -> str:
    """Return the tables of the means over seeds, for each size and direction."""
    sections = []
    for (size, direction), systems in runs.items():
        rows = compare_runs(systems, corpus.lines("test", direction.target), direction.target)
        sections.append(f"{direction}, {size or 'all'} pairs\n\n{as_markdown(rows, left=(0, 1))}")
    return "\n".join(sections)


def main() -> None:
    """Train and score all systems and write the tables."""
    args = parse_arguments()
    args.output = args.output.absolute()
    corpus = Corpus(args.output / "text", args.dev_rows, args.test_rows)
    rows = [HEADER]
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for experiment in plan_experiments(args):
        compute = partial(experiment.run, args, corpus)
        result = cached(args.output / f"{experiment.name}.json", compute)
        for direction in experiment.directions:
            translations = result["translations"][str(direction)]
            systems = runs[experiment.size, direction]
            systems[experiment.system].append(translations)
            # The first system is the first one that is trained with a seed.
            baseline = systems[args.systems[0]][-1]
            references = corpus.lines("test", direction.target)
            scores = paired_bootstrap(translations, baseline, references, language=direction.target)
            bleu = scores["BLEU"]
            change = [f"{bleu.system - bleu.baseline:+.1f}", f"{bleu.p_value:.3f}"]
            settings = [str(experiment.size or "all"), str(experiment.seed), str(direction), experiment.system]
            facts = [f"{result['parameters']:,}", f"{result['hours']:.2f}"]
            rows.append([*settings, *facts, *scores_with_intervals(scores), *change])
        write_text(args.output / "table.md", as_markdown(rows))
    tables = compare_over_seeds(runs, corpus)
    write_text(args.output / "runs.md", tables)
    sys.stdout.write(f"{as_markdown(rows)}\n{tables}")


if __name__ == "__main__":
    main()
