"""Scores of one system on one test set, and the tables that show them.

`evaluate` computes an `Evaluation`; `to_text` prints it, `as_dict` gives its JSON, and `page.py` shows the tables in
the report. The main table has the columns of Bahdanau et al. 2015, table 1: all sentences, and those without unknown
words.

The keys of `as_dict` are stored in `scores.json` and written by `evaluate --output`. Tests: tests/metrics.
"""

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
    document_level_scores,
    looks_tokenised,
    non_empty_classes,
)
from rnnsearch.metrics.significance import Comparison, paired_bootstrap
from rnnsearch.text.languages import unspaced_language
from rnnsearch.utils.tables import align_columns

_TOKENISED_NOTE = (
    "The references look tokenised (most full stops are separate words): do not compare these scores with those on "
    "ordinary text."
)


@dataclass(frozen=True)
class Evaluation:
    """One system's scores on one test set."""

    name: str
    """Name of the system in tables."""
    sentences: int
    scores: tuple[CorpusScore, ...]
    """BLEU, chrF and TER over all sentences."""
    note: str = ""
    """A warning for readers of the scores, or empty."""
    no_unk_sentences: int | None = None
    """Number of sentences without unknown words; None if they were not scored separately."""
    no_unk_scores: tuple[CorpusScore, ...] = ()
    """Scores over the sentences without unknown words; empty if there are none."""
    documents: int | None = None
    """Number of documents; None if documents were not scored."""
    document_scores: tuple[CorpusScore, ...] = ()
    """BLEU and chrF with each document as one segment."""
    lengths: tuple[Bucket, ...] = ()
    """BLEU by source length."""
    baseline: str | None = None
    """Name of the system in `comparison`."""
    comparison: Comparison | None = None
    """Paired bootstrap test against the baseline."""
    alignment: AlignmentScores | None = None
    """Scores of the references' word alignment."""
    rare_words: tuple[FrequencyClass, ...] = ()
    """Accuracy of words by their frequency in the training text."""
    confidence: tuple[Bin, ...] = ()
    """Accuracy of words by the confidence of a calibrated model."""

    @property
    def bleu(self) -> float:
        """BLEU over all sentences."""
        return next(score.value for score in self.scores if score.name == "BLEU")

    @property
    def no_unk_bleu(self) -> float | None:
        """BLEU over the sentences without unknown words, or None."""
        return next((score.value for score in self.no_unk_scores if score.name == "BLEU"), None)

    @property
    def document_bleu(self) -> float | None:
        """BLEU of whole documents, or None."""
        return next((score.value for score in self.document_scores if score.name == "BLEU"), None)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the word confidences."""
        return expected_calibration_error(self.confidence)

    def as_dict(self) -> dict[str, Any]:
        """Return values for JSON, without the optional parts that were not computed."""
        values: dict[str, Any] = {
            "name": self.name,
            "sentences": self.sentences,
            "scores": [asdict(score) for score in self.scores],
        }
        if self.note:
            values["note"] = self.note
        if self.no_unk_sentences is not None:
            no_unk_scores = [asdict(score) for score in self.no_unk_scores]
            values["no_unk"] = {"sentences": self.no_unk_sentences, "scores": no_unk_scores}
        if self.documents is not None:
            document_scores = [asdict(score) for score in self.document_scores]
            values["documents"] = {"documents": self.documents, "scores": document_scores}
        if self.lengths:
            values["by_length"] = [asdict(bucket) for bucket in self.lengths]
        if self.comparison:
            values["comparison"] = {"baseline": self.baseline, **asdict(self.comparison)}
        if self.alignment:
            values["alignment"] = asdict(self.alignment)
        if self.rare_words:
            values["rare_words"] = [asdict(words) for words in self.rare_words]
        if self.confidence:
            values["confidence"] = {
                "error": self.calibration_error,
                "bins": [asdict(interval) for interval in self.confidence],
            }
        return values

    def to_text(self) -> str:
        """Return the scores as text with one aligned table per part."""
        parts = [
            self._score_lines() + ([self.note] if self.note else []),
            self._length_lines(),
            align_columns(rare_words_table(self.rare_words)) if self.rare_words else [],
            self._confidence_lines(),
            self._comparison_lines(),
        ]
        if self.alignment is not None:
            parts.append([f"word alignment: {self.alignment}"])
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _score_lines(self) -> list[str]:
        header = ["", f"all ({self.sentences})"]
        if self.no_unk_sentences is not None:
            header.append(f"no UNK ({self.no_unk_sentences})")
        if self.documents is not None:
            header.append(f"documents ({self.documents})")
        no_unk_values = {score.name: f"{score.value:.2f}" for score in self.no_unk_scores}
        document_values = {score.name: f"{score.value:.2f}" for score in self.document_scores}
        rows = []
        for score in self.scores:
            row = [score.name, f"{score.value:.2f}"]
            if self.no_unk_sentences is not None:
                row.append(no_unk_values.get(score.name, "-"))
            if self.documents is not None:
                row.append(document_values.get(score.name, "-"))
            rows.append([*row, score.signature])
        return align_columns([[*header, "signature"], *rows], left=(0, len(header)))

    def _length_lines(self) -> list[str]:
        rows = [[b.label, str(b.sentences), f"{b.bleu:.2f}"] for b in self.lengths]
        return align_columns([["source words", "sentences", "BLEU"], *rows]) if rows else []

    def _confidence_lines(self) -> list[str]:
        if not self.confidence:
            return []
        title = f"word confidence (expected calibration error {self.calibration_error:.1%}):"
        return [title, *align_columns(confidence_table(self.confidence))]

    def _comparison_lines(self) -> list[str]:
        if self.comparison is None:
            return []
        header, *rows = comparison_table(self)
        title = f"paired bootstrap, {self.comparison.samples} resamples, 95% intervals:"
        # The verdict is left out: it follows from p.
        return [title, *align_columns([["", *header[1:-1]], *(row[:-1] for row in rows)])]


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    more_references: References = (),
    name: str = "this system",
    language: str = "",
    sources: Sequence[str] | None = None,
    no_unk: Sequence[str | None] | None = None,
    baseline: tuple[str, Sequence[str]] | None = None,
    samples: int = 1000,
    alignment: AlignmentScores | None = None,
    counts: Mapping[str, int] | None = None,
    confidence: Sequence[Bin] = (),
    documents: Sequence[int] | None = None,
) -> Evaluation:
    """Score a system's translations; optional parts are computed if their input is given.

    Args:
        hypotheses: The translations.
        references: Reference translations.
        more_references: Further sets of references, for all scores except the accuracy of rare words.
        name: Name of the system in tables.
        language: Code of the target language, which selects BLEU's tokeniser.
        sources: Raw source sentences, for BLEU by length.
        no_unk: Translations, with UNK banned, of the sentences without unknown words in source and reference; None
            for each other sentence.
        baseline: Another system's name and translations, for a paired bootstrap test.
        samples: Number of resamples of the bootstrap.
        alignment: Result of `alignment_error`.
        counts: Counts of target words in the training text, for the accuracy of rare words; ignored for languages
            without spaces between words.
        confidence: Result of `confidence.reliability_bins`.
        documents: Number of the document of each sentence, for scores of whole documents; sentences of a document are
            neighbours.

    Raises:
        DataError: If the numbers of lines differ or are 0.
    """
    scores = tuple(corpus_scores(hypotheses, references, language, more_references))
    no_unk_sentences: int | None = None
    no_unk_scores: tuple[CorpusScore, ...] = ()
    if no_unk is not None:
        no_unk_sentences, no_unk_scores = _score_known(no_unk, references, language, more_references)
    document_scores: Sequence[CorpusScore] = ()
    if documents is not None:
        document_scores = document_level_scores(hypotheses, references, documents, language, more_references)
    lengths: Sequence[Bucket] = ()
    if sources is not None:
        lengths = bleu_by_length(sources, hypotheses, references, language=language, more_references=more_references)
    comparison = None
    if baseline is not None:
        comparison = paired_bootstrap(
            hypotheses, baseline[1], references, samples=samples, language=language, more_references=more_references
        )
    rare_words: Sequence[FrequencyClass] = ()
    if counts and unspaced_language(language) is None:
        rare_words = accuracy_by_frequency(hypotheses, references, counts)
    return Evaluation(
        name=name,
        sentences=len(references),
        scores=scores,
        note=_TOKENISED_NOTE if looks_tokenised(references) else "",
        no_unk_sentences=no_unk_sentences,
        no_unk_scores=no_unk_scores,
        documents=None if documents is None else len(set(documents)),
        document_scores=tuple(document_scores),
        lengths=tuple(lengths),
        baseline=None if baseline is None else baseline[0],
        comparison=comparison,
        alignment=alignment,
        rare_words=tuple(rare_words),
        confidence=tuple(confidence),
    )


def _score_known(
    no_unk: Sequence[str | None], references: Sequence[str], language: str, more_references: References
) -> tuple[int, tuple[CorpusScore, ...]]:
    """Return the number and the scores of the sentences without unknown words (see `evaluate`)."""
    if len(no_unk) != len(references):
        raise DataError(
            "translations without unknown words must have one entry per reference; "
            f"got {len(no_unk)} for {len(references)}"
        )
    known = [index for index, text in enumerate(no_unk) if text is not None]
    if not known:
        return 0, ()
    hypotheses = [text for text in no_unk if text is not None]
    known_references = [[lines[index] for index in known] for lines in (references, *more_references)]
    return len(known), tuple(corpus_scores(hypotheses, known_references[0], language, known_references[1:]))


def paper_table(evaluations: Sequence[Evaluation]) -> list[list[str]]:
    """Return Bahdanau et al. 2015, table 1: a header, then each system's BLEU on all sentences and without UNK."""
    rows = [["Model", "All", "No UNK"]]
    for evaluation in evaluations:
        no_unk_bleu = evaluation.no_unk_bleu
        rows.append([evaluation.name, f"{evaluation.bleu:.2f}", "-" if no_unk_bleu is None else f"{no_unk_bleu:.2f}"])
    return rows


