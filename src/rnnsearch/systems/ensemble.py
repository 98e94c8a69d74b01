"""Systems that combine several models in search: ensembles, and shallow fusion with a language model.

They have the interface of a single model (`System`), but cannot be trained. The combination of
scores is in `search.ensemble`.

Every method of `System` must be delegated here, to the members that support it. Tests: tests/test_fusion.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch

from rnnsearch.errors import ModelError
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer, Mean, WeightedScorer, WeightedSumScorer
from rnnsearch.search.model_scorer import FastestScorer
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.language import LanguageSystem
from rnnsearch.systems.system import Ability, Matrix, SelectedWords, System
from rnnsearch.text.several_sources import SourceText
from rnnsearch.text.tokenizer import Segmented, SpelledIds


class _MemberTokens(SpelledIds):
    """The tokens of a sentence for each member; as a sequence, those of the first member."""

    def __init__(self, per_member: Sequence[SpelledIds]) -> None:
        # Callers that do not know of members see the tokens of the first.
        super().__init__(per_member[0], per_member[0].unknown)
        self.per_member = per_member


@dataclass(frozen=True)
class _MemberSegmented(Segmented):
    """A source text segmented by each member; the fields are those of the first member."""

    per_member: tuple[Segmented, ...] = field(kw_only=True)

    @property
    def spelled_ids(self) -> SpelledIds:
        return _MemberTokens([text.spelled_ids for text in self.per_member])


@dataclass(frozen=True)
class EnsembleSystem(System[Any]):
    """An ensemble, which scores with the mean of its members' distributions.

    The members share one target vocabulary; their architecture, precision and source tokenization may differ. Config
    and tokenizers are those of the first member.
    """

    members: tuple[System[Any], ...]
    """Systems of the models."""
    weights: tuple[float, ...]
    """Weight of each member."""
    mean: Mean
    """Combination of the distributions, see `search.ensemble`."""

    kind = "ensemble"

    @classmethod
    def combine(
        cls, members: Sequence[System[Any]], weights: Sequence[float] | None = None, mean: Mean = "geometric"
    ) -> EnsembleSystem:
        """Return the ensemble of some systems.

        Args:
            members: The systems.
            weights: The weight of each system; equal weights if None.
            mean: How distributions are combined.

        Raises:
            ModelError: If the systems are incompatible.
            RnnsearchError: If a weight or the mean is invalid.
        """
        first, *others = members
        for number, member in enumerate(members, start=1):
            for ability in ("translate", "probabilities"):
                if ability in member.unsupported:
                    raise ModelError(f"model {number} of the ensemble: {member.unsupported[ability]}")
        for number, other in enumerate(others, start=2):
            require_single_model(other, number)
            cls._require_compatible(first, other, f"model {number} of the ensemble")
        model = torch.nn.ModuleList([member.model for member in members])
        all_weights = (1.0,) * len(members) if weights is None else tuple(weights)
        if len(all_weights) != len(members):
            got = len(all_weights)
            raise ModelError(f"an ensemble must have as many weights as models ({len(members)}); got {got}")
        system = cls(model, first.config, first.tokenizers, tuple(members), all_weights, mean)
        system.reference_scorer()  # called for its check: raises RnnsearchError for an invalid weight or mean
        return system

    @staticmethod
    def _require_compatible(first: System[Any], other: System[Any], name: str) -> None:
        """Raise ModelError if two members have other languages, target vocabularies or annotations."""
        if first.direction != other.direction:
            must, got = (f"{', '.join(pair.sources)} to {pair.target}" for pair in (first.direction, other.direction))
            raise ModelError(f"{name} must translate {must}, like the first; got {got}")
        # Distributions are averaged by token id.
        if first.target.fingerprint() != other.target.fingerprint():
            raise ModelError(
                f"{name} must have the target vocabulary of the first, token by token; it has another "
                "(train both on one corpus with the same [text])"
            )
        if first.arrays != other.arrays:
            raise ModelError(f"{name} must have the data.arrays of the first; it has others")
        for source in _text_sources(first) if first.arrays else ():
            if first.tokenizers[source].fingerprint() != other.tokenizers[source].fingerprint():
                raise ModelError(f"{name} must have the tokens of the first in {source}; it has others")
        if first.config.text.annotation != other.config.text.annotation:
            raise ModelError(f"{name} must have the text.annotation of the first; it has another")

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        reasons: dict[Ability, str] = {
            "posterior": "posterior attention needs a single model; this is an ensemble",
            "read": "the attention of words just read needs a single model; this is an ensemble",
            "states": "encoder states need a single model; this is an ensemble",
            "choose": "selected words need a single model; this is an ensemble",
        }
        for ability in ("translate", "attend", "spell", "copy"):
            if not self._capable_members(ability):
                default = f"the ensemble's models cannot {ability}"
                reasons[ability] = self.members[0].unsupported.get(ability, default)
        return reasons

    def _capable_members(self, ability: Ability) -> list[int]:
        """Return the indices of the members that provide an ability of the ensemble.

        All members must translate. Attention, spelling and copying can come from any member that reads the source
        like the first.
        """
        capable = [n for n, member in enumerate(self.members) if member.can(ability)]
        if ability == "translate":
            return capable if len(capable) == len(self.members) else []
        # Their results refer to source tokens, and callers know only those of the first member.
        return [n for n in capable if self._first_alike[n] == 0]

    @cached_property
    def _first_alike(self) -> list[int]:
        """Index, per member, of the first member with the same source batches and attention.

        Members with equal indices share one source stream, for example [0, 0, 2] if the third tokenizes differently.
        """
        keys = []
        for member in self.members:
            config = member.config
            keys.append(
                (
                    tuple(member.stream_tokenizer(name).fingerprint() for name in _text_sources(member)),
                    config.translation.source_characters,
                    config.text.inline_terms,
                    config.data.context,
                    config.data.context and config.training.max_length,
                    config.aligns_previous_word,
                )
            )
        # Members with equal keys share one source stream in batches.
        return [keys.index(key) for key in keys]

    def segment_sources(self, texts: Sequence[SourceText], restores_case: bool = False) -> list[Segmented]:
        if self.arrays:  # all members read the same tokens, see `_require_compatible`
            return self.members[0].segment_sources(texts, restores_case)
        return _combine_segmented([member.segment_sources(texts, restores_case) for member in self.members])

    @property
    def reads_context(self) -> bool:
        return any(member.reads_context for member in self.members)

    @property
    def reads_translations(self) -> bool:
        return any(member.reads_translations for member in self.members)

    def in_context(self, source: Segmented, previous: Sequence[Segmented], targets: Sequence[Segmented]) -> Segmented:
        by_member = []
        for index, member in enumerate(self.members):
            their_previous = [_segmented_of(sentence, index) for sentence in previous]
            by_member.append([member.in_context(_segmented_of(source, index), their_previous, targets)])
        return _combine_segmented(by_member)[0]

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch with one source stream for all members that read the source in the same way.

        The streams of later members have the member's number in their names, for example "source" and "source 2".
        """
        sources = {}
        for index in sorted(set(self._first_alike)):
            streams = self.members[index].make_sources([_tokens_of(sentence, index) for sentence in sentences], device)
            sources.update({_source_name(name, index): stream for name, stream in streams.items()})
        return sources

    def fast_scorer(self, precision: str) -> FastestScorer:
        fastest = [member.fast_scorer(precision) for member in self.members]
        descriptions = "; ".join(dict.fromkeys(scorer.description for scorer in fastest))
        combined = self._combine_scorers([scorer.scorer for scorer in fastest])
        return FastestScorer(combined, f"an ensemble of {len(fastest)}: {descriptions}")

    def reference_scorer(self) -> Scorer:
        return self._combine_scorers([member.reference_scorer() for member in self.members])

    def _combine_scorers(self, scorers: Sequence[Scorer]) -> EnsembleScorer:
        members = []
        for scorer, weight, first in zip(scorers, self.weights, self._first_alike, strict=True):
            names = {_source_name(name, first): name for name in self.direction.sources}
            # Attention over other tokens cannot be averaged with that of the first member.
            members.append(EnsembleMember(scorer, weight, names, uses_attention=first == 0))
        return EnsembleScorer(members, self.mean)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        self.require("spell")
        index = self._capable_members("spell")[0]
        return self.members[index].spell([_tokens_of(source, index) for source in sources], targets, beam)

    def copy_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        """Return the copy attention of the first member that copies."""
        self.require("copy")
        index = self._capable_members("copy")[0]
        return self.members[index].copy_attention([_tokens_of(source, index) for source in sources], targets, columns)


