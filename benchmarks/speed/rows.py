"""Rows of the benchmark: each measured once, kept in a file, and not measured again while its settings stay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, busy_seconds, own_seconds, say


class Rows:
    """The finished rows of a scratch folder, a file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rows"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.all: dict[str, Row] = {}

    def get(self, name: str, settings: Mapping[str, Any], measure: Callable[[], Row]) -> Row:
        """The row as it is kept, or measured now and kept."""
        path = self.folder / f"{name}.json"
        key = json.loads(json.dumps(settings, default=str))
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["settings"] == key:
                say(f"{name}: kept from an earlier call")
                self.all[name] = kept["row"]
                return self.all[name]
        row = self._measure(name, measure)
        path.write_text(json.dumps({"settings": key, "row": row}, indent=1), encoding="utf-8")
        self.all[name] = row
        return row

    def _measure(self, name: str, measure: Callable[[], Row]) -> Row:
        """The row with its own time, and what share of a core others took meanwhile."""
        say(f"{name} ...")
        began, busy, own = time.monotonic(), busy_seconds(), own_seconds()
        row: Row = json.loads(json.dumps(measure()))
        seconds = time.monotonic() - began
        foreign = busy_seconds() - busy - (own_seconds() - own)
        row |= {"row_seconds": round(seconds, 1), "foreign_cpu": round(max(0.0, foreign) / max(seconds, 1e-9), 3)}
        say(f"{name}: {seconds:.0f} s, {row['foreign_cpu']:.0%} of a core taken by others")
        return row
