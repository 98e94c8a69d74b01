"""A prepared corpus: the ids of the training pairs, memory-mapped, and all that is needed to use them.

The folder: `source.json`, `target.json` (tokenizers), `train.SIDE.ids` (all ids of a side, one after the
other) and `train.SIDE.ends` (where each sentence ends in them), `train.target.words.tsv` (how often each target word
occurs in training; not in folders of earlier versions), the raw text of dev and test (`dev.en`),
`cleaning.json` (what was left out and why), and `prepared.json`, which describes the rest. Of a corpus with word
alignments also `train.links` and `train.links.ends` (see `links.SymbolLinks`), `dev.align` and `test.align` (in the
Pharaoh format). `prepare.prepare` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rnnsearch.config import RunConfig
from rnnsearch.data.corpus import Pair, read_pairs
from rnnsearch.data.links import SymbolLinks
from rnnsearch.data.partitions import Part
from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Links, read_pharaoh
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import EOS, PAD

FORMAT = 1
"""Of the folder; raised where its files or their meaning change."""
FACTS = "prepared.json"
REPORT = "cleaning.json"
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")

Integers = npt.NDArray[np.int64]


class ParallelIds:
    """The ids of sentence pairs: each side is one flat array of ids and the end of each sentence in it.

    The arrays may be memory-mapped: only the pairs asked for are read. No special id is stored.
    """

    def __init__(
        self,
        source: npt.NDArray[Any],
        source_ends: npt.NDArray[Any],
        target: npt.NDArray[Any],
        target_ends: npt.NDArray[Any],
        links: SymbolLinks | None = None,
        names: tuple[str, str] = ("source", "target"),
    ) -> None:
        assert len(source_ends) == len(target_ends)
        assert links is None or len(links) == len(source_ends)
        self._flat = (source, target)
        self._ends = (source_ends, target_ends)
        self.names = names
        """Of the sides."""
        self.links = links
        """Word alignments over symbols, where the corpus has them."""

    @classmethod
    def of(
        cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], links: SymbolLinks | None = None
    ) -> ParallelIds:
        """From lists of ids (without BOS and EOS) in memory."""
        assert len(source) == len(target)
        return cls(*_flatten(source), *_flatten(target), links)

    def __len__(self) -> int:
        return len(self._ends[0])

    def pair(self, index: int) -> tuple[Integers, Integers]:
        """The source and the target ids of one pair, without EOS."""
        return self._sentence(0, index), self._sentence(1, index)

    def lengths(self, indices: npt.NDArray[Any]) -> Integers:
        """Symbols of the source and of the target sentence of pairs, EOS included, [2, pairs]."""
        return np.stack([self._side_lengths(side, indices) for side in (0, 1)])

    def padded(self, indices: Integers, widths: tuple[int, ...] | None = None) -> tuple[Integers, Integers]:
        """The source [B, J] and the target [B, I] ids of pairs, each row ended by EOS, then padded by PAD; `widths`: J
        and I, where they are to be more than the longest rows."""
        wide = (0, 0) if widths is None else widths
        return self._rows(0, indices, wide[0]), self._rows(1, indices, wide[1])

    def _side_lengths(self, side: int, indices: npt.NDArray[Any]) -> Integers:
        ends = self._ends[side]
        start = np.where(indices > 0, ends[np.maximum(indices, 1) - 1], 0)
        lengths: Integers = ends[indices].astype(np.int64) - start.astype(np.int64) + 1
        return lengths

    def _sentence(self, side: int, index: int) -> Integers:
        ends = self._ends[side]
        index = range(len(ends))[index]
        start = int(ends[index - 1]) if index else 0
        return np.asarray(self._flat[side][start : int(ends[index])], dtype=np.int64)

    def _rows(self, side: int, indices: Integers, width: int) -> Integers:
        words = self._side_lengths(side, indices)[:, None] - 1
        columns = np.arange(max(int(words.max()) + 1, width))
        rows = np.full((len(indices), len(columns)), PAD, dtype=np.int64)
        real = columns < words
        places = np.asarray(self._ends[side][indices], dtype=np.int64)[:, None] - words + columns
        rows[real] = self._flat[side][places[real]]
        rows[columns == words] = EOS
        return rows


def _flatten(sentences: Sequence[Sequence[int]]) -> tuple[Integers, Integers]:
    ends = np.cumsum([len(ids) for ids in sentences], dtype=np.int64)
    flat = [np.asarray(ids, dtype=np.int64) for ids in sentences]
    return np.concatenate([np.zeros(0, dtype=np.int64), *flat]), ends


class Prepared:
    """A prepared corpus, opened; nothing large is read until it is used."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self.facts = facts
        """What prepared.json holds: languages, pairs, symbols, shares of unknown words, licence, ..."""

    @classmethod
    def open(cls, folder: Path, config: RunConfig | None = None) -> Prepared:
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
    def train(self) -> ParallelIds:
        """The training pairs."""
        links = SymbolLinks.open(self.folder, "train") if self.facts.get("aligned") else None
        names = self.facts["source"], self.facts["target"]
        return ParallelIds(*self._side("source"), *self._side("target"), links, names)

    @cached_property
    def dev(self) -> list[Pair]:
        """The raw text of the dev pairs."""
        return self._text("dev")

    @cached_property
    def test(self) -> list[Pair]:
        """The raw text of the test pairs."""
        return self._text("test")

    def links(self, part: Part) -> list[Links] | None:
        """The word alignments of the dev or test pairs, where there are any."""
        path = self.folder / f"{part}.align"
        return read_pharaoh(path) if path.is_file() else None

    @cached_property
    def source(self) -> Tokenizer:
        """The source side's segmentation and vocabulary."""
        return Tokenizer.load(self.folder / "source.json")

    @cached_property
    def target(self) -> Tokenizer:
        """The target side's segmentation and vocabulary."""
        return Tokenizer.load(self.folder / "target.json")

    def _side(self, side: Side) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        ids, ends = self.folder / f"train.{side}.ids", self.folder / f"train.{side}.ends"
        return np.memmap(ids, dtype=self.facts["dtypes"][side], mode="r"), np.memmap(ends, dtype="<u8", mode="r")

    def _text(self, part: str) -> list[Pair]:
        files = "|".join(f"{part}.{self.facts[side]}" for side in SIDES)
        return list(read_pairs([files], self.folder)) if self.facts[part] else []


