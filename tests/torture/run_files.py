"""Mutated run files: each is read, or refused by a ConfigError; nothing else comes of it.

`python -m tests.torture.run_files --count 1000000` tries so many, of the presets, their values changed for odd ones,
and their text for other bytes. `--seed` begins another sequence; what fails is printed with its number.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from rnnsearch.config import load, preset, preset_names, resolve
from rnnsearch.errors import ConfigError
from rnnsearch.systems.checks import check_model
from tests.torture import mutants

ODD: list[Any] = [
    *(0, -1, 1, 2, 3, 2**24, 2**31, 2**63 - 1, -(2**63), 10**30, 0.0, -0.5, 1e-300, 1e300, float("inf"), float("nan")),
    *(True, False, "", " ", "none", "unset", "a\0b", "\udcff", "ä" * 100, "x" * 10_000, "../..", "/etc/shadow", "type"),
    *([], [[]], [1, "a"], [{}], {}, {"type": ""}, {"type": "gru", "size": 3}, {"": {"": ""}}),
    datetime(2026, 1, 1, tzinfo=UTC),
]
DATA = {"source": "en", "target": "de", "train": ["a|b"]}


def places(table: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Every key, with the table that it is in."""
    found = []
    for key, value in table.items():
        found.append((table, key))
        if isinstance(value, dict):
            found += places(value)
    return found


def mutated(table: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Some keys of a table removed, renamed, moved or given other values."""
    made = copy.deepcopy(table)
    for _ in range(draw.randint(1, 4)):
        known = places(made)
        if not known:
            return made
        where, key = draw.choice(known)
        kind = draw.randrange(5)
        if kind == 0:
            del where[key]
        elif kind == 1:
            where[key] = copy.deepcopy(draw.choice(ODD))
        elif kind == 2:
            where[draw.choice([key + "x", "", "type", draw.choice(known)[1]])] = where.pop(key)
        elif kind == 3:
            there, name = draw.choice(known)
            where[key] = copy.deepcopy(there[name])
        else:
            draw.choice(known)[0][draw.choice(["size", "layers", "type", "cell", "beam", "preset"])] = copy.deepcopy(
                draw.choice(ODD)
            )
    return made


def garbled(text: bytes, draw: random.Random) -> bytes:
    """Text with some bytes replaced, left out, repeated or put in."""
    made = bytearray(text)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(made) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            made[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            del made[at : at + draw.randint(1, 30)]
        elif kind == 2:
            made[at:at] = made[at : at + draw.randint(1, 200)] * draw.randint(1, 20)
        else:
            made[at:at] = draw.choice([b"[", b"]", b'"', b"=", b"\n[a]\n", b"9" * 400, b"\xff", b"{", b"'''", b"\0"])
    return bytes(made)


def read(draw: random.Random, tables: list[dict[str, Any]], path: Path) -> bool:
    """Try one; whether it could be used. Errors: whatever is wrong with our reading."""
    table = draw.choice(tables)
    try:
        if draw.random() < 0.7:
            config = resolve(mutated(table, draw))
        else:
            path.write_bytes(garbled(tomli_w.dumps(table).encode(), draw))
            config = load(path)
    except ConfigError as error:
        if not error.faults or any("\n" in fault for fault in error.faults):
            raise AssertionError(f"not sentences: {error.faults}") from error
        return False
    return not check_model(config)


def main(given: list[str] | None = None) -> int:
    """Try many; returns the exit status."""
    chosen = mutants.options(__doc__, 1_000_000, given)
    tables = [{**preset(name), "data": DATA} for name in preset_names()]
    with tempfile.TemporaryDirectory() as folder:
        return mutants.run(chosen, "run files", lambda draw: read(draw, tables, Path(folder) / "run.toml"))


if __name__ == "__main__":
    sys.exit(main())
