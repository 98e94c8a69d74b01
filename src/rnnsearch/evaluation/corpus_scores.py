"""What one system scores on one test set, in the shape of the table of Bahdanau et al."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rnnsearch.errors import DataError
from rnnsearch.metrics.alignment_error import AlignmentScores
from rnnsearch.metrics.calibration import Bin, expected_calibration_error
from rnnsearch.metrics.scores import (
    Bucket,
    CorpusScore,
    FrequencyClass,
    References,
    accuracy_by_frequency,
    bleu_by_length,
    corpus_scores,
    looks_tokenised,
    shown,
)
from rnnsearch.metrics.significance import Comparison, paired_bootstrap
from rnnsearch.text.languages import unspaced
from rnnsearch.utils.tables import columns

_TOKENISED = (
    "The references look tokenised (most full stops stand alone): do not compare these scores with those of plain text."
)


@dataclass(frozen=True)
class Evaluation:
    """One system's scores on one test set."""

    name: str
    sentences: int
    scores: tuple[CorpusScore, ...]
    """BLEU, chrF and TER over all sentences."""
    note: str = ""
    """What a reader of the scores must know; empty where there is nothing."""
    no_unk_sentences: int | None = None
    """How many sentences have no unknown word; None where that column was not asked for."""
    no_unk_scores: tuple[CorpusScore, ...] = ()
    """Scores over those; empty where there are none."""
    lengths: tuple[Bucket, ...] = ()
    """BLEU by source length."""
    baseline: str | None = None
    """The name of the system compared with."""
    comparison: Comparison | None = None
    alignment: AlignmentScores | None = None
    rare_words: tuple[FrequencyClass, ...] = ()
    """Accuracy of words by how often training saw them."""
    confidence: tuple[Bin, ...] = ()
    """A calibrated model's words by how sure it was of them."""

    @property
    def bleu(self) -> float:
        """BLEU over all sentences."""
        return next(score.value for score in self.scores if score.name == "BLEU")

    @property
    def no_unk_bleu(self) -> float | None:
        """BLEU over the sentences without unknown words; None where there is no such score."""
        return next((score.value for score in self.no_unk_scores if score.name == "BLEU"), None)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error of the words' confidence."""
        return expected_calibration_error(self.confidence)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; parts that were not asked for are left out."""
        parts = {
            "note": self.note,
            "no_unk": self.no_unk_sentences is not None
            and {"sentences": self.no_unk_sentences, "scores": [asdict(score) for score in self.no_unk_scores]},
            "by_length": [asdict(bucket) for bucket in self.lengths],
            "comparison": self.comparison and {"baseline": self.baseline, **asdict(self.comparison)},
            "alignment": self.alignment and asdict(self.alignment),
            "rare_words": [asdict(words) for words in self.rare_words],
            "confidence": self.confidence
            and {"error": self.calibration_error, "bins": [asdict(some) for some in self.confidence]},
        }
        scores = [asdict(score) for score in self.scores]
        given = {name: part for name, part in parts.items() if part}
        return {"name": self.name, "sentences": self.sentences, "scores": scores, **given}

    def to_text(self) -> str:
        """The scores as plain text, one part after the other, each in aligned columns."""
        parts = [
            self._score_lines() + ([self.note] if self.note else []),
            self._length_lines(),
            columns(rare_words_table(self.rare_words)) if self.rare_words else [],
            self._confidence_lines(),
            self._comparison_lines(),
        ]
        if self.alignment is not None:
            parts.append([f"word alignment: {self.alignment}"])
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _score_lines(self) -> list[str]:
        head = ["", f"all ({self.sentences})"]
        rows = [[score.name, f"{score.value:.2f}"] for score in self.scores]
        if self.no_unk_sentences is not None:
            head.append(f"no UNK ({self.no_unk_sentences})")
            second = {score.name: f"{score.value:.2f}" for score in self.no_unk_scores}
            rows = [[*row, second.get(row[0], "-")] for row in rows]
        rows = [[*row, score.signature] for row, score in zip(rows, self.scores, strict=True)]
        return columns([[*head, "signature"], *rows], left=(0, len(head)))

    def _length_lines(self) -> list[str]:
        rows = [[b.label, str(b.sentences), f"{b.bleu:.2f}"] for b in self.lengths]
        return columns([["source words", "sentences", "BLEU"], *rows]) if rows else []

    def _confidence_lines(self) -> list[str]:
        error = f"confidence is {self.calibration_error:.1%} off (expected calibration error):"
        return [error, *columns(confidence_table(self.confidence))] if self.confidence else []

    def _comparison_lines(self) -> list[str]:
        if self.comparison is None:
            return []
        head, *rows = comparison_table(self)
        note = f"paired bootstrap, {self.comparison.samples} resamples, 95 % intervals:"
        return [note, *columns([["", *head[1:-1]], *(row[:-1] for row in rows)])]


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    more: References = (),
    name: str = "this system",
    language: str = "",
    sources: Sequence[str] | None = None,
    no_unk: Sequence[str | None] | None = None,
    baseline: tuple[str, Sequence[str]] | None = None,
    samples: int = 1000,
    alignment: AlignmentScores | None = None,
    counts: Mapping[str, int] | None = None,
    confidence: Sequence[Bin] = (),
) -> Evaluation:
    """Score a system's translations; each further part only where its input is given.

    `more`: further sets of references, for all scores but the accuracy of rare words.
    `language`: the target's code, which chooses BLEU's tokeniser. `sources`: raw source sentences, for BLEU
    by length. `no_unk`: for the table's second column, the translations, made with UNK
    banned, of the sentences without unknown words in source and reference, and None for the others. `baseline`: another
    system's name and translations, compared by a paired bootstrap of `samples` resamples. `alignment`: what
    `alignment_error` found. `counts`: how often each target word occurs in the training text, for the accuracy of rare
    words; without effect where words have no spaces between. `confidence`: what `confidence.came_true` found.
    Errors: DataError where the numbers of lines differ, or there are none.
    """
    scores = tuple(corpus_scores(hypotheses, references, language, more))
    count, second = _no_unk_scores(no_unk, references, language, more) if no_unk is not None else (None, ())
    lengths: Sequence[Bucket] = ()
    if sources is not None:
        lengths = bleu_by_length(sources, hypotheses, references, language=language, more=more)
    spaced = unspaced(language) is None
    other, comparison = None, None
    if baseline is not None:
        other = baseline[0]
        comparison = paired_bootstrap(
            hypotheses, baseline[1], references, samples=samples, language=language, more=more
        )
    return Evaluation(
        name=name,
        sentences=len(references),
        scores=scores,
        note=_TOKENISED if looks_tokenised(references) else "",
        no_unk_sentences=count,
        no_unk_scores=second,
        lengths=tuple(lengths),
        baseline=other,
        comparison=comparison,
        alignment=alignment,
        rare_words=tuple(accuracy_by_frequency(hypotheses, references, counts) if counts and spaced else ()),
        confidence=tuple(confidence),
    )


def _no_unk_scores(
    no_unk: Sequence[str | None], references: Sequence[str], language: str, more: References
) -> tuple[int, tuple[CorpusScore, ...]]:
    if len(no_unk) != len(references):
        raise DataError(
            "translations without unknown words must have one entry a reference; "
            f"got {len(no_unk)} for {len(references)}"
        )
    texts = [text for text in no_unk if text is not None]
    first, *others = (
        [one for one, text in zip(s, no_unk, strict=True) if text is not None] for s in (references, *more)
    )
    return len(texts), tuple(corpus_scores(texts, first, language, others)) if texts else ()


def paper_table(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """The paper's table 1: a head, then each system's BLEU over all sentences and over those without UNK."""
    rows = [["Model", "All", "No UNK"]]
    for evaluation in evaluations:
        second = evaluation.no_unk_bleu
        rows.append([evaluation.name, f"{evaluation.bleu:.2f}", "-" if second is None else f"{second:.2f}"])
    return rows


def rare_words_table(classes: Sequence[FrequencyClass]) -> list[list[str]]:
    """A head, then one row a class, the rarest words first."""
    rows = [["Times in training", "Words wanted", "Recall", "Words translated", "Precision"]]
    for c in shown(classes):
        rows.append([c.label, f"{c.wanted:,}", _percent(c.recall), f"{c.translated:,}", _percent(c.precision)])
    return rows


def confidence_table(made: Sequence[Bin]) -> list[list[str]]:
    """A head, then one row a range of confidence: its words' mean, and the share that the reference has."""
    return [["Sure by", "Words", "Right"], *([_percent(b.confidence), f"{b.count:,}", _percent(b.right)] for b in made)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def comparison_table(evaluation: Evaluation) -> list[list[str]]:
    """A head, then one row a metric: both systems' scores with their intervals, and whether they differ."""
    rows = [["Metric", evaluation.name, evaluation.baseline or "baseline", "p", "Verdict"]]
    for d in evaluation.comparison.differences if evaluation.comparison is not None else ():
        system = f"{d.system:.2f} ± {d.system_interval:.2f}"
        baseline = f"{d.baseline:.2f} ± {d.baseline_interval:.2f}"
        verdict = "significant" if d.significant else "may be chance"
        rows.append([d.name, system, baseline, f"{d.p_value:.4f}", verdict])
    return rows
