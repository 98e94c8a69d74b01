"""Sentences that show what a system does: its best, median, worst and longest, by sentence chrF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rnnsearch.metrics.bleu_chrf_ter import check_lines, sentence_chrf
from rnnsearch.translation import Translation


@dataclass(frozen=True)
class Example:
    """A translation to show, and why it was chosen."""

    kind: str
    """`best`, `median`, `worst` or `longest`."""
    chrf: float
    translation: Translation
    reference: str

    @property
    def drawn(self) -> bool:
        """Whether there is attention to draw."""
        attention = self.translation.word_attention
        return attention is not None and attention.size > 0


def choose(translations: Sequence[Translation], references: Sequence[str]) -> list[Example]:
    """The best, median, worst and longest translations, no sentence twice; empty ones are passed over.

    The best is the longest of those with the highest chrF, for a perfect "Yes." shows little. A test set of
    fewer sentences gives fewer examples.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines([t.text for t in translations], references)
    words = [len(t.source_words) for t in translations]
    usable = [n for n in range(len(words)) if words[n] and references[n].strip()]
    chrf = {n: sentence_chrf(translations[n].text, references[n]) for n in usable}
    ranked = sorted(usable, key=lambda n: (-round(chrf[n], 6), -words[n], n))
    wanted = {
        "best": ranked,
        "median": ranked[len(ranked) // 2 :] + ranked[: len(ranked) // 2][::-1],
        "worst": ranked[::-1],
        "longest": sorted(usable, key=lambda n: (-words[n], n)),
    }
    chosen: dict[int, str] = {}
    for kind, order in wanted.items():
        free = (n for n in order if n not in chosen)
        chosen |= dict.fromkeys(list(free)[:1], kind)
    return [Example(kind, chrf[n], translations[n], references[n]) for n, kind in chosen.items()]
