"""Texts and their given translations, as `score` and `align` read them: side by side, a portion after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rnnsearch.cli.io import count_pairs, joined_pairs, say

if TYPE_CHECKING:
    from rnnsearch.translate import Translator


class Pairs(NamedTuple):
    """Some lines of two files. refused: the pairs of which a side has too many symbols, so that both are empty here."""

    sources: list[str]
    targets: list[str]
    refused: list[tuple[str, str] | None]


def fitting_pairs(translator: Translator, source: Path, target: Path, most: int) -> Iterator[Pairs]:
    """All lines of two files; of more than `most` symbols a side, which are told of, none.

    Errors: DataError where the files have different numbers of lines.
    """
    from rnnsearch.cli.translating import CHUNK_BATCHES, fits, too_long

    count_pairs(source, target)
    size, first = CHUNK_BATCHES * translator.config.search.batch_sentences, 1
    for portion in joined_pairs(source, target, size):
        found = Pairs([], [], [])
        for number, (text, translation) in enumerate((pair.split("\n") for pair in portion), first):
            sides = (source, text, translator.source), (target, translation, translator.target)
            long = [path for path, line, tokenizer in sides if not fits(line, most, tokenizer)]
            for path in long:
                say(too_long(path, number, most, "--max-symbols"))
            found.sources.append("" if long else text)
            found.targets.append("" if long else translation)
            found.refused.append((text, translation) if long else None)
        yield found
        first += len(portion)
