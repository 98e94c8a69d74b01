"""What a small model learns from a large one (Kim & Rush 2016, table 1): a teacher, students, each trained to its end.

    python reproduce/distillation.py --train 'a.en|a.de' --dev 'd.en|d.de' --test 't.en|t.de' --source en --target de
    python reproduce/distillation.py ... --rows student sequence-level
    python reproduce/distillation.py ... --rows "sequence-level, more text" --more text.en

The teacher is that of a preset (`--preset`); the students that of another (`--student`), with the teacher's tokenizers:
alone, by the teacher's distributions over each word, by its translations, by those of its beam that are closest to the
references, and by several of these together, as the paper has them; and by its translations of more text (`--more`, of
the source language alone, without the lines of dev and test). Each searches greedily and with a beam. --output
gets table.md (BLEU and chrF of the test set with 95% intervals, and each row's difference from the teacher with a beam
with a paired bootstrap), distillation.json, and a model folder each. Interrupted, it goes on where it stopped; a system
with a result is not trained again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from common import (
    add_data,
    add_run,
    data_tables,
    lines,
    prepared_once,
    require_known,
    resolved,
    sides,
    trained,
    training_text,
)
from compared import Compared, Translate, compared

from rnnsearch.cli.app import app
from rnnsearch.config import RunConfig
from rnnsearch.files import write_text
from rnnsearch.loading import load

TEACHER = "teacher"
WIDE = 5
"""The paper's beam."""
RATE = 1e-3
"""Adam's, of a student that goes on from another."""


class Lesson(NamedTuple):
    """What a student learns from."""

    text: str = "references"
    """What it reads: the references, the teacher's translations (taught), or the closest of its beam (closer)."""
    by_word: bool = False
    begins: str | None = None
    """The student that it was before."""
    more: bool = False
    """Whether the teacher's translations of more text are there, too."""

    @property
    def data(self) -> str:
        """The folder of its prepared data."""
        return f"data, {self.text}{', more text' if self.more else ''}"


ROWS: dict[str, Lesson] = {
    "student": Lesson(),
    "word-level": Lesson(by_word=True),
    "interpolation": Lesson("closer", begins="student"),
    "sequence-level": Lesson("taught"),
    "sequence-level, more text": Lesson("taught", more=True),
    "sequence-level, interpolation": Lesson("closer", begins="sequence-level"),
    "word- and sequence-level": Lesson("taught", by_word=True),
    "all three": Lesson("closer", by_word=True, begins="word- and sequence-level"),
}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser, corpus="tatoeba-en-de")
    parser.add_argument("--preset", default="small", help="the teacher's")
    parser.add_argument("--student", default="student-small", help="the students' preset")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), metavar="ROW", help="; ".join(ROWS))
    parser.add_argument("--beam", type=int, default=35, help="the beam of whose translations the closest are taken")
    parser.add_argument("--student-set", nargs="*", default=[], metavar="KEY=VALUE", help="as --set, of the students")
    parser.add_argument("--more", type=Path, help="text of the source language, one sentence a line")
    add_run(parser, output="runs/reproduce-distillation")
    args = parser.parse_args()
    require_known(parser, "row", args.rows, ROWS)
    if args.more is None:
        args.rows = [name for name in args.rows if not ROWS[name].more]
    return args


def searched(beam: int) -> Translate:
    """With this beam."""

    def translate(folder: Path, sources: list[str]) -> list[str]:
        translator = load(folder)
        return [own[0].text for own in translator.n_best(sources, translator.options(beam))]

    return translate


