"""Alignment error rate against gold alignments with sure and possible links.

Och, F. J. & Ney, H. (2003), "A Systematic Comparison of Various Statistical Alignment Models",
Computational Linguistics 29(1), section 6.1.

Also used to validate during training (`systems/dev_set.py`) and to tune an aligner's threshold. Links are (source word,
target word), counted from 0; empty denominators give defined values (tests/metrics/test_alignment_error.py).
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain

from rnnsearch.errors import DataError
from rnnsearch.text.alignments import Link, Links


@dataclass(frozen=True)
class AlignmentScores:
    """Alignment scores of a corpus, from 0 to 1."""

    aer: float
    """Alignment error rate; lower is better."""
    precision: float
    """Fraction of the proposed links that are possible links."""
    recall: float
    """Fraction of the sure links that are proposed."""
    links: int
    """Number of proposed links."""

    def __str__(self) -> str:
        return (
            f"AER = {self.aer:.3f} (precision {self.precision:.3f}, recall {self.recall:.3f}, "
            f"links proposed: {self.links})"
        )


def alignment_error(hypotheses: Sequence[AbstractSet[Link]], gold: Sequence[Links]) -> AlignmentScores:
    """Compare proposed links (source word, target word) with gold links, both counted from zero.

    With A the proposed links, S the sure and P the possible ones (P includes S), each counted over
    the whole corpus:

        precision = |A & P| / |A|
        recall    = |A & S| / |S|
        AER       = 1 - (|A & S| + |A & P|) / (|A| + |S|)

    A ratio with denominator 0 is 1: without proposed links the precision is 1, without sure links
    the recall is 1, and without either the AER is 0. Sentences without links, in either file, count
    like all others.

    Args:
        hypotheses: Proposed links of each sentence.
        gold: Gold links of each sentence.

    Raises:
        DataError: The numbers of sentences differ or are zero.
    """
    if len(hypotheses) != len(gold):
        raise DataError(
            f"proposed and gold alignments must have the same number of lines; got {len(hypotheses)} and {len(gold)}"
        )
    if not gold:
        raise DataError("there must be at least one sentence to compare alignments of; got none")
    proposed = sure = proposed_sure = proposed_possible = 0
    for links, gold_links in zip(hypotheses, gold, strict=True):
        possible = gold_links.possible | gold_links.sure
        proposed += len(links)
        sure += len(gold_links.sure)
        proposed_sure += len(links & gold_links.sure)
        proposed_possible += len(links & possible)
    return AlignmentScores(
        aer=1.0 - _ratio(proposed_sure + proposed_possible, proposed + sure),
        precision=_ratio(proposed_possible, proposed),
        recall=_ratio(proposed_sure, sure),
        links=proposed,
    )


def check_range(links: AbstractSet[Link], sources: int, targets: int, where: str) -> None:
    """Raise DataError if a link is outside a sentence pair of `sources` and `targets` words.

    The usual causes are an alignment file with source and target exchanged, or one that counts from
    1.
    """
    outside = sorted((i, j) for i, j in links if not (0 <= i < sources and 0 <= j < targets))
    if outside:
        i, j = outside[0]
        raise DataError(
            f"{where}: links must lie within {sources} source and {targets} target words, counted from 0; "
            f"got {i}-{j}{_hint(links, sources, targets)}"
        )


def _hint(links: AbstractSet[Link], sources: int, targets: int) -> str:
    ends = list(chain.from_iterable(links))
    if all(0 <= j < sources and 0 <= i < targets for i, j in links):
        return " (are source and target exchanged?)"
    if min(ends) >= 1 and all(i <= sources and j <= targets for i, j in links):
        return " (are the words counted from 1?)"
    return ""


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 1.0
