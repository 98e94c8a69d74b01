"""The System: what a run trains and a model folder holds, of whatever kind. Commands, server, evaluation and training
ask it, and no class of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rnnsearch.align.aligner import Aligner, Pair
from rnnsearch.config import RunConfig
from rnnsearch.data.batch import Direction
from rnnsearch.data.characters import Spellings, spellings
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.errors import ModelError
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.model_scorer import Fastest
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import Validation
from rnnsearch.text.alignments import Link, Links
from rnnsearch.text.annotation import Annotation, annotation
from rnnsearch.text.terms import restored
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.utils.distributed import Processes

# What is trained of a module, and how fast.


class ParameterGroup(NamedTuple):
    """Parameters that are trained alike. Every parameter of what is trained is in one group."""

    parameters: list[nn.Parameter]
    factor: float = 1.0
    """Of the run's learning rate."""
    frozen: bool = False
    """Whether they stay as they are: they get no gradient."""


Matrix = NDArray[np.float32]
Chosen = NDArray[np.bool_]
"""[symbols]"""
Ability = Literal["translate", "attend", "read", "posterior", "states", "spell", "copy", "choose"]
"""To translate at all; to align by attention, or by that of the position after a word, which has read it; by posterior
weights (`search.posterior`); to say what state a source sentence leaves the encoder in; to spell the words that its
vocabulary lacks; to say of words where they are copied from; to choose the words it reads."""


@dataclass(frozen=True)
class System(ABC, Generic[Model]):
    """A module with the config that it was made by and its sides' tokenizers by name.

    It holds parameters and tables alone: nothing of a batch.
    """

    model: Model
    config: RunConfig
    tokenizers: Mapping[str, Tokenizer]

    kind: ClassVar[str]
    """Its name."""

    @property
    def direction(self) -> Direction:
        """From which sides it goes to which."""
        return Direction(self.config.data.sources, self.config.data.target)

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of the one source."""
        return self.tokenizers[self.config.data.single_source]

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of the target."""
        return self.tokenizers[self.config.data.target]

    @cached_property
    def spellings(self) -> Spellings:
        """What its batches hold of unknown words."""
        return spellings(self.config, self.tokenizers)

    @cached_property
    def annotation(self) -> Annotation | None:
        """How unknown target words say where they come from, where they do."""
        return annotation(self.config.text, self.source, self.target)

    def read(self, texts: Sequence[str]) -> list[Segmented]:
        """Source texts as the model reads them; terms inline are no part of their texts."""
        found = self.source.segment(texts)
        if self.config.text.inline_terms is not None:
            found = [restored(text) for text in found]
        return found if self.annotation is None else [self.annotation.source(text) for text in found]

    def written(self, texts: Sequence[str], sources: Sequence[Segmented], aligner: Aligner | None) -> list[Segmented]:
        """Translations of sources as the model writes them, if it says where unknown words come from: by an aligner, or
        without one from nowhere."""
        targets = self.target.segment(texts)
        if self.annotation is None:
            return targets
        pairs = list(map(Pair.of_symbols, sources, targets))
        links = [set[Link]()] * len(pairs) if aligner is None else aligner.links(pairs)
        return list(map(self.annotation.target, targets, links, sources))

    @property
    @abstractmethod
    def cannot(self) -> Mapping[Ability, str]:
        """What it cannot do, each with the sentence that says why: the one place that knows."""

    def can(self, ability: Ability) -> bool:
        """Whether it can do that."""
        return ability not in self.cannot

    def require(self, ability: Ability) -> None:
        """Errors: ModelError, one sentence, where it cannot do that."""
        if not self.can(ability):
            raise ModelError(self.cannot[ability])

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.model.parameters()).device

    @abstractmethod
    def fastest(self, precision: str) -> Fastest:
        """The fastest Scorer here, with products in a precision of `[search]`."""

    @abstractmethod
    def plain(self) -> Scorer:
        """The Scorer by the model's own definition, in fp32: what given translations are scored and aligned by."""

    @abstractmethod
    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """The batch of some sentences, given as ids without EOS."""

    def posterior(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[dict[str, Matrix]]:
        """Posterior weights of given translations, by source name. Errors: ModelError where it has none."""
        raise ModelError(self.cannot["posterior"])

    def states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        """[sentences, S], the state that each leaves the encoder in. Errors: ModelError where it has none."""
        raise ModelError(self.cannot["states"])

    def chosen(self, sentences: Sequence[Sequence[int]]) -> list[Chosen]:
        """Which symbols of each sentence it reads. Errors: ModelError where it reads all."""
        raise ModelError(self.cannot["choose"])

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        """What the unknown words of translations are, by their places. Errors: ModelError where it spells none."""
        raise ModelError(self.cannot["spell"])

    def copied(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        """By source name, what given translations' symbols are copied from, or else attend to; `columns`: what a search
        found them among, if not all symbols. Errors: ModelError where it copies none."""
        raise ModelError(self.cannot["copy"])

    @property
    def parameters(self) -> int:
        """How many numbers it has learned."""
        return sum(parameter.numel() for parameter in self.model.parameters())


class Trainable(System[Model]):
    """A system that a run trains. Each kind is one class and its row in `SYSTEMS`; `[model] kind` names it."""

    @classmethod
    @abstractmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> Trainable[Any]:
        """A system of a config that has passed its checks; `seed` draws its parameters, which None leaves unfilled."""

    def groups(self) -> list[ParameterGroup]:
        """What is trained, and how fast: all alike, if a kind does not say otherwise."""
        return [ParameterGroup(list(self.model.parameters()))]

    @abstractmethod
    def objective(self) -> Objective[Model]:
        """What training minimises."""

    def count(self, train: ParallelIds) -> None:
        """Take from the training rows what a kind counts there before it is trained: of most, nothing."""

    @abstractmethod
    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> Validation[Model]:
        """What is measured of dev rows, shared out among processes; `gold`: their alignments, where AER is asked;
        `aligner`: what they are annotated by, as the training text was."""
