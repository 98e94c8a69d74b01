"""BLEU, chrF and TER through sacreBLEU (Post, 2018), over raw (detokenised, cased) text.

Every corpus score carries sacreBLEU's signature, without which a BLEU score means little. Scores run
from 0 to 100; for TER, an error rate that may pass 100, less is better.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from rnnsearch.errors import DataError
from rnnsearch.text.languages import unspaced
from rnnsearch.text.vocabulary import SPECIALS, UNK
from rnnsearch.text.words import count_words

References = Sequence[Sequence[str]]
"""Further references of the same sentences, set by set."""
Goal = Literal["bleu", "chrf"]
"""What settings and weights are chosen by."""
GOALS: dict[Goal, str] = {"bleu": "BLEU", "chrf": "chrF2"}
"""What sacreBLEU calls them."""


@dataclass(frozen=True)
class CorpusScore:
    """One metric's value for a corpus."""

    name: str
    """`BLEU`, `chrF2` or `TER`, as sacreBLEU calls them."""
    value: float
    signature: str

    @property
    def lower_is_better(self) -> bool:
        """True of error rates."""
        return self.name == "TER"

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.2f} ({self.signature})"


def bleu_tokeniser(language: str = "") -> str:
    """The name of sacreBLEU's tokeniser for a target language: `13a`, or one for text without spaces, which 13a would
    take for one word a sentence."""
    measure = unspaced(language)
    return "13a" if measure is None else measure.bleu


def make_metrics(language: str = "") -> dict[str, Metric]:
    """Fresh sacreBLEU metrics by name. `force` leaves out a message on stderr: see `looks_tokenised`."""
    tokeniser = bleu_tokeniser(language)
    asian = unspaced(language) is not None
    return {
        "BLEU": BLEU(tokenize=tokeniser, force=True),
        "chrF2": CHRF(),
        # Tercom splits Asian characters only where it normalises.
        "TER": TER(normalized=asian, asian_support=asian),
    }


def looks_tokenised(lines: Sequence[str]) -> bool:
    """True where most sentences end in " .", as tokenised text does: its BLEU is no plain text's BLEU."""
    stops = [line for line in lines if line.endswith(".")]
    return len(stops) >= 10 and 2 * sum(line.endswith(" .") for line in stops) > len(stops)


def check_lines(hypotheses: Sequence[str], references: Sequence[str], name: str = "hypotheses") -> None:
    """Raise DataError unless there is one hypothesis a reference, and at least one of them."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{name} and references must have the same number of lines; got {len(hypotheses)} and {len(references)}"
        )
    if not references:
        raise DataError("there must be at least one sentence to score; got none")


def all_references(references: Sequence[str], more: References) -> list[Sequence[str]]:
    """All sets of references. Errors: DataError where one has another number of lines than the first."""
    for other in more:
        check_lines(other, references, "further references")
    return [references, *more]


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more: References = ()
) -> list[CorpusScore]:
    """BLEU, chrF and TER of a corpus against one reference a sentence, or with `more` sets of them against several.

    `language`, the target's code, chooses BLEU's tokeniser; the signature says which, and how many references.
    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    sets, scores = all_references(references, more), []
    for name, metric in make_metrics(language).items():
        value = metric.corpus_score(hypotheses, sets).score
        scores.append(CorpusScore(name, _within(value, name), str(metric.get_signature())))
    return scores


def corpus_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "", more: References = ()
) -> float:
    """BLEU alone, quickly: for the dev set during training.

    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    metric = BLEU(tokenize=bleu_tokeniser(language), force=True)
    return _within(metric.corpus_score(hypotheses, all_references(references, more)).score, "BLEU")


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF of one sentence (chrF2: characters, no words, beta 2)."""
    return _within(_sentence_chrf_metric().sentence_score(hypothesis, [reference]).score, "chrF2")


@lru_cache(maxsize=1)
def _sentence_chrf_metric() -> CHRF:
    return CHRF()


def _within(value: float, name: str) -> float:
    """sacreBLEU's value without the rounding that can put a perfect BLEU at 100.00000000000004."""
    return float(value) if name == "TER" else min(float(value), 100.0)


# BLEU by source length, as in the figure of Bahdanau et al. (figure 2): are long sentences lost?

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


# Are rare words translated? Precision and recall of target words by how often training saw them.
#
# A word of a translation is right where its reference has it too, in any place; each occurrence in the reference
# serves once (the clipped counts of BLEU's unigrams). Words are those of `text.words`, case kept, punctuation left out;
# an `<unk>` is no word.

EDGES = (0, 1, 2, 5, 10, 100, 1000)
"""The lowest training count of each class of words."""


@dataclass(frozen=True)
class FrequencyClass:
    """The target words that occur between `low` and `high` times in the training text, both included."""

    low: int
    high: int | None
    """None: no limit."""
    translated: int
    """Such words in the translations."""
    wanted: int
    """Such words in the references."""
    right: int
    """Such words in both."""

    @property
    def label(self) -> str:
        """`never`, `1`, `2–4`, ..., `1,000+`."""
        if self.high is None:
            return f"{self.low:,}+"
        if self.low == self.high:
            return f"{self.low}" if self.low else "never"
        return f"{self.low}–{self.high}"

    @property
    def precision(self) -> float | None:
        """The share of the translations' words that are right; None where there are no such words."""
        return self.right / self.translated if self.translated else None

    @property
    def recall(self) -> float | None:
        """The share of the references' words that are found; None where there are no such words."""
        return self.right / self.wanted if self.wanted else None


def accuracy_by_frequency(
    hypotheses: Sequence[str], references: Sequence[str], counts: Mapping[str, int], edges: Sequence[int] = EDGES
) -> list[FrequencyClass]:
    """One class of words from each of `edges` (rising) to below the next, the rarest first; `counts`: how often each
    word occurs in the training text, words that are not there never.

    Errors: DataError for different numbers of lines, or none.
    """
    check_lines(hypotheses, references)
    totals = [[0, 0, 0] for _ in edges]
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        translated, wanted = count_words([hypothesis.replace(SPECIALS[UNK], " ")]), count_words([reference])
        right = translated & wanted
        for column, words in enumerate((translated, wanted, right)):
            for word, n in words.items():
                totals[bisect_right(edges, counts.get(word, 0)) - 1][column] += n
    highs = [*(edge - 1 for edge in edges[1:]), None]
    return [FrequencyClass(low, high, *total) for low, high, total in zip(edges, highs, totals, strict=True)]


def shown(classes: Sequence[FrequencyClass]) -> list[FrequencyClass]:
    """The classes that have any word in translations or references."""
    return [c for c in classes if c.translated or c.wanted]
