"""`TextModel`: a loaded language model that scores, samples and continues plain text.

The class behind `rnnsearch.load_text_model`, the `lm` commands and the language model of a reranker.

It is public API (docs/language-models.md). Tests: tests/commands/test_language.py, tests/models/test_language_model.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rnnsearch.data.context import previous_ids
from rnnsearch.errors import ModelError
from rnnsearch.ops.device import choose_device
from rnnsearch.search.decode import decode_all, force_decode_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling, Variant
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import System
from rnnsearch.text.prefixes import Prefix, PrefixReader
from rnnsearch.text.several_sources import sentence_list, text_list
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.text.vocabulary import CONTEXT_END, SPECIALS
from rnnsearch.translator.context import DocumentOrder


class Perplexity(NamedTuple):
    """Perplexity of a text in several units. The end of each line counts as one token, word and character."""

    log_prob: float
    """Log-probability of the text, in nats."""
    tokens: int
    words: int
    characters: int

    @property
    def per_token(self) -> float:
        """Perplexity per token; comparable only between models with the same tokenizer."""
        return math.exp(-self.log_prob / max(1, self.tokens))

    @property
    def per_word(self) -> float:
        """Perplexity per word between spaces; comparable between models without unknown words."""
        return math.exp(-self.log_prob / max(1, self.words))

    @property
    def bits_per_character(self) -> float:
        """Negative log-probability per character, in bits."""
        return -self.log_prob / math.log(2) / max(1, self.characters)


@dataclass(frozen=True)
class ScoredText:
    """A text and its probability."""

    text: str
    """Raw text."""
    log_prob: float
    """Log-probability of the text and its end, in nats."""
    tokens: tuple[str, ...]
    """The text as the model reads it."""
    token_scores: tuple[float, ...]
    """Log-probability of each token given those before it, and last of the end."""


class TextModel:
    """A language model over plain text, one line per text."""

    def __init__(self, system: System[Any]) -> None:
        """Make a model from its system; `load_text_model` reads it from a folder.

        Raises:
            ModelError: The system is not a language model.
        """
        if not isinstance(system, LanguageSystem):
            raise ModelError(f"this needs a language model; got a {system.kind} model (see `rnnsearch translate`)")
        self.system = system
        self.config = system.config
        self.tokenizer: Tokenizer = system.target
        self.parameters = system.num_parameters
        """Number of parameters."""

    @cached_property
    def _prefix_reader(self) -> PrefixReader:
        return PrefixReader(self.tokenizer)

    def options(
        self,
        beam: int = 1,
        n_best: int = 1,
        max_length: int = 100,
        variant: Variant | None = None,
        no_repeat_ngram: int = 0,
    ) -> SearchOptions:
        """Return search options; without arguments, greedy search.

        Args:
            beam: Beam size.
            n_best: Number of texts per prefix.
            max_length: Maximum number of tokens of a text, its prefix included.
            variant: Search other than a beam, such as sampling.
            no_repeat_ngram: Length of n-grams that must not be repeated; 0 allows all.
        """
        return SearchOptions.from_config(
            self.config.search,
            beam=max(beam, n_best),
            n_best=n_best,
            # There is no source that the length could depend on.
            max_ratio=0.0,
            max_extra=max_length,
            coverage_penalty=0.0,
            no_repeat_ngram=no_repeat_ngram,
            variant=variant,
        )

    def document_order(self) -> DocumentOrder:
        """Return an object that adds contexts to the sentences of documents that come in several calls.

        Raises:
            ModelError: The model reads no previous sentences.
        """
        self.system.require_context()
        return DocumentOrder(self.system, self._segment)

    def _segment(self, texts: Sequence[str | Segmented]) -> list[Segmented]:
        texts = sentence_list(texts)
        new = iter(self.tokenizer.segment([text for text in texts if isinstance(text, str)]))
        return [next(new) if isinstance(text, str) else text for text in texts]

    def score(self, texts: Sequence[str | Segmented]) -> list[ScoredText]:
        """Return texts, possibly with contexts (see `document_order`), with their probabilities.

        Raises:
            RnnsearchError: The texts are not a list.
        """
        segmented = self._segment(texts)
        if self.system.composes_words:  # all tokens at once, because a step does not know the characters of words
            scores = self.system.token_scores(segmented, self.config.search.batch_sentences)
            return [
                ScoredText(text.text, sum(of_tokens), tuple(text.tokens), of_tokens)
                for text, of_tokens in zip(segmented, scores, strict=True)
            ]
        sources = _placeholder_sources(len(segmented))
        make_batch = self.system.make_sources
        if self.system.reads_context:
            # A pair of an empty context and an empty text would not be scored.
            sources = [previous_ids(text) or [CONTEXT_END] for text in segmented]
            make_batch = self.system.make_contexts
        hypotheses = force_decode_all(
            # The model's definition in fp32, because the probabilities themselves are the result.
            self.system.reference_scorer(),
            sources,
            [text.ids for text in segmented],
            batch_sentences=self.config.search.batch_sentences,
            make_batch=make_batch,
        )
        scored = []
        for text, hypothesis in zip(segmented, hypotheses, strict=True):
            scored.append(ScoredText(text.text, hypothesis.log_prob, tuple(text.tokens), hypothesis.token_scores))
        return scored

    def perplexity(self, scored: Sequence[ScoredText]) -> Perplexity:
        """Return the perplexity of scored texts together; a word outside the vocabulary counts as `<unk>`."""
        return Perplexity(
            sum(text.log_prob for text in scored),
            sum(len(text.token_scores) for text in scored),
            # Plus 1 for the end of the line.
            sum(len(text.text.split()) + 1 for text in scored),
            sum(len(text.text) + 1 for text in scored),
        )

    def complete(self, prefixes: Sequence[str], options: SearchOptions | None = None) -> list[list[str]]:
        """Return the n best texts that begin exactly with each prefix; its last word may be continued.

        Raises:
            RnnsearchError: The prefixes are not a list of strings.
        """
        token_prefixes = [self._prefix_reader.read(text) for text in text_list(prefixes)]
        n_best_hypotheses = self._search(token_prefixes, options or self.options())
        completions = []
        for prefix, hypotheses in zip(token_prefixes, n_best_hypotheses, strict=True):
            texts = []
            for hypothesis in hypotheses:
                text = self.tokenizer.join_with_offsets(hypothesis.ids, prefix.unknown)
                texts.append(prefix.restored(text, self.tokenizer.normalization).text)
            completions.append(texts)
        return completions

    def sample(self, count: int, options: SearchOptions | None = None) -> list[str]:
        """Return random texts; each depends only on the options' seed and its index."""
        n_best = self.complete([""] * count, options or self.options(variant=Sampling()))
        return [texts[0] for texts in n_best]

    def _search(self, prefixes: Sequence[Prefix], options: SearchOptions) -> list[list[Hypothesis]]:
        return decode_all(
            self.system.fast_scorer(self.config.search.precision).scorer,
            _placeholder_sources(len(prefixes)),
            options.with_prefixes(prefixes, self.tokenizer),
            self.config.search.batch_sentences,
            make_batch=self.system.make_sources,
        )


def _placeholder_sources(count: int) -> list[list[int]]:
    """Return different sources for texts without a source; random numbers depend on them."""
    return [[len(SPECIALS) + index] for index in range(count)]


def load_text_model(folder: str | Path, device: str = "cpu") -> TextModel:
    """Load the folder of a language model.

    Args:
        folder: The folder.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        ModelError: The folder is missing, damaged or not a language model.
        ConfigError: The device is not available.
    """
    return TextModel(load_system(Path(folder), choose_device(device, "device")))
