"""The rivals' tokens as a corpus of rnnsearch, symbol for symbol.

The rivals read BPE units that are cut at spaces. Written as `w17` (the 17th most frequent unit of its language), each
is one word to rnnsearch's word segmentation, so that training, `translate` and the rest run as for any user.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        for language in (self.source, self.target):
            words = {unit: f"w{number}" for number, unit in enumerate(self.units(language))}
            for part, name in (("train", "train"), ("val", "dev"), (self.test, "test")):
                text = "".join(
                    " ".join(words.get(unit, UNSEEN) for unit in line.split()) + "\n"
                    for line in self.lines(part, language)
                )
                (folder / f"{name}.{language}").write_text(text, encoding="utf-8")

    def units_of(self, lines: Iterable[str]) -> list[str]:
        """What `write` wrote of the target language, as units again."""
        units = self.units(self.target)
        return [" ".join(units[int(w[1:])] if w[1:].isdigit() else w for w in line.split()) for line in lines]

    def bleu(self, lines: Sequence[str]) -> float:
        """BLEU of translations of the test set (words that stand for units) against its plain text, as the rivals'
        scripts have it: units joined, detokenised by sacremoses, sacreBLEU."""
        from rnnsearch.metrics.bleu_chrf_ter import corpus_bleu

        joined = [re.sub(r"(@@ )|(@@ ?$)", "", line) for line in self.units_of(lines)]
        if self.tools is not None:
            command = [str(self.tools / "sacremoses"), "-l", self.target, "-j", "1", "detokenize"]
            text = "".join(f"{line}\n" for line in joined)
            ended = subprocess.run(command, input=text, capture_output=True, check=True, encoding="utf-8")
            joined = ended.stdout.splitlines()
        return corpus_bleu(joined, self.references())
