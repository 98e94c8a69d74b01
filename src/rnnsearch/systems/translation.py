"""The system of one translation model: one source, one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rnnsearch.accel.registry import choose
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import ModelConfig, ObjectiveConfig, RunConfig
from rnnsearch.config.outputs import AdaptiveOptions, OutputConfig
from rnnsearch.data.characters import same_words, spellings
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.word_classes import by_frequency, by_neighbours
from rnnsearch.errors import ConfigError
from rnnsearch.models.class_outputs import HierarchicalOutput
from rnnsearch.models.composition import ComposedEmbedding
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.models.outputs import OutputLayer
from rnnsearch.models.translation_model import NO_CHARACTERS, CharacterCounts, TranslationModel
from rnnsearch.objectives import penalties
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.char_decoding import spell
from rnnsearch.search.decode import make_sources
from rnnsearch.search.model_scorer import Fastest, ModelScorer, fastest
from rnnsearch.search.reattend import copied_attention, posterior_attention
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import Measure, Validation
from rnnsearch.systems.dev_set import AlignmentErrorRate, Bleu, DevSet
from rnnsearch.systems.system import Ability, Chosen, Matrix, ParameterGroup, Trainable
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.distributed import Processes

# From a config to a model with its parameters and its twins.


def build(
    model: ModelConfig,
    source_vocabulary: int,
    target_vocabulary: int,
    seed: int | None,
    objective: ObjectiveConfig | None = None,
    characters: CharacterCounts = NO_CHARACTERS,
) -> TranslationModel:
    """A model, its parameters drawn from `seed` (None: left to be filled), with what the objective needs besides.

    The config must have passed `check`.
    """
    if model.tie == "all" and source_vocabulary != target_vocabulary:
        raise ConfigError(
            [f'model.tie: "all" needs equal vocabularies; got {source_vocabulary} and {target_vocabulary} symbols']
        )
    require_fit(model.output, target_vocabulary)
    if model.language_model is not None:
        require_fit(model.language_model.trained.output, target_vocabulary)
    built = TranslationModel(model, source_vocabulary, target_vocabulary, objective, characters)
    if seed is not None:
        initialise(built, INITS[model.init.type](model.init, generator(seed)))
    choose(built)
    return built


def require_fit(output: OutputConfig, vocabulary: int) -> None:
    """Errors: ConfigError for an output of groups that so many symbols do not fill."""
    if isinstance(output, AdaptiveOptions) and output.cutoffs[-1] >= vocabulary:
        must = f"must be below the {vocabulary} symbols of the target"
        raise ConfigError([f"model.output.cutoffs: {must}; got {output.cutoffs[-1]}"])


# What an output layer is told of the training text before it is trained: the classes of its symbols.


def arrange(output: OutputLayer, train: ParallelIds, target: str) -> None:
    """Count the classes of an output that has some; others are as they are."""
    if not isinstance(output, HierarchicalOutput):
        return
    if output.by == "neighbours":
        classes = by_neighbours(train, target, output.vocabulary, output.num_classes)
    else:
        classes = by_frequency(train.counts(target, output.vocabulary), output.num_classes)
    output.assign_classes(torch.from_numpy(classes))


@dataclass(frozen=True)
class TranslationSystem(Trainable[TranslationModel]):
    """A translation model trained by maximum likelihood, with the penalties of `[objective]`."""

    kind = "translation"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> TranslationSystem:
        if len(config.data.languages) != 2:
            raise ConfigError(["data.source: must be one language for a translation model"])
        source, target = (len(tokenizers[side]) for side in config.data.languages)
        inventories = spellings(config, tokenizers).characters
        sizes = CharacterCounts(*(len(inventories.get(side, ())) for side in config.data.languages))
        model = build(config.translation, source, target, seed, config.objective, sizes)
        if model.target_words is not None:
            model.target_words.table = torch.tensor(same_words(*(tokenizers[side] for side in config.data.languages)))
        return cls(model, config, tokenizers)

    @property
    def cannot(self) -> Mapping[Ability, str]:
        decoder, kind = self.model.decoder, self.config.translation.decoder.type
        lacks: dict[Ability, str] = {}
        if self.model.language_model is not None:
            lacks["posterior"] = (
                "posterior attention is of a readout without a language model; this model has one inside"
            )
        if not self.config.translation.encoder.selects_words:
            lacks["choose"] = "this needs the rationale encoder; this model's reads every word"
        if self.model.speller is None:
            lacks["spell"] = "this needs a model with model.target_characters; it has none"
        if self.model.target_words is None:
            lacks["copy"] = "this needs a decoder that copies (copynet); this model's does not"
        if not decoder.attends:
            lacks["attend"] = lacks["posterior"] = f"this needs a model with attention; its decoder ({kind}) has none"
            lacks["read"] = lacks["attend"]
        elif self.config.translation.copies:
            by = "the copynet decoder" if self.config.translation.decoder.copies else "model.pointer"
            lacks["posterior"] = f"posterior attention is of words that are generated; this model also copies ({by})"
        elif self.config.objective.aligns_previous_word:
            lacks["posterior"] = (
                "posterior attention has no use for this model: its attention was trained to align the word just read "
                '(objective.supervision.word = "read")'
            )
        if decoder.attends and decoder.component.query_precedes_word:
            lacks["read"] = f"attention of words that were read needs another decoder: {kind} attends before it reads"
        return lacks

    def groups(self) -> list[ParameterGroup]:
        """A language model inside stays as it is; with deep fusion so does all but the readout, the output layer (where
        it shares no embedding) and the gate."""
        inside, everything = self.model.language_model, list(self.model.parameters())
        if inside is None:
            return [ParameterGroup(everything)]
        fixed = set(inside.model.parameters())
        if inside.trains_output_only:
            assert self.model.decoder.readout_layer is not None
            learned = {*inside.parameters(), *self.model.decoder.readout_layer.parameters()}
            learned |= {*self.model.output.parameters()} - {*self.model.target_embedding.parameters()}
            fixed |= {*everything} - learned
        learning = [parameter for parameter in everything if parameter not in fixed]
        return [
            ParameterGroup(learning),
            ParameterGroup([parameter for parameter in everything if parameter in fixed], frozen=True),
        ]

    def objective(self) -> Likelihood:
        smoothing, beside = self.config.training.label_smoothing, penalties(self.config.objective)
        told = self.config.objective.contrast
        contrast = None if told is None else CONTRASTS[told.type](self.model.output.vocabulary)
        null = self.config.data.target_only == "null"
        spelling = 1.0 if self.config.objective.spelling is None else self.config.objective.spelling
        return Likelihood(smoothing, beside, spelling=spelling, contrast=contrast, frozen_null=null)

    def count(self, train: ParallelIds) -> None:
        arrange(self.model.output, train, self.config.data.target)

    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> Validation[TranslationModel]:
        config, dev = self.config, DevSet(rows, self, processes, aligner)
        measures: dict[str, Measure[TranslationModel] | None] = {"bleu": None}
        if config.training.dev_bleu:
            measures["bleu"] = Bleu(dev, config.data.target, config.search)
        if gold is not None:
            read = config.aligns_previous_word
            measures["aer"] = AlignmentErrorRate(dev, gold, read, config.search.batch_sentences)
        size = config.training.batch.sentences or 64
        return Validation(dev.held_out(Likelihood(), size, device), measures)

    def fastest(self, precision: str) -> Fastest:
        model, inventory = self.model, self.spellings.characters.get(self.config.data.single_source)
        if inventory is not None and inventory.known is not None:
            assert isinstance(model.source_embedding, ComposedEmbedding)
            model = model.with_source_embedding(model.source_embedding.precompute(inventory.known))
        return fastest(model, precision)

    def plain(self) -> Scorer:
        return ModelScorer(self.model)

    def sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        name = self.config.data.single_source
        return make_sources(sentences, device, self.spellings.characters.get(name), name)

    def posterior(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[dict[str, Matrix]]:
        self.require("posterior")
        return posterior_attention(self.model, sources, targets, self.sources)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        self.require("spell")
        inventory = self.spellings.characters[self.config.data.target]
        size = self.config.search.batch_sentences
        return spell(self.model, inventory, sources, targets, self.sources, beam, size)

    def copied(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        self.require("copy")
        size = self.config.search.batch_sentences
        return copied_attention(self.model, sources, targets, self.sources, size, columns)

    def chosen(self, sentences: Sequence[Sequence[int]]) -> list[Chosen]:
        self.require("choose")
        with torch.inference_mode():
            memory = self.model.encode(self.sources(sentences, self.device))[self.config.data.single_source]
        assert memory.selection is not None
        return [row[: len(ids)] for row, ids in zip(memory.selection.selected.cpu().numpy(), sentences, strict=True)]

    def states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        if not sentences:
            return np.zeros((0, self.model.encoder.shapes[-1].size), dtype=np.float32)
        with torch.inference_mode():
            memory = self.model.encode(self.sources(sentences, self.device))
        found: Matrix = memory[self.config.data.single_source].finals[-1].h.float().cpu().numpy()
        return found
