"""Several systems as one: an ensemble, which translates and scores by the mean of its members' distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.ensemble import Combined, Ensemble, Member, Weighted
from rnnsearch.search.model_scorer import Fastest
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import Ability, Chosen, Matrix, System
from rnnsearch.text.tokenizer import Segmented, Spelled


class _Readings(Spelled):
    """A sentence as each member reads it; to others, as the first does."""

    def __init__(self, each: Sequence[Spelled]) -> None:
        super().__init__(each[0], each[0].unknown)
        self.each = each


@dataclass(frozen=True)
class _SegmentedForEach(Segmented):
    """A source text whose symbols are the first member's."""

    each: tuple[Segmented, ...] = field(kw_only=True)

    @property
    def spelled(self) -> Spelled:
        return _Readings([text.spelled for text in self.each])


@dataclass(frozen=True)
class EnsembleSystem(System[Any]):
    """Systems with one target vocabulary. Config and tokenizers are the first one's; families, precisions, and how they
    read the source, may differ. It is made of models that have been trained: nothing trains it as a whole."""

    members: tuple[System[Any], ...]
    weights: tuple[float, ...]
    mean: str

    kind = "ensemble"

    @classmethod
    def of(
        cls, members: Sequence[System[Any]], weights: Sequence[float] | None = None, mean: str = "geometric"
    ) -> EnsembleSystem:
        """`weights`: equal ones, if none are given. Errors: ModelError, where the members do not go together;
        RnnsearchError as in `search.ensemble`."""
        first, *others = members
        for number, member in enumerate(members, start=1):
            if not member.can("translate"):
                raise ModelError(f"model {number} of the ensemble: {member.cannot['translate']}")
        for number, other in enumerate(others, start=2):
            require_one_model(other, number)
            cls._together(first, other, f"model {number} of the ensemble")
        model = torch.nn.ModuleList([member.model for member in members])
        given = tuple(1.0 for _ in members) if weights is None else tuple(weights)
        if len(given) != len(members):
            raise ModelError(f"an ensemble must have as many weights as models ({len(members)}); got {len(given)}")
        found = cls(model, first.config, first.tokenizers, tuple(members), given, mean)
        found._scorer([member.plain() for member in members])  # a bad weight or mean is told now
        return found

    @staticmethod
    def _together(first: System[Any], other: System[Any], name: str) -> None:
        if first.direction != other.direction:
            told = [f"{', '.join(way.sources)} to {way.target}" for way in (first.direction, other.direction)]
            raise ModelError(f"{name} must translate {told[0]} as the first does; got {told[1]}")
        if first.target.fingerprint() != other.target.fingerprint():
            raise ModelError(
                f"{name} must have the first one's target vocabulary, symbol by symbol; it has another "
                "(train both on one corpus with one [text])"
            )
        if first.config.text.annotation != other.config.text.annotation:
            raise ModelError(f"{name} must have the first one's text.annotation; it has another")

    @property
    def cannot(self) -> Mapping[Ability, str]:
        lacks: dict[Ability, str] = {
            "posterior": "posterior attention is of one model; this is an ensemble",
            "read": "attention of words that were read is of one model; this is an ensemble",
            "states": "an encoder's states are of one model; this is an ensemble",
            "choose": "the words that are read are of one model; this is an ensemble",
        }
        for ability in ("translate", "attend", "spell", "copy"):
            if not self._able(ability):
                lacks[ability] = self.members[0].cannot.get(ability, f"the ensemble's models cannot {ability}")
        return lacks

    def _able(self, ability: Ability) -> list[int]:
        """The members that count in it: all must translate; those that read as the first does may attend, spell
        and copy."""
        able = [n for n, member in enumerate(self.members) if member.can(ability)]
        if ability == "translate":
            return able if len(able) == len(self.members) else []
        return [n for n in able if self._alike[n] == 0]

    @cached_property
    def _alike(self) -> list[int]:
        """For each member the first that takes the same batches, and whose attention says the same."""
        told = [
            (
                member.source.fingerprint(),
                member.config.translation.source_characters,
                member.config.text.inline_terms,
                member.config.aligns_previous_word,
            )
            for member in self.members
        ]
        return [told.index(one) for one in told]

    def read(self, texts: Sequence[str]) -> list[Segmented]:
        each = zip(*(member.read(texts) for member in self.members), strict=True)
        return [_SegmentedForEach(t[0].text, t[0].ids, t[0].symbols, t[0].offsets, t[0].replaced, each=t) for t in each]

    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Of members that read alike one side, by the first one's name for it and the number of its first member."""
        found = {}
        for number in sorted(set(self._alike)):
            sides = self.members[number].sources([_of(s, number) for s in sentences], device)
            found.update({_named(name, number): side for name, side in sides.items()})
        return found

    def fastest(self, precision: str) -> Fastest:
        each = [member.fastest(precision) for member in self.members]
        what = "; ".join(dict.fromkeys(one.what for one in each))
        return Fastest(self._scorer([one.scorer for one in each]), f"an ensemble of {len(each)}: {what}")

    def plain(self) -> Scorer:
        return self._scorer([member.plain() for member in self.members])

    def _scorer(self, scorers: Sequence[Scorer]) -> Ensemble:
        rows = zip(scorers, self.weights, self._alike, strict=True)
        names = self.direction.sources
        each = [Member(s, weight, {_named(name, n): name for name in names}, attends=n == 0) for s, weight, n in rows]
        return Ensemble(each, self.mean)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        self.require("spell")
        number = self._able("spell")[0]
        return self.members[number].spell([_of(source, number) for source in sources], targets, beam)

    def copied(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        """By the first member that copies."""
        self.require("copy")
        number = self._able("copy")[0]
        return self.members[number].copied([_of(source, number) for source in sources], targets, columns)


def require_one_model(system: System[Any], number: int) -> None:
    """Errors: ModelError where a member, by its number, is an ensemble itself, whose other models would be left out."""
    if system.config.search.ensemble is not None:
        raise ModelError(f"model {number} of the ensemble is an ensemble itself; name its models one by one")


def _of(sentence: Sequence[int], number: int) -> Sequence[int]:
    return sentence.each[number] if isinstance(sentence, _Readings) else sentence


def _named(name: str, number: int) -> str:
    return name if number == 0 else f"{name} {number + 1}"


# A translation system with a language model beside it, in search alone: shallow fusion.


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
