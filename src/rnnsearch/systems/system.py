"""`System`: a model with its config and tokenizers, which a run trains and a model folder stores.

Commands, the server, evaluation and training use a model only through this interface, so that a
new kind of model is a subclass of `Trainable` with an entry in `systems.folder.SYSTEMS`.
Ensembles and fusions with a language model are systems, too, but cannot be trained as a whole.

A method that depends on an `Ability` raises ModelError if `unsupported` names it; a new method must also be added to
`EnsembleSystem` and `FusedSystem`. Tests: tests/properties/test_systems.py.

Axes: J source positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rnnsearch.align.aligner import Aligner, Pair
from rnnsearch.config import RunConfig
from rnnsearch.config.data import CONTEXT_SUFFIX, MAX_CONTEXT_SENTENCES, ArrayConfig
from rnnsearch.data.arrays import array_source
from rnnsearch.data.batch import Direction
from rnnsearch.data.characters import WordCharacters, word_characters
from rnnsearch.data.context import in_context
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.tags import tagged
from rnnsearch.errors import ConfigError, ModelError, did_you_mean
from rnnsearch.models.layers import biases
from rnnsearch.objectives.loss import Model, Objective
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.model_scorer import FastestScorer
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import DevEvaluator
from rnnsearch.text.alignments import Link, Links
from rnnsearch.text.annotation import Annotation, build_annotation
from rnnsearch.text.several_sources import SourceText, segment_several, single_texts
from rnnsearch.text.terms import restore_offsets
from rnnsearch.text.tokenizer import Segmented, Tokenizer
from rnnsearch.utils.distributed import Processes

Matrix = NDArray[np.float32]
SelectedWords = NDArray[np.bool_]  # [J], True for each source token that the encoder reads

Ability = Literal[
    "translate",  # translate at all
    "attend",  # align words by attention
    "read",  # align words by the attention of the next step, which has read the word
    "posterior",  # align words by posterior attention (`search.reattend`)
    "states",  # return encoder states of sentences
    "spell",  # spell words outside the vocabulary
    "copy",  # tell which source words were copied
    "choose",  # select the source words that the decoder sees
    "probabilities",  # score tokens by log-probabilities
]


class ParameterGroup(NamedTuple):
    """Parameters that are trained in the same way. Each parameter of a system is in one group."""

    parameters: list[nn.Parameter]
    learning_rate_factor: float = 1.0
    """Factor of the run's learning rate."""
    frozen: bool = False
    """True if the parameters are not trained and get no gradient."""


