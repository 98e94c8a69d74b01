"""A translation: its text, symbols and words, their scores and alignments, and all that as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rnnsearch.errors import ModelError, RnnsearchError
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.text.alignment_types import Unit
from rnnsearch.text.alignments import (
    NO_WORD,
    Link,
    attention_of_symbols,
    information,
    with_copies,
    word_of_symbol,
)
from rnnsearch.text.alignments import words as words_of
from rnnsearch.text.attention_words import Attended
from rnnsearch.text.tokenizer import ReplacedBy, Replacement, Segmented
from rnnsearch.text.vocabulary import EOS, SPECIALS

Matrix = npt.NDArray[np.float32]
_DIGITS = {"token_scores": 6, "attention": 5, "word_attention": 4, "word_confidence": 4, "confidence": 4}
"""Digits after the point that plain values keep."""


@runtime_checkable
class Aligned(Protocol):
    """What an aligner says of a translation: (source, target) links, found when they are first asked for."""

    @property
    def words(self) -> tuple[Link, ...]:
        """Of its words."""

    @property
    def tokens(self) -> tuple[Link, ...]:
        """Of its tokens."""


@dataclass(frozen=True)
class Translation:
    """One translation of one source sentence.

    text: raw target text. score: length-normalised log-probability. log_prob: its sum, in nats.
    tokens: target symbols (EOS last, if the search ended there). token_scores: log-probability of each.
    source_tokens: source symbols, EOS last. attention: [tokens, source_tokens]; None for a model without attention.
    Its rows sum to 1, but under local-p, monotonic and exponential.
    source_words, words: the whitespace-separated words of the two texts.
    by_attention: what attention says of its words. aligned: what an aligner does; None without one.
    replaced: what took the place of unknown words, and from where.
    word_confidence: how sure to be of each of `words`, the probability that a reference has it in its place, by what
    `rnnsearch calibrate` has learned; None of a model that it was not run for.
    rationale: the places among `source_words` of those that were read, of which any symbol was, by an encoder that
    chooses; None of another.
    """

    source: str
    text: str
    score: float
    log_prob: float
    finished: bool
    tokens: tuple[str, ...]
    token_scores: tuple[float, ...]
    source_tokens: tuple[str, ...]
    attention: Matrix | None
    source_words: tuple[str, ...]
    words: tuple[str, ...]
    by_attention: Attended = field(repr=False, compare=False)
    aligned: Aligned | None = field(default=None, repr=False, compare=False)
    replaced: tuple[Replacement, ...] = ()
    word_confidence: tuple[float, ...] | None = None
    rationale: tuple[int, ...] | None = None

    @property
    def confidence(self) -> float | None:
        """The share of its words that a reference may be expected to have, 0 where it is blocked; None where
        `word_confidence` is."""
        sure = self.word_confidence
        return None if sure is None else sum(sure) / len(sure) if sure else float(not self.blocked)

    @property
    def blocked(self) -> bool:
        """Whether there is none: wherever the search had come, no symbol was allowed. Its text is empty."""
        return not self.finished and not self.tokens

    @property
    def word_attention(self) -> Matrix | None:
        """[words, source_words]; None for a model without attention."""
        return self.by_attention.weights

    @property
    def token_words(self) -> tuple[int, ...]:
        """Which of `words` each token lies in, -1 for none (EOS, a mere space)."""
        own = self.by_attention.token_words
        return (*own, *[NO_WORD] * (len(self.tokens) - len(own)))

    @property
    def attended(self) -> tuple[Link, ...]:
        """(source word, target word) links by attention, zero-based: each word to what its symbols attend to most; a
        copied word's is to itself."""
        return self._with_copies(self.by_attention.words, "words")

    @property
    def attended_tokens(self) -> tuple[Link, ...]:
        """The same of tokens."""
        return self._with_copies(self.by_attention.tokens, "symbols")

    @property
    def alignment(self) -> tuple[Link, ...]:
        """(source word, target word) links: the aligner's; without one attention's."""
        return self.attended if self.aligned is None else self._with_copies(self.aligned.words, "words")

    @property
    def token_alignment(self) -> tuple[Link, ...]:
        """The same of tokens."""
        return self.attended_tokens if self.aligned is None else self._with_copies(self.aligned.tokens, "symbols")

    def _with_copies(self, links: tuple[Link, ...], unit: Unit) -> tuple[Link, ...]:
        return with_copies(links, self.by_attention.source, self.by_attention.target, unit)

    @property
    def word_token_scores(self) -> list[list[float]]:
        """For each of `words`, the log-probabilities of its tokens; an unknown one may stand for several words."""
        scores: list[list[float]] = [[] for _ in self.words]
        for word, score in zip(self.token_words, self.token_scores, strict=True):
            if word != NO_WORD:
                scores[word].append(score)
        for word, own in enumerate(scores):
            scores[word] = own or scores[word - 1]
        return scores

    @property
    def word_replaced(self) -> list[ReplacedBy | None]:
        """For each of `words`, where it comes from if it took the place of an unknown word."""
        by = {self.token_words[one.token]: one.by for one in self.replaced}
        begun = set(self.token_words)
        found = [by.get(word) for word in range(len(self.words))]
        for word in range(1, len(found)):
            if word not in begun:  # one of several that stand for one token
                found[word] = found[word - 1]
        return found

    @property
    def word_probabilities(self) -> list[float]:
        """How sure the model is of each of `words`: the geometric mean over its tokens; 1 for a word of none."""
        return [math.exp(sum(scores) / len(scores)) if scores else 1.0 for scores in self.word_token_scores]

    @property
    def attention_information(self) -> float | None:
        """0 (each token attends alike: the links mean nothing) to 1; None without attention or for a single token."""
        return None if self.attention is None else information(self.attention)

    def plain(self, *names: str) -> dict[str, Any]:
        """These attributes as plain values for JSON, numbers of one symbol or cell rounded."""
        return {name: _rounded(getattr(self, name), _DIGITS.get(name)) for name in names}

    def drawing(self, unit: Unit = "words") -> tuple[Matrix, tuple[str, ...], tuple[str, ...]]:
        """What a heat map shows: attention, its columns and its rows; symbols with the end symbol, as in figure 3 of
        Bahdanau et al. Errors: RnnsearchError for an empty text, ModelError for a model without attention."""
        if not self.source_words or not self.words:
            raise RnnsearchError("there is nothing to plot: the source or the translation has no words")
        if self.attention is None or self.word_attention is None:
            raise ModelError("there is nothing to plot: the model has no attention")
        if unit == "words":
            return self.word_attention, self.source_words, self.words
        rows = attention_of_symbols(self.attention, len(self.tokens), self.by_attention.read)
        return rows, self.source_tokens, self.tokens

    def plot(self, path: str | Path, unit: Unit = "words") -> Path:
        """Write the attention as a heat map (png, svg or pdf by suffix) and return its path.

        Errors: RnnsearchError for another suffix; as in `drawing`.
        """
        from rnnsearch.metrics.plots.heatmap import heatmap, save

        save(heatmap(*self.drawing(unit)), Path(path))
        return Path(path)


