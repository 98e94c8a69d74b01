"""The rivals' tokens as a corpus for rnnsearch, with the same segmentation; and synthetic tokens.

The rivals read BPE units separated by spaces. Each unit is written as a word such as `w17` (the 17th most frequent unit
of its language), which rnnsearch's word segmentation leaves intact, so that training, `translate` and everything else
run as usual.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rnnsearch.text.vocabulary import SPACE_MARKER

UNSEEN = "unseen"
"""A word for units that are not in the vocabulary. It becomes the unknown token."""


@dataclass(frozen=True)
class Tokens:
    """A folder with `train`, `val` and one test set as `PART.bpe.LANG`, and `vocab.LANG.txt`, most frequent unit first.

    `raw` is the folder with the same sets as text, `PART.LANG`; `tools` is the folder of the command `sacremoses`, or
    None if no detokenization is needed.
    """

    folder: Path
    raw: Path
    tools: Path | None = None
    source: str = "en"
    target: str = "de"
    test: str = "test_2016_flickr"
    marked: bool = False
    """True if units after a space are marked, as in rnnsearch; False if units continued by the next one are marked."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        fields = asdict(self)
        return fields | {name: fields[name] and str(fields[name]) for name in ("folder", "raw", "tools")}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Tokens:
        """Create tokens from the result of `as_json`."""
        paths = {name: fields[name] and Path(fields[name]) for name in ("folder", "raw", "tools")}
        return cls(**{**fields, **paths})

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source, self.target

    def units(self, language: str) -> list[str]:
        """Read the vocabulary of a language."""
        return (self.folder / f"vocab.{language}.txt").read_text(encoding="utf-8").splitlines()

    def lines(self, part: str, language: str) -> list[str]:
        """Read the sentences of a part, with units separated by spaces."""
        return (self.folder / f"{part}.bpe.{language}").read_text(encoding="utf-8").splitlines()

    def references(self) -> list[str]:
        """Read the target side of the test set as text."""
        return (self.raw / f"{self.test}.{self.target}").read_text(encoding="utf-8").splitlines()

    def mean_length(self) -> float:
        """Return the mean number of target units per training sentence, without the end token."""
        lengths = [len(line.split()) for line in self.lines("train", self.target)]
        return sum(lengths) / len(lengths)

    def write(self, folder: Path) -> None:
        """Write all parts with units as words: `train.en` and so on."""
        folder.mkdir(parents=True, exist_ok=True)
        for language in self.languages:
            words = {unit: f"w{number}" for number, unit in enumerate(self.units(language))}
            for part, name in (("train", "train"), ("val", "dev"), (self.test, "test")):
                lines = self.lines(part, language)
                text = (" ".join(words.get(unit, UNSEEN) for unit in line.split()) for line in lines)
                write_lines(folder / f"{name}.{language}", text)

    def units_of(self, lines: Iterable[str]) -> list[str]:
        """Convert target lines in the words of `write` back to units."""
        units = self.units(self.target)
        return [" ".join(units[int(w[1:])] if w[1:].isdigit() else w for w in line.split()) for line in lines]

    def bleu(self, lines: Sequence[str]) -> float:
        """Return the BLEU of translations of the test set, which are lines in the words of `write`.

        As in the rivals' scripts, units are joined and detokenized by sacremoses, and scored by sacreBLEU.
        """
        from rnnsearch.metrics.scores import corpus_bleu

        joined = self.units_of(lines)
        if self.marked:
            joined = ["".join(line.split()).replace(SPACE_MARKER, " ").strip() for line in joined]
        else:
            joined = [re.sub(r"(@@ )|(@@ ?$)", "", line) for line in joined]
        if self.tools is not None:
            command = [str(self.tools / "sacremoses"), "-l", self.target, "-j", "1", "detokenize"]
            text = "".join(f"{line}\n" for line in joined)
            completed = subprocess.run(command, input=text, capture_output=True, check=True, encoding="utf-8")
            joined = completed.stdout.splitlines()
        return corpus_bleu(joined, self.references())


def make_tokens(raw: Path, folder: Path) -> Tokens:
    """Segment a text without the rivals' scripts, with 8,000 joint BPE tokens."""
    from rnnsearch.text.subwords import train_bpe

    tokens = Tokens(folder, raw, marked=True)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        (part, language): (raw / f"{part}.{language}").read_text(encoding="utf-8").splitlines()
        for part in ("train", "val", tokens.test)
        for language in tokens.languages
    }
    tokenizer = train_bpe([line for language in tokens.languages for line in texts["train", language]], 8_000, 2)
    for (part, language), lines in texts.items():
        units = [segmented.tokens for segmented in tokenizer.segment(lines)]
        write_lines(folder / f"{part}.bpe.{language}", [" ".join(line) for line in units])
        if part == "train":
            counts = Counter(unit for line in units for unit in line)
            write_lines(folder / f"vocab.{language}.txt", sorted(counts, key=lambda unit: (-counts[unit], unit)))
    return tokens


TOY_PARTS = {"train": 160, "val": 16, "test": 16}


def toy(folder: Path) -> Tokens:
    """Write the tokens of a toy language, for a run that takes seconds and says nothing about speed."""
    return synthetic(folder, [f"{letter}{number}" for letter in "abcd" for number in range(8)], (2, 7))


def synthetic(folder: Path, words: list[str], length: tuple[int, int], pairs: int = TOY_PARTS["train"]) -> Tokens:
    """Write sentences of random words in the layout of the rivals' `prep.sh`; each target is its source reversed.

    Args:
        folder: Where to write them.
        words: The vocabulary of both languages.
        length: Minimum and maximum sentence length.
        pairs: Number of training pairs.
    """
    rng = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in {**TOY_PARTS, "train": pairs}.items():
        lines = [rng.choices(words, k=rng.randint(*length)) for _ in range(count)]
        for language, sentences in (("en", lines), ("de", [line[::-1] for line in lines])):
            for name in (f"{part}.bpe.{language}", f"{part}.{language}"):
                write_lines(folder / name, [" ".join(sentence) for sentence in sentences])
    for language in ("en", "de"):
        write_lines(folder / f"vocab.{language}.txt", words)
    return Tokens(folder, folder, None, test="test")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
