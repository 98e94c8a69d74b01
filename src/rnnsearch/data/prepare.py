"""Turning a corpus into a folder of ids: cleaned, split, segmented and written as a stream.

The text passes through in chunks; besides dev, test and the hashes that tell duplicates (see
`cleaning.Cleaner`), memory does not grow with the corpus. The cleaned text is held on disk meanwhile.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rnnsearch.config import RunConfig, TextConfig
from rnnsearch.data import catalog
from rnnsearch.data.cleaning import Cleaner
from rnnsearch.data.corpus import Pair, check_files, files_of, read_pairs
from rnnsearch.data.download import Progress
from rnnsearch.data.links import of_stripped, write_links
from rnnsearch.data.partitions import Part, Partition, split
from rnnsearch.data.prepared import FACTS, FORMAT, REPORT, SIDES, Prepared, settings_of
from rnnsearch.data.word_counts import COUNTS, write_counts
from rnnsearch.errors import ConfigError, DataError, did_you_mean
from rnnsearch.files import atomic_folder
from rnnsearch.text.alignments import Links, format_pharaoh
from rnnsearch.text.subwords import train_bpe
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import UNK
from rnnsearch.text.words import count_words, train_words

Item = TypeVar("Item")

_CHUNK = 10_000
"""Pairs segmented at a time."""


def prepare(config: RunConfig, folder: Path, cache: Path | None = None, progress: Progress | None = None) -> Prepared:
    """Prepare the config's corpus into `folder`, replacing what was prepared there before, and open it.

    A listed corpus is fetched first where it is not in the cache (`progress` then hears of the bytes).
    Nothing changes in `folder` until all is written.
    Errors: ConfigError for an unfit `[data]` or `[text]`; DataError for missing files, different line
    counts, no pair left, too few sentences to split, a folder that holds something else;
    RnnsearchError for a full disk.
    """
    if config.text.joint and config.text.type == "words":
        raise ConfigError(['text.joint: has no effect with text.type = "words"; remove it'])
    if folder.exists() and not (folder / FACTS).exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: must be a new folder or one of prepared data; got one with other files")
    origin = _origin(config, cache, progress)
    aligned = [*(origin.train_alignments or []), *origin.alignments.values()]
    check_files(files_of([*origin.train, *origin.given.values(), *aligned], origin.base))
    with atomic_folder(folder) as temporary:
        facts = _write(config, origin, temporary)
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        text = json.dumps(facts | {"files": files}, ensure_ascii=False, indent=1)
        (temporary / FACTS).write_text(f"{text}\n", encoding="utf-8")
    return Prepared.open(folder)


@dataclass(frozen=True)
class _Origin:
    """Where the text comes from."""

    train: list[str]
    given: dict[Part, str]
    """The files of dev and test, where they are given."""
    base: Path
    facts: dict[str, Any]
    train_alignments: list[str] | None = None
    """Files of word alignments, one for each of `train`."""
    alignments: dict[Part, str] = field(default_factory=dict)
    """Files of word alignments of given dev and test text."""


def _origin(config: RunConfig, cache: Path | None, progress: Progress | None) -> _Origin:
    data = config.data
    if data.corpus is None:
        given = _given(data.dev, data.test)
        facts = {"corpus": ", ".join(data.train or [])}
        links = _given(data.dev_alignments, data.test_alignments)
        return _Origin(data.train or [], given, config.base, facts, data.alignments, links)
    corpus = catalog.find(data.corpus)
    if (data.source, data.target) != (corpus.source, corpus.target):
        wanted = f'must be "{corpus.source}" and "{corpus.target}", the languages of {corpus.name}'
        mirrored = f"{corpus.name.partition('-')[0]}-{data.source}-{data.target}"
        hint = did_you_mean(mirrored, [mirrored]) if mirrored in catalog.CORPORA else ""
        got = f'"{data.source}" and "{data.target}"'
        raise ConfigError([f"data.source, data.target: {wanted}; got {got}{hint}"])
    folder = catalog.get(corpus.name, cache, progress)
    files: dict[Part, str] = {
        part: f"{part}.{corpus.source}|{part}.{corpus.target}" for part in ("train", "dev", "test")
    }
    parts: tuple[Part, Part] = ("dev", "test")
    facts = {"corpus": corpus.name, "licence": corpus.licence, "attribution": corpus.attribution}
    train = [files.pop("train")]
    if not corpus.aligned:
        return _Origin(train, files, folder, facts)
    return _Origin(train, files, folder, facts, ["train.align"], {part: f"{part}.align" for part in parts})


def _given(dev: str | None, test: str | None) -> dict[Part, str]:
    parts: tuple[tuple[Part, str | None], ...] = (("dev", dev), ("test", test))
    return {part: value for part, value in parts if value is not None}


def _write(config: RunConfig, origin: _Origin, folder: Path) -> dict[str, Any]:
    """Write all files but prepared.json, and return what it is to say."""
    given = {
        part: _HeldOut.read(part, spec, origin.base, origin.alignments.get(part)) for part, spec in origin.given.items()
    }
    sides = (*SIDES, *(["links"] if origin.train_alignments is not None else []))
    cleaned, train = (_Text([folder / f"{name}.{side}.text" for side in sides]) for name in ("cleaned", "train"))
    cleaner = Cleaner(config.data.cleaning)
    with cleaned:
        for pair in read_pairs(origin.train, origin.base, origin.train_alignments):
            if cleaner.keep(pair):
                cleaned.append(_row(pair))
    if not cleaned.count:
        raise DataError(f"no sentence pair is left for training in {origin.facts['corpus']}: {cleaner.summary()}")
    sizes = [0 if part in given else size for part, size in _split_sizes(config).items()]
    partition = split(lambda: iter(cleaned), sizes[0], sizes[1]) if any(sizes) else None
    held: dict[Part, list[_Row]] = {part: held.rows for part, held in given.items()}
    shared = _part(cleaned, partition, train, given, held)
    cleaned.delete()
    tokenizers = _tokenizers(config.text, train)
    facts = _write_ids(train, tokenizers, folder)
    write_counts(folder / COUNTS, count_words(train.lines(1)))
    if train.aligned:
        facts["links"] = write_links(_chunks(train.aligned_rows()), *tokenizers, folder, "train")
    digest = train.delete()
    report = json.dumps(cleaner.report(), ensure_ascii=False, indent=1)
    (folder / REPORT).write_text(f"{report}\n", encoding="utf-8")
    suffixes = (config.data.source, config.data.target, "align")
    for part, rows in held.items():
        _write_texts(rows, [folder / f"{part}.{suffix}" for suffix in suffixes])
    return {
        "format": FORMAT,
        "source": config.data.source,
        "target": config.data.target,
        **origin.facts,
        "sha256": digest,
        "aligned": train.aligned,
        "pairs": train.count,
        "dev": len(held.get("dev", [])),
        "test": len(held.get("test", [])),
        **facts,
        "vocabulary": {side: len(t) for side, t in zip(SIDES, tokenizers, strict=True)},
        "cleaning": cleaner.report(examples=False),
        "left_out_by_split": shared,
        "warnings": [warning for held_out in given.values() for warning in held_out.warnings()],
        "settings": settings_of(config),
        "inputs": _inputs(config),
    }


def _split_sizes(config: RunConfig) -> dict[Part, int]:
    return {"dev": config.data.dev_size, "test": config.data.test_size}


def _inputs(config: RunConfig) -> dict[str, int]:
    """The user's files, by their paths relative to the run file, and their sizes in bytes."""
    data = config.data
    single = (data.dev, data.test, data.dev_alignments, data.test_alignments)
    specs = [*(data.train or []), *(data.alignments or []), *(spec for spec in single if spec)]
    names = [part.strip() for spec in specs for part in spec.split("|")]
    return {name: (config.base / name).stat().st_size for name in names}


