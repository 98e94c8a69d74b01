"""Turning a corpus into a folder of ids: cleaned, split, segmented and written as a stream, on all cores.

The text passes through in chunks (`passes.py`), worked on in any number of processes and put down in order, so that
the folder is the same to the byte whatever their number. Between the passes the cleaned text lies on disk, and so do
the hashes that tell duplicates; besides dev, test and the counts of different words, memory holds some bytes a pair.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnsearch.config import RunConfig, TextConfig
from rnnsearch.data import catalog
from rnnsearch.data.cleaned import CleanedText, KeyTable, Mask
from rnnsearch.data.cleaning import DUPLICATE, EXAMPLES, Tally, first_of_each
from rnnsearch.data.corpus import Row, check_files, files_of, read_rows
from rnnsearch.data.download import Progress
from rnnsearch.data.partitions import PARTS, Keys, Part, Parts, document_keys, split, split_documents
from rnnsearch.data.passes import Cells, Rules, SavedTokenizer, Sentences, count, encode, id_type
from rnnsearch.data.prepared import (
    DOCUMENT_TYPE,
    DOCUMENTS,
    FACTS,
    FORMAT,
    REPORT,
    Prepared,
    settings_of,
    tokenizer_file,
)
from rnnsearch.data.ragged import RaggedFile
from rnnsearch.data.word_counts import COUNTS, write_counts
from rnnsearch.data.workers import Workers, cores
from rnnsearch.errors import ConfigError, DataError, did_you_mean
from rnnsearch.files import atomic_folder
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.text.subwords import bpe_from_counts
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.words import count_words_in, forget_rare, words_from_counts

TRAIN = PARTS.index("train")


def prepare(
    config: RunConfig,
    folder: Path,
    cache: Path | None = None,
    progress: Progress | None = None,
    processes: int | None = None,
) -> Prepared:
    """Prepare the config's corpus into `folder`, replacing what was prepared there before, and open it.

    A listed corpus is fetched first where it is not in the cache (`progress` then hears of the bytes).
    The work is shared out among `processes`, as many as there are cores if not given; a small corpus takes one.
    Nothing changes in `folder` until all is written.
    Errors: ConfigError for an unfit `[data]` or `[text]`; DataError for missing files, different line
    counts, no pair left, too few sentences to split, a folder that holds something else;
    RnnsearchError for a full disk.
    """
    if config.text.joint and config.text.type == "words":
        raise ConfigError(['text.joint: has no effect with text.type = "words"; remove it'])
    if config.data.alignments is not None and len(config.data.sides) != 2:
        raise ConfigError([f"data.alignments: must be of two sides; got {len(config.data.sides)}"])
    if folder.exists() and not (folder / FACTS).exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: must be a new folder or one of prepared data; got one with other files")
    origin = _origin(config, cache, progress)
    aligned = [*(origin.train_alignments or []), *origin.alignments.values()]
    check_files(files_of([*origin.train, *origin.given.values(), *aligned], origin.base))
    with atomic_folder(folder) as temporary, Workers(processes or cores()) as workers:
        facts = _write(config, origin, temporary, workers)
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
    if data.sides != (corpus.source, corpus.target):
        wanted = f'must be "{corpus.source}" and "{corpus.target}", the languages of {corpus.name}'
        mirrored = "-".join((corpus.name.partition("-")[0], *data.sides))
        hint = did_you_mean(mirrored, [mirrored]) if mirrored in catalog.CORPORA else ""
        got = " and ".join(f'"{side}"' for side in data.sides)
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


def _write(config: RunConfig, origin: _Origin, folder: Path, workers: Workers) -> dict[str, Any]:
    """Write all files but prepared.json, and return what it is to say."""
    sides, documents = config.data.sides, config.data.documents
    given = {part: _HeldOut.read(part, spec, origin, len(sides), documents) for part, spec in origin.given.items()}
    sizes = [0 if part in given else size for part, size in _split_sizes(config).items()]
    rules = Rules(sides, config.data.cleaning, any(sizes), documents)
    with CleanedText(folder, rules, aligned=origin.train_alignments is not None) as cleaned:
        tally = cleaned.read(origin.train, origin.base, origin.train_alignments, workers)
        keys = cleaned.keys()
        kept = _without_duplicates(config, cleaned, keys, tally)
        if not kept.any():
            raise DataError(f"no sentence pair is left for training in {origin.facts['corpus']}: {tally.summary()}")
        parts, shared = _parts(keys, kept, sizes, documents)
        counted = _count(cleaned, parts, list(given.values()), workers)
        rows = int((parts == TRAIN).sum())
        if not rows:
            raise DataError("no training pair is left beside dev and test (lower data.dev_size and data.test_size)")
        tokenizers = _tokenizers(config.text, dict(zip(sides, counted.stretches, strict=True)), folder)
        write_counts(folder / COUNTS, count_words_in(counted.stretches[-1]))
        facts = _write_ids(cleaned, parts, tokenizers, folder, workers)
        held = {part: held.text for part, held in given.items()}
        held |= {part: _Text(text, keys["document"][parts == PARTS.index(part)]) for part, text in counted.held.items()}
        if documents:
            _write_documents(keys[["document", "place"]][parts == TRAIN], folder / DOCUMENTS)
    report = json.dumps(tally.report(), ensure_ascii=False, indent=1)
    (folder / REPORT).write_text(f"{report}\n", encoding="utf-8")
    for part, text in held.items():
        text.write([folder / f"{part}.{suffix}" for suffix in (*sides, "align")], documents)
    return {
        "format": FORMAT,
        "sides": list(sides),
        **origin.facts,
        "sha256": counted.digest,
        "aligned": cleaned.aligned,
        "documents": documents,
        "pairs": rows,
        "dev": len(held["dev"].rows) if "dev" in held else 0,
        "test": len(held["test"].rows) if "test" in held else 0,
        **facts,
        "vocabulary": {side: len(tokenizer) for side, tokenizer in tokenizers.items()},
        "cleaning": tally.report(examples=False),
        "left_out_by_split": int((kept & (parts == PARTS.index(None))).sum()),
        "warnings": tally.warnings() + _of_documents(shared) + [w for held in given.values() for w in held.warnings()],
        "settings": settings_of(config),
        "inputs": _inputs(config),
    }


def _without_duplicates(config: RunConfig, cleaned: CleanedText, keys: KeyTable, tally: Tally) -> Mask:
    """Which cleaned rows are the first of their like, or in documents that are; the others are counted."""
    if not config.data.cleaning.drop_duplicates:
        return np.ones(len(keys), dtype=bool)
    if config.data.documents:
        of_documents, begins = document_keys(keys["row"], keys["document"])
        kept = np.repeat(first_of_each(of_documents), np.diff(begins, append=len(keys)))
    else:
        kept = first_of_each(keys["row"])
    repeated = np.flatnonzero(~kept)
    for place in repeated[:EXAMPLES].tolist():
        tally.reject(DUPLICATE, cleaned.row(place, int(keys["line"][place])))
    if len(repeated) > EXAMPLES:
        tally.reject_more(DUPLICATE, len(repeated) - EXAMPLES)
    return kept


def _parts(keys: KeyTable, kept: Mask, sizes: Sequence[int], documents: bool) -> tuple[Parts, int]:
    """The part of each cleaned row, duplicates having none; and how many training rows of documents share a sentence
    with what is held out."""
    parts = np.where(kept, TRAIN, PARTS.index(None)).astype(np.uint8)
    if not any(sizes):
        return parts, 0
    own = Keys(keys["sentences"][kept].astype(np.uint64), keys["rank"][kept].astype(np.uint64))
    if not documents:
        parts[kept] = split(own, sizes[0], sizes[1])
        return parts, 0
    parts[kept] = found = split_documents(own, keys["document"][kept], sizes[0], sizes[1])
    return parts, int((own.shared(own.sentences[found > TRAIN]) & (found == TRAIN)).sum())


def _of_documents(shared: int) -> list[str]:
    """Training documents stay whole, so rows that share a sentence with dev or test are not left out."""
    told = f"{shared} training pairs share a sentence with the documents split off, so scores on those are too good"
    return [told] if shared else []


@dataclass
class _Counted:
    """What the training text holds, and the rows that the split holds out."""

    stretches: list[Counter[str]]
    held: dict[Part, list[Cells]]
    digest: str


def _count(cleaned: CleanedText, parts: Parts, given: list[_HeldOut], workers: Workers) -> _Counted:
    sides = len(cleaned.rules.languages)
    digest, stretches, held = sha256(), [Counter[str]() for _ in range(sides)], dict[Part, list[Cells]]()
    sets = [held_out.sentences(sides) for held_out in given]
    for found in workers.map(count, ((span, own, sets, sides) for span, own in cleaned.spans(parts))):
        digest.update(found.text)
        for counts, more in zip(stretches, found.stretches, strict=True):
            counts.update(more)
            forget_rare(counts)
        for place, row in found.held:
            part = PARTS[place]
            assert part is not None
            held.setdefault(part, []).append(row)
        for held_out, shared in zip(given, found.shared, strict=True):
            held_out.shared += shared
    return _Counted(stretches, held, digest.hexdigest())


def _split_sizes(config: RunConfig) -> dict[Part, int]:
    return {"dev": config.data.dev_size, "test": config.data.test_size}


def _inputs(config: RunConfig) -> dict[str, int]:
    """The user's files, by their paths relative to the run file, and their sizes in bytes."""
    data = config.data
    single = (data.dev, data.test, data.dev_alignments, data.test_alignments)
    specs = [*(data.train or []), *(data.alignments or []), *(spec for spec in single if spec)]
    names = [name for spec in specs for part in spec.split("|") if (name := part.strip())]
    return {name: (config.base / name).stat().st_size for name in names}


