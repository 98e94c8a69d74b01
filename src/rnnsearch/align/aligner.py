"""The Aligner: links between the words of sentence pairs, from what it learned of a training text that has none.

The text is cut into subwords several ways, coarse and fine, each with a lexicon of its own; what they say of a pair of
words is averaged (after Asgari et al. 2020, "Subword sampling for low resource word alignment").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from rnnsearch.align.hmm import JUMPS, LONGEST, Direction, Lexicon, fit, learn, lengths
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.text.alignments import Link, Links, blas_noise_ignored, spoken_spans
from rnnsearch.text.subwords import bpe_from_counts
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.words import count_chunks
from rnnsearch.utils.files import atomic_folder, recover
from rnnsearch.utils.weights import read_weights, save_weights

FOLDER = "aligner"
"""Its name in a model folder, and in one of prepared data."""
SIZES = (1000, 2000, 5000)
"""Symbols a side of each way to cut text, at most."""
ROWS = 200_000
"""Sentence pairs that an aligner is learned from, at most: those of a larger corpus at even distances."""
ALONE = 200_000
"""Characters of the source below which starting processes would take longer than learning."""
EVENTS = 30_000_000
"""Pairs of positions that a cut is learned from, at most, likewise."""
AT_ONCE = 1 << 20
"""Pairs of units, and characters of a side, that are aligned together."""
THRESHOLD = 0.15
"""A link's least weight, where no links made by hand say better."""
THRESHOLDS = tuple(round(0.01 * n, 2) for n in range(2, 51))
TABLES = "tables.safetensors"

Span = tuple[int, int]
Weights = Float[np.ndarray, "I J"]
Each = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterable[Any]]


class Cut(NamedTuple):
    """One way to cut both languages, and what was learned of its symbols."""

    source: Tokenizer
    target: Tokenizer
    lexicon: Lexicon


class Pair(NamedTuple):
    """A sentence pair with the characters [start, end) of the units on each side that are to be linked."""

    source: str
    target: str
    source_units: Sequence[Span]
    target_units: Sequence[Span]

    @classmethod
    def of_words(cls, source: str, target: str) -> Pair:
        """The units are words, without the punctuation around them: a full stop says nothing of the word before it."""
        return cls(source, target, spoken_spans(source), spoken_spans(target))

    @classmethod
    def of_symbols(cls, source: Segmented, target: Segmented) -> Pair:
        """The units are the symbols of a segmentation."""
        return cls(source.text, target.text, source.offsets, target.offsets)

    @property
    def empty(self) -> bool:
        """Whether a side has nothing to be linked."""
        return not (self.source_units and self.target_units)

    @property
    def too_long(self) -> bool:
        """Whether there are more than `LONGEST` units on a side."""
        return max(len(self.source_units), len(self.target_units)) > LONGEST


