"""BLEU, chrF and TER with sacreBLEU (Post, 2018), and accuracy by sentence length and by word frequency.

Scores are computed over raw (detokenised, cased) text and range from 0 to 100; for TER, an error rate that may exceed
100, lower is better. Every corpus score carries sacreBLEU's signature, without which a BLEU score means little.

Names and signatures of scores are stored in evaluations.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Literal

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from rnnsearch.errors import DataError
from rnnsearch.text.languages import unspaced_language
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import count_words

References = Sequence[Sequence[str]]
"""Additional sets of references for the same sentences."""
MetricName = Literal["bleu", "chrf"]
"""Metric by which settings and weights are selected."""
SACREBLEU_NAMES: dict[MetricName, str] = {"bleu": "BLEU", "chrf": "chrF2"}
"""sacreBLEU's name of each metric."""


@dataclass(frozen=True)
class CorpusScore:
    """Value of one metric for a corpus."""

    name: str
    """sacreBLEU's name: `BLEU`, `chrF2` or `TER`."""
    value: float
    """Score, from 0 to 100."""
    signature: str
    """sacreBLEU's signature of the metric."""

    @property
    def lower_is_better(self) -> bool:
        """True for error rates."""
        return self.name == "TER"

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f} ({self.signature})"


def bleu_tokeniser(language: str = "") -> str:
    """Return the name of sacreBLEU's tokeniser for a target language.

    It is `13a`, or one for text without spaces, which 13a would treat as one word per sentence.
    """
    measure = unspaced_language(language)
    return "13a" if measure is None else measure.bleu_tokeniser


def make_metrics(language: str = "") -> dict[str, Metric]:
    """Return new sacreBLEU metrics by name.

    `force` suppresses a message on stderr about tokenised text; see `looks_tokenised`.
    """
    tokeniser = bleu_tokeniser(language)
    has_no_spaces = unspaced_language(language) is not None
    return {
        "BLEU": BLEU(tokenize=tokeniser, force=True),
        "chrF2": CHRF(),
        # Tercom splits Asian characters only if it normalises.
        "TER": TER(normalized=has_no_spaces, asian_support=has_no_spaces),
    }


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Return True if most sentences end with " .", as in tokenised text, whose BLEU is not comparable."""
    stops = [line for line in lines if line.endswith(".")]
    return len(stops) >= 10 and 2 * sum(line.endswith(" .") for line in stops) > len(stops)


def check_lines(hypotheses: Sequence[str], references: Sequence[str], name: str = "hypotheses") -> None:
    """Raise DataError unless there is at least one reference, and one hypothesis per reference."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{name} and references must have the same number of lines; got {len(hypotheses)} and {len(references)}"
        )
    if not references:
        raise DataError("there must be at least one sentence to score; got none")


def all_references(references: Sequence[str], more_references: References) -> list[Sequence[str]]:
    """Return all sets of references.

    Raises:
        DataError: A set has another number of lines than the first.
    """
    for other in more_references:
        check_lines(other, references, "further references")
    return [references, *more_references]


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more_references: References = ()
) -> list[CorpusScore]:
    """Return BLEU, chrF and TER of a corpus.

    Args:
        hypotheses: Translations.
        references: One reference per sentence.
        language: Code of the target language, which selects BLEU's tokeniser (see the signature).
        more_references: Additional sets of references.

    Raises:
        DataError: The numbers of lines differ or are zero.
    """
    check_lines(hypotheses, references)
    sets = all_references(references, more_references)
    scores = []
    for name, metric in make_metrics(language).items():
        value = metric.corpus_score(hypotheses, sets).score
        scores.append(CorpusScore(name, _clip(value, name), str(metric.get_signature())))
    return scores


def document_level_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    documents: Sequence[int],
    language: str = "",
    more_references: References = (),
) -> list[CorpusScore]:
    """Return BLEU and chrF of a corpus with each document as one segment (d-BLEU, Liu et al. 2020).

    N-grams may match anywhere in the document and across sentences, and the brevity penalty is unchanged. There is no
    TER, whose time grows with the square of a segment's length.

    Args:
        hypotheses: Translations.
        references: One reference per sentence.
        documents: Number of the document of each sentence; sentences of a document are neighbours.
        language: Code of the target language.
        more_references: Additional sets of references.

    Raises:
        DataError: The numbers of lines differ or are zero.
    """
    check_lines(hypotheses, references)
    sets = [join_documents(lines, documents, language) for lines in all_references(references, more_references)]
    segments = join_documents(hypotheses, documents, language)
    scores = []
    for name, metric in make_metrics(language).items():
        if name != "TER":
            value = metric.corpus_score(segments, sets).score
            scores.append(CorpusScore(name, _clip(value, name), str(metric.get_signature())))
    return scores


