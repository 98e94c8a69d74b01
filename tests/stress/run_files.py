"""Mutated run files: each must be accepted or rejected with a ConfigError.

`python -m tests.stress.run_files --count 1000000` mutates the presets that many times: it replaces values by unusual
ones or changes bytes of the text. `--seed` selects another sequence; failures are printed with their number.
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
from rnnsearch.config.rules import check_model
from rnnsearch.errors import ConfigError
from tests.stress import mutants

UNUSUAL_VALUES: list[Any] = [
    *(0, -1, 1, 2, 3, 2**24, 2**31, 2**63 - 1, -(2**63), 10**30, 0.0, -0.5, 1e-300, 1e300, float("inf"), float("nan")),
    *(True, False, "", " ", "none", "unset", "a\0b", "\udcff", "ä" * 100, "x" * 10_000, "../..", "/etc/shadow", "type"),
    *([], [[]], [1, "a"], [{}], {}, {"type": ""}, {"type": "gru", "size": 3}, {"": {"": ""}}),
    datetime(2026, 1, 1, tzinfo=UTC),
]
DATA = {"source": "en", "target": "de", "train": ["a|b"]}


def entries(table: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """List every key of a nested table, with the table that contains it."""
    keys = []
    for key, value in table.items():
        keys.append((table, key))
        if isinstance(value, dict):
            keys += entries(value)
    return keys


def mutate(table: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a copy of the table with some keys removed, renamed, moved or set to other values."""
    mutant = copy.deepcopy(table)
    for _ in range(rng.randint(1, 4)):
        known = entries(mutant)
        if not known:
            return mutant
        parent, key = rng.choice(known)
        mutation = rng.randrange(5)
        if mutation == 0:
            del parent[key]
        elif mutation == 1:
            parent[key] = copy.deepcopy(rng.choice(UNUSUAL_VALUES))
        elif mutation == 2:
            parent[rng.choice([key + "x", "", "type", rng.choice(known)[1]])] = parent.pop(key)
        elif mutation == 3:
            other_parent, other_key = rng.choice(known)
            parent[key] = copy.deepcopy(other_parent[other_key])
        else:
            rng.choice(known)[0][rng.choice(["size", "layers", "type", "cell", "beam", "preset"])] = copy.deepcopy(
                rng.choice(UNUSUAL_VALUES)
            )
    return mutant


def garble(text: bytes, rng: random.Random) -> bytes:
    """Return the text with some bytes replaced, deleted, repeated or inserted."""
    garbled = bytearray(text)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(garbled) + 1)
        mutation = rng.randrange(4)
        if mutation == 0:
            garbled[at : at + 1] = bytes([rng.randrange(256)])
        elif mutation == 1:
            del garbled[at : at + rng.randint(1, 30)]
        elif mutation == 2:
            garbled[at:at] = garbled[at : at + rng.randint(1, 200)] * rng.randint(1, 20)
        else:
            garbled[at:at] = rng.choice([b"[", b"]", b'"', b"=", b"\n[a]\n", b"9" * 400, b"\xff", b"{", b"'''", b"\0"])
    return bytes(garbled)


def accepts(rng: random.Random, tables: list[dict[str, Any]], path: Path) -> bool:
    """Read one mutated run file; return True if its model can be built.

    Any exception other than ConfigError is a failure of the reader.
    """
    table = rng.choice(tables)
    try:
        if rng.random() < 0.7:
            config = resolve(mutate(table, rng))
        else:
            path.write_bytes(garble(tomli_w.dumps(table).encode(), rng))
            config = load(path)
    except ConfigError as error:
        if not error.problems or any("\n" in fault for fault in error.problems):
            raise AssertionError(f"not one-line messages: {error.problems}") from error
        return False
    return not check_model(config)


def main(arguments: list[str] | None = None) -> int:
    """Try many run files and return the exit status."""
    options = mutants.parse_options(__doc__, 1_000_000, arguments)
    tables = [{**preset(name), "data": DATA} for name in preset_names()]
    with tempfile.TemporaryDirectory() as folder:
        return mutants.run(options, "run files", lambda rng: accepts(rng, tables, Path(folder) / "run.toml"))


if __name__ == "__main__":
    sys.exit(main())