@dataclass(frozen=True)
class Aligner:
    """Aligns raw text, by all its cuts together; `threshold`: the least weight of a link."""

    cuts: tuple[Cut, ...]
    threshold: float = THRESHOLD

    def weights(self, pairs: Sequence[Pair]) -> Iterator[Weights | None]:
        """[target units, source units] of each pair, 0 to 1: the geometric mean of how likely the target unit comes of
        the source unit, and the source unit of the target unit. None where there are more than `LONGEST` units or
        symbols on a side."""
        for portion in _portions(pairs):
            yield from self._weights(portion)

    @blas_noise_ignored
    def _weights(self, pairs: Sequence[Pair]) -> list[Weights | None]:
        shape = [(0, 0) if pair.too_long else (len(pair.target_units), len(pair.source_units)) for pair in pairs]
        there, back = ([np.zeros(size, np.float32) for size in shape] for _ in range(2))
        answered = np.zeros(len(pairs), dtype=np.int64)
        sides = [[lowered(text) for text in texts] for texts in ([p.source for p in pairs], [p.target for p in pairs])]
        for source, target, lexicon in self.cuts:
            cut = [tokenizer.segment(texts) for tokenizer, texts in zip((source, target), sides, strict=True)]
            ids = [[np.array(s.ids, dtype=np.int64) for s in side] for side in cut]
            for n, forward, backward in lexicon.links(*ids):
                if pairs[n].too_long:
                    continue
                s = _shares(pairs[n].source_units, cut[0][n].offsets)
                t = _shares(pairs[n].target_units, cut[1][n].offsets)
                there[n] += _mean(t) @ forward @ s.T
                back[n] += t @ backward @ _mean(s).T
                answered[n] += 1
        answers = zip(pairs, there, back, answered, strict=True)
        return [np.sqrt(f * b) / max(n, 1) if n or pair.empty else None for pair, f, b, n in answers]

    def links(self, pairs: Sequence[Pair]) -> list[set[Link]]:
        """The links (source unit, target unit) of each pair: those with the threshold's weight or more; none of a pair
        that is too long."""
        return [_links(weights, self.threshold) for weights in self.weights(pairs)]

    def tuned(self, pairs: Sequence[Pair], gold: Sequence[Links]) -> Aligner:
        """With the threshold, of `THRESHOLDS`, that has the least alignment error rate on links made by hand."""
        weights = list(self.weights(pairs))
        errors = {t: alignment_error([_links(one, t) for one in weights], gold).aer for t in THRESHOLDS}
        return replace(self, threshold=min(THRESHOLDS, key=lambda t: (errors[t], abs(t - self.threshold))))

    def turned(self) -> Aligner:
        """Of the other direction."""
        return replace(self, cuts=tuple(Cut(cut.target, cut.source, cut.lexicon.turned()) for cut in self.cuts))

    def save(self, folder: Path) -> None:
        """Write a folder, whole or not at all."""
        tables = {"threshold": torch.tensor([self.threshold], dtype=torch.float64)}
        with atomic_folder(folder) as temporary:
            for n, (source, target, lexicon) in enumerate(self.cuts):
                source.save(temporary / f"source.{n}.json")
                target.save(temporary / f"target.{n}.json")
                tables[f"{n}.pairs"] = torch.from_numpy(lexicon.pairs)
                for name, model in (("forward", lexicon.forward), ("backward", lexicon.backward)):
                    tables |= {f"{n}.{name}.{key}": torch.from_numpy(x) for key, x in model._asdict().items()}
            save_weights(temporary / TABLES, tables)

    @staticmethod
    def find(folder: Path) -> Aligner | None:
        """That in a model folder, or in one of prepared data, if it has one. Errors: as in `load`."""
        place = folder / FOLDER
        with suppress(OSError):
            recover(place)
        return Aligner.load(place) if place.is_dir() else None

    @staticmethod
    def load(folder: Path) -> Aligner:
        """Read what `save` wrote. Errors: ModelError for a damaged or foreign folder."""
        tables = _Tables(folder / TABLES)
        threshold = float(tables.read("threshold", torch.float64, 1)[0])
        tables.require(0 < threshold <= 1)
        cuts = list[Cut]()
        while f"{len(cuts)}.pairs" in tables.found:
            n = len(cuts)
            source, target = (Tokenizer.load(folder / f"{side}.{n}.json") for side in ("source", "target"))
            cuts.append(Cut(source, target, tables.lexicon(n, len(source), len(target))))
        tables.require(bool(cuts))
        return Aligner(tuple(cuts), threshold)


