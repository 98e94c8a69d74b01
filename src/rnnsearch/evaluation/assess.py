"""A model on a test set: its translations and what they score. What `evaluate` and the demo run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rnnsearch.data.corpus import read_lines
from rnnsearch.data.prepared import COUNTS, read_counts
from rnnsearch.evaluation.corpus_scores import Evaluation, evaluate
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error, check_range
from rnnsearch.metrics.scores import References
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.card import add_scores, load_training_facts
from rnnsearch.text.alignment_types import AlignedBy
from rnnsearch.text.alignments import Links, words
from rnnsearch.text.words import count_words
from rnnsearch.translator.confidence import came_true
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator


@dataclass(frozen=True)
class Assessment:
    """A system's translations of a test set and what they score."""

    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[Translation]
    evaluation: Evaluation
    options: SearchOptions
    """How the translations were searched for."""

    @property
    def search(self) -> str:
        """The search in words."""
        return f"beam {self.options.beam}, length penalty {self.options.length_penalty:g}"

    def scores(self, set_name: str) -> dict[str, Any]:
        """What was measured, as plain values for JSON: on which text, by which search."""
        text = "".join(f"{s}\t{r}\n" for s, r in zip(self.sources, self.references, strict=True))
        about = {"set": set_name, "text": sha256(text.encode()).hexdigest()[:16], "search": self.search}
        return {**self.evaluation.as_dict(), **about}


def assess(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    name: str = "this system",
    options: SearchOptions | None = None,
    baseline: tuple[str, Sequence[str]] | None = None,
    gold: tuple[str, Sequence[Links]] | None = None,
    counts: Mapping[str, int] | None = None,
    more: References = (),
    by: AlignedBy | None = None,
) -> Assessment:
    """Translate a test set and score it.

    `baseline`: another system's name and translations, for the paired bootstrap. `gold`: the name and links of
    a word alignment of the test set; the references are then aligned for AER, `by` what is asked for.
    `counts`: how often each target word occurs in the training text (`training_counts`), for rare words' accuracy.
    `more`: further sets of references; what is about one reference a sentence (AER, rare words, examples) is of the
    first.
    The "No UNK" column of the papers is there where the vocabulary leaves some word unknown.
    Errors: DataError for different numbers of lines; ModelError for gold links of a model that aligns nothing
    (see `Translator.require_alignments`).
    """
    if gold:
        translator.require_alignments(by)
    options = options or translator.options()
    translations = [best[0] for best in translator.n_best(sources, options)]
    evaluation = evaluate(
        [t.text for t in translations],
        references,
        more=more,
        name=name,
        language=translator.languages[1],
        sources=sources,
        no_unk=_no_unknown(translator, sources, references, options),
        baseline=baseline,
        alignment=_aligned(translator, sources, references, gold, by) if gold else None,
        counts=counts,
        confidence=came_true(translations, references),
    )
    return Assessment(sources, references, translations, evaluation, options)


def _no_unknown(
    translator: Translator, sources: Sequence[str], references: Sequence[str], options: SearchOptions
) -> list[str | None] | None:
    """Translations with UNK banned, None where a pair has an unknown word; none at all where no pair has one."""
    unknown = translator.has_unknown(sources, references)
    if not any(unknown):
        return None
    known = [source for source, without in zip(sources, unknown, strict=True) if not without]
    banning = translator.options(options.beam, 1, options.length_penalty, ban_unknown=True)
    texts = iter(t.text for t in translator.translate(known, banning))
    return [None if without else next(texts) for without in unknown]


def _aligned(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    gold: tuple[str, Sequence[Links]],
    by: AlignedBy | None,
) -> AlignmentScores:
    name, known = gold
    for number, (links, source, reference) in enumerate(zip(known, sources, references, strict=False), 1):
        check_range(links.possible, len(words(source)), len(words(reference)), f"{name}:{number}")
    return alignment_error([set(links) for links in translator.align(sources, references, by=by)], known)


def training_counts(model: Path, text: Path | None = None) -> Mapping[str, int] | None:
    """How often each target word occurs in the training text: in `text` (its target side, one sentence a line) or, by
    the prepared data in the model's folder; None where neither is there. Errors: DataError for an unfit file."""
    if text is not None:
        return count_words(read_lines(text))
    kept = model / "data" / COUNTS
    return read_counts(kept) if kept.is_file() else None


def record(model: Path, assessment: Assessment, set_name: str) -> bool:
    """Put the scores on the card of a model that was trained here; returns whether it was.

    Errors: RnnsearchError where the folder cannot be written.
    """
    if not load_training_facts(model):
        return False
    add_scores(model, assessment.scores(set_name))
    return True
