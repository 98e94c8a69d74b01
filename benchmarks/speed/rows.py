"""Finished rows in one file each, and the version of the code that they belong to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness import Row
from benchmarks.speed.child import ROOT


class StoredRows:
    """Finished rows, stored in one file each in the scratch folder with the settings that they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rows"
        self.folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, settings: object) -> Row | None:
        """Return a row, or None if there is none with these settings."""
        path = self.folder / f"{name}.json"
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return stored["row"] if stored.get("settings") == _as_json(settings) else None

    def put(self, name: str, settings: object, row: Row) -> None:
        """Store a row."""
        text = json.dumps({"settings": _as_json(settings), "row": row}, indent=1)
        temporary = self.folder / f"{name}.json.part"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.folder / f"{name}.json")


def _as_json(settings: object) -> object:
    return json.loads(json.dumps(settings, default=_to_json))


def _to_json(value: object) -> object:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


@cache
def version() -> str:
    """Return a digest of the package's source. Rows of other code are measured again."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".cpp", ".h", ".toml"):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
