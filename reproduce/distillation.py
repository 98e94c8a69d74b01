"""Knowledge distillation (Kim & Rush 2016, table 1): a teacher and several students, each trained until convergence.

    python reproduce/distillation.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/distillation.py ... --rows student sequence-level
    python reproduce/distillation.py ... --rows "sequence-level, more text" --more text.en

Teacher (`--preset`) and students (`--student`) are presets; the students use the teacher's tokenizers. A student
learns from the references only; from the teacher's distribution over each word (word-level); from the teacher's
translations (sequence-level); from those in the teacher's beam that are closest to the references (interpolation); or
from several of these together, as in the paper. With `--more`, a student also learns from the teacher's translations
of more source text, without the lines of dev and test. Every system translates greedily and with a beam.

Output: table.md (test BLEU and chrF with 95% intervals, and the difference from the teacher with a beam with a paired
bootstrap test), distillation.json, and one model folder per system. An interrupted run resumes where it stopped;
systems with a stored result are not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from common import (
    add_data_options,
    add_run_options,
    data_table,
    prepare_once,
    read_lines,
    require_known,
    resolve_config,
    sources_and_references,
    train_or_resume,
    training_text,
)
from comparison import System, Translate, compare_systems

from rnnsearch.cli.app import app
from rnnsearch.config import RunConfig
from rnnsearch.translator.loading import load
from rnnsearch.utils.files import write_text

TEACHER = "teacher"
BEAM = 5  # as in the paper
FINETUNING_RATE = 1e-3  # initial learning rate of Adam

TargetText = Literal["references", "translated", "interpolated"]
"""Target side of the training data: the references, the teacher's translations, or those in its beam that are closest
to the references."""


class Student(NamedTuple):
    """Training data of a student."""

    text: TargetText = "references"
    word_level: bool = False
    """True to learn from the teacher's distribution over each word."""
    initial: str | None = None
    """Name of the student that it is fine-tuned from."""
    more_text: bool = False
    """True to learn from the teacher's translations of more source text too."""

    @property
    def data_folder(self) -> str:
        """Name of the folder with its prepared data."""
        return f"data, {self.text}{', more text' if self.more_text else ''}"


STUDENTS: dict[str, Student] = {
    "student": Student(),
    "word-level": Student(word_level=True),
    "interpolation": Student("interpolated", initial="student"),
    "sequence-level": Student("translated"),
    "sequence-level, more text": Student("translated", more_text=True),
    "sequence-level, interpolation": Student("interpolated", initial="sequence-level"),
    "word- and sequence-level": Student("translated", word_level=True),
    "all three": Student("interpolated", word_level=True, initial="word- and sequence-level"),
}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small", help="preset of the teacher")
    parser.add_argument("--student", default="student-small", help="preset of the students")
    parser.add_argument("--rows", nargs="+", default=list(STUDENTS), metavar="ROW", help="; ".join(STUDENTS))
    parser.add_argument("--beam", type=int, default=35, help="beam size of the teacher for interpolation")
    parser.add_argument("--student-set", nargs="*", default=[], metavar="KEY=VALUE", help="as --set, for the students")
    parser.add_argument("--more", type=Path, help="more text of the source language, one sentence per line")
    add_run_options(parser, output="runs/reproduce-distillation")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, STUDENTS)
    if args.more is None:
        args.rows = [name for name in args.rows if not STUDENTS[name].more_text]
    return args


def translate_with_beam(beam: int) -> Translate:
    """Return a function that translates with this beam size."""

    def translate(folder: Path, sources: list[str]) -> list[str]:
        translator = load(folder)
        return [candidates[0].text for candidates in translator.n_best(sources, translator.options(beam))]

    return translate


