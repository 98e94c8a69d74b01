"""Evaluation of a model on a test set: translate it and score the translations.

Used by `rnnsearch evaluate`, the demo and scripts. `corpus_scores.evaluate` computes the scores, `report.py` writes
them to a folder, and `record` adds them to the model card.

The keys of `Assessment.scores` are stored in `scores.json` of the model folder (`systems/card.py`) and written by
`evaluate --output`. Tests: tests/commands/test_evaluate.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rnnsearch.data.arrays import NamedArray
from rnnsearch.data.corpus import read_lines
from rnnsearch.data.prepared import WORD_COUNTS_FILE, read_word_counts
from rnnsearch.evaluation.corpus_scores import Evaluation, evaluate
from rnnsearch.metrics.alignment_error import AlignmentScores, alignment_error, check_range
from rnnsearch.metrics.scores import References
from rnnsearch.search.options import SearchOptions
from rnnsearch.systems.card import add_scores, load_training_facts
from rnnsearch.text.alignment_types import AlignedBy
from rnnsearch.text.alignments import Links, words
from rnnsearch.text.several_sources import SourceText, shown_text
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.text.words import count_words
from rnnsearch.translator.confidence import reliability_bins
from rnnsearch.translator.translation import Translation
from rnnsearch.translator.translator import Translator


@dataclass(frozen=True)
class Assessment:
    """A model's translations of a test set, and their scores."""

    sources: Sequence[str]
    """Source sentences; of several sources, the first text of each sentence; of arrays, their names."""
    references: Sequence[str]
    """Reference of each source sentence."""
    translations: Sequence[Translation]
    """Translation of each source sentence."""
    evaluation: Evaluation
    """Scores of the translations."""
    options: SearchOptions
    """Search options of the translations."""

    @property
    def search(self) -> str:
        """The search options in words."""
        return f"beam {self.options.beam}, length penalty {self.options.length_penalty:g}"

    def scores(self, set_name: str) -> dict[str, Any]:
        """Return the scores, the test set and the search as values for JSON."""
        text = "".join(f"{s}\t{r}\n" for s, r in zip(self.sources, self.references, strict=True))
        text_hash = sha256(text.encode()).hexdigest()[:16]
        return {**self.evaluation.as_dict(), "set": set_name, "text": text_hash, "search": self.search}


def assess(
    translator: Translator,
    sources: Sequence[SourceText],
    references: Sequence[str],
    name: str = "this system",
    options: SearchOptions | None = None,
    baseline: tuple[str, Sequence[str]] | None = None,
    gold: tuple[str, Sequence[Links]] | None = None,
    counts: Mapping[str, int] | None = None,
    more_references: References = (),
    align_by: AlignedBy | None = None,
    documents: Sequence[int] | None = None,
) -> Assessment:
    """Translate a test set and score it.

    If some sentences have unknown words, the scores without them are included (the papers' column "No UNK").

    Args:
        translator: The model.
        sources: Source sentences, or arrays; if the model has several sources, the texts or arrays in each.
        references: Reference translations.
        name: Name of the system in tables.
        options: Search options; None uses the model's.
        baseline: Another system's name and translations, for a paired bootstrap test.
        gold: Name and links of a gold word alignment of the test set; adds AER of the aligned references.
        counts: Counts of target words in the training text (`training_counts`); adds the accuracy of rare words.
        more_references: Further sets of references. AER, rare words and examples use the first set only.
        align_by: Alignment method for AER; None uses the best that the model has.
        documents: Number of the document of each sentence; the model then reads the previous sentences that it was
            trained with, and the scores of whole documents are included. Neighbours are in one document if their
            numbers are equal.

    Raises:
        DataError: If the numbers of lines differ.
        ModelError: If gold links are given for a model that cannot align (see `Translator.require_alignments`).
    """
    if gold:
        translator.require_alignments(align_by)
    options = options or translator.options()
    texts = [shown_text(source) for source in sources]
    in_order: Sequence[SourceText | Segmented] = sources
    before_references = in_order
    if documents is None:
        translations = [best[0] for best in translator.n_best(sources, options)]
    else:
        translations = [best[0] for best in translator.n_best_in_order(texts, documents, options)]
        in_order = translator.with_context(texts, documents, [translation.text for translation in translations])
        before_references = translator.with_context(texts, documents, references)
    evaluation = evaluate(
        [t.text for t in translations],
        references,
        more_references=more_references,
        name=name,
        language=translator.languages[1],
        # Names of arrays have no length.
        sources=None if translator.sources[0] in translator.system.arrays else texts,
        no_unk=_translate_known(translator, sources, in_order, references, options),
        baseline=baseline,
        alignment=_alignment_scores(translator, before_references, references, gold, align_by) if gold else None,
        counts=counts,
        confidence=reliability_bins(translations, references),
        documents=documents,
    )
    return Assessment(texts, references, translations, evaluation, options)


