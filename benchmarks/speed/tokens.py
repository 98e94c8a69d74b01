"""The rivals' tokens as a corpus of rnnsearch, symbol for symbol; and made-up ones.

The rivals read BPE units that are cut at spaces. Written as `w17` (the 17th most frequent unit of its language), each
is one word to rnnsearch's word segmentation, so that training, `translate` and the rest run as for any user.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rnnsearch.text.vocabulary import MARKER

UNSEEN = "unseen"
"""A unit without a place in the vocabulary; the segmentation knows no such word either."""


@dataclass(frozen=True)
class Tokens:
    """A folder with `train`, `val` and one test set as `PART.bpe.LANG`, and `vocab.LANG.txt`, most frequent unit first.

    `raw`: the folder of the same sets as plain text, `PART.LANG`. `tools`: where sacremoses is, None without.
    """

    folder: Path
    raw: Path
    tools: Path | None = None
    source: str = "en"
    target: str = "de"
    test: str = "test_2016_flickr"
    marked: bool = False
    """Units with a space before them are marked, as rnnsearch's are; if not, units that another follows without one."""

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        return self.source, self.target

    def units(self, language: str) -> list[str]:
        """The vocabulary."""
        return (self.folder / f"vocab.{language}.txt").read_text(encoding="utf-8").splitlines()

    def lines(self, part: str, language: str) -> list[str]:
        """The sentences of a part, units apart by spaces."""
        return (self.folder / f"{part}.bpe.{language}").read_text(encoding="utf-8").splitlines()

    def references(self) -> list[str]:
        """The test set's target side as plain text."""
        return (self.raw / f"{self.test}.{self.target}").read_text(encoding="utf-8").splitlines()

    def mean_length(self) -> float:
        """Target units a training sentence, without the end symbol."""
        lengths = [len(line.split()) for line in self.lines("train", self.target)]
        return sum(lengths) / len(lengths)

    def write(self, folder: Path) -> None:
        """All parts as words that stand for the units: `train.en`, ..."""
        folder.mkdir(parents=True, exist_ok=True)
        for language in self.languages:
            words = {unit: f"w{number}" for number, unit in enumerate(self.units(language))}
            for part, name in (("train", "train"), ("val", "dev"), (self.test, "test")):
                lines = self.lines(part, language)
                text = (" ".join(words.get(unit, UNSEEN) for unit in line.split()) for line in lines)
                write_lines(folder / f"{name}.{language}", text)

    def units_of(self, lines: Iterable[str]) -> list[str]:
        """What `write` wrote of the target language, as units again."""
        units = self.units(self.target)
        return [" ".join(units[int(w[1:])] if w[1:].isdigit() else w for w in line.split()) for line in lines]

    def bleu(self, lines: Sequence[str]) -> float:
        """BLEU of translations of the test set (words that stand for units) against its plain text, as the rivals'
        scripts have it: units joined, detokenised by sacremoses, sacreBLEU."""
        from rnnsearch.metrics.scores import corpus_bleu

        joined = self.units_of(lines)
        if self.marked:
            joined = ["".join(line.split()).replace(MARKER, " ").strip() for line in joined]
        else:
            joined = [re.sub(r"(@@ )|(@@ ?$)", "", line) for line in joined]
        if self.tools is not None:
            command = [str(self.tools / "sacremoses"), "-l", self.target, "-j", "1", "detokenize"]
            text = "".join(f"{line}\n" for line in joined)
            ended = subprocess.run(command, input=text, capture_output=True, check=True, encoding="utf-8")
            joined = ended.stdout.splitlines()
        return corpus_bleu(joined, self.references())


def own_tokens(raw: Path, folder: Path) -> Tokens:
    """Tokens of a text like the rivals' ones, 8,000 joint BPE symbols, made without their scripts."""
    from rnnsearch.text.subwords import train_bpe

    tokens = Tokens(folder, raw, marked=True)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        (part, language): (raw / f"{part}.{language}").read_text(encoding="utf-8").splitlines()
        for part in ("train", "val", tokens.test)
        for language in tokens.languages
    }
    learned = train_bpe([line for language in tokens.languages for line in texts["train", language]], 8_000, 2)
    for (part, language), lines in texts.items():
        units = [found.symbols for found in learned.segment(lines)]
        write_lines(folder / f"{part}.bpe.{language}", [" ".join(line) for line in units])
        if part == "train":
            counts = Counter(unit for line in units for unit in line)
            write_lines(folder / f"vocab.{language}.txt", sorted(counts, key=lambda unit: (-counts[unit], unit)))
    return tokens


TOY_PARTS = {"train": 160, "val": 16, "test": 16}


def toy(folder: Path) -> Tokens:
    """Tokens of a little language, for a run that takes seconds and says nothing about speed."""
    return made_up(folder, [f"{letter}{number}" for letter in "abcd" for number in range(8)], (2, 7))


def made_up(folder: Path, words: list[str], length: tuple[int, int], pairs: int = TOY_PARTS["train"]) -> Tokens:
    """Sentences of words drawn at random, as the rivals' `prep.sh` writes its own; each target is its source backwards.
    `length`: the least and the most."""
    draw = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in {**TOY_PARTS, "train": pairs}.items():
        lines = [draw.choices(words, k=draw.randint(*length)) for _ in range(count)]
        for language, side in (("en", lines), ("de", [line[::-1] for line in lines])):
            for name in (f"{part}.bpe.{language}", f"{part}.{language}"):
                write_lines(folder / name, [" ".join(line) for line in side])
    for language in ("en", "de"):
        write_lines(folder / f"vocab.{language}.txt", words)
    return Tokens(folder, folder, None, test="test")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A line each."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