class Experiment:
    """A teacher and its students, with the data that they learn from."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.output = Path(args.output)
        self.config = resolve_config(TEACHER, {"preset": args.preset, "data": data_table(args)}, args.set)
        self.prepared = prepare_once(self.config, self.output / f"data, {TEACHER}")

    def teacher(self) -> Iterator[System]:
        """Yield the teacher with a beam, which is the baseline, and with greedy search."""
        yield System(f"{TEACHER}, beam {BEAM}", self.config, self.prepared, translate_with_beam(BEAM), TEACHER)
        yield System(f"{TEACHER}, greedy", self.config, self.prepared, translate_with_beam(1), TEACHER)

    def student(self, name: str) -> Iterator[System]:
        """Yield a student with greedy search and with a beam."""
        config = self._config(name)
        prepared = prepare_once(config, self.output / STUDENTS[name].data_folder)
        initial = STUDENTS[name].initial
        if initial is not None:
            initial_config = self._config(initial)
            initial_data = prepare_once(initial_config, self.output / STUDENTS[initial].data_folder)
            system = System(initial, initial_config, initial_data)
            train_or_resume(system.config, system.prepared, self.output / system.folder, initial)
        yield System(name, config, prepared, translate_with_beam(1), name)
        yield System(f"{name}, beam {BEAM}", config, prepared, translate_with_beam(BEAM), name)

    def _config(self, name: str) -> RunConfig:
        student = STUDENTS[name]
        files = self._files
        train = [f"{files['train'][0]}|{self._target_file(student.text)}"]
        if student.more_text:
            train.append(self._more_text)
        tables: dict[str, Any] = {
            "preset": self.args.student,
            "data": {
                "source": self.config.data.single_source,
                "target": self.config.data.target,
                "train": train,
                **{part: "|".join(map(str, files[part])) for part in ("dev", "test")},
                # The teacher's data was cleaned already; its empty translations are dropped like empty lines.
                "cleaning": {"drop_duplicates": False, "drop_identical": False, "max_ratio": 1000.0, "max_words": 1000},
            },
            "text": {"tokenizers": str(self._teacher), "joint": "unset"},
        }
        if student.word_level:
            tables["objective"] = {"teacher": {"folder": str(self._teacher), "weight": 0.5}}
        if student.initial is not None:
            initial = self.output / student.initial.replace(" ", "-")
            tables["training"] = {"begin_from": str(initial), "optimiser": {"learning_rate": FINETUNING_RATE}}
        return resolve_config(name, tables, self.args.student_set)

    @cached_property
    def _teacher(self) -> Path:
        """Train the teacher and return its folder."""
        folder = self.output / TEACHER
        train_or_resume(self.config, self.prepared, folder, TEACHER)
        return folder

    @cached_property
    def _files(self) -> dict[str, tuple[Path, Path]]:
        """Source and target file of each part, with the text that the teacher was trained on."""
        train = list(training_text(self.prepared))
        columns = {"train": ([pair[0] for pair in train], [pair[1] for pair in train])}
        columns |= {part: sources_and_references(getattr(self.prepared, part)) for part in ("dev", "test")}
        languages = (self.config.data.single_source, self.config.data.target)
        files = dict[str, tuple[Path, Path]]()
        for part, texts in columns.items():
            files[part] = self.output / f"{part}.{languages[0]}", self.output / f"{part}.{languages[1]}"
            for path, text in zip(files[part], texts, strict=True):
                write_text(path, "".join(f"{line}\n" for line in text))
        return files

    def _target_file(self, text: TargetText) -> Path:
        """Return the file with the target side of the training data, translating it if needed."""
        source, references = self._files["train"]
        if text == "references":
            return references
        translations = references.with_name(f"{text}.{self.config.data.target}")
        if not translations.is_file():
            options = ["--beam", str(BEAM)]
            if text == "interpolated":
                options = ["--interpolate", str(references), "--beam", str(self.args.beam)]
            self._distil(source, translations, options)
        return translations

    @cached_property
    def _more_text(self) -> str:
        """Spec of the additional source text and the teacher's translations of it."""
        source = self.output / f"more.{self.config.data.single_source}"
        translations = self.output / "more.translated"
        if not translations.is_file():
            known = {line for files in self._files.values() for line in read_lines(files[0])}
            new = [line for line in dict.fromkeys(read_lines(self.args.more)) if line not in known]
            write_text(source, "".join(f"{line}\n" for line in new))
            self._distil(source, translations, ["--beam", str(BEAM)])
        return f"{source}|{translations}"

    def _distil(self, source: Path, output: Path, options: list[str]) -> None:
        app(["distil", str(self._teacher), str(source), "-o", str(output), *options], standalone_mode=False)


def main() -> None:
    """Train the teacher, translate with it, train the students, score them and write the table."""
    args = parse_arguments()
    experiment = Experiment(args)
    students = (system for name in args.rows for system in experiment.student(name))
    sys.stdout.write(f"{compare_systems(chain(experiment.teacher(), students), args.output, 'distillation')}\n")


if __name__ == "__main__":
    main()