def _rounded(value: Any, digits: int | None) -> Any:
    if value is None or digits is None:
        return value
    if isinstance(value, np.ndarray):  # of a long sentence it has too many numbers for a loop in Python
        return value.astype(np.float64).round(digits).tolist()
    return [_rounded(one, digits) for one in value] if isinstance(value, list | tuple) else round(value, digits)


def one_line(text: str) -> str:
    """A model may spell any character; a line feed in the output would break one line in, one line out."""
    return text.replace("\n", " ").replace("\r", " ")


def in_words(
    source: Segmented, target: Segmented, hypothesis: Hypothesis, read: bool, aligned: Aligned | None = None
) -> Translation:
    """Put a hypothesis into words: raw text, symbols, and attention over both. read: as `attention_of_symbols`'."""
    end = (SPECIALS[EOS],) if len(hypothesis.token_scores) > len(target.ids) else ()
    return Translation(
        source=source.text,
        text=target.text,
        score=hypothesis.score,
        log_prob=hypothesis.log_prob,
        finished=hypothesis.finished,
        tokens=(*target.symbols, *end),
        token_scores=hypothesis.token_scores,
        source_tokens=(*source.symbols, SPECIALS[EOS]),
        attention=hypothesis.weights,
        source_words=tuple(words_of(source.text)),
        words=tuple(words_of(target.text)),
        by_attention=Attended(source, target, hypothesis.weights, read),
        aligned=aligned,
        replaced=target.replaced,
    )


def reasoned(translation: Translation, source: Segmented, chosen: npt.NDArray[np.bool_]) -> Translation:
    """A translation that says which words it rests on; chosen: which symbols of the source were read."""
    words = word_of_symbol(source.text, source.offsets)
    read = {word for word, one in zip(words, chosen, strict=True) if one and word != NO_WORD}
    return replace(translation, rationale=tuple(sorted(read)))
