"""Glossaries that clients create on the server, for DeepL's API (`deepl`).

They are in memory, so they end with the server. A glossary belongs to the API key that created it. Sizes are limited,
because clients choose them.
"""

from __future__ import annotations

import csv
import io
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from rnnsearch.serve.limits import ServeError
from rnnsearch.text.terms import MAX_TERM_CHARACTERS, Glossary

QUOTA_EXCEEDED = 456  # DeepL's status
MAX_GLOSSARIES = 200  # of all keys
MAX_ENTRIES = 5000
MAX_ENTRIES_CHARACTERS = 5_000_000  # of all glossaries


@dataclass(frozen=True)
class StoredGlossary:
    """A glossary of a client."""

    id: str
    """Random name of the glossary in URLs."""
    owner: str
    """API key of the client, empty on a server without keys."""
    name: str
    """Name given by the client."""
    source: str
    """Code of the source language."""
    target: str
    """Code of the target language."""
    entries: dict[str, str]
    """Source terms and their translations."""
    terms: Glossary
    """The entries, prepared for translation."""
    creation_time: datetime

    @property
    def size(self) -> int:
        """Number of characters of all entries."""
        return sum(len(source) + len(target) for source, target in self.entries.items())

    def as_tsv(self) -> str:
        """Return the entries, one per line, with a tab between the terms."""
        return "\n".join(f"{source}\t{target}" for source, target in self.entries.items())


class Glossaries:
    """The glossaries of all clients."""

    def __init__(self) -> None:
        self._glossaries: dict[str, StoredGlossary] = {}

    def add(self, owner: str, name: str, source: str, target: str, entries: dict[str, str]) -> StoredGlossary:
        """Store a glossary.

        Raises:
            ServeError: With status 456 if there are too many glossaries, or too many terms in them.
        """
        stored = StoredGlossary(
            secrets.token_hex(16), owner, name, source, target, entries, Glossary(entries), datetime.now(UTC)
        )
        size = stored.size + sum(glossary.size for glossary in self._glossaries.values())
        if len(self._glossaries) >= MAX_GLOSSARIES or size > MAX_ENTRIES_CHARACTERS:
            raise ServeError(QUOTA_EXCEEDED, "the server has no space for further glossaries; delete others first")
        self._glossaries[stored.id] = stored
        return stored

    def get(self, owner: str, id: str) -> StoredGlossary:
        """Return a glossary of a client.

        Raises:
            ServeError: With status 404 if there is none with this id.
        """
        stored = self._glossaries.get(id)
        if stored is None or stored.owner != owner:
            raise ServeError(404, "there is no glossary with this id")
        return stored

    def list(self, owner: str) -> list[StoredGlossary]:
        """Return the glossaries of a client, oldest first."""
        return [stored for stored in self._glossaries.values() if stored.owner == owner]

    def remove(self, owner: str, id: str) -> None:
        """Delete a glossary of a client.

        Raises:
            ServeError: With status 404 if there is none with this id.
        """
        del self._glossaries[self.get(owner, id).id]


def parse_entries(entries: str, entries_format: str) -> dict[str, str]:
    """Return the source terms and their translations.

    Args:
        entries: One entry per line: a source term and a target term; further columns are ignored.
        entries_format: `tsv` or `csv`.

    Raises:
        ServeError: With status 400 for invalid, repeated or too many entries.
    """
    if entries_format == "csv":
        try:
            rows = list(csv.reader(io.StringIO(entries)))
        except csv.Error as error:
            raise ServeError(400, f"entries must be CSV; got {error}") from None
    else:
        rows = [line.split("\t") for line in entries.splitlines()]
    terms: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if not any(map(str.strip, row)):
            continue
        source, target = (term.strip() for term in (*row, "")[:2])
        if not (source and target):
            raise ServeError(400, f"entry {number} must have a source term and a target term")
        if max(len(source), len(target)) > MAX_TERM_CHARACTERS:
            raise ServeError(400, f"entry {number} must have at most {MAX_TERM_CHARACTERS} characters per term")
        if source in terms:
            raise ServeError(400, f"entry {number} must have a new source term; got one that is in the glossary")
        terms[source] = target
    if not terms:
        raise ServeError(400, "a glossary must have entries")
    if len(terms) > MAX_ENTRIES:
        raise ServeError(400, f"a glossary must have at most {MAX_ENTRIES:,} entries; got {len(terms):,}")
    return terms
