"""`Prepared`, a folder of prepared data: memory-mapped ids of the training rows, tokenizers, dev and test.

`prepare.prepare` writes the folder. Files, for each language NAME:

- `tokenizer.NAME.json`
- `train.NAME.ids` and `train.NAME.ids.ends` (see `ragged.py`)
- `dev.NAME` and `test.NAME`: raw text
- of a stream of arrays, instead of these, `train.NAME.npy`, `dev.NAME.npy` and `test.NAME.npy` with their ends (see
  `arrays.py`)
- `train.NAME.unknown`, if tokens are words: the unknown words of each training row
- `train.target.words.tsv`: how often each target word occurs in the training text
- `train.links` with its ends, `dev.align` and `test.align` (Pharaoh format), if the corpus has word alignments
- `train.documents`, if it has documents: the document number of each row, and the row's position in the document
- `aligner`, a folder, with `[data] aligner`; until it is learned, `aligner.NAME` (see `aligner_text.py`)
- `cleaning.json`: the rows that were left out and why; `prepared.json`: everything else

New keys of `prepared.json` need a default in `_read_facts`, since folders of earlier versions are still opened
(tests/old_models, tests/data/test_prepare.py); other changes need a new `FORMAT`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rnnsearch.align import aligner
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig, dotted
from rnnsearch.config.data import ArrayConfig
from rnnsearch.data.arrays import SUFFIX, NamedArray, open_arrays, read_arrays
from rnnsearch.data.batch import Direction
from rnnsearch.data.code_points import CODE_POINT_DTYPE
from rnnsearch.data.corpus import Row, read_lines, read_rows
from rnnsearch.data.id_store import Documents, ParallelIds
from rnnsearch.data.links import LINK_TYPE
from rnnsearch.data.ragged import ENDS_SUFFIX, RaggedArray
from rnnsearch.data.split import Part
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Links, read_pharaoh
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.utils.files import JSON_ERRORS, complete_folder

FORMAT = 2
"""Version of the folder; increased if its files or their meaning change."""
ARRAYS_FORMAT = 3
"""Version of a folder with arrays."""
UNNAMED_FORMAT = 1
"""Version whose files are called source and target instead of the languages' names; can still be read."""
FACTS_FILE = "prepared.json"
REPORT_FILE = "cleaning.json"
DATA_FOLDER = "data"
"""Default name of the folder in a run's folder."""
DOCUMENTS_FILE = "train.documents"
DOCUMENTS_DTYPE = "<u4"


WORD_COUNTS_FILE = "train.target.words.tsv"


def unknown_words_file(language: str) -> str:
    """Return the file of the unknown words of a language's training rows (see `characters.codes`)."""
    return f"train.{language}.unknown"


def prepared_tokenizer_file(language: str) -> str:
    """Return the file of a language's tokenizer."""
    return f"tokenizer.{language}.json"