def require_single_model(system: System[Any], number: int) -> None:
    """Raise ModelError if a member is the folder of an ensemble, whose other models would be ignored."""
    if system.config.search.ensemble is not None:
        raise ModelError(f"model {number} of the ensemble is an ensemble itself; name its models one by one")


def _text_sources(system: System[Any]) -> list[str]:
    """Return the sources of a system that are not arrays, which are the same for all members."""
    return [source for source in system.direction.sources if source not in system.arrays]


def _tokens_of(sentence: Sequence[int], index: int) -> Sequence[int]:
    """Return the tokens of a sentence for the member with this index."""
    return sentence.per_member[index] if isinstance(sentence, _MemberTokens) else sentence


def _segmented_of(source: Segmented, index: int) -> Segmented:
    """Return a source text as the member with this index reads it."""
    return source.per_member[index] if isinstance(source, _MemberSegmented) else source


def _combine_segmented(by_member: Sequence[Sequence[Segmented]]) -> list[Segmented]:
    """Return source texts of an ensemble, given those of each member."""
    combined: list[Segmented] = []
    for per_member in zip(*by_member, strict=True):
        values = {one.name: getattr(per_member[0], one.name) for one in fields(Segmented)}
        combined.append(_MemberSegmented(**values, per_member=per_member))
    return combined


