"""Reading the Clear-Bible alignments: Greek or Hebrew verses with English, linked by hand word by word.

Text is one TSV row a token, links are JSON records of token ids. An id is a canon letter (source only),
then book (2 digits), chapter (3), verse (3), word (3) and, in Hebrew, the morpheme (1). English rows
carry `source_verse`: the verse of the source text that they translate, as the versions count verses
differently. Rows with `exclude` are punctuation, which the source texts lack; it is left out. A few
verses are linked as if their English had other tokens (an older edition): it shows by links to
punctuation or past the verse's end, and such verses are left out whole, as are verses with a link to
another verse.
"""

import json
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Links

_VERSE = 8
_WORD = 11


class Pair(NamedTuple):
    """Two texts and, where there are any, the links between their words by position."""

    source: str
    target: str
    links: Links | None = None


@dataclass(frozen=True)
class BibleFiles:
    """The members of the archive that make one corpus."""

    source: str
    target: str
    alignment: str


def read_verses(wheel: Path, files: BibleFiles) -> Iterator[Pair]:
    """The verses with sound links, in the order of the source (see above); spaces alone separate words."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            source = _source_tokens(archive.read(files.source).decode("utf-8"))
            target = _target_tokens(archive.read(files.target).decode("utf-8"))
            records = json.loads(archive.read(files.alignment))["records"]
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{wheel}: is not the expected archive of Bible alignments: {error}") from None
    links, broken = _links(records, _places(source), _places(target))
    for verse in sorted(links.keys() - broken):
        sure = frozenset(links[verse])
        yield Pair(_text(source[verse]), _text(target[verse]), Links(sure, sure))


Tokens = dict[str, list[tuple[str, str]]]
"""(id, text) of each token of each verse."""


def _text(tokens: list[tuple[str, str]]) -> str:
    return unicodedata.normalize("NFC", " ".join(text for _, text in tokens))


def _rows(table: str) -> Iterator[dict[str, str]]:
    lines = table.rstrip("\n").split("\n")
    header = lines[0].rstrip("\r").split("\t")
    for line in lines[1:]:
        yield dict(zip(header, line.rstrip("\r").split("\t"), strict=False))


def _source_tokens(table: str) -> Tokens:
    verses: Tokens = defaultdict(list)
    for row in _rows(table):
        identifier = row["id"].lstrip("no")
        verses[identifier[:_VERSE]].append((identifier, row["text"]))
    for tokens in verses.values():
        tokens.sort()  # a few Hebrew rows stand in the order of the syntax
    return verses


def _target_tokens(table: str) -> Tokens:
    verses: Tokens = defaultdict(list)
    for row in _rows(table):
        if not row["exclude"]:
            verses[row["source_verse"]].append((row["id"][:_WORD], row["text"]))
    return verses


def _places(verses: Tokens) -> dict[str, tuple[str, int]]:
    """The verse and position of each token."""
    return {
        identifier: (verse, position)
        for verse, tokens in verses.items()
        for position, (identifier, _) in enumerate(tokens)
    }


Places = dict[str, tuple[str, int]]


def _links(
    records: list[dict[str, list[str]]], source: Places, target: Places
) -> tuple[dict[str, set[tuple[int, int]]], set[str]]:
    """The links of each verse, and the verses with a link to another verse or to an unknown token."""
    links: dict[str, set[tuple[int, int]]] = defaultdict(set)
    broken: set[str] = set()
    for record in records:
        ids = [identifier.lstrip("no") for identifier in record["source"]]
        words = [identifier[:_WORD] for identifier in record["target"]]
        known = [source[i] for i in ids if i in source] + [target[w] for w in words if w in target]
        verses = {verse for verse, _ in known}
        if len(verses) > 1 or len(known) < len(ids) + len(words):
            broken |= verses
            continue
        for verse in verses:
            links[verse] |= {(source[i][1], target[w][1]) for i in ids for w in words}
    return links, broken