class Prepared:
    """A prepared corpus. Nothing large is read until it is used."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        """Content of prepared.json: languages, numbers of pairs and tokens, rates of unknown words, licence, ..."""
        self._old_names = _unnamed_files(facts["sides"]) if facts["format"] == UNNAMED_FORMAT else {}

    @classmethod
    def open(cls, folder: Path, config: RunConfig | None = None) -> Prepared:
        """Open a folder that `prepare` wrote.

        Args:
            folder: Folder of prepared data.
            config: Run file to check the folder against.

        Raises:
            DataError: The folder is missing, truncated or something else, or was prepared with other settings or from
                files that have changed since.
        """
        folder = complete_folder(folder)
        facts = _read_facts(folder)
        # Sizes reveal interrupted copies, without reading the contents.
        for name, size in facts["files"].items():
            path = folder / name
            actual = path.stat().st_size if path.is_file() else None
            if actual != size:
                got = "no such file" if actual is None else f"{actual}"
                raise DataError(f"{path}: must have {size} bytes; got {got} (prepare the corpus again)")
        if config is not None:
            _check_settings(folder, facts, config)
        return cls(folder, facts)

    @property
    def report(self) -> dict[str, Any]:
        """Cleaning report: `read`, `kept`, and `rejected` with a count and examples per reason.

        Examples are text of the corpus. `facts`, which are copied into models, have only the counts.
        """
        report: dict[str, Any] = json.loads((self.folder / REPORT_FILE).read_text(encoding="utf-8"))
        return report

    @property
    def warnings(self) -> list[str]:
        """Warnings about the data for the user."""
        warnings: list[str] = self.facts["warnings"]
        return warnings

    @property
    def unit(self) -> str:
        """Name of the rows of the corpus: pairs, or rows if there are more languages than two, or text in one only."""
        return "rows" if len(self.facts["sides"]) > 2 or any(self.facts["lacking"].values()) else "pairs"

    @cached_property
    def direction(self) -> Direction:
        """The last language is the target, all others are sources."""
        *sources, target = self.facts["sides"]
        return Direction(tuple(sources), target)

    @cached_property
    def train(self) -> ParallelIds:
        """The training rows."""
        streams, present = {}, {}
        dtypes = self.facts["dtypes"]
        for language in self.facts["sides"]:
            if language in self.arrays:
                streams[language] = open_arrays(self._array_file("train", language), self.arrays[language])
                continue
            dtype = dtypes[language]
            name = f"train.{language}.ids"
            stream = RaggedArray.open(self._file(name), dtype, ends=self._file(f"{name}{ENDS_SUFFIX}"))
            streams[language] = stream
            if self.facts["lacking"][language]:
                present[language] = stream.lengths(np.arange(len(stream))) > 0  # text has at least one token
        unknown = {}
        for language in self.facts["spelled"]:
            unknown[language] = RaggedArray.open(self.folder / unknown_words_file(language), CODE_POINT_DTYPE.str)
        links = None
        if self.facts["aligned"]:
            links = RaggedArray.open(self.folder / "train.links", LINK_TYPE, columns=2)
        documents = None
        if self.facts["documents"]:
            table = np.memmap(self.folder / DOCUMENTS_FILE, dtype=DOCUMENTS_DTYPE, mode="r").reshape(-1, 2)
            documents = Documents(table[:, 0], table[:, 1])
        return ParallelIds(streams, links, present, documents, unknown)

    @cached_property
    def arrays(self) -> dict[str, ArrayConfig]:
        """Options of the streams of arrays."""
        options = self.facts["settings"]["data"].get("arrays") or {}
        return {name: ArrayConfig.model_validate(options[name]) for name in self.facts["arrays"]}

    @cached_property
    def dev(self) -> list[Row]:
        """The raw text of the dev rows, and their arrays as `NamedArray`."""
        return self._text("dev")

    @cached_property
    def test(self) -> list[Row]:
        """The raw text of the test rows, and their arrays as `NamedArray`."""
        return self._text("test")

    @property
    def unknown(self) -> dict[str, float]:
        """Rate of unknown tokens of each language in the dev rows or, if there are none, in the training text."""
        if not self.dev:
            training_rates: dict[str, float] = self.facts.get("unknown", {})
            return training_rates
        rates = {}
        for language, tokenizer in self.tokenizers.items():
            index = self.facts["sides"].index(language)
            ids = list(chain.from_iterable(tokenizer.ids([row.texts[index] for row in self.dev])))
            rates[language] = ids.count(UNK) / max(len(ids), 1)
        return rates

    def links(self, part: Part) -> list[Links] | None:
        """Return the word alignments of the dev or test pairs, or None if there are none."""
        path = self.folder / f"{part}.align"
        return read_pharaoh(path) if path.is_file() else None

    @cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizer of each language."""
        languages = [name for name in self.facts["sides"] if name not in self.facts["arrays"]]
        return {name: Tokenizer.load(self._file(prepared_tokenizer_file(name))) for name in languages}

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of the only source."""
        (source,) = self.direction.sources
        return self.tokenizers[source]

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the target."""
        return self.tokenizers[self.direction.target]

    @property
    def aligner(self) -> Aligner | None:
        """The aligner learned from the training text, if there is one."""
        return Aligner.find(self.folder)

    @property
    def has_aligner(self) -> bool:
        """True if there is an aligner."""
        return complete_folder(self.folder / aligner.FOLDER).is_dir()

    def _file(self, name: str) -> Path:
        return self.folder / self._old_names.get(name, name)

    def _text(self, part: Part) -> list[Row]:
        if not self.facts[part]:
            return []
        languages = self.facts["sides"]
        files = [f"{part}.{name}{SUFFIX if name in self.arrays else ''}" for name in languages]
        documents = self.facts["documents"]
        rows = read_rows(["|".join(files)], self.folder, len(languages), None, documents, languages, self.arrays)
        if not self.arrays:
            return list(rows)
        arrays = {name: read_arrays(self._array_file(part, name), options) for name, options in self.arrays.items()}
        return [_with_arrays(row, index, languages, arrays) for index, row in enumerate(rows)]

    def _array_file(self, part: Part, stream: str) -> Path:
        return self.folder / f"{part}.{stream}{SUFFIX}"


