"""The `Aligner`, a statistical word aligner that is learned from unaligned sentence pairs.

Both languages are cut into subwords with several vocabulary sizes, each with a lexicon of its own
(`align.hmm`), and the link probabilities are averaged (after Asgari et al. 2020, "Subword sampling for
low resource word alignment"). An aligner is stored as the folder `aligner` in a model folder or in
prepared data. It is used to prepare training data with links, and for the alignments of translations.

The links of a pair are those above a threshold, which `learn_aligner` chooses without gold links (see
`docs/decisions/0002-word-alignment.md`). Aligners of earlier versions compare other values with it, see
`Aligner.relative`.

The folder contains `source.N.json`, `target.N.json` (tokenizers) and one file of tables whose names are those of the
fields of `HmmParameters`; it may come from anyone and is checked by `_TableReader`. Tests:
tests/align/test_aligner.py, tests/data/test_learned_aligner.py.

Axes: I target and J source units or tokens; weights are [target, source].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from rnnsearch.align.hmm import (
    HMM_ROUNDS,
    MAX_LENGTH,
    NUM_JUMPS,
    HmmParameters,
    Lexicon,
    learn_lexicon,
)
from rnnsearch.align.sentences import ChunkedText
from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.metrics.alignment_error import alignment_error
from rnnsearch.text.alignments import Link, Links, bare_word_spans, ignore_blas_warnings, sparse_product
from rnnsearch.text.normalization import NONE, Normalization
from rnnsearch.text.subwords import bpe_of_sizes
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.utils.files import atomic_folder, complete_folder, is_inside
from rnnsearch.utils.weights import read_weights, save_weights

FOLDER = "aligner"
"""Name of the aligner's folder in a model folder and in prepared data."""
VOCABULARY_SIZES = (1000, 2000, 5000)
"""Maximum vocabulary size per language of each segmentation."""
LARGE_VOCABULARY_SIZES = VOCABULARY_SIZES[1:]
"""Vocabulary sizes for large texts; the smallest takes time but hardly helps (docs/results/aligner.md)."""
LARGE_HMM_ROUNDS = 4
"""Number of rounds of the HMM on large texts."""
LARGE_TEXT_WORDS = 1_000_000
"""Number of words per language above which a text is large."""
MAX_PAIRS = 1_000_000
"""Maximum number of sentence pairs to learn from; a larger corpus is sampled at equal distances."""
MAX_TOKENIZER_CHUNKS = 1_000_000
"""Approximate maximum number of words per language to learn tokenizers from."""
MAX_BATCH_SIZE = 1 << 20
"""Maximum number of unit pairs, and of characters per language, that are aligned together."""
THRESHOLD = 0.15
"""Minimum weight of a link of aligners that are not `relative`, unless it is tuned on gold links."""
THRESHOLDS = tuple(round(0.01 * n, 2) for n in range(2, 91))
"""Thresholds to try if gold links are used."""
TOTAL_OFFSET = 0.05
"""Added to the total weights of relative weights, so that units without a counterpart do not link one another."""
UNION_SLOPE = 3.5
"""Increase of the fraction of the union's links with the rate of disagreement of the directions (`_expected_links`)."""
MIN_UNION_FRACTION = 0.5
"""Minimum fraction of the links of the union that exceed those of one direction."""
LEARNED_THRESHOLDS = (0.2, 0.6)
"""Limits of the threshold that is chosen without gold links; short or artificial texts would exceed them."""
THRESHOLD_PAIRS = 500
"""Maximum number of sentence pairs to choose the threshold on."""
MAX_THRESHOLD_CELLS = 40_000_000
"""Maximum number of character pairs to choose the threshold on; 500 pairs of 25 words have about 10 million."""
MAX_TOKENS_PER_WORD = 4
"""Sentences with more tokens per word are not separated into words by spaces."""
TABLES_FILE = "tables.safetensors"
"""Name of the file of tables in the aligner's folder."""

Span = tuple[int, int]
LinkWeights = Float[np.ndarray, "I J"]

