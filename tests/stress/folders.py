"""Damaged model folders: each must load or be rejected with an error message.

`python -m tests.stress.folders --count 100000` damages that many copies of two small models: bytes are changed, files
truncated, exchanged, emptied, removed or replaced by folders, pipes or links, also to devices, weights become infinite,
and values of the config and options of tokenizers are replaced by unusual ones.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

os.environ.setdefault("RNNSEARCH_NATIVE", "0")  # do not build or time native code

import tomli_w
import torch

from rnnsearch.errors import RnnsearchError
from rnnsearch.systems.card import load_origin
from rnnsearch.translator.loading import load
from rnnsearch.utils.weights import read_weights, save_weights
from tests.stress import mutants
from tests.stress.engine_files import corrupt_value
from tests.stress.run_files import garble, mutate
from tests.untrained import BAHDANAU, RNNENCDEC, write_model

MAX_LENGTH = 20  # tokens of a translation


def damage(folder: Path, rng: random.Random) -> None:
    """Damage a model folder in one way."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    file = rng.choice(files)
    damage_type = rng.randrange(11)
    if damage_type <= 1:
        file.write_bytes(garble(file.read_bytes(), rng))
    elif damage_type == 2:
        file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size + 1)])
    elif damage_type == 3:
        shutil.copy(rng.choice(files), folder / "other")
        (folder / "other").replace(file)
    elif damage_type == 4:
        file.unlink()
        if rng.random() < 0.5:
            file.mkdir()
    elif damage_type == 5:
        file.unlink()
        file.symlink_to(
            rng.choice([file, Path("/dev/null"), Path("/dev/zero"), Path("/etc/passwd"), Path("/nowhere"), folder])
        )
    elif damage_type == 6:
        file.unlink()
        os.mkfifo(file)
    elif damage_type == 7:
        tensors = read_weights(folder / "model.safetensors")
        tensor = tensors[rng.choice(sorted(tensors))].view(-1)
        tensor[rng.randrange(len(tensor))] = rng.choice([torch.inf, -torch.inf, torch.nan, 3e38, -3e38])
        save_weights(folder / "model.safetensors", tensors)
    elif damage_type == 8:
        tokenizer = rng.choice(sorted(folder.glob("tokenizers/*.json")))
        content = json.loads(tokenizer.read_text(encoding="utf-8"))
        key = rng.choice(sorted(content.keys() - {"model"}))
        tokenizer.write_text(json.dumps(content | {key: corrupt_value(content[key], rng)}), encoding="utf-8")
    else:
        config = folder / "config.toml"
        try:
            config.write_text(tomli_w.dumps(mutate(tomllib.loads(config.read_text()), rng)))
        except (TypeError, ValueError, RecursionError, UnicodeError):  # not representable in TOML
            config.write_bytes(b"")


def loads(folder: Path) -> bool:
    """Return True if the model loads and translates, False if it is rejected. Any other exception is a failure."""
    try:
        translator = load(folder)
        # Changed limits of the length allow a million steps.
        translator.translate("the dog sees the cat.", translator.options(max_length=MAX_LENGTH))
        load_origin(folder)
    except RnnsearchError as error:
        if not str(error).strip():
            raise AssertionError("the error has no message") from error
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Damage many folders and return the exit status."""
    options = mutants.parse_options(__doc__, 100_000, arguments)
    with tempfile.TemporaryDirectory() as temporary:
        intact_folders = [
            write_model(Path(temporary) / "bpe", BAHDANAU, "bpe"),
            write_model(Path(temporary) / "words", RNNENCDEC, "words", ("de", "en")),
        ]
        for intact in intact_folders:
            (intact / "training.json").write_text('{"data": {"sha256": "0"}, "updates": 1}')
        copy = Path(temporary) / "copy"

        def accepts(rng: random.Random) -> bool:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(rng.choice(intact_folders), copy, symlinks=True)
            damage(copy, rng)
            return loads(copy)

        return mutants.run(options, "folders", accepts)


if __name__ == "__main__":
    sys.exit(main())