class School:
    """The teacher, and its students."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.output = args, Path(args.output)
        self.config = resolved(TEACHER, {"preset": args.preset, "data": data_tables(args)}, args.set)
        self.prepared = prepared_once(self.config, self.output / f"data, {TEACHER}")

    def teacher(self) -> Iterator[Compared]:
        """With a beam, which the others are compared with, and without."""
        yield Compared(f"{TEACHER}, beam {WIDE}", self.config, self.prepared, searched(WIDE), TEACHER)
        yield Compared(f"{TEACHER}, greedy", self.config, self.prepared, searched(1), TEACHER)

    def student(self, name: str) -> Iterator[Compared]:
        """The same."""
        config = self._config(name)
        prepared = prepared_once(config, self.output / ROWS[name].data)
        before = ROWS[name].begins
        if before is not None:
            whole = self._config(before)
            own = Compared(before, whole, prepared_once(whole, self.output / ROWS[before].data))
            trained(own.config, own.prepared, self.output / own.folder, before)
        yield Compared(name, config, prepared, searched(1), name)
        yield Compared(f"{name}, beam {WIDE}", config, prepared, searched(WIDE), name)

    def _config(self, name: str) -> RunConfig:
        text, by_word, begins, more = ROWS[name]
        files = self._files
        tables: dict[str, Any] = {
            "preset": self.args.student,
            "data": {
                "source": self.config.data.one_source,
                "target": self.config.data.target,
                "train": [f"{files['train'][0]}|{self._taught(text)}", *([self._more] if more else [])],
                **{part: "|".join(map(str, files[part])) for part in ("dev", "test")},
                # What the teacher learned from was cleaned, and its empty translations go as empty lines do.
                "cleaning": {"drop_duplicates": False, "drop_identical": False, "max_ratio": 1000.0, "max_words": 1000},
            },
            "text": {"tokenizers": str(self._teacher), "joint": "unset"},
        }
        if by_word:
            tables["objective"] = {"teacher": {"folder": str(self._teacher), "weight": 0.5}}
        if begins is not None:
            before = self.output / begins.replace(" ", "-")
            tables["training"] = {"begin_from": str(before), "optimiser": {"learning_rate": RATE}}
        return resolved(name, tables, self.args.student_set)

    @cached_property
    def _teacher(self) -> Path:
        trained(self.config, self.prepared, self.output / TEACHER, TEACHER)
        return self.output / TEACHER

    @cached_property
    def _files(self) -> dict[str, tuple[Path, Path]]:
        """Source and target text of each part, as the teacher has read it."""
        train = list(training_text(self.prepared))
        rows = {"train": ([pair[0] for pair in train], [pair[1] for pair in train])}
        rows |= {"dev": sides(self.prepared.dev), "test": sides(self.prepared.test)}
        languages, found = (self.config.data.one_source, self.config.data.target), dict[str, tuple[Path, Path]]()
        for part, columns in rows.items():
            found[part] = self.output / f"{part}.{languages[0]}", self.output / f"{part}.{languages[1]}"
            for path, column in zip(found[part], columns, strict=True):
                write_text(path, "".join(f"{line}\n" for line in column))
        return found

    def _taught(self, text: str) -> Path:
        """The target side of the training text, by its name."""
        source, target = self._files["train"]
        if text == "references":
            return target
        made = target.with_name(f"{text}.{self.config.data.target}")
        if not made.is_file():
            closer = ["--interpolate", str(target), "--beam", str(self.args.beam)]
            self._distil(source, made, closer if text == "closer" else ["--beam", str(WIDE)])
        return made

    @cached_property
    def _more(self) -> str:
        """More text and the teacher's translations of it."""
        source, taught = (self.output / f"more.{side}" for side in (self.config.data.one_source, "taught"))
        if not taught.is_file():
            known = {line for files in self._files.values() for line in lines(files[0])}
            new = [line for line in dict.fromkeys(lines(self.args.more)) if line not in known]
            write_text(source, "".join(f"{line}\n" for line in new))
            self._distil(source, taught, ["--beam", str(WIDE)])
        return f"{source}|{taught}"

    def _distil(self, source: Path, made: Path, options: list[str]) -> None:
        app(["distil", str(self._teacher), str(source), "-o", str(made), *options], standalone_mode=False)


def main() -> None:
    """Train the teacher, have it translate, train the students, score and write."""
    args = arguments()
    school = School(args)
    students = (row for name in args.rows for row in school.student(name))
    sys.stdout.write(f"{compared(chain(school.teacher(), students), args.output, 'distillation')}\n")


if __name__ == "__main__":
    main()
