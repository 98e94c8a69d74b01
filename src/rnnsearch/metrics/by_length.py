"""BLEU by source length, as in the figure of Bahdanau et al. (figure 2): are long sentences lost?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rnnsearch.errors import DataError
from rnnsearch.metrics.bleu_chrf_ter import References, check_lines, corpus_bleu

_FEW = 200
"""Below this many sentences, buckets hold equal shares of them instead of equal ranges of lengths."""
_LEAST = 10
"""A bucket with fewer sentences is joined to its shorter neighbour: its BLEU would be noise."""


@dataclass(frozen=True)
class Bucket:
    """The sentences whose source has between `low` and `high` words, both included."""

    low: int
    high: int
    sentences: int
    mean_length: float
    """Mean source words of the bucket's sentences."""
    bleu: float

    @property
    def label(self) -> str:
        """`11–15`, or `11` for one length alone."""
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


def length_ranges(lengths: Sequence[int], width: int | None = None) -> list[tuple[int, int]]:
    """Ranges of lengths, both ends included, that share out all sentences.

    Ranges are `width` words wide; without a width, 2, 5 or 10 by how long the sentences are, or, for
    fewer than 200 sentences, up to four ranges of about equal numbers of sentences. Ranges of fewer than
    10 sentences are joined to the range before (the first: to the one after).
    """
    if width is not None and width < 1:
        raise DataError(f"the width of a length bucket must be at least 1 word; got {width}")
    if not lengths:
        return []
    array = np.asarray(lengths)
    if width is None and len(array) < _FEW:
        shares = max(1, min(4, len(array) // _LEAST))
        tops = [int(top) for top in np.quantile(array, np.arange(1, shares + 1) / shares, method="lower")]
    else:
        step = width or _width(array)
        tops = list(range(step, int(array.max()) + step, step)) or [0]
    return _joined(sorted(set(tops)), array)


def _width(lengths: np.ndarray[tuple[int], np.dtype[np.int_]]) -> int:
    """The finest of the usual widths that keeps nearly all sentences within eight buckets."""
    usual = float(np.quantile(lengths, 0.98))
    return next((width for width in (2, 5) if usual <= 8 * width), 10)


def _joined(tops: list[int], lengths: np.ndarray[tuple[int], np.dtype[np.int_]]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    low = min(int(lengths.min()), 1)
    for top in tops:
        count = int(((lengths >= low) & (lengths <= top)).sum())
        begun = int((lengths < low).sum())
        if count < _LEAST and ranges:
            ranges[-1] = (ranges[-1][0], top)
        elif count >= _LEAST or begun + count == len(lengths):
            ranges.append((low, top))
        else:
            continue
        low = top + 1
    longest = int(lengths.max())
    return [*ranges[:-1], (ranges[-1][0], longest)]


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    width: int | None = None,
    language: str = "",
    more: References = (),
) -> list[Bucket]:
    """BLEU of each bucket of source lengths (see `length_ranges`), shortest first.

    The buckets depend on the sources alone, so they are the same for every system. BLEU with the
    tokeniser of the target `language`, against `more` sets of references, too.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    check_lines(sources, references, "sources")
    lengths = np.asarray([len(source.split()) for source in sources])
    buckets = []
    for low, high in length_ranges(lengths.tolist(), width):
        inside = np.flatnonzero((lengths >= low) & (lengths <= high)).tolist()
        if inside:
            texts, *sets = ([lines[n] for n in inside] for lines in (hypotheses, references, *more))
            bleu = corpus_bleu(texts, sets[0], language, sets[1:])
            buckets.append(Bucket(low, high, len(inside), float(lengths[inside].mean()), bleu))
    return buckets
