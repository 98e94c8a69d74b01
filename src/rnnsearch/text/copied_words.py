"""Source words that were copied into a translation: each is linked to its copy, whatever else aligns the two."""

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
    for one in target.replaced:
        if one.by != "copy":
            continue
        if unit == "symbols":
            yield one.source_token, one.token
            continue
        here = _words(source.text, *source.offsets[one.source_token])
        there = _words(target.text, *target.offsets[one.token])
        yield from zip(here, there, strict=True) if len(here) == len(there) else product(here, there)


def _words(text: str, start: int, end: int) -> list[int]:
    """Those that have one of the characters [start, end)."""
    return [n for n, (begin, stop) in enumerate(word_spans(text)) if begin < end and start < stop]
