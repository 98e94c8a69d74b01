"""Source words that were copied into a translation: each is linked to its copy, whatever else aligns the two."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import product

from rnnsearch.text.alignments import Link
from rnnsearch.text.spans import Unit, word_spans
from rnnsearch.text.tokenizer import Segmented


def with_copies(links: tuple[Link, ...], source: Segmented, target: Segmented, unit: Unit) -> tuple[Link, ...]:
    """The links of a translation's words or symbols, in order, those of what was copied in the place of others'."""
    own = set(_copies(source, target, unit))
    if not own:
        return links
    sources, targets = ({link[side] for link in own} for side in (0, 1))
    return tuple(sorted(own | {(s, t) for s, t in links if s not in sources and t not in targets}))


def _copies(source: Segmented, target: Segmented, unit: Unit) -> Iterator[Link]:
    copied = [(one.source_token, one.token) for one in target.replaced if one.by == "copy"]
    if unit == "symbols" or not copied:
        yield from copied
        return
    sources, targets = word_spans(source.text), word_spans(target.text)
    for s, t in copied:
        here, there = _words(sources, source.offsets[s]), _words(targets, target.offsets[t])
        yield from zip(here, there, strict=True) if len(here) == len(there) else product(here, there)


def _words(spans: list[tuple[int, int]], covered: tuple[int, int]) -> range:
    """Those that have one of these characters."""
    start, end = covered
    first = bisect_right(spans, start, key=lambda span: span[1])
    return range(first, bisect_left(spans, end, lo=first, key=lambda span: span[0]))