_UNUSUAL_SPACE = re.compile(r"[^\S ]")


class Segmentation(NamedTuple):
    """Tokenizers for both languages and the lexicon of their tokens."""

    source: Tokenizer
    """Tokenizer of the source language."""
    target: Tokenizer
    """Tokenizer of the target language."""
    lexicon: Lexicon
    """Lexicon of their tokens."""


class Pair(NamedTuple):
    """A sentence pair with the character spans [start, end) of the units to link in each sentence."""

    source: str
    """Raw source sentence."""
    target: str
    """Raw target sentence."""
    source_units: Sequence[Span]
    target_units: Sequence[Span]

    @classmethod
    def from_words(cls, source: str, target: str) -> Pair:
        """Return a pair whose units are words, without the punctuation around them.

        A full stop says nothing about the word before it.
        """
        return cls(source, target, bare_word_spans(source), bare_word_spans(target))

    @classmethod
    def from_tokens(cls, source: Segmented, target: Segmented) -> Pair:
        """Return a pair whose units are the tokens of a segmentation."""
        return cls(source.text, target.text, source.offsets, target.offsets)

    @property
    def is_empty(self) -> bool:
        """True if one of the sentences has no units."""
        return not (self.source_units and self.target_units)

    @property
    def is_too_long(self) -> bool:
        """True if one of the sentences has more than `MAX_LENGTH` units."""
        return max(len(self.source_units), len(self.target_units)) > MAX_LENGTH


class _Probabilities(NamedTuple):
    """Link probabilities of a sentence pair in both directions, summed over segmentations."""

    forward: LinkWeights
    """Probability that the target unit is generated by the source unit."""
    backward: LinkWeights
    """Probability that the source unit is generated by the target unit."""
    num_segmentations: int
    """Number of segmentations; at least 1."""

    @property
    def weights(self) -> LinkWeights:
        """Geometric mean of the average probabilities."""
        # sqrt(f/n * b/n) = sqrt(f b) / n
        weights: LinkWeights = np.sqrt(self.forward * self.backward) / self.num_segmentations
        return weights

    @property
    def expected_counts(self) -> tuple[float, float]:
        """Expected number of links per direction, on average, and in the union of both directions."""
        total = self.forward.sum(dtype=np.float64) + self.backward.sum(dtype=np.float64)
        union = np.maximum(self.forward, self.backward).sum(dtype=np.float64)
        return float(total) / 2 / self.num_segmentations, float(union) / self.num_segmentations


