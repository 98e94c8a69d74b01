"""Made-up tokens: of a little language, for a run that takes seconds and says nothing about speed; and random ones."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.speed.tokens import Tokens

PARTS = {"train": 160, "val": 16, "test": 16}


def tokens(folder: Path, seed: int = 1) -> Tokens:
    """Sentences whose translation is the same words backwards, written as the rivals' `prep.sh` writes its own."""
    draw = random.Random(seed)
    words = [f"{letter}{number}" for letter in "abcd" for number in range(8)]
    sides = {part: [draw.choices(words, k=draw.randint(2, 7)) for _ in range(count)] for part, count in PARTS.items()}
    return _written(folder, words, sides)


def random_tokens(folder: Path, words: int, pairs: int, length: int, seed: int = 1) -> Tokens:
    """Random sentences of `length` words, a fifth more or less, that use each word alike."""
    draw = random.Random(seed)
    names = [f"w{number}" for number in range(words)]
    sides = {
        part: [draw.choices(names, k=draw.randint(4 * length // 5, 6 * length // 5)) for _ in range(count)]
        for part, count in {**PARTS, "train": pairs}.items()
    }
    return _written(folder, names, sides)


def _written(folder: Path, words: list[str], sides: dict[str, list[list[str]]]) -> Tokens:
    """Each target is its source backwards."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, lines in sides.items():
        for language, side in (("en", lines), ("de", [line[::-1] for line in lines])):
            text = "".join(f"{' '.join(line)}\n" for line in side)
            for name in (f"{part}.bpe.{language}", f"{part}.{language}"):
                (folder / name).write_text(text, encoding="utf-8")
    for language in ("en", "de"):
        (folder / f"vocab.{language}.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return Tokens(folder, folder, None, test="test")