def learn_aligner(sources: Sequence[str], targets: Sequence[str], each: Each = starmap) -> Aligner:
    """An aligner from sentence pairs of raw text, of `ROWS` of them at most; `each` calls a function with each of some
    tasks, in order, and is not asked to for little text.

    Errors: RnnsearchError where no pair has text on both sides.
    """
    step = max(1, -(-len(sources) // ROWS))
    each_pair = zip(map(lowered, sources[::step]), map(lowered, targets[::step]), strict=True)
    both = [(s, t) for s, t in each_pair if s.strip() and t.strip()]
    if not both:
        raise RnnsearchError("an aligner must be learned from sentence pairs with text on both sides; got none")
    lowered_sources, lowered_targets = (list(side) for side in zip(*both, strict=True))
    cuts: dict[tuple[str, str], Cut] = {}
    each = starmap if sum(map(len, lowered_sources)) < ALONE else each
    for cut in each(learn_cut, ((lowered_sources, lowered_targets, size) for size in SIZES)):
        cuts.setdefault((cut.source.fingerprint(), cut.target.fingerprint()), cut)  # a small text has few symbols
    return Aligner(tuple(cuts.values()))


def learn_cut(sources: Sequence[str], targets: Sequence[str], size: int) -> Cut:
    """One cut, of at most so many symbols a side."""
    source, target = (bpe_from_counts(count_chunks(side), size, 1) for side in (sources, targets))
    s, t = (tokenizer.ids(side) for tokenizer, side in ((source, sources), (target, targets)))
    ids = [[np.array(row, dtype=np.int64) for row in side] for side in (s, t)]
    widths, heights = map(lengths, ids)
    usable = np.flatnonzero(fit(widths, heights))
    chosen = usable[:: max(1, -(-int((widths * heights)[usable].sum()) // EVENTS))].tolist()
    of_sources, of_targets = ([side[n] for n in chosen] for side in ids)
    return Cut(source, target, learn(of_sources, of_targets, (len(source), len(target))))


def lowered(text: str) -> str:
    """In lower case and with plain spaces, character by character, so that every place in it stays what it was."""
    return "".join(" " if c.isspace() else low if len(low := c.lower()) == 1 else c for c in text)


def _portions(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Some at a time, however many there are."""
    portion, size = list[Pair](), 0
    for pair in pairs:
        cells = 0 if pair.too_long else len(pair.source_units) * len(pair.target_units)
        own = max(len(pair.source), len(pair.target), cells)
        if portion and size + own > AT_ONCE:
            yield portion
            portion, size = [], 0
        portion.append(pair)
        size += own
    if portion:
        yield portion


def _links(weights: Weights | None, threshold: float) -> set[Link]:
    if weights is None:
        return set()
    rows, columns = np.nonzero(weights >= threshold)
    return set(zip(columns.tolist(), rows.tolist(), strict=True))


def _shares(units: Sequence[Span], symbols: Sequence[Span]) -> Float[np.ndarray, "units symbols"]:
    """How much of each symbol's characters lies in each unit."""
    (u, v), (s, e) = (np.array(spans, dtype=np.int64).reshape(-1, 2).T for spans in (units, symbols))
    common = np.minimum(v[:, None], e) - np.maximum(u[:, None], s)
    shares: Float[np.ndarray, "units symbols"] = (common.clip(0) / np.maximum(e - s, 1)).astype(np.float32)
    return shares


def _mean(shares: Float[np.ndarray, "units symbols"]) -> Float[np.ndarray, "units symbols"]:
    """Over a unit's symbols."""
    mean: Float[np.ndarray, "units symbols"] = shares / np.maximum(shares.sum(axis=1, keepdims=True), np.float32(1e-9))
    return mean


class _Tables:
    """An aligner's tables, of which nothing is believed before it was looked at."""

    def __init__(self, path: Path) -> None:
        self.path, self.found = path, read_weights(path)

    def require(self, fact: bool) -> None:
        """Errors: ModelError where it is not so."""
        if not fact:
            raise ModelError(f"{self.path}: must hold an aligner's tables; got others")

    def read(self, name: str, kind: torch.dtype, size: int | None = None) -> NDArray[Any]:
        """One table, of finite numbers."""
        table = self.found.get(name)
        self.require(table is not None and table.dtype == kind and table.dim() == 1)
        assert table is not None
        self.require(size is None or len(table) == size)
        numbers: NDArray[Any] = table.numpy()
        self.require(bool(np.isfinite(numbers).all()))
        return numbers

    def lexicon(self, n: int, sources: int, targets: int) -> Lexicon:
        """That of the n-th cut, between vocabularies of these sizes."""
        pairs = self.read(f"{n}.pairs", torch.int64)
        self.require(bool((np.diff(pairs) > 0).all()))
        self.require(not len(pairs) or bool(pairs[0] >= 0 and pairs[-1] < sources * targets))
        models = []
        for name, states, emitted in (("forward", sources, targets), ("backward", targets, sources)):
            sizes = {"seen": len(pairs), "unseen": states, "none": emitted, "jumps": JUMPS}
            model = Direction(
                **{key: self.read(f"{n}.{name}.{key}", torch.float32, size) for key, size in sizes.items()}
            )
            self.require(all(bool(((table >= 0) & (table <= 1)).all()) for table in model))
            self.require(bool((model.jumps > 0).all()))
            models.append(model)
        return Lexicon(pairs, *models)