def rare_words_table(classes: Sequence[FrequencyClass]) -> list[list[str]]:
    """Return a header, then one row per frequency class, rarest first."""
    rows = [["Times in training", "Words in references", "Recall", "Words in translations", "Precision"]]
    for c in non_empty_classes(classes):
        rows.append([c.label, f"{c.wanted:,}", _percent(c.recall), f"{c.translated:,}", _percent(c.precision)])
    return rows


def confidence_table(bins: Sequence[Bin]) -> list[list[str]]:
    """Return a header and one row per range of confidence: its mean, words, and the fraction in the reference."""
    rows = [["Confidence", "Words", "Correct"]]
    for interval in bins:
        rows.append([_percent(interval.confidence), f"{interval.count:,}", _percent(interval.right)])
    return rows


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def comparison_table(evaluation: Evaluation) -> list[list[str]]:
    """Return a header, then one row per metric: both systems' scores with intervals, p and the verdict."""
    rows = [["Metric", evaluation.name, evaluation.baseline or "baseline", "p", "Verdict"]]
    for d in evaluation.comparison.differences if evaluation.comparison is not None else ():
        system = f"{d.system:.2f} ± {d.system_interval:.2f}"
        baseline = f"{d.baseline:.2f} ± {d.baseline_interval:.2f}"
        verdict = "significant" if d.significant else "not significant"
        rows.append([d.name, system, baseline, f"{d.p_value:.4f}", verdict])
    return rows