def _with_arrays(row: Row, index: int, streams: Sequence[str], arrays: Mapping[str, Sequence[NamedArray]]) -> Row:
    """Return a row with arrays in the place of their names."""
    texts = [arrays[name][index] if name in arrays else text for name, text in zip(streams, row.texts, strict=True)]
    return row._replace(texts=tuple(texts))


def data_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that prepared data depend on."""
    irrelevant = {
        "data": {"prepared", "aligner", "weights", "context", "directions", "tag", "tasks"},
        "text": {"bpe_dropout", "unigram_sampling", "inline_terms"},
    }
    return config.model_dump(mode="json", include={"data": True, "text": True}, exclude=irrelevant)


def write_word_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Write lines of a word, a tab and its count, by falling count and then by code points."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    path.write_text("".join(f"{word}\t{count}\n" for word, count in rows), encoding="utf-8", newline="\n")


def read_word_counts(path: Path) -> dict[str, int]:
    """Read the counts that `write_word_counts` wrote; raise DataError for a line of another form."""
    counts = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, tab, count = line.partition("\t")
        if not tab or not count.isdecimal():
            raise DataError(f'{path}:{number}: must be a word, a tab and a count; got "{line}"')
        counts[word] = int(count)
    return counts


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS_FILE
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data (make it with `rnnsearch prepare`)")
    if not path.is_file():
        raise DataError(f"{folder}: must be a folder of prepared data; got one without {FACTS_FILE}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version, _ = facts["format"], facts["files"]
        if version not in (UNNAMED_FORMAT, FORMAT, ARRAYS_FORMAT):
            wanted = f"must have format {FORMAT}, which this version of rnnsearch reads"
            raise DataError(f"{path}: {wanted}; got {version} (prepare the corpus again)")
        if version == UNNAMED_FORMAT:
            facts = _named_facts(facts)
        # Older versions do not normalise text.
        facts["settings"]["text"].setdefault("normalize", "none")
    except JSON_ERRORS:
        raise DataError(f"{path}: must describe prepared data; got a truncated or foreign file") from None
    # Older versions store neither unknown words nor the number of pairs of each file; a corpus of text has no arrays.
    return {"spelled": [], "pairs_of_files": [], "arrays": {}, **facts}


def _named_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a folder in the unnamed format with the languages' names as keys."""
    names = {"source": facts["source"], "target": facts["target"]}
    named = {}
    for key in ("dtypes", "symbols", "unknown", "vocabulary"):
        named[key] = {names[role]: value for role, value in facts[key].items()}
    languages = list(names.values())
    facts["settings"]["data"].setdefault("documents", False)
    return {**facts, **named, "sides": languages, "lacking": dict.fromkeys(languages, 0), "documents": False}


def _unnamed_files(languages: Sequence[str]) -> dict[str, str]:
    """Return the names of files in the unnamed format by their names in the current format."""
    names: dict[str, str] = {}
    for language, role in zip(languages, ("source", "target"), strict=True):
        names[prepared_tokenizer_file(language)] = f"{role}.json"
        names[f"train.{language}.ids"] = f"train.{role}.ids"
        names[f"train.{language}.ids{ENDS_SUFFIX}"] = f"train.{role}{ENDS_SUFFIX}"
    return names


def _check_settings(folder: Path, facts: dict[str, Any], config: RunConfig) -> None:
    """Raise DataError if the folder was prepared with other settings or from files of other sizes."""
    before = dotted(facts["settings"])
    now = dotted(data_settings(config))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            was, got = ("unset" if value is None else value for value in (before.get(path), now.get(path)))
            raise DataError(f"{folder}: was prepared with {path} = {was}; got {got} (prepare the corpus again)")
    for name, size in facts["inputs"].items():
        input_path = config.base / name
        if input_path.is_file() and input_path.stat().st_size != size:
            raise DataError(f"{folder}: {input_path} has changed since it was prepared (prepare the corpus again)")
