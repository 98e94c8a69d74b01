"""Whole texts through a model that knows sentences: split, translated, put together with their layout kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rnnsearch.serve.limits import ServeError, split
from rnnsearch.serve.registry import NBest, Search, Served
from rnnsearch.text.alignments import Link, word_spans
from rnnsearch.text.sentences import rejoin
from rnnsearch.text.terms import Glossary
from rnnsearch.translator.translation import Translation, one_line

Span = tuple[int, int]


@dataclass(frozen=True)
class TextTranslation:
    """A text and the translations of its sentences."""

    source: str
    spans: list[Span]
    """Characters of each sentence in `source`."""
    found: list[NBest]
    """The n best translations of each, best first; at least one."""
    target: str
    """The target language."""
    least: float | None = None
    """The confidence below which a sentence's translation is left out of the whole."""

    def joined(self, rank: int = 0) -> tuple[str, list[Span]]:
        """The whole translation, of each sentence its `rank`-th best (or its last, where it has fewer), and the
        characters of each in it."""
        chosen = [found[min(rank, len(found) - 1)] for found in self.found]
        best = [one_line(t.text) if self._sure(t) else "" for t in chosen]
        return rejoin(self.source, self.spans, best, self.target)

    def _sure(self, found: Translation) -> bool:
        return self.least is None or found.confidence is None or found.confidence >= self.least

    def text(self, rank: int = 0) -> str:
        """The whole translation alone."""
        return self.joined(rank)[0]

    def links(self, rank: int = 0) -> list[Link]:
        """Those between the words of the whole text and of the whole translation."""
        text, target_spans = self.joined(rank)
        ends = [[end for _, end in word_spans(whole)] for whole in (self.source, text)]
        links: set[Link] = set()
        for *begins, found in zip(self.spans, target_spans, self.found, strict=True):
            best = found[min(rank, len(found) - 1)]
            # Sentences may follow one another without a space, and their words run together.
            words = [
                [bisect_right(whole, begin + start) for start, _ in word_spans(one_line(own))]
                for whole, (begin, _), own in zip(ends, begins, (best.source, best.text), strict=True)
            ]
            links |= {(words[0][s], words[1][t]) for s, t in best.alignment}
        return sorted(links)


async def one_sentence(served: Served, text: str) -> str:
    """The text's one sentence. Errors: ServeError 400 for none, or several."""
    [spans] = await split([text], served.about.source)
    if len(spans) != 1:
        raise ServeError(400, f"text must be one sentence; got {len(spans)}")
    start, end = spans[0]
    return text[start:end]


def require_line(name: str, text: str) -> None:
    """Errors: ServeError 400 for text of several lines."""
    if one_line(text) != text:
        raise ServeError(400, f"{name} must be one line; got several")


async def translate_texts(
    served: Served,
    texts: Sequence[str],
    search: Search,
    prefixes: Sequence[str] | None = None,
    patient: bool = False,
    glossary: Glossary | None = None,
) -> list[TextTranslation]:
    """Each text translated, all their sentences in the same queue. `prefixes`: one a text of one sentence.

    Errors: ServeError 400 for a prefix of a text that is not one sentence; as in `Served.translate`.
    """
    about = served.about
    spans = await split(texts, about.source)
    starts: list[str] | None = None
    if prefixes is not None:
        starts = []
        for own, prefix in zip(spans, prefixes, strict=True):
            if prefix and len(own) != 1:
                raise ServeError(400, f"a text with a prefix must be one sentence; got {len(own)}")
            require_line("prefix", prefix)
            starts += [prefix] * len(own)
    sentences = [text[a:b] for text, own in zip(texts, spans, strict=True) for a, b in own]
    found = iter(await served.translate(sentences, search, starts, patient, glossary)) if sentences else iter(())
    return [
        TextTranslation(text, own, [next(found) for _ in own], about.target)
        for text, own in zip(texts, spans, strict=True)
    ]