def join_documents(lines: Sequence[str], documents: Sequence[int], language: str = "") -> list[str]:
    """Return the text of each document, given the number of the document of each line."""
    separator = " " if unspaced_language(language) is None else ""
    numbered = zip(documents, lines, strict=True)
    return [separator.join(line for _, line in group) for _, group in groupby(numbered, key=lambda row: row[0])]


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more_references: References = ()
) -> float:
    """Return only BLEU, which is faster; used for the dev set during training.

    Raises:
        DataError: The numbers of lines differ or are zero.
    """
    check_lines(hypotheses, references)
    metric = BLEU(tokenize=bleu_tokeniser(language), force=True)
    return _clip(metric.corpus_score(hypotheses, all_references(references, more_references)).score, "BLEU")


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """Return chrF of one sentence (chrF2: characters, no words, beta 2)."""
    return _clip(_sentence_chrf_metric().sentence_score(hypothesis, [reference]).score, "chrF2")


@lru_cache(maxsize=1)
def _sentence_chrf_metric() -> CHRF:
    return CHRF()


def _clip(value: float, name: str) -> float:
    """Return sacreBLEU's value, at most 100: rounding can give a perfect BLEU of 100.00000000000004."""
    return float(value) if name == "TER" else min(float(value), 100.0)


# BLEU by source length, as in figure 2 of Bahdanau et al.

_MIN_SENTENCES_FOR_EQUAL_WIDTHS = 200
"""With fewer sentences, buckets have equal numbers of sentences instead of equal widths."""
_MIN_BUCKET_SENTENCES = 10
"""Smaller buckets are merged with the next shorter one; their BLEU would be noise."""


@dataclass(frozen=True)
class Bucket:
    """The sentences whose source has `low` to `high` words, both included."""

    low: int
    """Minimum number of source words."""
    high: int
    """Maximum number of source words."""
    sentences: int
    mean_length: float
    """Mean number of source words."""
    bleu: float
    """BLEU of these sentences."""

    @property
    def label(self) -> str:
        """Display name: `11–15`, or `11` for a single length."""
        return str(self.low) if self.low == self.high else f"{self.low}–{self.high}"