def _source_name(name: str, index: int) -> str:
    """Return the name of the source stream that the member with this index reads: "source", or "source 2" for 1."""
    return name if index == 0 else f"{name} {index + 1}"


@dataclass(frozen=True)
class FusedSystem(System[Any]):
    """Shallow fusion: each token scores log p(y | x) + weight * log p(y) (Gulcehre et al. 2015).

    Everything except the scorers is delegated to the translation system.
    """

    translation: System[Any]
    language: LanguageSystem
    """The language model."""
    weight: float
    """Weight of the language model."""

    kind = "fusion"

    @classmethod
    def combine(cls, translation: System[Any], language: System[Any], weight: float) -> FusedSystem:
        """Return the fusion of a translation system and a language model.

        Raises:
            ModelError: If they are incompatible.
        """
        if not isinstance(language, LanguageSystem):
            raise ModelError(f"fusion needs a language model; got a {language.kind} model")
        if translation.annotation is not None:
            reason = "whose tokens a language model does not have"
            raise ModelError(f"fusion cannot be combined with text.annotation, {reason}")
        if translation.target.fingerprint() != language.target.fingerprint():
            raise ModelError(
                "the language model must have the target vocabulary of the translation model, token by token; it has "
                "another (train it with text.tokenizers, the translation model's folder)"
            )
        return cls(translation.model, translation.config, translation.tokenizers, translation, language, weight)

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        return self.translation.unsupported

    @property
    def num_parameters(self) -> int:
        return self.translation.num_parameters + self.language.num_parameters

    def fast_scorer(self, precision: str) -> FastestScorer:
        translation = self.translation.fast_scorer(precision)
        language = self.language.fast_scorer(precision)
        combined = self._combine_scorers(translation.scorer, language.scorer)
        return FastestScorer(combined, f"{translation.description}; a language model: {language.description}")

    def reference_scorer(self) -> Scorer:
        return self._combine_scorers(self.translation.reference_scorer(), self.language.reference_scorer())

    def _combine_scorers(self, translation: Scorer, language: Scorer) -> WeightedSumScorer:
        return WeightedSumScorer([WeightedScorer(translation), WeightedScorer(language, self.weight)])

    def segment_sources(self, texts: Sequence[SourceText], restores_case: bool = False) -> list[Segmented]:
        return self.translation.segment_sources(texts, restores_case)

    @property
    def reads_context(self) -> bool:
        return self.translation.reads_context

    @property
    def reads_translations(self) -> bool:
        return self.translation.reads_translations

    def in_context(self, source: Segmented, previous: Sequence[Segmented], targets: Sequence[Segmented]) -> Segmented:
        return self.translation.in_context(source, previous, targets)

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        return self.translation.make_sources(sentences, device)

    def posterior_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[dict[str, Matrix]]:
        return self.translation.posterior_attention(sources, targets)

    def selected_words(self, sentences: Sequence[Sequence[int]]) -> list[SelectedWords]:
        return self.translation.selected_words(sentences)

    def encoder_states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        return self.translation.encoder_states(sentences)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        return self.translation.spell(sources, targets, beam)

    def copy_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        return self.translation.copy_attention(sources, targets, columns)
