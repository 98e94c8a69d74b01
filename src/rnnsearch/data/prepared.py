"""A prepared corpus: the ids of the training rows, memory-mapped, and all that is needed to use them.

The folder, for each side NAME: `tokenizer.NAME.json`, `train.NAME.ids` with `train.NAME.ids.ends` (see `ragged`), the
raw text of dev and test (`dev.en`). `train.target.words.tsv`: how often each target word occurs in training;
`cleaning.json`: what was left out and why; `prepared.json` describes the rest. Of a corpus with word alignments also
`train.links` with its ends, `dev.align` and `test.align` (in the Pharaoh format); of one with documents,
`train.documents`: the number of each row's document and its place there; with `[data] aligner`, the folder `aligner`;
where symbols are words, `train.NAME.unknown`: the unknown words of each row.
`prepare.prepare` writes it.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rnnsearch.align.aligner import Aligner
from rnnsearch.config import RunConfig, dotted
from rnnsearch.data.batch import Direction
from rnnsearch.data.characters import CODE_POINT_DTYPE
from rnnsearch.data.corpus import Row, read_lines, read_rows
from rnnsearch.data.id_store import Documents, ParallelIds
from rnnsearch.data.links import LINK_TYPE
from rnnsearch.data.ragged import ENDS_SUFFIX, RaggedArray
from rnnsearch.data.split import Part
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Links, read_pharaoh
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK

FORMAT = 2
"""Of the folder; raised where its files or their meaning change."""
OF_TWO = 1
"""The format before sides had names, which is read, too."""
FACTS = "prepared.json"
REPORT = "cleaning.json"
DOCUMENTS = "train.documents"
DOCUMENT_TYPE = "<u4"


def unknown_words(side: str) -> str:
    """Where the unknown words of a side's training rows are, as `spelling.codes` gives them."""
    return f"train.{side}.unknown"


def prepared_tokenizer(side: str) -> str:
    """Where a side's segmentation and vocabulary are."""
    return f"tokenizer.{side}.json"


