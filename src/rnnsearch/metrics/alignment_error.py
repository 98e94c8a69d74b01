"""Alignment error rate against a gold alignment with sure and possible links.

Och, F. J. & Ney, H. (2003), "A Systematic Comparison of Various Statistical Alignment Models",
Computational Linguistics 29(1), section 6.1.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain

from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Link, Links


@dataclass(frozen=True)
class AlignmentScores:
    """Shares from 0 to 1 over a whole corpus."""

    aer: float
    """Alignment error rate; less is better."""
    precision: float
    recall: float
    links: int
    """How many links were proposed."""

    def __str__(self) -> str:
        return (
            f"AER = {self.aer:.3f} (precision {self.precision:.3f}, recall {self.recall:.3f}, "
            f"links proposed: {self.links})"
        )


def alignment_error(hypotheses: Sequence[AbstractSet[Link]], gold: Sequence[Links]) -> AlignmentScores:
    """Compare each sentence's links (source word, target word), zero-based, with the gold links.

    With A the proposed links, S the sure and P the possible ones (P includes S), each counted over the
    whole corpus:

        precision = |A & P| / |A|
        recall    = |A & S| / |S|
        AER       = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    Empty lines are sentences without links, in either file: proposed links there lower the precision,
    sure links there that were not proposed lower the recall, and a line empty in both changes nothing.
    A share of nothing is perfect: without proposed links the precision is 1, without sure links the
    recall is 1, and without either the AER is 0.

    Errors: DataError for different numbers of lines, or none.
    """
    if len(hypotheses) != len(gold):
        raise DataError(
            f"proposed and gold alignments must have the same number of lines; got {len(hypotheses)} and {len(gold)}"
        )
    if not gold:
        raise DataError("there must be at least one sentence to compare alignments of; got none")
    proposed = sure = proposed_sure = proposed_possible = 0
    for links, truth in zip(hypotheses, gold, strict=True):
        possible = truth.possible | truth.sure
        proposed += len(links)
        sure += len(truth.sure)
        proposed_sure += len(links & truth.sure)
        proposed_possible += len(links & possible)
    return AlignmentScores(
        aer=1.0 - _share(proposed_sure + proposed_possible, proposed + sure),
        precision=_share(proposed_possible, proposed),
        recall=_share(proposed_sure, sure),
        links=proposed,
    )


def check_range(links: AbstractSet[Link], sources: int, targets: int, where: str) -> None:
    """Raise DataError where a link points past a sentence of `sources` and `targets` words.

    The usual causes are an alignment file with its sides exchanged, or one that counts from 1.
    """
    outside = sorted((i, j) for i, j in links if not (0 <= i < sources and 0 <= j < targets))
    if outside:
        i, j = outside[0]
        raise DataError(
            f"{where}: links must lie within {sources} source and {targets} target words, counted from 0; "
            f"got {i}-{j}{_reason(links, sources, targets)}"
        )


def _reason(links: AbstractSet[Link], sources: int, targets: int) -> str:
    ends = list(chain.from_iterable(links))
    if all(0 <= j < sources and 0 <= i < targets for i, j in links):
        return " (are source and target exchanged?)"
    if min(ends) >= 1 and all(i <= sources and j <= targets for i, j in links):
        return " (are the words counted from 1?)"
    return ""


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
