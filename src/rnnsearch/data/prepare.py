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

from rnnsearch.config import RunConfig, TextConfig
from rnnsearch.data import catalog
from rnnsearch.data.cleaned import CleanedText, KeyTable, Mask
from rnnsearch.data.cleaning import DUPLICATE, EXAMPLES, Tally, first_of_each
from rnnsearch.data.corpus import Pair, check_files, files_of, read_pairs
from rnnsearch.data.download import Progress
from rnnsearch.data.partitions import PARTS, Keys, Part, split_keys
from rnnsearch.data.passes import Parts, Row, SavedTokenizer, Sides, count, encode, id_type
from rnnsearch.data.prepared import FACTS, FORMAT, REPORT, SIDES, Prepared, settings_of
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


def _write(config: RunConfig, origin: _Origin, folder: Path, workers: Workers) -> dict[str, Any]:
    """Write all files but prepared.json, and return what it is to say."""
    given = {
        part: _HeldOut.read(part, spec, origin.base, origin.alignments.get(part)) for part, spec in origin.given.items()
    }
    sizes = [0 if part in given else size for part, size in _split_sizes(config).items()]
    with CleanedText(folder, aligned=origin.train_alignments is not None) as cleaned:
        tally = cleaned.read(config, origin.train, origin.base, origin.train_alignments, any(sizes), workers)
        keys = cleaned.keys()
        kept = _without_duplicates(config, cleaned, keys, tally)
        if not kept.any():
            raise DataError(f"no sentence pair is left for training in {origin.facts['corpus']}: {tally.summary()}")
        parts = _parts(keys, kept, sizes)
        counted = _count(cleaned, parts, list(given.values()), workers)
        pairs = int((parts == TRAIN).sum())
        if not pairs:
            raise DataError("no training pair is left beside dev and test (lower data.dev_size and data.test_size)")
        tokenizers = _tokenizers(config.text, counted.stretches, folder)
        write_counts(folder / COUNTS, count_words_in(counted.stretches[1]))
        facts = _write_ids(cleaned, parts, tokenizers, folder, workers)
    report = json.dumps(tally.report(), ensure_ascii=False, indent=1)
    (folder / REPORT).write_text(f"{report}\n", encoding="utf-8")
    suffixes = (config.data.source, config.data.target, "align")
    held = {part: held.rows for part, held in given.items()} | counted.held
    for part, rows in held.items():
        _write_texts(rows, [folder / f"{part}.{suffix}" for suffix in suffixes])
    return {
        "format": FORMAT,
        "source": config.data.source,
        "target": config.data.target,
        **origin.facts,
        "sha256": counted.digest,
        "aligned": cleaned.aligned,
        "pairs": pairs,
        "dev": len(held.get("dev", [])),
        "test": len(held.get("test", [])),
        **facts,
        "vocabulary": {side: len(t) for side, t in zip(SIDES, tokenizers, strict=True)},
        "cleaning": tally.report(examples=False),
        "left_out_by_split": int((kept & (parts == PARTS.index(None))).sum()),
        "warnings": [warning for held_out in given.values() for warning in held_out.warnings()],
        "settings": settings_of(config),
        "inputs": _inputs(config),
    }


def _without_duplicates(config: RunConfig, cleaned: CleanedText, keys: KeyTable, tally: Tally) -> Mask:
    """Which cleaned pairs are the first of their like; the others are counted."""
    if not config.data.cleaning.drop_duplicates:
        return np.ones(len(keys), dtype=bool)
    kept = first_of_each(keys["pair"])
    repeated = np.flatnonzero(~kept)
    for place in repeated[:EXAMPLES].tolist():
        tally.reject(DUPLICATE, cleaned.pair(place, int(keys["line"][place])))
    if len(repeated) > EXAMPLES:
        tally.reject_more(DUPLICATE, len(repeated) - EXAMPLES)
    return kept


def _parts(keys: KeyTable, kept: Mask, sizes: Sequence[int]) -> Parts:
    """The part of each cleaned pair; duplicates have none."""
    parts = np.where(kept, TRAIN, PARTS.index(None)).astype(np.uint8)
    if any(sizes):
        own = Keys(*(keys[name][kept].astype(np.uint64) for name in Keys._fields))
        parts[kept] = split_keys(own, sizes[0], sizes[1]).parts(own)
    return parts


@dataclass
class _Counted:
    """What the training text holds, and the pairs that the split holds out."""

    stretches: list[Counter[str]]
    held: dict[Part, list[Row]]
    digest: str