@dataclass
class _HeldOut:
    """Dev or test text that was given: used as it is, but for pairs with an empty side."""

    part: Part
    rows: list[_Row]
    dropped: int
    shared: int = 0
    """Training pairs that have their source or target sentence in common with it."""

    @classmethod
    def read(cls, part: Part, spec: str, base: Path, alignments: str | None) -> _HeldOut:
        pairs = list(read_pairs([spec], base, None if alignments is None else [alignments]))
        for pair in pairs:
            if pair.fault:
                raise DataError(f"{pair.where}: every {part} pair must be usable; got {pair.fault}")
        rows = [_Row(p.source, p.target, _pharaoh(p.links)) for p in pairs if p.source.strip() and p.target.strip()]
        if not rows:
            raise DataError(f"{spec}: must hold {part} sentence pairs; got none")
        return cls(part, rows, len(pairs) - len(rows))

    @cached_property
    def _sentences(self) -> tuple[set[str], set[str]]:
        return {row.source.strip() for row in self.rows}, {row.target.strip() for row in self.rows}

    def compare(self, source: str, target: str) -> None:
        """Count a training pair if it shares a sentence."""
        sources, targets = self._sentences
        self.shared += source in sources or target in targets

    def warnings(self) -> list[str]:
        warnings = []
        if self.dropped:
            warnings.append(f"{self.dropped} {self.part} pairs with an empty side were left out")
        if self.shared:
            trouble = f"so scores on {self.part} are too good"
            warnings.append(f"{self.shared} training pairs share a sentence with {self.part}, {trouble}")
        return warnings


class _Row(NamedTuple):
    """A pair on its way through; links in the Pharaoh format, None without word alignments."""

    source: str
    target: str
    links: str | None


