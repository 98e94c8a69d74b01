"""Word alignments as the commands write them: a line each, and at the end a word where they mean nothing."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rnnsearch.bulk import Counts
from rnnsearch.cli.io import say
from rnnsearch.text.spans import AlignedBy, Symmetrisation, Unit

if TYPE_CHECKING:
    from rnnsearch.text.alignments import Link
    from rnnsearch.translate import Translator
    from rnnsearch.translation import Translation

INFORMATION, ATTENDED = "information of attention", "attended"
"""Counts: what attention told of target words, summed over translations, and over how many."""


def pharaoh(links: Collection[Link]) -> str:
    """A line."""
    from rnnsearch.text.alignments import format_pharaoh

    return format_pharaoh(links) + "\n"


def count(translation: Translation, counts: Counts) -> None:
    """Count what a translation's attention told."""
    if (told := translation.attention_information) is not None:
        counts[INFORMATION] = counts.get(INFORMATION, 0.0) + told
        counts[ATTENDED] = counts.get(ATTENDED, 0) + 1


class Links:
    """Pharaoh lines of the links of translations, and in `counts` what their attention told."""

    def __init__(self, unit: Unit, by: AlignedBy | None, counts: Counts) -> None:
        self._unit, self._attended, self._counts = unit, by == "attention", counts

    def line(self, translation: Translation, before: int | None = 0) -> str:
        """That of one; `before`: how many words stand before it in its line, None where that is empty."""
        attended = self._attended or translation.aligned is None
        if attended:
            count(translation, self._counts)
        if before is None:
            return pharaoh(())
        if self._unit == "words":
            links = translation.attended if attended else translation.alignment
            return pharaoh([(source, before + target) for source, target in links])
        return pharaoh(translation.attended_tokens if attended else translation.token_alignment)


class BothWays:
    """The links of words by two models, one of each direction, as one alignment; in the `counts` of each what its
    attention told."""

    def __init__(self, forward: Translator, backward: Translator, by: AlignedBy, method: Symmetrisation) -> None:
        """Errors: ModelError where the second is no model of the other direction, or has no such links."""
        backward.require_reverse_of(*forward.languages)
        backward.require_alignments(by)
        self._forward, self._backward, self._by, self._method = forward, backward, by, method
        self.counts = Counts(), Counts()

    def links(self, sources: list[str], targets: list[str]) -> list[set[Link]]:
        """Of each pair."""
        from rnnsearch.text.alignments import symmetrise

        there = self._forward.score(sources, targets, self._by)
        back = self._backward.score(targets, sources, self._by)
        found = []
        for one, other in zip(there, back, strict=True):
            count(one, self.counts[0])
            count(other, self.counts[1])
            found.append(symmetrise(one.alignment, [(s, t) for t, s in other.alignment], self._method))
        return found


def doubt(model: Path, counts: Counts) -> None:
    """Say so where the attention behind all of them told target words hardly apart."""
    from rnnsearch.text.alignments import LEAST_INFORMATION

    information, count = counts.get(INFORMATION, 0.0), counts.get(ATTENDED, 0)
    if count and information < LEAST_INFORMATION * count:
        say(
            f"{model}: its attention is nearly the same at every word ({information / count:.0%} "
            "of what it could tell of them), so these links mean nothing; has it been trained long enough?"
        )
