"""Sentence pairs as `score` and `align` read them, and word alignments as lines of text.

Every input line must give exactly one output line, also if it is too long.

Tests: tests/commands/test_align.py, tests/commands/test_filter.py, tests/test_documents.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rnnsearch.cli.io import parallel_rows, print_message, rereadable, source_files
from rnnsearch.data.arrays import NamedArray
from rnnsearch.errors import DataError

if TYPE_CHECKING:
    from rnnsearch.bulk import Counts
    from rnnsearch.text.alignment_types import AlignedBy, Symmetrisation, Unit
    from rnnsearch.text.alignments import Link
    from rnnsearch.text.several_sources import SourceText
    from rnnsearch.text.tokenizer import Tokenizer
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

# Lines are sorted by length within a chunk, so larger chunks have less padding.
BATCHES_PER_CHUNK = 16

EMPTY_OUTPUT = "its output line is empty"
"""End of messages about lines without a translation; `translate_documents.py` replaces it."""

# Names of counts: the sum of `attention_information`, and the number of translations that have it.
INFORMATION = "information of attention"
TRANSLATIONS = "translations with attention"


class PairChunk(NamedTuple):
    """Some line pairs of parallel files. A pair that is too long is empty here and stored in `skipped`."""

    sources: list[SourceText]
    """Source lines or arrays; for a model with several sources, those of each."""
    targets: list[str]
    """Target lines."""
    skipped: list[tuple[str, str] | None]
    """Pair that is too long, by row; None for the others."""
    documents: list[int]
    """Number of the document of each pair."""


def read_pairs(
    translator: Translator, source: Path, target: Path, max_tokens: int, documents: bool = False
) -> Iterator[PairChunk]:
    """Yield the line pairs of parallel files; report and skip those with a sentence beyond the limits.

    The limits are `max_tokens` tokens, or rows of an array, and MAX_LINE_BYTES, above which a line is not even
    tokenized.

    Args:
        translator: The model.
        source: Source file; for a model with several sources, their files, separated by "|".
        target: Target file.
        max_tokens: Maximum number of tokens of a sentence.
        documents: True if empty lines separate documents; otherwise each pair is a document.

    Raises:
        DataError: The files have different numbers of lines, or a document ends in one of them only.
        ModelError: There are documents, but the model reads no previous sentences.
    """
    if documents:
        translator.require_context()
    size = BATCHES_PER_CHUNK * translator.config.search.batch_sentences
    reader = _PairReader(translator, [*source_files(source, translator.sources), target], max_tokens, documents)
    with rereadable(*reader.paths) as copies:
        for rows in parallel_rows(copies, reader.names, translator.system.arrays, size):
            yield reader.chunk(rows)


class _PairReader:
    """Makes chunks of pairs from the rows of parallel files."""

    def __init__(self, translator: Translator, paths: Sequence[Path], max_tokens: int, documents: bool) -> None:
        """Start before the first row; `paths` are the files of each source and of the target."""
        self.paths = paths
        self.names = (*translator.sources, translator.languages[1])
        """Names of the languages of the files."""
        self._translator = translator
        self._max_tokens = max_tokens
        self._has_documents = documents
        self._num_pairs = 0
        self._document = 0

    def chunk(self, rows: Sequence[tuple[str, ...]]) -> PairChunk:
        """Return the next pairs, given the sources and the target of each; an array is a `NamedArray`."""
        chunk = PairChunk([], [], [], [])
        for row in rows:
            self._num_pairs += 1
            fits = [self._fits(name, path, text) for name, path, text in zip(self.names, self.paths, row, strict=True)]
            *sources, target = row if all(fits) else map(_without_content, row)
            chunk.sources.append(sources if self._translator.has_several_sources else sources[0])
            chunk.targets.append(target)
            chunk.skipped.append(None if all(fits) else ("\t".join(row[:-1]), row[-1]))
            chunk.documents.append(self._next_document(chunk))
        return chunk

    def _fits(self, name: str, path: Path, text: str) -> bool:
        """Return True if a source or the target of the current pair is within the limits; otherwise report it."""
        if isinstance(text, NamedArray):
            fits = len(text.values) <= self._max_tokens
            message = too_many_rows_message(path, self._num_pairs, self._max_tokens, "--max-symbols")
        else:
            fits = fits_limits(text, self._max_tokens, self._translator.system.text_tokenizer(name))
            message = too_long_message(path, self._num_pairs, self._max_tokens, "--max-symbols")
        if not fits:
            print_message(message)
        return fits

    def _next_document(self, chunk: PairChunk) -> int:
        """Return the number of the document of the last pair of a chunk.

        Raises:
            DataError: The source line is empty, which ends the document, but the target line is not.
        """
        if not self._has_documents:
            self._document += 1
            return self._document
        # A model with `data.context` has one source, which is text.
        source, target = str(chunk.sources[-1]), chunk.targets[-1]
        if not source.strip():
            # As in `translate`, a line that is too long ends the document, because contexts have no gaps.
            self._document += 1
            if target.strip():
                must = f"must be empty, because the line of {self.paths[0]}, which ends a document, is"
                raise DataError(f"{self.paths[-1]}:{self._num_pairs}: {must}")
        return self._document


def _without_content(text: str) -> str:
    """Return an empty text or, for an array, one without rows."""
    return NamedArray(text, text.values[:0]) if isinstance(text, NamedArray) else ""


def source_columns(line: str, sources: Sequence[str], location: str) -> tuple[str, ...]:
    """Return the text in each source of a line: its columns, separated by tabs.

    Missing columns are sources that the sentence does not have.

    Raises:
        DataError: The line has more columns than there are sources.
    """
    if len(sources) == 1:
        return (line,)
    columns = line.split("\t")
    if len(columns) > len(sources):
        must = f"must have at most one column per source ({', '.join(sources)})"
        raise DataError(f"{location}: {must}; got {len(columns)}")
    return (*columns, *[""] * (len(sources) - len(columns)))


def fits_byte_limit(line: str) -> bool:
    """Return True if the line is short enough to be tokenized at all."""
    from rnnsearch.data.corpus import MAX_LINE_BYTES

    return len(line.encode()) <= MAX_LINE_BYTES


def fits_limits(line: str, max_tokens: int, tokenizer: Tokenizer) -> bool:
    """Return True if the line has at most MAX_LINE_BYTES bytes and `max_tokens` tokens."""
    return fits_byte_limit(line) and tokenizer.fits(line, max_tokens)


def too_long_message(path: object, number: int, max_tokens: int, option: str) -> str:
    """Return the message about a line that is too long."""
    return f"{path}:{number}: must have at most {max_tokens:,} tokens ({option}); {EMPTY_OUTPUT}"


def too_many_rows_message(path: object, number: int, max_rows: int, option: str) -> str:
    """Return the message about an array that has too many rows."""
    return f"{path}:{number}: must have at most {max_rows:,} rows ({option}); {EMPTY_OUTPUT}"


# Alignments.


def pharaoh_line(links: Collection[Link]) -> str:
    """Return links as a line of a Pharaoh file."""
    from rnnsearch.text.alignments import format_pharaoh

    return format_pharaoh(links) + "\n"


def source_links_line(translation: Translation, sources: Sequence[str], unit: Unit, words_before: int = 0) -> str:
    """Return the links of each source, separated by tabs, as a line; a missing source has none.

    Args:
        translation: A translation by a model with several sources.
        sources: Names of the sources, in the order of the columns.
        unit: Link words or tokens.
        words_before: Number of words before the translation in its output line.
    """
    from rnnsearch.text.alignments import format_pharaoh

    columns = []
    for name in sources:
        links: Collection[Link] = ()
        if name in translation.sources and unit == "words":
            links = [(source, words_before + target) for source, target in translation.alignments[name]]
        elif name in translation.sources:
            links = translation.sources[name].token_links
        columns.append(format_pharaoh(links))
    return "\t".join(columns) + "\n"


class LinkWriter:
    """Writes the links of translations as Pharaoh lines, for `align` and `translate --alignments`.

    Adds to `counts` how much attention says about the alignment (`Translation.attention_information`), so that
    `warn_of_uniform_attention` can warn of a model whose attention is nearly uniform.
    """

    def __init__(self, unit: Unit, by: AlignedBy | None, counts: Counts, sources: Sequence[str] = ()) -> None:
        """Store the options; with several `sources`, a line has one column of links per source."""
        self._sources = sources
        self._unit = unit
        self._always_attention = by == "attention"
        self._counts = counts

    def line(self, translation: Translation, words_before: int | None = 0) -> str:
        """Return the links of a translation.

        Args:
            words_before: Number of words before the translation in its output line; None if that line is empty.
        """
        by_attention = self._always_attention or translation.aligner_links is None
        if by_attention:
            count_attention_information(translation, self._counts)
        if words_before is None:
            return "\t" * (len(self._sources) - 1) + pharaoh_line(())
        if len(self._sources) > 1:
            return source_links_line(translation, self._sources, self._unit, words_before)
        if self._unit == "symbols":
            return pharaoh_line(translation.attended_tokens if by_attention else translation.token_alignment)
        links = translation.attended if by_attention else translation.alignment
        return pharaoh_line([(source, words_before + target) for source, target in links])


class BidirectionalAligner:
    """Combines the word links of two models of opposite directions.

    Attributes:
        counts: Attention information of each model's alignments.
    """

    def __init__(self, forward: Translator, backward: Translator, by: AlignedBy, method: Symmetrisation) -> None:
        """Store the models.

        Raises:
            ModelError: `backward` does not translate in the opposite direction, or cannot align by this method.
        """
        # Called for its check, before any output is written.
        backward.require_reverse_of(*forward.languages)
        # Called for its check, before any output is written.
        backward.require_alignments(by)
        self._forward = forward
        self._backward = backward
        self._by = by
        self._method = method
        self._forward_order = forward.document_order()
        self._backward_order = backward.document_order()
        self.counts: tuple[Counts, Counts] = ({}, {})

    def links(self, sources: list[str], targets: list[str], documents: Sequence[int]) -> list[set[Link]]:
        """Return the links (source word, target word) of the next pairs, given the document of each."""
        from rnnsearch.text.alignments import symmetrise

        sources_in_context = self._forward_order.with_context(sources, documents, targets)
        targets_in_context = self._backward_order.with_context(targets, documents, sources)
        forward_pairs = self._forward.score(sources_in_context, targets, self._by)
        backward_pairs = self._backward.score(targets_in_context, sources, self._by)
        combined = []
        for forward, backward in zip(forward_pairs, backward_pairs, strict=True):
            count_attention_information(forward, self.counts[0])
            count_attention_information(backward, self.counts[1])
            backward_links = [(source, target) for target, source in backward.alignment]
            combined.append(symmetrise(forward.alignment, backward_links, self._method))
        return combined


def count_attention_information(translation: Translation, counts: Counts) -> None:
    """Add the attention information of a translation to the counts."""
    for sentence in translation.sentences or [translation]:
        information = sentence.attention_information
        if information is not None:
            counts[INFORMATION] = counts.get(INFORMATION, 0.0) + information
            counts[TRANSLATIONS] = counts.get(TRANSLATIONS, 0) + 1


def report_missing_aligner(translator: Translator, by: AlignedBy | None) -> None:
    """Print a message if alignments come from attention only because the model's aligner has not been learned."""
    from rnnsearch.systems.card import awaits_aligner

    folder = translator.folder
    if by is None and folder is not None and awaits_aligner(folder, translator.config):
        print_message(
            f"{folder}: has no word aligner yet (`rnnsearch train` learns it after the model, "
            f"`rnnsearch aligner {folder}` now), so alignments come from attention"
        )


def warn_of_uniform_attention(model: Path, counts: Counts) -> None:
    """Print a warning if the attention behind all alignments is nearly uniform, so that they mean nothing."""
    from rnnsearch.text.alignments import MIN_INFORMATION

    translations = counts.get(TRANSLATIONS, 0)
    information = counts.get(INFORMATION, 0.0)
    if translations and information < MIN_INFORMATION * translations:
        print_message(
            f"{model}: attention is nearly the same for every target word ({information / translations:.0%} of the "
            "possible information), so these alignments mean nothing; has the model been trained long enough?"
        )