def _translate_known(
    translator: Translator,
    sources: Sequence[SourceText],
    in_order: Sequence[SourceText | Segmented],
    references: Sequence[str],
    options: SearchOptions,
) -> list[str | None] | None:
    """Translate the pairs without unknown words, with UNK banned and all other options unchanged.

    Args:
        translator: The model.
        sources: Source sentences.
        in_order: The same sentences, with their contexts if the model reads any.
        references: Reference translations.
        options: Search options.

    Returns:
        One entry per pair, None for a pair with an unknown word; or None if no pair has an unknown word.
    """
    has_unknown = translator.has_unknown(sources, references)
    if not any(has_unknown):
        return None
    known = [index for index, unknown in enumerate(has_unknown) if not unknown]
    banned = options.banned | translator.target.unknown_ids
    banning_options = replace(options.select(known), banned=banned)
    n_best_lists = translator.n_best([in_order[index] for index in known], banning_options)
    texts = iter(n_best[0].text for n_best in n_best_lists)
    return [None if unknown else next(texts) for unknown in has_unknown]


def _alignment_scores(
    translator: Translator,
    sources: Sequence[SourceText | Segmented],
    references: Sequence[str],
    gold: tuple[str, Sequence[Links]],
    align_by: AlignedBy | None,
) -> AlignmentScores:
    """Align the references and return the scores against gold links; raise DataError for links beyond a sentence.

    Args:
        translator: The model.
        sources: Source sentences, with their contexts if the model reads any.
        references: Reference translations.
        gold: Name and links of the gold word alignment.
        align_by: Alignment method.
    """
    name, gold_links = gold
    for number, (links, source, reference) in enumerate(zip(gold_links, sources, references, strict=False), 1):
        check_range(links.possible, _num_source_words(source), len(words(reference)), f"{name}:{number}")
    predicted = [set(links) for links in translator.align(sources, references, by=align_by)]
    return alignment_error(predicted, gold_links)


def _num_source_words(source: SourceText | Segmented) -> int:
    """Return the number of words of a source sentence or, for an array, of its rows."""
    text = source.text if isinstance(source, Segmented) else shown_text(source)
    return len(text.values) if isinstance(text, NamedArray) else len(words(text))


def training_counts(model: Path, text: Path | None = None) -> Mapping[str, int] | None:
    """Return the count of each target word in the training text, or None if it is not available.

    Args:
        model: Model folder, whose prepared data have the counts.
        text: Target side of the training text, one sentence per line; replaces the prepared data.

    Raises:
        DataError: If a file is malformed.
    """
    if text is not None:
        return count_words(read_lines(text))
    counts_file = model / "data" / WORD_COUNTS_FILE
    return read_word_counts(counts_file) if counts_file.is_file() else None


def record(model: Path, assessment: Assessment, set_name: str) -> bool:
    """Add the scores to the card of a model that rnnsearch trained; return False for any other model.

    Raises:
        RnnsearchError: If the folder cannot be written.
    """
    if not load_training_facts(model):
        return False
    add_scores(model, assessment.scores(set_name))
    return True