@dataclass
class _Text:
    """Rows of dev or test, and the number of each one's document."""

    rows: list[Cells]
    documents: Sequence[int] | npt.NDArray[np.uint32]

    def write(self, paths: Sequence[Path], ends: bool) -> None:
        """A file a side and, where there are any, of links; with `ends`, an empty line between two documents' rows."""
        changes = np.flatnonzero(np.diff(np.array(self.documents, dtype=np.int64))) + 1
        for column, path in zip(zip(*self.rows, strict=True), paths, strict=False):
            ended = ends and path.suffix != ".align"  # which have a line a row
            lines = np.insert(np.array(column, dtype=object), changes, "") if ended else column
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


def _given_cells(row: Row) -> Cells:
    return row.texts if row.links is None else (*row.texts, format_pharaoh(row.links))


@dataclass
class _HeldOut:
    """Dev or test text that was given: used as it is, but for rows with an empty side."""

    part: Part
    text: _Text
    dropped: int
    shared: int = 0
    """Training rows that have a sentence in common with it."""

    @classmethod
    def read(cls, part: Part, spec: str, origin: _Origin, sides: int, documents: bool) -> _HeldOut:
        alignments = origin.alignments.get(part)
        rows = list(read_rows([spec], origin.base, sides, None if alignments is None else [alignments], documents))
        for row in rows:
            if row.fault:
                raise DataError(f"{row.where}: every {part} pair must be usable; got {row.fault}")
        whole = [row for row in rows if all(map(str.strip, row.texts))]
        if not whole:
            raise DataError(f"{spec}: must hold {part} sentence pairs; got none")
        text = _Text([_given_cells(row) for row in whole], [row.document for row in whole])
        return cls(part, text, len(rows) - len(whole))

    def sentences(self, sides: int) -> Sentences:
        """Its different sentences."""
        return tuple(frozenset(row[side].strip() for row in self.text.rows) for side in range(sides))

    def warnings(self) -> list[str]:
        warnings = []
        if self.dropped:
            warnings.append(f"{self.dropped} {self.part} pairs with an empty side were left out")
        if self.shared:
            trouble = f"so scores on {self.part} are too good"
            warnings.append(f"{self.shared} training pairs share a sentence with {self.part}, {trouble}")
        return warnings