def _row(pair: Pair) -> _Row:
    links = None if pair.links is None else of_stripped(pair.links, pair.source, pair.target)
    return _Row(pair.source.strip(), pair.target.strip(), _pharaoh(links))


def _pharaoh(links: Links | None) -> str | None:
    return None if links is None else format_pharaoh(links)


class _Text:
    """Cleaned pairs, held on disk as files of lines (source, target and, if they are aligned, links) and read as
    often as needed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths
        self.aligned = len(paths) == 3
        self.count = 0
        self._digest = sha256()

    def __enter__(self) -> _Text:
        with ExitStack() as stack:
            self._files = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in self.paths]
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def append(self, row: _Row) -> None:
        columns = [column for column in row if column is not None]
        for file, column in zip(self._files, columns, strict=True):
            file.write(f"{column}\n")
        self._digest.update("\t".join(columns).encode() + b"\n")
        self.count += 1

    def lines(self, side: int) -> Iterator[str]:
        with self.paths[side].open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(self.lines(0), self.lines(1), strict=True)

    def aligned_rows(self) -> Iterator[tuple[str, str, str]]:
        return zip(self.lines(0), self.lines(1), self.lines(2), strict=True)

    def rows(self) -> Iterator[_Row]:
        links: Iterable[str | None] = self.lines(2) if self.aligned else repeat(None)
        for (source, target), line in zip(self, links, strict=False):
            yield _Row(source, target, line)

    def delete(self) -> str:
        """Remove the files; returns the SHA-256 of the pairs."""
        for path in self.paths:
            path.unlink()
        return self._digest.hexdigest()


def _part(
    cleaned: _Text,
    partition: Partition | None,
    train: _Text,
    given: dict[Part, _HeldOut],
    held: dict[Part, list[_Row]],
) -> int:
    """Deal the cleaned pairs out to `train` and `held`; returns how many the split leaves out."""
    left_out = 0
    with train:
        for number, row in enumerate(cleaned.rows()):
            part = partition.part(number, row.source, row.target) if partition else "train"
            if part is None:
                left_out += 1
            elif part == "train":
                train.append(row)
                for held_out in given.values():
                    held_out.compare(row.source, row.target)
            else:
                held.setdefault(part, []).append(row)
    if not train.count:
        raise DataError("no training pair is left beside dev and test (lower data.dev_size and data.test_size)")
    return left_out


def _tokenizers(config: TextConfig, train: _Text) -> tuple[Tokenizer, Tokenizer]:
    make = {"words": train_words, "bpe": train_bpe}[config.type]
    if config.joint:
        both = make(chain(train.lines(0), train.lines(1)), config.vocabulary, config.min_count)
        return both, both
    sizes = (config.vocabulary, config.target_vocabulary or config.vocabulary)
    source, target = (make(train.lines(side), size, config.min_count) for side, size in enumerate(sizes))
    return source, target


def _write_ids(train: _Text, tokenizers: tuple[Tokenizer, Tokenizer], folder: Path) -> dict[str, Any]:
    """Segment the training text in chunks into the ids' files; returns the facts about them."""
    facts: dict[str, Any] = {"dtypes": {}, "symbols": {}, "unknown": {}}
    for number, (side, tokenizer) in enumerate(zip(SIDES, tokenizers, strict=True)):
        tokenizer.save(folder / f"{side}.json")
        dtype = np.dtype("<u2" if len(tokenizer) <= 1 << 16 else "<u4")
        counts: Counter[str] = Counter()
        with (
            (folder / f"train.{side}.ids").open("wb") as ids,
            (folder / f"train.{side}.ends").open("wb") as ends,
        ):
            for lines in _chunks(train.lines(number)):
                rows = tokenizer.ids(lines)
                flat = np.fromiter(chain.from_iterable(rows), dtype=dtype)
                lengths = np.fromiter(map(len, rows), dtype=np.uint64, count=len(rows))
                (np.cumsum(lengths, dtype=np.uint64) + np.uint64(counts["symbols"])).astype("<u8").tofile(ends)
                flat.tofile(ids)
                counts["symbols"] += len(flat)
                counts["unknown"] += int(np.count_nonzero(flat == UNK))
        facts["dtypes"][side] = dtype.str
        facts["symbols"][side] = counts["symbols"]
        facts["unknown"][side] = counts["unknown"] / max(counts["symbols"], 1)
    return facts


def _chunks(lines: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(lines)
    while chunk := list(islice(rest, _CHUNK)):
        yield chunk


def _write_texts(rows: Sequence[_Row], paths: Sequence[Path]) -> None:
    """Source, target and, where there are any, links."""
    for column, path in zip(zip(*rows, strict=True), paths, strict=True):
        if None not in column:
            path.write_text("".join(f"{line}\n" for line in column), encoding="utf-8", newline="\n")