class Prepared:
    """A prepared corpus, opened; nothing large is read until it is used."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        """What prepared.json holds: sides, pairs, symbols, shares of unknown words, licence, ..."""
        self._renamed = _names_of_two(facts["sides"]) if facts["format"] == OF_TWO else {}

    @classmethod
    def open(cls, folder: Path, config: RunConfig | None = None) -> "Prepared":
        """Open what `prepare` wrote, checked against the config it is to be used with.

        Errors: DataError where the folder is missing, truncated or foreign, or was prepared with other
        settings or from files that have changed since.
        """
        facts = _read_facts(folder)
        for name, size in facts["files"].items():
            path = folder / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                got = "no such file" if found is None else f"{found}"
                raise DataError(f"{path}: must have {size} bytes; got {got} (prepare the corpus again)")
        if config is not None:
            _check_settings(folder, facts, config)
        return cls(folder, facts)

    @property
    def report(self) -> dict[str, Any]:
        """The cleaning report: `read`, `kept`, and `rejected` with a count and examples a reason.

        The examples are text of the corpus; `facts`, which travel with a model, have the counts alone.
        """
        report: dict[str, Any] = json.loads((self.folder / REPORT).read_text(encoding="utf-8"))
        return report

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the data, a sentence each."""
        warnings: list[str] = self.facts["warnings"]
        return warnings

    @cached_property
    def direction(self) -> Direction:
        """From all sides but the last to the last."""
        *sources, target = self.facts["sides"]
        return Direction(tuple(sources), target)

    @cached_property
    def train(self) -> ParallelIds:
        """The training rows."""
        links = RaggedArray.open(self.folder / "train.links", LINK_TYPE, columns=2) if self.facts["aligned"] else None
        sides, present, unknown = {}, {}, {}
        for side, kind in self.facts["dtypes"].items():
            ids = f"train.{side}.ids"
            sides[side] = RaggedArray.open(self._file(ids), kind, ends=self._file(f"{ids}{ENDS_SUFFIX}"))
            if self.facts["lacking"][side]:  # a sentence that is there has a symbol at least
                present[side] = sides[side].lengths(np.arange(len(sides[side]))) > 0
        for side in self.facts["spelled"]:
            unknown[side] = RaggedArray.open(self.folder / unknown_words(side), CODE_POINT_DTYPE.str)
        documents = None
        if self.facts["documents"]:
            table = np.memmap(self.folder / DOCUMENTS, dtype=DOCUMENT_TYPE, mode="r").reshape(-1, 2)
            documents = Documents(table[:, 0], table[:, 1])
        return ParallelIds(sides, links, present, documents, unknown)

    @cached_property
    def dev(self) -> list[Row]:
        """The raw text of the dev rows."""
        return self._text("dev")

    @cached_property
    def test(self) -> list[Row]:
        """The raw text of the test rows."""
        return self._text("test")

    @property
    def unknown(self) -> dict[str, float]:
        """The share of unknown symbols among each side's of the dev rows; without these, of the training text."""
        if not self.dev:
            shares: dict[str, float] = self.facts.get("unknown", {})
            return shares
        found = {}
        for number, (side, tokenizer) in enumerate(self.tokenizers.items()):
            ids = list(chain.from_iterable(tokenizer.ids([row.texts[number] for row in self.dev])))
            found[side] = ids.count(UNK) / max(len(ids), 1)
        return found

    def links(self, part: Part) -> list[Links] | None:
        """The word alignments of the dev or test pairs, where there are any."""
        path = self.folder / f"{part}.align"
        return read_pharaoh(path) if path.is_file() else None

    @cached_property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """Each side's segmentation and vocabulary."""
        return {side: Tokenizer.load(self._file(prepared_tokenizer(side))) for side in self.facts["sides"]}

    @property
    def source(self) -> Tokenizer:
        """That of the one source."""
        (source,) = self.direction.sources
        return self.tokenizers[source]

    @property
    def target(self) -> Tokenizer:
        """That of the target side."""
        return self.tokenizers[self.direction.target]

    @property
    def aligner(self) -> Aligner | None:
        """The aligner learned from the training text, if one was."""
        return Aligner.find(self.folder)

    def _file(self, name: str) -> Path:
        return self.folder / self._renamed.get(name, name)

    def _text(self, part: str) -> list[Row]:
        sides = self.facts["sides"]
        files = "|".join(f"{part}.{side}" for side in sides)
        rows = read_rows([files], self.folder, len(sides), documents=self.facts["documents"])
        return list(rows) if self.facts[part] else []


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings that prepared data depend on."""
    idle = {"data": {"prepared", "aligner", "weights"}, "text": {"bpe_dropout", "unigram_sampling", "inline_terms"}}
    return config.model_dump(mode="json", include={"data": True, "text": True}, exclude=idle)


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data (make it with `rnnsearch prepare`)")
    if not path.is_file():
        raise DataError(f"{folder}: must be a folder of prepared data; got one without {FACTS}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version, _ = facts["format"], facts["files"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: must describe prepared data; got a truncated or foreign file") from None
    if version not in (OF_TWO, FORMAT):
        wanted = f"must have format {FORMAT}, which this version of rnnsearch reads"
        raise DataError(f"{path}: {wanted}; got {version} (prepare the corpus again)")
    whole = _facts_of_two(facts) if version == OF_TWO else facts
    # Folders of before do not keep unknown words, nor how many pairs each file has.
    return {"spelled": [], "pairs_of_files": [], **whole}


def _facts_of_two(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a folder of two sides, which were called source and target, by the languages' names."""
    names = {"source": facts["source"], "target": facts["target"]}
    by_name = {
        key: {names[side]: value for side, value in facts[key].items()}
        for key in ("dtypes", "symbols", "unknown", "vocabulary")
    }
    sides = list(names.values())
    facts["settings"]["data"].setdefault("documents", False)
    return {**facts, **by_name, "sides": sides, "lacking": dict.fromkeys(sides, 0), "documents": False}


def _names_of_two(sides: Sequence[str]) -> dict[str, str]:
    """What files were called there, by what they are called now."""
    names: dict[str, str] = {}
    for side, role in zip(sides, ("source", "target"), strict=True):
        names |= {prepared_tokenizer(side): f"{role}.json", f"train.{side}.ids": f"train.{role}.ids"}
        names[f"train.{side}.ids{ENDS_SUFFIX}"] = f"train.{role}{ENDS_SUFFIX}"
    return names


def _check_settings(folder: Path, facts: dict[str, Any], config: RunConfig) -> None:
    before, now = (dotted(settings) for settings in (facts["settings"], settings_of(config)))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            was = f"was prepared with {path} = {before.get(path)}"
            raise DataError(f"{folder}: {was}; got {now.get(path)} (prepare the corpus again)")
    for name, size in facts["inputs"].items():
        path = config.base / name
        if path.is_file() and path.stat().st_size != size:
            raise DataError(f"{folder}: {path} has changed since it was prepared (prepare the corpus again)")


# How often each target word occurs in the training text, kept beside the ids: rare words are judged by it.

COUNTS = "train.target.words.tsv"
"""In a prepared folder: a word, a tab and its count a line, the most frequent first."""


def write_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Write counts of words (see `words.count_words`); equal ones in the order of their code points."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    path.write_text("".join(f"{word}\t{count}\n" for word, count in rows), encoding="utf-8", newline="\n")


def read_counts(path: Path) -> dict[str, int]:
    """Read what `write_counts` wrote. Errors: DataError with file:line for anything else."""
    counts = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, tab, count = line.partition("\t")
        if not tab or not count.isdecimal():
            raise DataError(f'{path}:{number}: must be a word, a tab and a count; got "{line}"')
        counts[word] = int(count)
    return counts
