"""Sentences that show what a system does: its best, median, worst and longest, by sentence chrF."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.metrics.bleu_chrf_ter import check_lines, sentence_chrf
from rnnsearch.plots.attention import check_attention
from rnnsearch.text.alignments import Link


@dataclass(frozen=True)
class Chosen:
    """A sentence of the test set and why it was chosen."""

    kind: str
    """`best`, `median`, `worst` or `longest`."""
    index: int
    chrf: float


@dataclass(frozen=True)
class Example:
    """One sentence to show, with its attention and its links where they are known."""

    kind: str
    chrf: float
    source: str
    hypothesis: str
    reference: str
    source_words: tuple[str, ...] = ()
    """What the columns of `attention` and the links' i count; without them, the source's words."""
    target_words: tuple[str, ...] = ()
    """What the rows of `attention` and the links' j count; without them, the hypothesis's words."""
    attention: NDArray[np.floating[Any]] | None = None
    """[target words, source words]"""
    links: AbstractSet[Link] | None = None

    def __post_init__(self) -> None:
        """Raise RnnsearchError where the attention does not fit the words."""
        if self.attention is not None:
            check_attention(self.attention, self.sources, self.targets)

    @property
    def sources(self) -> tuple[str, ...]:
        """The source words that attention and links count."""
        return self.source_words or tuple(self.source.split())

    @property
    def targets(self) -> tuple[str, ...]:
        """The target words that attention and links count."""
        return self.target_words or tuple(self.hypothesis.split())


def choose(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> list[Chosen]:
    """The best, median, worst and longest translations, no sentence twice; empty ones are passed over.

    The best is the longest of those with the highest chrF, for a perfect "Yes." shows little. A test set of
    fewer sentences gives fewer examples.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    check_lines(sources, references, "sources")
    words = [len(source.split()) for source in sources]
    usable = [n for n in range(len(sources)) if words[n] and references[n].strip()]
    chrf = {n: sentence_chrf(hypotheses[n], references[n]) for n in usable}
    ranked = sorted(usable, key=lambda n: (-round(chrf[n], 6), -words[n], n))
    wanted = (
        ("best", ranked),
        ("median", ranked[len(ranked) // 2 :] + ranked[: len(ranked) // 2][::-1]),
        ("worst", ranked[::-1]),
        ("longest", sorted(usable, key=lambda n: (-words[n], n))),
    )
    chosen: list[Chosen] = []
    for kind, order in wanted:
        taken = {choice.index for choice in chosen}
        index = next((n for n in order if n not in taken), None)
        if index is not None:
            chosen.append(Chosen(kind, index, chrf[index]))
    return chosen
