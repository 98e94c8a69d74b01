"""Queue files: TOML that lists trainings and test sets.

Relative paths of `[data]` and `[tests]` are relative to the folder of the text (`--data`), those of `run` to the queue
file. See `reproduce/queues/` for examples.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rnnsearch import config as run_config
from rnnsearch.config import RunConfig
from rnnsearch.errors import ConfigError
from rnnsearch.training.run import check
from rnnsearch.utils.files import write_text

FILE_KEYS = ("train", "dev", "test")
"""Keys of `[data]` with paths."""
NAME = re.compile(r"\w[\w+.-]*(?: [\w+.-]+)*")
MODELS_FOLDER = "models"
"""Subfolder of model folders and states, in which names of trainings cannot meet other files."""


class TrainingTable(BaseModel):
    """A `[[training]]` table: a run file, or a preset for the queue's `[data]`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    """Name in the tables; with `-` for spaces, the name of the model folder."""
    run: str | None = None
    preset: str | None = None
    set: list[str] = Field(default_factory=list)
    """Options that override the run file, as in `rnnsearch train --set`."""
    pairs: int | None = Field(default=None, gt=0)
    """Use only the first so many training pairs of `[data]`."""
    beam: int | None = Field(default=None, gt=0)
    """Beam size of the evaluation; by default that of the run file."""
    tests: list[str] | None = None
    """Names of the test sets; by default all."""


class QueueTable(BaseModel):
    """A queue file."""

    model_config = ConfigDict(extra="forbid")

    title: str = "Trainings"
    set: list[str] = Field(default_factory=list)
    """Options for all trainings."""
    data: dict[str, Any] = Field(default_factory=dict)
    """`[data]` table of the trainings with a preset."""
    tests: dict[str, str] = Field(default_factory=dict)
    """Test sets by name, `source|reference`."""
    training: list[TrainingTable] = Field(min_length=1)


@dataclass(frozen=True)
class TestSet:
    """A test set."""

    name: str
    source: Path
    reference: Path


@dataclass(frozen=True)
class Training:
    """A training with its command lines."""

    name: str
    folder: Path
    """Model folder."""
    run_file: Path
    settings: tuple[str, ...]
    """Options of `--set`, without those that depend on the machine."""
    prepared: Path
    """Folder of the prepared corpus, which trainings with the same text share."""
    tests: tuple[TestSet, ...]
    beam: int | None
    config: RunConfig

    @property
    def all_settings(self) -> list[str]:
        """Options of `--set` with the folders."""
        folders = {"folder": self.folder, "data.prepared": self.prepared}
        return [*self.settings, *(f"{key}={json.dumps(str(path))}" for key, path in folders.items())]

    @property
    def identity(self) -> list[str]:
        """The run file's text and options except the device, to recognise another training of this name."""
        settings = [setting for setting in self.settings if not setting.startswith("training.device=")]
        return [self.run_file.read_text(encoding="utf-8"), *settings]


@dataclass(frozen=True)
class Plan:
    """A queue file with resolved paths."""

    title: str
    trainings: tuple[Training, ...]


def load_plan(path: Path, text_folder: Path, output: Path, settings: Sequence[str] = ()) -> Plan:
    """Load a queue file and check each training.

    Args:
        path: Queue file.
        text_folder: Folder that paths of `[data]` and `[tests]` are relative to.
        output: Folder for run files, corpora and models.
        settings: Options for all trainings, after those of the queue file.

    Raises:
        ConfigError: With every problem.
    """
    table = _read(path)
    problems: list[str] = []
    trainings: list[Training] = []
    for row in table.training:
        try:
            trainings.append(_training(table, row, path, text_folder, output, settings))
        except ConfigError as error:
            problems += [f"{path}: {row.name}: {problem}" for problem in error.problems]
    folders = [training.folder for training in trainings]
    problems += [f"{path}: {folder.name}: is the name of two trainings" for folder in _repeated(folders)]
    if problems:
        raise ConfigError(problems)
    return Plan(table.title, tuple(trainings))