@dataclass(frozen=True)
class Aligner:
    """A word aligner for raw text that averages over several segmentations."""

    segmentations: tuple[Segmentation, ...]
    """Segmentations whose link probabilities are averaged."""
    threshold: float = THRESHOLD
    """Minimum weight of a link."""
    relative: bool = False
    """True if the threshold is compared with relative weights (`relative_weights`), like that of `learn_aligner`."""

    def weights(self, pairs: Sequence[Pair]) -> Iterator[LinkWeights | None]:
        """Yield the link weights [target units, source units] of each pair, from 0 to 1.

        A weight is the geometric mean of the probability that the target unit is generated by the
        source unit and the probability of the reverse. Yields None for a pair with more than
        `MAX_LENGTH` units or tokens in a sentence.
        """
        for probabilities in self._probabilities(pairs):
            yield None if probabilities is None else probabilities.weights

    def _probabilities(self, pairs: Sequence[Pair]) -> Iterator[_Probabilities | None]:
        for batch in _batches(pairs):
            yield from self._batch_probabilities(batch)

    @ignore_blas_warnings
    def _batch_probabilities(self, pairs: Sequence[Pair]) -> list[_Probabilities | None]:
        forward_sums = []
        backward_sums = []
        for pair in pairs:
            shape = (0, 0) if pair.is_too_long else (len(pair.target_units), len(pair.source_units))
            forward_sums.append(np.zeros(shape, np.float32))
            backward_sums.append(np.zeros(shape, np.float32))
        num_results = np.zeros(len(pairs), dtype=np.int64)  # segmentations that could align each pair
        sources = [lowercase(pair.source) for pair in pairs]
        targets = [lowercase(pair.target) for pair in pairs]
        for source_tokenizer, target_tokenizer, lexicon in self.segmentations:
            source = source_tokenizer.segment(sources)
            target = target_tokenizer.segment(targets)
            source_ids = [np.array(text.ids, dtype=np.int64) for text in source]
            target_ids = [np.array(text.ids, dtype=np.int64) for text in target]
            # [I, J] each; pairs come in the order of the batches, not of the texts.
            for n, forward, backward in lexicon.posteriors(source_ids, target_ids):
                if pairs[n].is_too_long:
                    continue
                source_overlaps = _overlaps(pairs[n].source_units, source[n].offsets)
                target_overlaps = _overlaps(pairs[n].target_units, target[n].offsets)
                # Average over the tokens of the generated unit, sum over those of the generating unit.
                # [target units, target tokens] x [I, J] x [source tokens, source units].
                forward_rows = sparse_product(_normalise_rows(target_overlaps), forward)
                forward_sums[n] += sparse_product(source_overlaps, forward_rows.T).T
                backward_rows = sparse_product(target_overlaps, backward)
                backward_sums[n] += sparse_product(_normalise_rows(source_overlaps), backward_rows.T).T
                num_results[n] += 1
        results: list[_Probabilities | None] = []
        for pair, forward, backward, count in zip(
            pairs, forward_sums, backward_sums, num_results.tolist(), strict=True
        ):
            is_aligned = bool(count) or pair.is_empty
            results.append(_Probabilities(forward, backward, max(count, 1)) if is_aligned else None)
        return results

    def links(self, pairs: Sequence[Pair]) -> list[set[Link]]:
        """Return the links (source unit, target unit) of each pair whose weight reaches the threshold.

        A pair that is too long has no links.
        """
        return [_links_above(scores, self.threshold) for scores in self._scores(pairs)]

    def _scores(self, pairs: Sequence[Pair]) -> Iterator[LinkWeights | None]:
        """Yield the values of each pair that are compared with the threshold."""
        for weights in self.weights(pairs):
            yield relative_weights(weights) if self.relative and weights is not None else weights

    def tuned(self, pairs: Sequence[Pair], gold: Sequence[Links]) -> Aligner:
        """Return an aligner with the threshold of `THRESHOLDS` that minimises the alignment error rate."""
        scores = list(self._scores(pairs))
        errors = {}
        for threshold in THRESHOLDS:
            errors[threshold] = alignment_error([_links_above(s, threshold) for s in scores], gold).aer
        # Of equally good thresholds, the one closest to the default.
        return replace(self, threshold=min(THRESHOLDS, key=lambda t: (errors[t], abs(t - self.threshold))))

    def with_expected_links(self, pairs: Sequence[Pair]) -> Aligner:
        """Return an aligner with the relative threshold that gives the expected number of links in some pairs.

        The threshold stays within `LEARNED_THRESHOLDS`.
        """
        lowest, highest = LEARNED_THRESHOLDS
        counts = np.zeros(2)
        # Only a few weights per unit reach the lowest threshold.
        candidates = [np.zeros(0, np.float32)]
        for probabilities in self._probabilities(pairs):
            if probabilities is not None:
                counts += probabilities.expected_counts
                scores = relative_weights(probabilities.weights)
                candidates.append(scores[scores >= lowest])
        ordered = np.sort(np.concatenate(candidates))[::-1]
        num_links = round(_expected_links(*counts.tolist()))
        threshold = float(ordered[num_links - 1]) if 0 < num_links <= len(ordered) else lowest
        return replace(self, threshold=min(threshold, highest), relative=True)

    @property
    def rule(self) -> str:
        """Description of the threshold for messages."""
        kind = "relative weight" if self.relative else "weight"
        return f"the minimum {kind} of a link is {self.threshold:.3g}"

    def reversed(self) -> Aligner:
        """Return an aligner for the opposite direction."""
        reversed_segmentations = [Segmentation(s.target, s.source, s.lexicon.reversed()) for s in self.segmentations]
        return replace(self, segmentations=tuple(reversed_segmentations))

    def save(self, folder: Path) -> None:
        """Write the aligner to a folder atomically."""
        tables = {"threshold": torch.tensor([self.threshold], dtype=torch.float64)}
        if self.relative:
            tables["relative"] = torch.ones(1, dtype=torch.uint8)
        with atomic_folder(folder) as temporary:
            for n, (source, target, lexicon) in enumerate(self.segmentations):
                source.save(temporary / f"source.{n}.json")
                target.save(temporary / f"target.{n}.json")
                tables[f"{n}.pairs"] = torch.from_numpy(lexicon.pairs)
                for name, model in (("forward", lexicon.forward), ("backward", lexicon.backward)):
                    for key, table in model._asdict().items():
                        tables[f"{n}.{name}.{key}"] = torch.from_numpy(table)
            save_weights(temporary / TABLES_FILE, tables)

    @staticmethod
    def find(folder: Path) -> Aligner | None:
        """Return the aligner in a model folder or in prepared data, or None if there is none.

        Raises:
            ModelError: The aligner's folder is damaged.
        """
        path = complete_folder(folder / FOLDER)
        if not path.is_dir():
            return None
        if not is_inside(path, folder):
            raise ModelError(f"{path}: must be inside the model's folder; got a link to a folder outside")
        return Aligner.load(path)

    @staticmethod
    def load(folder: Path) -> Aligner:
        """Load an aligner that was written by `save`.

        Raises:
            ModelError: The folder is damaged or holds something else.
        """
        tables = _TableReader(folder / TABLES_FILE)
        threshold = float(tables.read("threshold", torch.float64, 1)[0])
        # 0 would link everything.
        tables.require(0 < threshold <= 1)
        # Aligners of versions before relative weights have no such table.
        relative = "relative" in tables.tensors and bool(tables.read("relative", torch.uint8, 1)[0])
        segmentations: list[Segmentation] = []
        while f"{len(segmentations)}.pairs" in tables.tensors:
            n = len(segmentations)
            source = Tokenizer.load(folder / f"source.{n}.json")
            target = Tokenizer.load(folder / f"target.{n}.json")
            segmentations.append(Segmentation(source, target, tables.lexicon(n, len(source), len(target))))
        tables.require(bool(segmentations))
        return Aligner(tuple(segmentations), threshold, relative)