def named_components(model: nn.Module, components: Sequence[str], path: str) -> dict[str, nn.Parameter]:
    """Return the parameters of some components by name; a shared parameter has all its names.

    Args:
        model: The model.
        components: Names of parameters or modules, such as "encoder" or "output.bias".
        path: Path of the option that names them, for the error.

    Raises:
        ConfigError: If the model has no such component.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known = dict[str, None]()
    for name in parameters:
        parts = name.split(".")
        known |= dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    for component in components:
        if component not in known:
            suggestion = did_you_mean(component, list(known))
            must = "must have names of parameters or components of the model"
            raise ConfigError([f'{path}: {must}; got "{component}"{suggestion}'])
    selected = {parameter for name, parameter in parameters.items() if is_in_components(name, components)}
    return {name: parameter for name, parameter in parameters.items() if parameter in selected}


def is_in_components(name: str, components: Sequence[str]) -> bool:
    """Return True if a parameter, by its name, belongs to one of some components."""
    return any(f"{name}.".startswith(f"{component}.") for component in components)


def choose_direction(
    directions: Sequence[Direction], source: str | None = None, target: str | None = None
) -> Direction:
    """Return the only direction with some source and target language, of which each may be None for any.

    Raises:
        ModelError: If there is none, or more than one.
    """
    suitable = [
        direction
        for direction in directions
        if source in (None, *direction.sources) and target in (None, direction.target)
    ]
    if len(suitable) == 1:
        return suitable[0]
    names = ", ".join(direction.name for direction in directions)
    if source is None and target is None:
        choose = "choose a source and a target language (--from and --to; source= and target= in Python)"
        raise ModelError(f"the model translates in several directions ({names}); {choose}")
    if suitable:
        names = ", ".join(direction.name for direction in suitable)
        missing = "a target (--to; target= in Python)" if target is None else "a source (--from; source= in Python)"
        raise ModelError(f"the model has several directions with this language ({names}); choose {missing}, too")
    requested = f"from {source} to {target}"
    if source is None or target is None:
        requested = f"to {target}" if source is None else f"from {source}"
    is_read = any(source in direction.sources for direction in directions)
    is_written = any(target == direction.target for direction in directions)
    hint = ""
    if is_read and is_written and source != target:
        hint = "; to try it without training, use --zero-shot (select(..., zero_shot=True) in Python)"
    raise ModelError(f"the model does not translate {requested}; it has {names}{hint}")


@dataclass(frozen=True)
class System(ABC, Generic[Model]):
    """A model with the config it was built from and the tokenizers of its languages.

    It has no state that depends on a batch.
    """

    model: Model
    config: RunConfig
    """The resolved run file."""
    tokenizers: Mapping[str, Tokenizer]
    """Tokenizers by language."""

    kind: ClassVar[str]
    """Name of this kind of system; `model.kind` in a run file, if it can be trained."""

    @property
    def direction(self) -> Direction:
        """Return the source languages with the streams of previous sentences, and the target language."""
        return Direction(self.config.data.source_streams, self.config.data.target)

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Return all directions that the system translates, of which one is used at a time (see `select`)."""
        return (self.direction,)

    def select(self, direction: Direction) -> System[Any]:
        """Return the system of one of the directions, which shares this one's weights."""
        return self

    @property
    def arrays(self) -> Mapping[str, ArrayConfig]:
        """Return the options of the sources that are arrays by name."""
        return self.config.data.arrays or {}

    @property
    def source_array(self) -> ArrayConfig | None:
        """Return the options of the only source if it is an array, or None."""
        sources = self.config.data.sources
        return self.arrays.get(sources[0]) if len(sources) == 1 else None

    @property
    def source(self) -> Tokenizer:
        """Return the tokenizer of the only source language.

        Raises:
            ModelError: If the source is an array.
        """
        return self.text_tokenizer(self.config.data.single_source)

    def text_tokenizer(self, source: str) -> Tokenizer:
        """Return the tokenizer of a source language, or raise ModelError if the source is an array."""
        if source in self.arrays:
            raise ModelError(f"this needs a model that reads text; this one reads arrays ({source})")
        return self.tokenizers[source]

    @property
    def target(self) -> Tokenizer:
        """Return the tokenizer of the target language."""
        return self.tokenizers[self.config.data.target]

    def stream_tokenizer(self, name: str) -> Tokenizer:
        """Return the tokenizer of a stream of the direction."""
        return self.tokenizers[name.removesuffix(CONTEXT_SUFFIX)]

    @property
    def has_several_texts(self) -> bool:
        """True if source sentences are given in several languages (see `Segmented.by_source`)."""
        return self.config.has_several_texts

    @cached_property
    def spellings(self) -> WordCharacters:
        """Return the characters and copies that the system's batches have for unknown words."""
        return word_characters(self.config, self.tokenizers)

    @cached_property
    def annotation(self) -> Annotation | None:
        """Return the annotation of unknown words (`[text.annotation]`), or None if there is none."""
        if self.config.text.annotation is None:
            return None
        return build_annotation(self.config.text, self.source, self.target)

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return next(self.model.parameters()).device

    @property
    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    @abstractmethod
    def unsupported(self) -> Mapping[Ability, str]:
        """Return the reason, as one sentence, for each ability that the system does not have."""

    def can(self, ability: Ability) -> bool:
        """Return True if the system has an ability."""
        return ability not in self.unsupported

    def require(self, ability: Ability) -> None:
        """Raise ModelError with the reason if the system does not have an ability."""
        if not self.can(ability):
            raise ModelError(self.unsupported[ability])

    def segment_sources(self, texts: Sequence[SourceText], restores_case: bool = False) -> list[Segmented]:
        """Return source texts as tokens that the model reads; `text` does not contain inline terms.

        Args:
            texts: The texts, or each a `NamedArray` if the model reads arrays.
            restores_case: True if the model should read text in capital letters in ordinary letter case.

        Raises:
            RnnsearchError: A text has other sources than the model.
        """
        sources = tuple(name for name in self.direction.sources if name not in self.config.data.context_streams)
        if self.has_several_texts:
            return segment_several(texts, sources, [self._segmenter(source, restores_case) for source in sources])
        if self.source_array is not None:
            return self._segmenter(sources[0], restores_case)(single_texts(texts, sources))
        return self._segment_one_source(single_texts(texts, sources), restores_case)

    def _segmenter(self, source: str, restores_case: bool) -> Callable[[list[str]], list[Segmented]]:
        """Return the function from the texts, or arrays, of a source to what the model reads."""
        if (array := self.arrays.get(source)) is not None:
            missing = Segmented("", [], [], [])
            return lambda names: [array_source(name, array, source) if name else missing for name in names]
        tokenizer = self.tokenizers[source]
        return tokenizer.segment_sources if restores_case else tokenizer.segment

    def _segment_one_source(self, texts: Sequence[str], restores_case: bool) -> list[Segmented]:
        segmented = self.source.segment_sources(texts) if restores_case else self.source.segment(texts)
        if self.config.text.inline_terms is not None:
            segmented = [restore_offsets(text) for text in segmented]
        if self.config.data.tag is not None:
            segmented = tagged(segmented, self.config.data.tag, self.source)
        if self.annotation is None:
            return segmented
        return [self.annotation.annotate_source(text) for text in segmented]

    @property
    def reads_context(self) -> bool:
        """True if the model reads previous sentences of a document."""
        return self.config.data.context is not None

    def require_context(self) -> None:
        """Raise ModelError if the model reads no previous sentences of a document."""
        if not self.reads_context:
            raise ModelError("this needs a model that reads previous sentences (data.context); this one does not")

    @property
    def reads_translations(self) -> bool:
        """True if the model reads the translations of previous sentences."""
        return self.config.data.reads_translations

    def in_context(self, source: Segmented, previous: Sequence[Segmented], targets: Sequence[Segmented]) -> Segmented:
        """Return a source sentence with the previous sentences that the model reads, if it reads any.

        Args:
            source: The sentence, from `segment_sources`; of a language model, a text.
            previous: Sentences before it in its document.
            targets: Translations of these sentences, or none if they are not known.
        """
        return in_context(source, previous, targets, self.config)

    def with_context(
        self, sources: Sequence[Segmented], documents: Sequence[int], targets: Sequence[Segmented] = ()
    ) -> list[Segmented]:
        """Return source sentences of documents with the previous sentences that the model reads (see `in_context`).

        Args:
            sources: The sentences.
            documents: Number of the document of each sentence; sentences of a document are neighbours.
            targets: Translations of the sentences, if they are known.
        """
        if not self.reads_context:
            return list(sources)
        results = []
        first = 0  # first sentence of the document
        for index, source in enumerate(sources):
            if documents[index] != documents[first]:
                first = index
            start = max(first, index - MAX_CONTEXT_SENTENCES)
            results.append(self.in_context(source, sources[start:index], targets[start:index]))
        return results

    def segment_targets(
        self, texts: Sequence[str], sources: Sequence[Segmented], aligner: Aligner | None
    ) -> list[Segmented]:
        """Return translations as tokens that the model writes.

        Args:
            texts: The translations.
            sources: Their sources, from `segment_sources`.
            aligner: Finds the source words that annotated unknown words refer to; without it, they refer to none.
        """
        targets = self.target.segment(texts)
        if self.annotation is None:
            return targets
        pairs = list(map(Pair.from_tokens, sources, targets))
        # One set for all pairs, which is only read.
        links = [set[Link]()] * len(pairs) if aligner is None else aligner.links(pairs)
        return list(map(self.annotation.annotate_target, targets, links, sources))

    @abstractmethod
    def fast_scorer(self, precision: str) -> FastestScorer:
        """Return the fastest scorer on this machine, with matrix products in a precision of `[search]`."""

    @abstractmethod
    def reference_scorer(self) -> Scorer:
        """Return the scorer that runs the model's own definition in fp32, as forced decoding does."""

    @abstractmethod
    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Return a batch of source sentences, given as ids without EOS."""

    def posterior_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[dict[str, Matrix]]:
        """Return the posterior attention of translations by source name.

        Raises:
            ModelError: If the system cannot compute it.
        """
        raise ModelError(self.unsupported["posterior"])

    def encoder_states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        """Return the encoder's last state for each sentence, [sentences, size].

        Raises:
            ModelError: If the system has no encoder.
        """
        raise ModelError(self.unsupported["states"])

    def selected_words(self, sentences: Sequence[Sequence[int]]) -> list[SelectedWords]:
        """Return which tokens of each sentence the encoder selects.

        Raises:
            ModelError: If the encoder reads all tokens.
        """
        raise ModelError(self.unsupported["choose"])

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        """Return the spelling of each translation's unknown words by position.

        Raises:
            ModelError: If the system does not spell words.
        """
        raise ModelError(self.unsupported["spell"])

    def copy_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        """Return, by source name, how much each token of some translations was copied from each source token.

        Tokens that were not copied have their attention weights.

        Args:
            columns: The candidates among which a search has found the translations, or None for all tokens.

        Raises:
            ModelError: If the system does not copy.
        """
        raise ModelError(self.unsupported["copy"])


class Trainable(System[Model]):
    """A system that a run can train."""

    @classmethod
    @abstractmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> Trainable[Any]:
        """Return a new system.

        Args:
            config: A config without problems (see `systems.validation`).
            tokenizers: Tokenizers by language.
            seed: Seed of the initialisation; None leaves the parameters uninitialised, to be loaded.

        Raises:
            ConfigError: If the config does not fit the vocabularies.
        """

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return all parameters in groups: those that are trained, and the frozen ones if there are any."""
        frozen = self.frozen_parameters()
        # In the order of the model, not of sets: the optimiser's state is stored by position.
        parameters = self.ordered_parameters()
        groups = [ParameterGroup([parameter for parameter in parameters if parameter not in frozen])]
        if frozen:
            in_order = [parameter for parameter in parameters if parameter in frozen]
            groups.append(ParameterGroup(in_order, frozen=True))
        return groups

    def ordered_parameters(self) -> list[nn.Parameter]:
        """Return all parameters in the order in which the optimiser has them."""
        return list(self.model.parameters())

    def frozen_parameters(self) -> set[nn.Parameter]:
        """Return the parameters that are not trained: those of `training.transfer.freeze`, and biases that stay zero.

        Raises:
            ConfigError: If the model has no such component, or nothing is trained.
        """
        frozen: set[nn.Parameter] = set()
        if self.config.model.init.biases == "none":
            frozen = biases(self.model)
        transfer = self.config.training.transfer
        if transfer is None or not transfer.freeze:
            return frozen
        path = "training.transfer.freeze"
        frozen |= {*named_components(self.model, transfer.freeze, path).values()}
        if all(parameter in frozen for parameter in self.model.parameters()):
            raise ConfigError([f"{path}: must leave something to train; it freezes all parameters"])
        return frozen

    @abstractmethod
    def objective(self) -> Objective[Model]:
        """Return the training objective."""

    def assign_classes(self, train: ParallelIds) -> None:
        """Assign tokens to classes by their counts in the training text, if the output layer has classes."""

    @abstractmethod
    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> DevEvaluator[Model]:
        """Return the evaluation on the dev set, which is shared by all processes.

        Args:
            rows: The dev set.
            gold: Gold alignments of the rows, if the alignment error rate is measured.
            device: Device to evaluate on.
            processes: All processes of the training run.
            aligner: Annotates the rows like the training text, if the text is annotated.
        """
