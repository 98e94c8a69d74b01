"""`Translation`: the result of `Translator`, with tokens, words, scores, attention and alignments.

Everything that is expensive, such as links and attention over words, is computed on first access.

The torch-free runtime uses it, too, so this module must not import torch. The names of attributes are those of
`--format json` (`json_values`) and public Python API. Tests: tests/commands/test_translate.py.

Axes: J source positions.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.text.alignment_types import Unit
from rnnsearch.text.alignments import (
    NO_WORD,
    Link,
    attention_information,
    token_attention,
    with_copy_links,
    word_of_token,
)
from rnnsearch.text.alignments import words as words_of
from rnnsearch.text.attention_words import WordAttention
from rnnsearch.text.tokenizer import ReplacedBy, Replacement, Segmented
from rnnsearch.text.vocabulary import EOS, SPECIALS
from rnnsearch.translator.display import Plot, translation_html, translation_repr

Matrix = npt.NDArray[np.float32]

# Decimal places of attributes in `Translation.json_values`.
_DECIMALS = {"token_scores": 6, "attention": 5, "word_attention": 4, "word_confidence": 4, "confidence": 4}


@runtime_checkable
class AlignerLinks(Protocol):
    """Alignment links (source, target) of a translation by an aligner (see `translator.alignment`)."""

    @property
    def words(self) -> tuple[Link, ...]:
        """Links between words."""

    @property
    def tokens(self) -> tuple[Link, ...]:
        """Links between tokens."""


@dataclass(frozen=True, repr=False)
class Translation:
    """One translation of one source sentence."""

    source: str
    """Source text."""
    text: str
    """Target text."""
    score: float
    """Log-probability, normalised by length."""
    log_prob: float
    """Log-probability, in nats."""
    finished: bool
    """False if the translation was cut off at its maximum length, or blocked."""
    tokens: tuple[str, ...]
    """Target tokens, EOS last if the translation is finished."""
    token_scores: tuple[float, ...]
    """Log-probability of each target token."""
    source_tokens: tuple[str, ...]
    """Source tokens, EOS last; the rows of a source that is an array (see `data.arrays.row_labels`)."""
    attention: Matrix | None
    """[tokens, source_tokens]; None without attention. Rows sum to 1, except with local-p, monotonic, exponential."""
    source_words: tuple[str, ...]
    """Words of the source text, separated by white space."""
    words: tuple[str, ...]
    """Words of the target text, separated by white space."""
    by_attention: WordAttention = field(repr=False, compare=False)
    """Attention over words and links from attention, computed on first access."""
    aligner_links: AlignerLinks | None = field(default=None, repr=False, compare=False)
    """Links from the aligner, computed on first access; None without an aligner."""
    replaced: tuple[Replacement, ...] = ()
    """Replacements of unknown words, with their origin."""
    word_confidence: tuple[float, ...] | None = None
    """Probability, for each word, that a reference has it in its position; None if the model is not calibrated."""
    rationale: tuple[int, ...] | None = None
    """Indices of the source words with a token that was read; None unless the encoder selects tokens."""
    fallback: str | None = None
    """Method that preserved protected text which searches had lost: "pieces" if the text around it was translated piece
    by piece, "source" if the text is not translated.
    """
    missing_terms: tuple[str, ...] = ()
    """Source terms of a glossary whose target terms could not be placed (see `placement`)."""
    sources: Mapping[str, WordAttention] = field(default_factory=dict, repr=False, compare=False)
    """Text of each source that the sentence has, and the attention to it, by language; empty for a model with one
    source. All other fields about the source are those of the first."""
    pivot: str | None = None
    """Translation into a third language that this one is a translation of (see `translator.pivot`)."""
    sentences: tuple[Translation, ...] = field(default=(), repr=False)
    """Translations of the sentences of a text (see `texts.join_sentences`); empty for one sentence."""

    @property
    def confidence(self) -> float | None:
        """Expected fraction of the words that a reference has, 0 if blocked; None if the model is not calibrated."""
        if self.word_confidence is None:
            return None
        if not self.word_confidence:
            return float(not self.blocked)
        return sum(self.word_confidence) / len(self.word_confidence)

    @property
    def blocked(self) -> bool:
        """True if the search found nothing, for any sentence, because no token was allowed; its text is empty."""
        if self.sentences:
            return any(sentence.blocked for sentence in self.sentences)
        return not self.finished and not self.tokens

    @property
    def word_attention(self) -> Matrix | None:
        """Attention over words, [words, source_words]; None for a model without attention."""
        return self.by_attention.weights

    @property
    def token_words(self) -> tuple[int, ...]:
        """The index of each token's word, or -1 for a token outside of words (EOS, a space)."""
        words = self.by_attention.token_words
        # EOS is in no word.
        return (*words, *[NO_WORD] * (len(self.tokens) - len(words)))

    @property
    def attended(self) -> tuple[Link, ...]:
        """Links (source word, target word) by attention: each word to the one that its tokens attend to most.

        A copied word is linked to its original.
        """
        return self._with_copies(self.by_attention.word_links, "words")

    @property
    def attended_tokens(self) -> tuple[Link, ...]:
        """Links (source token, target token) by attention."""
        return self._with_copies(self.by_attention.token_links, "symbols")

    @property
    def alignment(self) -> tuple[Link, ...]:
        """Links (source word, target word) by the aligner, or by attention if there is no aligner."""
        if self.aligner_links is None:
            return self.attended
        return self._with_copies(self.aligner_links.words, "words")

    @property
    def alignments(self) -> dict[str, tuple[Link, ...]]:
        """Links (source word, target word) of each source that the sentence has; empty for a model with one source."""
        return {name: attention.word_links for name, attention in self.sources.items()}

    @property
    def source_texts(self) -> dict[str, str]:
        """The text of each source that the sentence has; empty for a model with one source."""
        return {name: attention.source.text for name, attention in self.sources.items()}

    @property
    def token_alignment(self) -> tuple[Link, ...]:
        """Links (source token, target token) by the aligner, or by attention if there is no aligner."""
        if self.aligner_links is None:
            return self.attended_tokens
        return self._with_copies(self.aligner_links.tokens, "symbols")

    def _with_copies(self, links: tuple[Link, ...], unit: Unit) -> tuple[Link, ...]:
        return with_copy_links(links, self.by_attention.source, self.by_attention.target, unit)

    @property
    def word_token_scores(self) -> list[list[float]]:
        """The log-probabilities of each word's tokens."""
        scores: list[list[float]] = [[] for _ in self.words]
        for word, score in zip(self.token_words, self.token_scores, strict=True):
            if word != NO_WORD:
                scores[word].append(score)
        # A replaced unknown word may consist of several words, which all have the scores of its token.
        for word, word_scores in enumerate(scores):
            scores[word] = word_scores or scores[word - 1]
        return scores

    @property
    def word_replaced(self) -> list[ReplacedBy | None]:
        """Method by which each word replaced an unknown word, or None."""
        token_words = self.token_words
        replaced_by = {token_words[replacement.token]: replacement.by for replacement in self.replaced}
        first_words = set(token_words)
        results = [replaced_by.get(word) for word in range(len(self.words))]
        for word in range(1, len(results)):
            if word not in first_words:  # a further word of the same token
                results[word] = results[word - 1]
        return results

    @property
    def word_probabilities(self) -> list[float]:
        """The geometric mean of the probabilities of each word's tokens; 1 for a word without tokens."""
        return [math.exp(sum(scores) / len(scores)) if scores else 1.0 for scores in self.word_token_scores]

    @property
    def attention_information(self) -> float | None:
        """Dependence of attention on the target position, from 0 (not at all, so links mean nothing) to 1.

        None without attention or for a single token.
        """
        return None if self.attention is None else attention_information(self.attention)

    def json_values(self, *names: str) -> dict[str, Any]:
        """Return attributes as values for JSON, with scores and weights rounded."""
        return {name: _rounded(getattr(self, name), _DECIMALS.get(name)) for name in names}

    def heatmap_data(self, unit: Unit = "words") -> tuple[Matrix, tuple[str, ...], tuple[str, ...]]:
        """Return attention weights and the labels of their columns and rows, for a heat map.

        Tokens include EOS, as in figure 3 of Bahdanau et al.

        Raises:
            RnnsearchError: The source or the translation has no words, or tokens of several sentences are requested.
            ModelError: The model has no attention.
        """
        if not self.source_words or not self.words:
            raise RnnsearchError("there is nothing to plot: the source or the translation has no words")
        if unit == "words" and self.word_attention is not None:
            return self.word_attention, self.source_words, self.words
        if self.attention is None and self.sentences:
            raise RnnsearchError("only words of a whole text can be plotted; plot the tokens of one of its sentences")
        if self.attention is None:
            raise ModelError("there is nothing to plot: the model has no attention")
        rows = token_attention(self.attention, len(self.tokens), self.by_attention.read)
        return rows, self.source_tokens, self.tokens

    @overload
    def plot(self, path: None = None, unit: Unit = "words") -> Plot: ...
    @overload
    def plot(self, path: str | Path, unit: Unit = "words") -> Path: ...

    def plot(self, path: str | Path | None = None, unit: Unit = "words") -> Plot | Path:
        """Plot the attention weights as a heat map; those over the regions of an image as one grid per word.

        Args:
            path: File to write (PNG, SVG or PDF, by the suffix).
            unit: Words or symbols (tokens) as rows and columns.

        Returns:
            The path or, without one, a plot that a notebook displays.

        Raises:
            RnnsearchError: The suffix is unknown, matplotlib is not installed, and as in `heatmap_data`.
        """
        from rnnsearch.metrics.plots import require_matplotlib

        require_matplotlib()
        from rnnsearch.metrics.plots.heatmap import heatmap, save
        from rnnsearch.metrics.plots.regions import region_figure

        attention, columns, rows = self.heatmap_data(unit)
        grid = self.by_attention.source.image_grid
        figure = heatmap(attention, columns, rows) if grid is None else region_figure(attention, grid, rows)
        if path is None:
            image = io.StringIO()
            figure.savefig(image, format="svg", bbox_inches="tight")
            return Plot(image.getvalue())
        save(figure, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        """Return the text and its score on one line."""
        return translation_repr(self)

    def _repr_html_(self) -> str:
        """Return the words with the source words that they are aligned to, for notebooks."""
        return translation_html(self)


def _rounded(value: Any, decimals: int | None) -> Any:
    if value is None or decimals is None:
        return value
    if isinstance(value, np.ndarray):  # may have too many values for a loop in Python
        return value.astype(np.float64).round(decimals).tolist()
    if isinstance(value, list | tuple):
        return [_rounded(item, decimals) for item in value]
    return round(value, decimals)


def one_line(text: str) -> str:
    """Return a text with line ends replaced by spaces, since a model may write any character."""
    return text.replace("\n", " ").replace("\r", " ")


def make_translation(
    source: Segmented,
    target: Segmented,
    hypothesis: Hypothesis,
    aligns_previous_word: bool,
    aligner_links: AlignerLinks | None = None,
) -> Translation:
    """Return a hypothesis as a translation.

    Args:
        source: The source sentence.
        target: The text of the hypothesis.
        hypothesis: The hypothesis.
        aligns_previous_word: True if the attention of a word is that of the position after it.
        aligner_links: Links from an aligner.
    """
    # A finished hypothesis has a score for EOS, which is not among the target's ids.
    eos = (SPECIALS[EOS],) if len(hypothesis.token_scores) > len(target.ids) else ()
    return Translation(
        source=source.text,
        text=target.text,
        score=hypothesis.score,
        log_prob=hypothesis.log_prob,
        finished=hypothesis.finished,
        tokens=(*target.tokens, *eos),
        token_scores=hypothesis.token_scores,
        source_tokens=(*source.tokens, *((SPECIALS[EOS],) if source.is_text else ())),
        attention=hypothesis.weights,
        source_words=tuple(words_of(source.text)),
        words=tuple(words_of(target.text)),
        by_attention=WordAttention(source, target, hypothesis.weights, aligns_previous_word),
        aligner_links=aligner_links,
        replaced=target.replaced,
    )


def with_sources(
    translation: Translation,
    source: Segmented,
    target: Segmented,
    hypothesis: Hypothesis,
    names: Sequence[str],
    aligns_previous_word: bool,
) -> Translation:
    """Return a translation with the text of each source and the attention to it.

    Args:
        translation: The translation.
        source: The sentence in all sources.
        target: The text of the translation.
        hypothesis: The hypothesis.
        names: Names of all sources, the first of which is that of the other fields.
        aligns_previous_word: True if the attention of a word is that of the position after it.
    """
    texts = source.by_source or {}
    sources = {}
    for name in names:
        if name in texts:
            weights = hypothesis.attention.get(name)
            sources[name] = WordAttention(texts[name], target, weights, aligns_previous_word)
    if names[0] not in texts:
        # A missing source has neither tokens nor EOS, and no weights.
        first = WordAttention(source, target, None, aligns_previous_word)
        return replace(translation, sources=sources, attention=None, by_attention=first, source_tokens=())
    first = sources[names[0]]
    return replace(translation, sources=sources, attention=first.attention, by_attention=first)


def with_rationale(translation: Translation, source: Segmented, is_selected: npt.NDArray[np.bool_]) -> Translation:
    """Return a translation with the source words that the encoder has read.

    Args:
        translation: The translation.
        source: Its source sentence.
        is_selected: [J], True for each source token that was read.
    """
    read_words = set[int]()
    for word, selected in zip(word_of_token(source.text, source.offsets), is_selected, strict=True):
        if selected and word != NO_WORD:
            read_words.add(word)
    return replace(translation, rationale=tuple(sorted(read_words)))