def _count(cleaned: CleanedText, parts: Parts, given: list[_HeldOut], workers: Workers) -> _Counted:
    digest, stretches, held = sha256(), [Counter[str](), Counter[str]()], dict[Part, list[Row]]()
    sets = [held_out.sentences() for held_out in given]
    for found in workers.map(count, ((span, own, sets) for span, own in cleaned.spans(parts))):
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
    names = [part.strip() for spec in specs for part in spec.split("|")]
    return {name: (config.base / name).stat().st_size for name in names}


def _given_row(pair: Pair) -> Row:
    return (pair.source, pair.target, *([] if pair.links is None else [format_pharaoh(pair.links)]))


@dataclass
class _HeldOut:
    """Dev or test text that was given: used as it is, but for pairs with an empty side."""

    part: Part
    rows: list[Row]
    dropped: int
    shared: int = 0
    """Training pairs that have their source or target sentence in common with it."""

    @classmethod
    def read(cls, part: Part, spec: str, base: Path, alignments: str | None) -> _HeldOut:
        pairs = list(read_pairs([spec], base, None if alignments is None else [alignments]))
        for pair in pairs:
            if pair.fault:
                raise DataError(f"{pair.where}: every {part} pair must be usable; got {pair.fault}")
        rows = [_given_row(p) for p in pairs if p.source.strip() and p.target.strip()]
        if not rows:
            raise DataError(f"{spec}: must hold {part} sentence pairs; got none")
        return cls(part, rows, len(pairs) - len(rows))

    def sentences(self) -> Sides:
        """Its source and its target sentences."""
        return frozenset(row[0].strip() for row in self.rows), frozenset(row[1].strip() for row in self.rows)

    def warnings(self) -> list[str]:
        warnings = []
        if self.dropped:
            warnings.append(f"{self.dropped} {self.part} pairs with an empty side were left out")
        if self.shared:
            trouble = f"so scores on {self.part} are too good"
            warnings.append(f"{self.shared} training pairs share a sentence with {self.part}, {trouble}")
        return warnings


def _tokenizers(config: TextConfig, stretches: list[Counter[str]], folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """The two sides' tokenizers, saved."""
    make = {"words": words_from_counts, "bpe": bpe_from_counts}[config.type]
    if config.joint:
        source = target = make(stretches[0] + stretches[1], config.vocabulary, config.min_count)
    else:
        sizes = (config.vocabulary, config.target_vocabulary or config.vocabulary)
        source, target = (make(side, size, config.min_count) for side, size in zip(stretches, sizes, strict=True))
    for side, tokenizer in zip(SIDES, (source, target), strict=True):
        tokenizer.save(folder / f"{side}.json")
    return source, target


def _write_ids(
    cleaned: CleanedText, parts: Parts, tokenizers: tuple[Tokenizer, Tokenizer], folder: Path, workers: Workers
) -> dict[str, Any]:
    """Segment the training text into the files of ids and links; returns the facts about them."""
    saved = tuple(
        SavedTokenizer(folder / f"{side}.json", tokenizer.fingerprint())
        for side, tokenizer in zip(SIDES, tokenizers, strict=True)
    )
    columns = [f"train.{side}.ids" for side in SIDES] + (["train.links"] if cleaned.aligned else [])
    ends = [name.replace(".ids", "") + ".ends" for name in columns]
    totals, unknown = np.zeros(len(columns), dtype=np.uint64), np.zeros(2, dtype=np.int64)
    with ExitStack() as stack:
        flat, places = ([stack.enter_context((folder / n).open("wb")) for n in names] for names in (columns, ends))
        for found in workers.map(encode, ((span, own, saved) for span, own in cleaned.spans(parts))):
            texts, lengths = [*found.ids, found.links], [*found.lengths, found.link_lengths]
            for number, (file, place) in enumerate(zip(flat, places, strict=True)):
                file.write(texts[number])
                up_to = np.cumsum(lengths[number], dtype=np.uint64) + totals[number]
                up_to.astype("<u8").tofile(place)
                totals[number] = up_to[-1] if len(up_to) else totals[number]
            unknown += found.unknown
    facts: dict[str, Any] = {"dtypes": {}, "symbols": {}, "unknown": {}}
    for number, (side, tokenizer) in enumerate(zip(SIDES, tokenizers, strict=True)):
        facts["dtypes"][side] = id_type(tokenizer).str
        facts["symbols"][side] = int(totals[number])
        facts["unknown"][side] = int(unknown[number]) / max(int(totals[number]), 1)
    return facts | ({"links": int(totals[2])} if cleaned.aligned else {})


def _write_texts(rows: Sequence[Row], paths: Sequence[Path]) -> None:
    """Source, target and, where there are any, links."""
    for column, path in zip(zip(*rows, strict=True), paths, strict=False):
        path.write_text("".join(f"{line}\n" for line in column), encoding="utf-8", newline="\n")
