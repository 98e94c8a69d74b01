"""A translation system with a language model beside it, in search alone: shallow fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.columns import ColumnChooser
from rnnsearch.search.combined import Combined, Weighted
from rnnsearch.search.model_scorer import Fastest
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import Ability, Chosen, Matrix, System
from rnnsearch.text.tokenizer import Segmented


@dataclass(frozen=True)
class FusedSystem(System[Any]):
    """Scores are log p(y | x) + weight * log p(y), the language model's, symbol by symbol (Gulcehre et al. 2015). All
    else is the translation system's."""

    translation: System[Any]
    language: LanguageSystem
    weight: float

    kind = "fusion"

    @classmethod
    def of(cls, translation: System[Any], language: System[Any], weight: float) -> FusedSystem:
        """Errors: ModelError, where the two do not go together."""
        if not isinstance(language, LanguageSystem):
            raise ModelError(f"fusion needs a language model; got a {language.kind} model")
        if translation.annotation is not None:
            raise ModelError("fusion does not go with text.annotation: no language model knows its marks")
        if translation.target.fingerprint() != language.target.fingerprint():
            raise ModelError(
                "the language model must have the target vocabulary of the translation model, symbol by symbol; it has "
                "another (train it with text.tokenizers, the translation model's folder)"
            )
        return cls(translation.model, translation.config, translation.tokenizers, translation, language, weight)

    @property
    def cannot(self) -> Mapping[Ability, str]:
        return self.translation.cannot

    @property
    def parameters(self) -> int:
        return self.translation.parameters + self.language.parameters

    def fastest(self, precision: str) -> Fastest:
        own, beside = self.translation.fastest(precision), self.language.fastest(precision)
        return Fastest(self._fused(own.scorer, beside.scorer), f"{own.what}; a language model: {beside.what}")

    def plain(self) -> Scorer:
        return self._fused(self.translation.plain(), self.language.plain())

    def _fused(self, translation: Scorer, language: Scorer) -> Combined:
        return Combined([Weighted(translation), Weighted(language, self.weight)])

    def read(self, texts: Sequence[str]) -> list[Segmented]:
        return self.translation.read(texts)

    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        return self.translation.sources(sentences, device)

    def posterior(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[dict[str, Matrix]]:
        return self.translation.posterior(sources, targets)

    def chosen(self, sentences: Sequence[Sequence[int]]) -> list[Chosen]:
        return self.translation.chosen(sentences)

    def states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        return self.translation.states(sentences)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        return self.translation.spell(sources, targets, beam)

    def copied(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        return self.translation.copied(sources, targets, columns)