def _tokenizers(config: TextConfig, stretches: dict[str, Counter[str]], folder: Path) -> dict[str, Tokenizer]:
    """The sides' tokenizers, saved; the last is the target's."""
    make = {"words": words_from_counts, "bpe": bpe_from_counts}[config.type]
    if config.joint:
        joint = make(sum(stretches.values(), Counter()), config.vocabulary, config.min_count)
        tokenizers = dict.fromkeys(stretches, joint)
    else:
        sizes = [config.vocabulary] * len(stretches)
        sizes[-1] = config.target_vocabulary or config.vocabulary
        tokenizers = {
            side: make(counts, size, config.min_count)
            for (side, counts), size in zip(stretches.items(), sizes, strict=True)
        }
    for side, tokenizer in tokenizers.items():
        tokenizer.save(folder / tokenizer_file(side))
    return tokenizers


def _write_ids(
    cleaned: CleanedText, parts: Parts, tokenizers: dict[str, Tokenizer], folder: Path, workers: Workers
) -> dict[str, Any]:
    """Segment the training text into the files of ids and links; returns the facts about them."""
    saved = tuple(SavedTokenizer(folder / tokenizer_file(side), t.fingerprint()) for side, t in tokenizers.items())
    names = [f"train.{side}.ids" for side in tokenizers] + ["train.links"] * cleaned.aligned
    unknown, lacking = np.zeros((2, len(tokenizers)), dtype=np.int64)
    with ExitStack() as stack:
        files = [stack.enter_context(RaggedFile(folder / name)) for name in names]
        for found in workers.map(encode, ((span, own, saved) for span, own in cleaned.spans(parts))):
            for file, (values, lengths) in zip(files, found.columns, strict=True):
                file.add(values, lengths)
            unknown += found.unknown
            lacking += [np.count_nonzero(lengths == 0) for _, lengths in found.columns[: len(tokenizers)]]
    facts: dict[str, Any] = {
        "dtypes": {side: id_type(tokenizer).str for side, tokenizer in tokenizers.items()},
        "symbols": {side: file.total for side, file in zip(tokenizers, files, strict=False)},
        "unknown": {s: int(n) / max(f.total, 1) for s, f, n in zip(tokenizers, files, unknown, strict=False)},
        "lacking": dict(zip(tokenizers, lacking.tolist(), strict=True)),
    }
    return facts | ({"links": files[-1].total} if cleaned.aligned else {})


def _write_documents(table: npt.NDArray[Any], path: Path) -> None:
    """The number of each training row's document, without gaps, and its place there."""
    numbers = np.cumsum(np.diff(table["document"], prepend=table["document"][:1]) > 0)
    np.stack([numbers, table["place"]], axis=1).astype(DOCUMENT_TYPE).tofile(path)
