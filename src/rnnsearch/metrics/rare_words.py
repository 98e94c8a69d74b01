"""Are rare words translated? Precision and recall of target words by how often training saw them.

A word of a translation is right where its reference has it too, in any place; each occurrence in the reference
serves once (the clipped counts of BLEU's unigrams). Words are those of `text.words`, case kept, punctuation left out;
an `<unk>` is no word.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rnnsearch.metrics.bleu_chrf_ter import check_lines
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import count_words

EDGES = (0, 1, 2, 5, 10, 100, 1000)
"""The lowest training count of each class of words."""


@dataclass(frozen=True)
class FrequencyClass:
    """The target words that occur between `low` and `high` times in the training text, both included."""

    low: int
    high: int | None
    """None: no limit."""
    translated: int
    """Such words in the translations."""
    wanted: int
    """Such words in the references."""
    right: int
    """Such words in both."""

    @property
    def label(self) -> str:
        """`never`, `1`, `2–4`, ..., `1,000+`."""
        if self.high is None:
            return f"{self.low:,}+"
        if self.low == self.high:
            return f"{self.low}" if self.low else "never"
        return f"{self.low}–{self.high}"

    @property
    def precision(self) -> float | None:
        """The share of the translations' words that are right; None where there are no such words."""
        return self.right / self.translated if self.translated else None

    @property
    def recall(self) -> float | None:
        """The share of the references' words that are found; None where there are no such words."""
        return self.right / self.wanted if self.wanted else None


def accuracy_by_frequency(
    hypotheses: Sequence[str], references: Sequence[str], counts: Mapping[str, int], edges: Sequence[int] = EDGES
) -> list[FrequencyClass]:
    """One class of words from each of `edges` (rising) to below the next, the rarest first; `counts`: how often each
    word occurs in the training text, words that are not there never.

    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    totals = [[0, 0, 0] for _ in edges]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        translated, wanted = count_words([hypothesis.replace(SPECIALS[UNK], " ")]), count_words([reference])
        right = translated & wanted
        for column, words in enumerate((translated, wanted, right)):
            for word, n in words.items():
                totals[bisect_right(edges, counts.get(word, 0)) - 1][column] += n
    highs = [*(edge - 1 for edge in edges[1:]), None]
    return [FrequencyClass(low, high, *total) for low, high, total in zip(edges, highs, totals, strict=True)]


def shown(classes: Sequence[FrequencyClass]) -> list[FrequencyClass]:
    """The classes that have any word in translations or references."""
    return [c for c in classes if c.translated or c.wanted]