def settings_of(config: RunConfig) -> dict[str, Any]:
    """The settings that prepared data depend on."""
    return config.model_dump(mode="json", include={"data": True, "text": True}, exclude={"data": {"prepared"}})


def _read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder of prepared data (make it with `rnnsearch prepare`)")
    if not path.is_file():
        raise DataError(f"{folder}: must be a folder of prepared data; got one without {FACTS}")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        version, _ = facts["format"], facts["files"]
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{path}: must describe prepared data; got a truncated or foreign file") from None
    if version != FORMAT:
        wanted = f"must have format {FORMAT}, which this version of rnnsearch reads"
        raise DataError(f"{path}: {wanted}; got {version} (prepare the corpus again)")
    return dict(facts)


def _check_settings(folder: Path, facts: dict[str, Any], config: RunConfig) -> None:
    before, now = (dict(dotted(settings)) for settings in (facts["settings"], settings_of(config)))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            was = f"was prepared with {path} = {before.get(path)}"
            raise DataError(f"{folder}: {was}; got {now.get(path)} (prepare the corpus again)")
    for name, size in facts["inputs"].items():
        path = config.base / name
        if path.is_file() and path.stat().st_size != size:
            raise DataError(f"{folder}: {path} has changed since it was prepared (prepare the corpus again)")


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by their dotted paths."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
