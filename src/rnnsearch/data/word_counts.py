"""How often each target word occurs in the training text, kept beside the ids: rare words are judged by it."""

from collections.abc import Mapping
from pathlib import Path

from rnnsearch.data.corpus import read_lines
from rnnsearch.errors import DataError

COUNTS = "train.target.words.tsv"
"""In a prepared folder: a word, a tab and its count a line, the most frequent first."""


def write_counts(path: Path, counts: Mapping[str, int]) -> None:
    """Write counts of words (see `words.count_words`); equal ones in the order of their code points."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    path.write_text("".join(f"{word}\t{count}\n" for word, count in rows), encoding="utf-8", newline="\n")


def read_counts(path: Path) -> dict[str, int]:
    """Read what `write_counts` wrote. Errors: DataError with file:line for anything else."""
    counts = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, tab, count = line.partition("\t")
        if not tab or not count.isdecimal():
            raise DataError(f'{path}:{number}: must be a word, a tab and a count; got "{line}"')
        counts[word] = int(count)
    return counts