def length_ranges(lengths: Sequence[int], width: int | None = None) -> list[tuple[int, int]]:
    """Return ranges of lengths, both ends included, that cover all sentences.

    Ranges of fewer than 10 sentences are merged with the previous one (the first with the next).

    Args:
        lengths: Length of each sentence.
        width: Width of a range in words. By default 2, 5 or 10, depending on the lengths; or, for
            fewer than 200
            sentences, up to four ranges with about equal numbers of sentences.

    Raises:
        DataError: The width is below 1.
    """
    if width is not None and width < 1:
        raise DataError(f"the width of a length bucket must be at least 1 word; got {width}")
    if not lengths:
        return []
    array = np.asarray(lengths)
    if width is None and len(array) < _MIN_SENTENCES_FOR_EQUAL_WIDTHS:
        num_ranges = max(1, min(4, len(array) // _MIN_BUCKET_SENTENCES))
        quantiles = np.arange(1, num_ranges + 1) / num_ranges
        highs = [int(high) for high in np.quantile(array, quantiles, method="lower")]
    else:
        step = width or _default_width(array)
        highs = list(range(step, int(array.max()) + step, step)) or [0]
    return _merge_small(sorted(set(highs)), array)


def _default_width(lengths: np.ndarray[tuple[int], np.dtype[np.int_]]) -> int:
    """Return the smallest of the widths 2, 5 and 10 with which nearly all sentences are in eight buckets."""
    long = float(np.quantile(lengths, 0.98))
    return next((width for width in (2, 5) if long <= 8 * width), 10)


def _merge_small(highs: list[int], lengths: np.ndarray[tuple[int], np.dtype[np.int_]]) -> list[tuple[int, int]]:
    """Return the ranges that end at the given lengths, small ones merged."""
    ranges: list[tuple[int, int]] = []
    low = min(int(lengths.min()), 1)
    for high in highs:
        count = int(((lengths >= low) & (lengths <= high)).sum())
        num_before = int((lengths < low).sum())
        if count < _MIN_BUCKET_SENTENCES and ranges:
            ranges[-1] = (ranges[-1][0], high)
        elif count >= _MIN_BUCKET_SENTENCES or num_before + count == len(lengths):
            ranges.append((low, high))
        else:
            continue
        low = high + 1
    longest = int(lengths.max())
    return [*ranges[:-1], (ranges[-1][0], longest)]


def bleu_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    width: int | None = None,
    language: str = "",
    more_references: References = (),
) -> list[Bucket]:
    """Return BLEU of each bucket of source lengths (see `length_ranges`), shortest first.

    The buckets depend only on the sources, so they are the same for every system.

    Args:
        sources: Source sentences.
        hypotheses: Their translations.
        references: One reference per sentence.
        width: Width of a bucket in words.
        language: Code of the target language, which selects BLEU's tokeniser.
        more_references: Additional sets of references.

    Raises:
        DataError: The numbers of lines differ or are zero.
    """
    check_lines(hypotheses, references)
    check_lines(sources, references, "sources")
    lengths = np.asarray([len(source.split()) for source in sources])
    buckets = []
    for low, high in length_ranges(lengths.tolist(), width):
        inside = np.flatnonzero((lengths >= low) & (lengths <= high)).tolist()
        if inside:
            hypotheses_inside = [hypotheses[n] for n in inside]
            sets = [[lines[n] for n in inside] for lines in (references, *more_references)]
            bleu = corpus_bleu(hypotheses_inside, sets[0], language, sets[1:])
            buckets.append(Bucket(low, high, len(inside), float(lengths[inside].mean()), bleu))
    return buckets


# Precision and recall of target words by their frequency in the training text.
#
# A word of a translation is correct if its reference contains it anywhere; each occurrence in the reference counts once
# (the clipped counts of BLEU's unigrams). Words are those of `text.words`, cased and without punctuation; an `<unk>` is
# not a word.

FREQUENCY_EDGES = (0, 1, 2, 5, 10, 100, 1000)
"""Lowest training count of each class of words."""


@dataclass(frozen=True)
class FrequencyClass:
    """The target words that occur `low` to `high` times in the training text, both included."""

    low: int
    """Minimum number of occurrences."""
    high: int | None
    """None for no limit."""
    translated: int
    """Number of such words in the translations."""
    wanted: int
    """Number of such words in the references."""
    right: int
    """Number of such words in both."""

    @property
    def label(self) -> str:
        """Display name: `never`, `1`, `2–4`, ..., `1,000+`."""
        if self.high is None:
            return f"{self.low:,}+"
        if self.low == self.high:
            return f"{self.low}" if self.low else "never"
        return f"{self.low}–{self.high}"

    @property
    def precision(self) -> float | None:
        """Fraction of the translations' words that are correct; None without such words."""
        return self.right / self.translated if self.translated else None

    @property
    def recall(self) -> float | None:
        """Fraction of the references' words that are in the translations; None without such words."""
        return self.right / self.wanted if self.wanted else None


def accuracy_by_frequency(
    hypotheses: Sequence[str],
    references: Sequence[str],
    counts: Mapping[str, int],
    edges: Sequence[int] = FREQUENCY_EDGES,
) -> list[FrequencyClass]:
    """Return one class of words per interval of training counts, the rarest first.

    Args:
        hypotheses: Translations.
        references: One reference per sentence.
        counts: Number of occurrences of each word in the training text; missing words have none.
        edges: Lowest count of each class, ascending.

    Raises:
        DataError: The numbers of lines differ or are zero.
    """
    check_lines(hypotheses, references)
    totals = [[0, 0, 0] for _ in edges]  # translated, wanted, right
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        translated = count_words([hypothesis.replace(SPECIALS[UNK], " ")])
        wanted = count_words([reference])
        for column, words in enumerate((translated, wanted, translated & wanted)):
            for word, n in words.items():
                totals[bisect_right(edges, counts.get(word, 0)) - 1][column] += n
    highs = [*(edge - 1 for edge in edges[1:]), None]
    return [FrequencyClass(low, high, *total) for low, high, total in zip(edges, highs, totals, strict=True)]


def non_empty_classes(classes: Sequence[FrequencyClass]) -> list[FrequencyClass]:
    """Return the classes with words in the translations or references."""
    return [c for c in classes if c.translated or c.wanted]