def learn_aligner(sources: Sequence[str], targets: Sequence[str], normalize: str = NONE) -> Aligner:
    """Learn an aligner, and the threshold of its links, from at most `MAX_PAIRS` sentence pairs of raw text.

    Args:
        sources: Source sentences.
        targets: Their translations.
        normalize: Level of normalisation of the text that the aligner reads (see `text.normalization`).

    Raises:
        RnnsearchError: No pair has text in both languages.
    """
    # At equal distances: the start of a corpus is often of one kind of text.
    step = max(1, -(-len(sources) // MAX_PAIRS))
    return learn_from_pairs(zip(sources[::step], targets[::step], strict=True), normalize)


def learn_from_pairs(pairs: Iterable[tuple[str, str]], normalize: str = NONE) -> Aligner:
    """Learn an aligner from all of these sentence pairs of raw text, which are read once (see `learn_aligner`).

    Memory grows by a few bytes per word.
    """
    normalization = Normalization(normalize)
    texts = ChunkedText(), ChunkedText()
    for pair in pairs:
        if pair[0].strip() and pair[1].strip():
            for text, sentence in zip(texts, pair, strict=True):
                text.add(normalization.text(lowercase(sentence)))
    if not len(texts[0]):
        raise RnnsearchError("an aligner must be learned from sentence pairs with text on both sides; got none")
    is_large = min(text.num_chunks for text in texts) > LARGE_TEXT_WORDS
    sizes = LARGE_VOCABULARY_SIZES if is_large else VOCABULARY_SIZES
    hmm_rounds = LARGE_HMM_ROUNDS if is_large else HMM_ROUNDS
    with ThreadPoolExecutor(2) as threads:
        source_tokenizers, target_tokenizers = threads.map(_learn_tokenizers, texts, repeat(sizes))
    # A short text has few distinct subwords, so several sizes may give the same tokenizers.
    distinct: dict[tuple[str, str], Segmentation] = {}
    # The largest table first, because memory that the library uses for each tokenizer is not returned.
    for tokenizers in reversed(list(zip(source_tokenizers, target_tokenizers, strict=True))):
        source, target = (tokenizer.normalizing(normalization) for tokenizer in tokenizers)
        key = (source.fingerprint(), target.fingerprint())
        if key not in distinct:
            # The text is normalised already.
            sources, targets = (text.tokenize(tokenizer) for text, tokenizer in zip(texts, tokenizers, strict=True))
            lexicon = learn_lexicon(sources, targets, (len(source), len(target)), hmm_rounds)
            distinct[key] = Segmentation(source, target, lexicon)
    aligner = Aligner(tuple(reversed(distinct.values())))
    return aligner.with_expected_links(_threshold_pairs(aligner, *texts))


def _learn_tokenizers(text: ChunkedText, sizes: Sequence[int]) -> list[Tokenizer]:
    """Return a tokenizer for each vocabulary size."""
    return bpe_of_sizes(text.counts(MAX_TOKENIZER_CHUNKS), sizes, 1)


def _expected_links(mean: float, union: float) -> float:
    """Return the expected number of links, from those of both directions on average and of their union.

    It is at least halfway between them, and closer to the union the more the directions disagree: each direction links
    a generated unit to about one unit, so that they disagree on units with several links.
    """
    disagreement = union / mean - 1 if mean else 0.0
    fraction = min(max(UNION_SLOPE * disagreement, MIN_UNION_FRACTION), 1.0)
    return mean + fraction * (union - mean)


def _threshold_pairs(aligner: Aligner, sources: ChunkedText, targets: ChunkedText) -> list[Pair]:
    """Return at most `THRESHOLD_PAIRS` evenly spaced pairs to choose the threshold on."""
    rows = range(0, len(sources), max(1, -(-len(sources) // THRESHOLD_PAIRS)))
    texts = [(sources.sentence(row), targets.sentence(row)) for row in rows]
    num_cells = sum(len(source) * len(target) for source, target in texts)
    texts = texts[:: max(1, -(-num_cells // MAX_THRESHOLD_CELLS))]
    # The segmentation with the longest tokens.
    source_tokenizer, target_tokenizer, _ = aligner.segmentations[-1]
    source = source_tokenizer.segment([source for source, _ in texts])
    target = target_tokenizer.segment([target for _, target in texts])
    return [Pair(s.text, t.text, _words_or_tokens(s), _words_or_tokens(t)) for s, t in zip(source, target, strict=True)]


def _words_or_tokens(sentence: Segmented) -> Sequence[Span]:
    """Return the words of a sentence, or the tokens if spaces do not separate its words."""
    words = bare_word_spans(sentence.text)
    return words if len(words) * MAX_TOKENS_PER_WORD >= len(sentence.offsets) else sentence.offsets


def lowercase(text: str) -> str:
    """Return the text in lower case and with ordinary spaces; character offsets stay valid."""
    lower = text.lower()
    # The lower case of a capital sigma depends on its neighbours; of a few characters, it has two characters.
    if len(lower) != len(text) or "Σ" in text:
        lower = "".join(map(_lowercase_character, text))
    return _UNUSUAL_SPACE.sub(" ", lower)


def _lowercase_character(character: str) -> str:
    lower = character.lower()
    return lower if len(lower) == 1 else character


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    batch: list[Pair] = []
    batch_size = 0
    for pair in pairs:
        cells = 0 if pair.is_too_long else len(pair.source_units) * len(pair.target_units)
        size = max(len(pair.source), len(pair.target), cells)
        if batch and batch_size + size > MAX_BATCH_SIZE:
            yield batch
            batch = []
            batch_size = 0
        batch.append(pair)
        batch_size += size
    if batch:
        yield batch


def _links_above(weights: LinkWeights | None, threshold: float) -> set[Link]:
    if weights is None:
        return set()
    target_units, source_units = np.nonzero(weights >= threshold)
    return set(zip(source_units.tolist(), target_units.tolist(), strict=True))


def relative_weights(weights: LinkWeights) -> LinkWeights:
    """Return the weights divided by the geometric mean of the total weights of their row and their column.

    A weight of 0.2 is much for a unit whose other weights are 0.1, but little next to one of 0.8. Totals are limited to
    1, because certain links of one unit, as of a compound to several words, do not compete.
    """
    # In float64, so that the sums do not depend on the layout of the matrix.
    rows = np.minimum(weights.sum(axis=1, keepdims=True, dtype=np.float64), 1) + TOTAL_OFFSET
    columns = np.minimum(weights.sum(axis=0, keepdims=True, dtype=np.float64), 1) + TOTAL_OFFSET
    relative: LinkWeights = (weights / np.sqrt(rows * columns)).astype(np.float32)
    return relative


def _overlaps(units: Sequence[Span], tokens: Sequence[Span]) -> Float[np.ndarray, "units tokens"]:
    """Return the fraction of each token's characters that lies in each unit."""
    unit_starts, unit_ends = np.array(units, dtype=np.int64).reshape(-1, 2).T
    starts, ends = np.array(tokens, dtype=np.int64).reshape(-1, 2).T
    common = np.minimum(unit_ends[:, None], ends) - np.maximum(unit_starts[:, None], starts)  # [units, tokens]
    overlaps: Float[np.ndarray, "units tokens"] = (common.clip(0) / np.maximum(ends - starts, 1)).astype(np.float32)
    return overlaps


def _normalise_rows(overlaps: Float[np.ndarray, "units tokens"]) -> Float[np.ndarray, "units tokens"]:
    """Scale the weights of each unit's tokens to sum to 1."""
    totals = np.maximum(overlaps.sum(axis=1, keepdims=True), np.float32(1e-9))
    normalised: Float[np.ndarray, "units tokens"] = overlaps / totals
    return normalised


class _TableReader:
    """Reads and validates the tables of a stored aligner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors = read_weights(path)

    def require(self, condition: bool) -> None:
        """Raise ModelError unless the condition holds."""
        if not condition:
            raise ModelError(f"{self.path}: must hold an aligner's tables; got others")

    def read(self, name: str, dtype: torch.dtype, size: int | None = None) -> NDArray[Any]:
        """Return a one-dimensional table of finite values."""
        tensor = self.tensors.get(name)
        self.require(tensor is not None and tensor.dtype == dtype and tensor.dim() == 1)
        assert tensor is not None
        self.require(size is None or len(tensor) == size)
        values: NDArray[Any] = tensor.numpy()
        self.require(bool(np.isfinite(values).all()))
        return values

    def lexicon(self, n: int, num_source: int, num_target: int) -> Lexicon:
        """Return the lexicon of segmentation `n`, whose vocabularies have these sizes."""
        pairs = self.read(f"{n}.pairs", torch.int64)
        # `searchsorted` needs them in ascending order.
        self.require(bool((np.diff(pairs) > 0).all()))
        self.require(not len(pairs) or bool(pairs[0] >= 0 and pairs[-1] < num_source * num_target))
        models = []
        for name, num_states, num_emitted in (
            ("forward", num_source, num_target),
            ("backward", num_target, num_source),
        ):
            sizes = {"seen": len(pairs), "unseen": num_states, "none": num_emitted, "jumps": NUM_JUMPS}
            tables = {key: self.read(f"{n}.{name}.{key}", torch.float32, size) for key, size in sizes.items()}
            model = HmmParameters(**tables)
            self.require(all(bool(((table >= 0) & (table <= 1)).all()) for table in model))
            # Jump weights are divided by their sums.
            self.require(bool((model.jumps > 0).all()))
            models.append(model)
        return Lexicon(pairs, *models)
