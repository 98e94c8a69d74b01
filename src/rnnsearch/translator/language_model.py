"""A loaded language model: raw text is scored, sampled, or gone on with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rnnsearch.errors import ModelError
from rnnsearch.ops.device import choose_device
from rnnsearch.search.decode import decode_all, forced_all
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.sampling import Sampling, Variant
from rnnsearch.systems.folder import load_system
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import System
from rnnsearch.text.prefixes import Prefix, Prefixes
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.text.vocabulary import SPECIALS


class Perplexity(NamedTuple):
    """How many equally likely choices a text's next unit is worth, by the unit; the end of a text counts as one."""

    log_prob: float
    """Of the whole text, natural logarithm."""
    symbols: int
    words: int
    characters: int

    @property
    def per_symbol(self) -> float:
        """exp of the mean negative log-likelihood of the model's own symbols: of one tokenizer alone comparable."""
        return math.exp(-self.log_prob / max(1, self.symbols))

    @property
    def per_word(self) -> float:
        """The same by what stands between spaces, whatever the symbols: comparable where no word is unknown."""
        return math.exp(-self.log_prob / max(1, self.words))

    @property
    def bits_per_character(self) -> float:
        """-log2 p by characters."""
        return -self.log_prob / math.log(2) / max(1, self.characters)


@dataclass(frozen=True)
class ScoredText:
    """A text and its probability.

    log_prob: natural logarithm of p(text), its end included. symbols: the text as the model reads it. token_scores:
    log p of each symbol given those before, and last of the end.
    """

    text: str
    log_prob: float
    symbols: tuple[str, ...]
    token_scores: tuple[float, ...]


class TextModel:
    """A language model over raw text, a line each."""

    def __init__(self, system: System[Any]) -> None:
        """Errors: ModelError for a system of another kind."""
        if not isinstance(system, LanguageSystem):
            raise ModelError(f"this needs a language model; got a {system.kind} model (see `rnnsearch translate`)")
        self.system = system
        self.config = system.config
        self.tokenizer: Tokenizer = system.target
        self.parameters = system.num_parameters
        """How many numbers training found."""

    @cached_property
    def _prefixes(self) -> Prefixes:
        return Prefixes(self.tokenizer)

    def options(
        self, beam: int = 1, n_best: int = 1, most: int = 100, variant: Variant | None = None, no_repeat_ngram: int = 0
    ) -> SearchOptions:
        """How texts are searched for: greedily if nothing is given. `most`: symbols of a text, what it begins with
        among them."""
        return SearchOptions.from_config(
            self.config.search,
            beam=max(beam, n_best),
            n_best=n_best,
            max_ratio=0.0,
            max_extra=most,
            coverage_penalty=0.0,
            no_repeat_ngram=no_repeat_ngram,
            variant=variant,
        )

    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """The probability of each text."""
        segmented = self.tokenizer.segment(texts)
        found = forced_all(
            self.system.reference_scorer(),
            _numbers(len(texts)),
            [text.ids for text in segmented],
            batch_sentences=self.config.search.batch_sentences,
            make=self.system.make_sources,
        )
        return [
            ScoredText(text.text, h.log_prob, tuple(text.symbols), h.token_scores)
            for text, h in zip(segmented, found, strict=True)
        ]

    def perplexity(self, scored: Sequence[ScoredText]) -> Perplexity:
        """Of scored texts together. Where the model has no symbol for a word, it is that of `<unk>`."""
        return Perplexity(
            sum(one.log_prob for one in scored),
            sum(len(one.token_scores) for one in scored),
            sum(len(one.text.split()) + 1 for one in scored),
            sum(len(one.text) + 1 for one in scored),
        )

    def complete(self, beginnings: Sequence[str], options: SearchOptions | None = None) -> list[list[str]]:
        """The best texts that begin so, letter for letter; the last word may go on."""
        begins = [self._prefixes.read(text) for text in beginnings]
        return [
            [self._text(h, begin) for h in found]
            for begin, found in zip(begins, self._search(begins, options or self.options()), strict=True)
        ]

    def sample(self, count: int, options: SearchOptions | None = None) -> list[str]:
        """Texts drawn from the model. What is drawn hangs on the options' seed and the text's number alone."""
        found = self.complete([""] * count, options or self.options(variant=Sampling()))
        return [text for text, *_ in found]

    def _search(self, begins: Sequence[Prefix], options: SearchOptions) -> list[list[Hypothesis]]:
        return decode_all(
            self.system.fast_scorer(self.config.search.precision).scorer,
            _numbers(len(begins)),
            options.with_prefixes(begins, self.tokenizer),
            self.config.search.batch_sentences,
            make=self.system.make_sources,
        )

    def _text(self, found: Hypothesis, begin: Prefix) -> str:
        return self.tokenizer.joined(found.ids, begin.unknown).text


def _numbers(count: int) -> list[list[int]]:
    """In the place of sources: what tells texts apart where they are drawn."""
    return [[len(SPECIALS) + number] for number in range(count)]


def load_text_model(folder: str | Path, device: str = "cpu") -> TextModel:
    """A language model's folder as a TextModel on `device` (auto, cpu, cuda, cuda:N).

    Errors: ModelError, one sentence, also for a model of another kind; ConfigError for a device this machine has not.
    """
    return TextModel(load_system(Path(folder), choose_device(device, "device")))
