"""What tells files, and folders of files, from others."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from rnnsearch.files import sha256_of

PASSED_OVER = ("checkpoints", "data", "data.partial")
"""Folders in a model folder that only training and preparation read."""
READ = (".toml", ".safetensors", ".json", ".tsv")
"""What translation may read of a model folder; a run's log is not of it."""


def digest(path: Path) -> str:
    """32 hexadecimal digits of what a file holds; of a folder, of what a model is read from there."""
    if not path.is_dir():
        return sha256_of(path)[:32]
    every = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix())
    held = [file for file in every if file.suffix in READ and file.is_file() and not file.name.startswith(".")]
    names = {file.relative_to(path).as_posix(): file for file in held}
    parts = [f"{name} {digest(file)}" for name, file in names.items() if name.split("/")[0] not in PASSED_OVER]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]
