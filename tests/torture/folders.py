"""Damaged model folders: each is loaded, or refused by one sentence; nothing else comes of it.

`python -m tests.torture.folders --count 100000` damages so many copies of two small models: bytes changed, files cut
short, exchanged, emptied, removed, turned into folders or links, the config's values changed for odd ones.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

os.environ.setdefault("RNNSEARCH_NATIVE", "0")  # nothing is to be built or timed

import tomli_w

from rnnsearch.errors import RnnsearchError
from rnnsearch.loading import load
from rnnsearch.systems.card import origin
from tests.torture import mutants
from tests.torture.run_files import garbled, mutated
from tests.untrained import BAHDANAU, RNNENCDEC, write_model


def damaged(folder: Path, draw: random.Random) -> None:
    """Do some harm to a model folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = draw.choice(files)
    kind = draw.randrange(8)
    if kind <= 1:
        file.write_bytes(garbled(file.read_bytes(), draw))
    elif kind == 2:
        file.write_bytes(file.read_bytes()[: draw.randrange(file.stat().st_size + 1)])
    elif kind == 3:
        shutil.copy(draw.choice(files), folder / "other")
        (folder / "other").replace(file)
    elif kind == 4:
        file.unlink()
        if draw.random() < 0.5:
            file.mkdir()
    elif kind == 5:
        file.unlink()
        file.symlink_to(draw.choice([file, Path("/dev/null"), Path("/nowhere"), folder]))
    else:
        config = folder / "config.toml"
        try:
            config.write_text(tomli_w.dumps(mutated(tomllib.loads(config.read_text()), draw)))
        except (TypeError, ValueError, RecursionError, UnicodeError):  # what TOML cannot hold
            config.write_bytes(b"")


def loads(folder: Path) -> bool:
    """Whether it can be used. Errors: whatever is wrong with our reading."""
    try:
        translator = load(folder)
        translator.translate("the dog sees the cat.")
        origin(folder)
    except RnnsearchError as error:
        if not str(error).strip():
            raise AssertionError("it must say what is wrong") from error
        return False
    return True


def main(given: list[str] | None = None) -> int:
    """Damage many; returns the exit status."""
    chosen = mutants.options(__doc__, 100_000, given)
    with tempfile.TemporaryDirectory() as place:
        wholes = [
            write_model(Path(place) / "bpe", BAHDANAU, "bpe"),
            write_model(Path(place) / "words", RNNENCDEC, "words", ("de", "en")),
        ]
        for whole in wholes:
            (whole / "training.json").write_text('{"data": {"sha256": "0"}, "updates": 1}')
        copy = Path(place) / "copy"

        def fits(draw: random.Random) -> bool:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(draw.choice(wholes), copy, symlinks=True)
            damaged(copy, draw)
            return loads(copy)

        return mutants.run(chosen, "folders", fits)


if __name__ == "__main__":
    sys.exit(main())