def _read(path: Path) -> QueueTable:
    try:
        return QueueTable.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        if not isinstance(error, ValidationError):
            raise ConfigError([f"{path}: is not TOML: {error}"]) from None
        raise ConfigError(
            [f"{path}: {'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        ) from None


def _repeated(paths: Iterable[Path]) -> list[Path]:
    counts: dict[Path, int] = {}
    for path in paths:
        counts[path] = counts.get(path, 0) + 1
    return [path for path, count in counts.items() if count > 1]


def _training(
    table: QueueTable, row: TrainingTable, path: Path, text_folder: Path, output: Path, settings: Sequence[str]
) -> Training:
    """Return a checked training.

    Raises:
        ConfigError: With every problem.
    """
    if not NAME.fullmatch(row.name):
        raise ConfigError(["name: must be words of letters, digits, +, . and -, and begin with a letter or digit"])
    if (row.run is None) == (row.preset is None):
        raise ConfigError(["must have either run or preset"])
    if row.run is not None and row.pairs is not None:
        raise ConfigError(["pairs: needs preset and [data]"])
    folder = (output / MODELS_FOLDER / row.name.replace(" ", "-")).resolve()
    if row.run is not None:
        run_file = (path.parent / row.run).resolve()
    else:
        run_file = (output / "run-files" / f"{folder.name}.toml").resolve()
        data = _data(table.data, row.pairs, text_folder, output)
        write_text(run_file, tomli_w.dumps({"preset": row.preset, "data": data}))
    # A core per training; before the settings of the queue, which may change it.
    all_settings = ("training.threads=1", *table.set, *row.set, *settings)
    config = run_config.load(run_file, all_settings)
    if problems := check(config):
        raise ConfigError(problems)
    tests = tuple(
        _test_set(name, table.tests, text_folder) for name in (table.tests if row.tests is None else row.tests)
    )
    return Training(row.name, folder, run_file, all_settings, _prepared(config, output), tests, row.beam, config)


def _data(table: Mapping[str, Any], pairs: int | None, text_folder: Path, output: Path) -> dict[str, Any]:
    """Return a `[data]` table with absolute paths, and with the first `pairs` of the training text."""
    data = dict(table)
    for key in FILE_KEYS:
        value = data.get(key)
        if isinstance(value, list):
            data[key] = [_absolute(spec, text_folder) for spec in value]
        elif isinstance(value, str):
            data[key] = _absolute(value, text_folder)
    if pairs is not None:
        data["train"] = ["|".join(str(path) for path in _first_pairs(data.get("train"), pairs, output))]
    return data


def _absolute(spec: str, folder: Path) -> str:
    """Return the spec `a|b` of files with absolute paths."""
    return "|".join(str((folder / part.strip()).resolve()) for part in spec.split("|"))


def _first_pairs(specs: object, pairs: int, output: Path) -> list[Path]:
    """Write the first lines of the training text and return the paths."""
    if not isinstance(specs, list) or len(specs) != 1 or "|" not in specs[0]:
        raise ConfigError(["pairs: needs one entry 'a|b' of data.train"])
    paths = []
    for file in map(Path, specs[0].split("|")):
        paths.append((output / "text" / f"first-{pairs}-{file.name}").resolve())
        try:
            with file.open(encoding="utf-8") as lines:
                write_text(paths[-1], "".join(islice(lines, pairs)))
        except OSError as error:
            raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from None
    return paths


def _test_set(name: str, tests: Mapping[str, str], folder: Path) -> TestSet:
    """Return a test set, or raise ConfigError if there is none with this name or its files are missing."""
    if name not in tests:
        raise ConfigError([f"tests: must be names of [tests]: {', '.join(tests)}; got {name}"])
    paths = [folder / part.strip() for part in tests[name].split("|")]
    if len(paths) != 2:
        raise ConfigError([f"tests.{name}: must be 'source|reference'; got {tests[name]}"])
    if missing := [path for path in paths if not path.is_file()]:
        raise ConfigError([f"tests.{name}: {missing[0]}: no such file (see --data)"])
    return TestSet(name, *(path.resolve() for path in paths))


def _prepared(config: RunConfig, output: Path) -> Path:
    """Return the folder of the prepared corpus, named by everything that it depends on."""
    if config.data.prepared is not None:
        return config.base / config.data.prepared
    tables = [table.model_dump(mode="json") for table in (config.data, config.text)]
    digest = hashlib.sha256(json.dumps([str(config.base), *tables], sort_keys=True).encode()).hexdigest()
    return (output / f"corpus-{digest[:12]}").resolve()
