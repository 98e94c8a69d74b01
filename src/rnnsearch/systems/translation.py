"""The system of a translation model with one target language and one source language, or several.

`TranslationSystem` connects a `TranslationModel` with training, search and analysis; `build`
builds and initialises the model by itself, which tests and benchmarks use.

`systems/folder.py` creates it by `model.kind`. Names of parameters are a file format. Tests:
tests/models/test_translation_model.py, tests/models/test_checkpoint.py, tests/old_models/test_old_models.py.

Axes: B sentences, J source positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rnnsearch.accel.registry import choose
from rnnsearch.accel.verification import INFERENCE, Conditions
from rnnsearch.align.aligner import Aligner
from rnnsearch.config import ModelConfig, ObjectiveConfig, RunConfig
from rnnsearch.config.data import CONTEXT_SUFFIX
from rnnsearch.config.outputs import AdaptiveOptions, OutputConfig
from rnnsearch.config.sequence import CriticConfig, ReadWriteOptions
from rnnsearch.data.arrays import ArrayIds
from rnnsearch.data.batch import Stream
from rnnsearch.data.characters import same_words, word_characters
from rnnsearch.data.corpus import Row
from rnnsearch.data.id_store import ParallelIds
from rnnsearch.data.word_classes import exchange_classes, frequency_classes, huffman_parents
from rnnsearch.errors import ConfigError
from rnnsearch.models.class_outputs import HierarchicalOutput, TreeOutput
from rnnsearch.models.composition import ComposedEmbedding
from rnnsearch.models.critics import add_critic, agent_baseline, trained_critic
from rnnsearch.models.layers import INITS, generator, initialise
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.outputs import OutputLayer
from rnnsearch.models.translation_model import NO_CHARACTERS, CharacterCounts, SourceSize, TranslationModel
from rnnsearch.objectives import penalties
from rnnsearch.objectives.contrast import CONTRASTS
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.sequence.objective import SEQUENCES, Generation, SequenceObjective
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.char_decoding import spell_unknown_words
from rnnsearch.search.decode import make_several_sources, make_sources
from rnnsearch.search.ensemble import EnsembleMember, EnsembleScorer
from rnnsearch.search.late_average import LateAverage
from rnnsearch.search.model_scorer import FastestScorer, ModelScorer, fastest_scorer
from rnnsearch.search.options import LengthLimit
from rnnsearch.search.reattend import copied_attention, posterior_attention
from rnnsearch.search.scorer import Scorer, Sources
from rnnsearch.systems.dev_scores import Measure, NllEvaluator
from rnnsearch.systems.dev_set import AlignmentErrorRate, Bleu, DevSet, PolicyScores
from rnnsearch.systems.system import Ability, Matrix, ParameterGroup, SelectedWords, Trainable
from rnnsearch.text.alignments import Links
from rnnsearch.text.tokenizer import Tokenizer
from rnnsearch.utils.distributed import Processes


def build(
    model: ModelConfig,
    source_vocabulary: SourceSize | Mapping[str, SourceSize],
    target_vocabulary: int,
    seed: int | None,
    objective: ObjectiveConfig | None = None,
    characters: CharacterCounts = NO_CHARACTERS,
    precision: str = "fp32",
) -> TranslationModel:
    """Return an initialised translation model, with its fast implementations.

    Args:
        model: A `[model]` without problems (see `config.rules`).
        source_vocabulary: Number of source tokens, or options of the arrays that the model reads; by source if it has
            `[model.sources]`.
        target_vocabulary: Number of target tokens.
        seed: Seed of the initialisation; None leaves the parameters uninitialised.
        objective: Adds the parameters that the training objective needs, if given.
        characters: Numbers of characters, for models that read or spell words by their characters.
        precision: Precision of training; fast implementations are compared with the definitions in it, too.

    Raises:
        ConfigError: If the vocabularies do not fit the model.
    """
    # One matrix serves as both embeddings.
    if model.tie == "all" and source_vocabulary != target_vocabulary:
        raise ConfigError(
            [f'model.tie: "all" needs equal vocabularies; got {source_vocabulary} and {target_vocabulary} tokens']
        )
    require_valid_cutoffs(model.output, target_vocabulary)
    if model.language_model is not None:
        require_valid_cutoffs(model.language_model.trained.output, target_vocabulary)
    network: TranslationModel
    if isinstance(source_vocabulary, Mapping):
        network = MultiSourceModel(model, source_vocabulary, target_vocabulary, objective)
    else:
        network = TranslationModel(model, source_vocabulary, target_vocabulary, objective, characters)
        if objective is not None and objective.sequence is not None:
            add_critic(network, objective.sequence, source_vocabulary, characters)
    if seed is not None:
        initialise(network, INITS[model.init.type](model.init, generator(seed)))
    # After the initialisation: fast implementations are compared with the definitions on separate tiny models.
    choose(network, conditions=INFERENCE if seed is None else Conditions.of_training(precision))
    return network


def require_valid_cutoffs(output: OutputConfig, vocabulary: int) -> None:
    """Raise ConfigError if an adaptive softmax has a group without tokens."""
    if isinstance(output, AdaptiveOptions) and output.cutoffs[-1] >= vocabulary:
        must = f"must be below the target's vocabulary size ({vocabulary})"
        raise ConfigError([f"model.output.cutoffs: {must}; got {output.cutoffs[-1]}"])


def assign_output_classes(output: OutputLayer, train: ParallelIds, target: str) -> None:
    """Assign the target's tokens to the classes of an output layer that counts them; do nothing for another one."""
    if isinstance(output, TreeOutput):
        output.assign_parents(torch.from_numpy(huffman_parents(train.counts(target, output.vocabulary))))
    elif isinstance(output, HierarchicalOutput):
        if output.by == "neighbours":
            classes = exchange_classes(train, target, output.vocabulary, output.num_classes)
        else:
            classes = frequency_classes(train.counts(target, output.vocabulary), output.num_classes)
        output.assign_classes(torch.from_numpy(classes))


@dataclass(frozen=True)
class TranslationSystem(Trainable[TranslationModel]):
    """A translation model, trained by maximum likelihood and the penalties of `[objective]`."""

    kind = "translation"

    @classmethod
    def make(cls, config: RunConfig, tokenizers: Mapping[str, Tokenizer], seed: int | None) -> TranslationSystem:
        target = config.data.target
        arrays = config.data.arrays or {}
        sizes: dict[str, SourceSize] = {}
        for name in config.data.source_streams:
            sizes[name] = arrays.get(name) or len(tokenizers[name.removesuffix(CONTEXT_SUFFIX)])
        if config.translation.sources is not None:
            precision = config.training.precision
            return cls(
                build(
                    config.translation,
                    sizes,
                    len(tokenizers[target]),
                    seed,
                    config.objective,
                    precision=precision,
                ),
                config,
                tokenizers,
            )
        source = config.data.single_source
        characters = word_characters(config, tokenizers).characters
        model = build(
            config.translation,
            sizes[source],
            len(tokenizers[target]),
            seed,
            config.objective,
            CharacterCounts(len(characters.get(source, ())), len(characters.get(target, ()))),
            config.training.precision,
        )
        if model.target_words is not None:
            model.target_words.table = torch.tensor(same_words(tokenizers[source], tokenizers[target]))
        return cls(model, config, tokenizers)

    @property
    def unsupported(self) -> Mapping[Ability, str]:
        options = self.config.translation
        decoder = options.decoder
        reasons: dict[Ability, str] = {}
        if isinstance(self.model, MultiSourceModel):
            reasons["posterior"] = "posterior attention needs a model with one source; this one has several"
            reasons["states"] = "encoder states need a model with one source; this one has several"
        if self.model.actor is not None:
            reasons["posterior"] = "posterior attention needs a decoder without an actor; this model has one"
        if self.model.language_model is not None:
            reasons["posterior"] = "posterior attention needs a readout without a language model; this model has one"
        if not options.encoder.selects_words:
            reasons["choose"] = "this needs the rationale encoder; this model's encoder reads every word"
        if self.model.speller is None:
            reasons["spell"] = "this needs a model with model.target_characters; it has none"
        if not self.config.objective.normalises_scores:
            reasons["probabilities"] = (
                "this needs a model whose scores are log-probabilities; those of this model are not normalised "
                '(objective.sequence.type = "bso")'
            )
        if not decoder.copies:
            reasons["copy"] = "this needs a decoder that copies (copynet); this model's does not"
        if not decoder.attends:
            needs_attention = f"this needs a model with attention; its decoder ({decoder.type}) has none"
            reasons["attend"] = needs_attention
            reasons["posterior"] = needs_attention
            reasons["read"] = needs_attention
        elif options.copies:
            copier = "the copynet decoder" if decoder.copies else "model.pointer"
            reasons["posterior"] = f"posterior attention needs generated words; this model also copies ({copier})"
        elif self.config.objective.aligns_previous_word:
            reasons["posterior"] = (
                "posterior attention is not defined for this model: its attention was trained to align the word just "
                'read (objective.supervision.word = "read")'
            )
        if decoder.attends and decoder.query_precedes_word:
            reasons["read"] = (
                f"the attention of words just read needs another decoder: {decoder.type} attends before it reads"
            )
        return reasons

    def frozen_parameters(self) -> set[nn.Parameter]:
        """Return the parameters that are not trained: those of `training.transfer.freeze`, and a language model inside.

        With an actor or an agent, only it and its critic or baseline are trained. With deep fusion, only the readout,
        the output layer (unless it shares its matrix with the embedding) and the gate are trained.
        """
        frozen = super().frozen_parameters()
        if self.model.actor is not None:
            trained = {*self.model.actor.parameters(), *trained_critic(self.model).parameters()}
            return frozen | {*self.model.parameters()} - trained
        if self.model.agent is not None:
            trained = {*self.model.agent.parameters(), *agent_baseline(self.model).network.parameters()}
            return frozen | {*self.model.parameters()} - trained
        fusion = self.model.language_model
        if fusion is None:
            return frozen
        frozen |= {*fusion.model.parameters()}
        if fusion.component.trains_output_only:
            readout_layer = self.model.decoder.readout_layer
            assert readout_layer is not None
            trained = {*fusion.parameters(), *readout_layer.parameters()}
            # A tied matrix belongs to the embedding, which stays frozen.
            trained |= {*self.model.output.parameters()} - {*self.model.target_embedding.parameters()}
            frozen |= {*self.model.parameters()} - trained
        return frozen

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return all parameters in groups; a critic has a separate one, for its learning rate."""
        trained, *others = super().parameter_groups()
        options = self.config.objective.sequence
        if not isinstance(options, CriticConfig):
            return [trained, *others]
        critic = {*trained_critic(self.model).parameters()}
        in_order = [parameter for parameter in trained.parameters if parameter in critic]
        rest = [parameter for parameter in trained.parameters if parameter not in critic]
        return [ParameterGroup(rest), ParameterGroup(in_order, options.critic_learning_rate), *others]

    def objective(self) -> Likelihood | SequenceObjective:
        sequence = self.config.objective.sequence
        if sequence is None:
            return self.likelihood()
        search = self.config.search
        generation = Generation(self.target.join, LengthLimit(search.max_ratio, search.max_extra))
        return SEQUENCES[sequence.type](sequence, self.likelihood(), generation)

    def likelihood(self) -> Likelihood:
        """Return the loss of the references, with the terms of `[objective]`."""
        options = self.config.objective
        contrast = None
        if options.contrast is not None:
            contrast = CONTRASTS[options.contrast.type](self.model.output.vocabulary)
        return Likelihood(
            self.config.training.label_smoothing,
            penalties(options),
            spelling_weight=1.0 if options.spelling is None else options.spelling,
            contrast=contrast,
            freeze_null_sources=self.config.data.target_only == "null",
        )

    def assign_classes(self, train: ParallelIds) -> None:
        assign_output_classes(self.model.output, train, self.config.data.target)

    def validation(
        self,
        rows: Sequence[Row],
        gold: Sequence[Links] | None,
        device: torch.device,
        processes: Processes,
        aligner: Aligner | None = None,
    ) -> NllEvaluator[TranslationModel]:
        config = self.config
        dev = DevSet(rows, self, processes, aligner)
        measures: dict[str, Measure[TranslationModel] | None] = {"bleu": None}
        has_bleu = config.training.dev_bleu
        policy = None
        sequence = config.objective.sequence
        if isinstance(sequence, ReadWriteOptions):
            policy = PolicyScores(dev, config.data.target, sequence, config.search, has_bleu)
        elif has_bleu:
            measures["bleu"] = Bleu(dev, config.data.target, config.search)
        if gold is not None:
            measures["aer"] = AlignmentErrorRate(dev, gold, config.aligns_previous_word, config.search.batch_sentences)
        # If batches are limited by tokens, there is no number of sentences.
        batch_sentences = config.training.batch.sentences or 64
        return NllEvaluator(dev.make_batches(Likelihood(), batch_sentences, device), measures, policy)

    def fast_scorer(self, precision: str) -> FastestScorer:
        model = self.model
        inventory = self.spellings.characters.get(self.config.data.sources[0])
        if inventory is not None and inventory.known is not None:
            # The embeddings of all words in the vocabulary are composed once, not once per batch.
            assert isinstance(model.source_embedding, ComposedEmbedding)
            model = model.with_source_embedding(model.source_embedding.precompute(inventory.known))
        fastest = fastest_scorer(model, precision, self.can("probabilities"))
        return fastest._replace(scorer=self._averaged(fastest.scorer))

    def reference_scorer(self) -> Scorer:
        return self._averaged(ModelScorer(self.model, normalised=self.can("probabilities")))

    def _averaged(self, scorer: Scorer) -> Scorer:
        """Return the scorer of several sources by `search.averaging`, given that of the model."""
        averaging = self.config.search.averaging
        if averaging == "early" or not isinstance(self.model, MultiSourceModel):
            return scorer
        names = self.model.source_names
        late = LateAverage(dict.fromkeys(names, scorer))
        if averaging == "late":
            return late
        same_names = {name: name for name in names}
        return EnsembleScorer([EnsembleMember(one, 1.0, same_names) for one in (scorer, late)], "arithmetic")

    def make_sources(self, sentences: Sequence[Sequence[int]], device: torch.device) -> Sources:
        if isinstance(self.model, MultiSourceModel):
            return make_several_sources(sentences, device, self.model.source_names, self.arrays)
        name = self.config.data.single_source
        arrays = [sentence.values for sentence in sentences if isinstance(sentence, ArrayIds)]
        if arrays:
            return {name: Stream.from_arrays(arrays).to(device)}
        return make_sources(sentences, device, self.spellings.characters.get(name), name)

    def posterior_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[dict[str, Matrix]]:
        self.require("posterior")
        return posterior_attention(self.model, sources, targets, self.make_sources)

    def spell(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], beam: int
    ) -> list[dict[int, str]]:
        self.require("spell")
        inventory = self.spellings.characters[self.config.data.target]
        batch_sentences = self.config.search.batch_sentences
        return spell_unknown_words(self.model, inventory, sources, targets, self.make_sources, beam, batch_sentences)

    def copy_attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], columns: ColumnChooser | None = None
    ) -> list[dict[str, Matrix]]:
        self.require("copy")
        batch_sentences = self.config.search.batch_sentences
        return copied_attention(self.model, sources, targets, self.make_sources, batch_sentences, columns)

    def selected_words(self, sentences: Sequence[Sequence[int]]) -> list[SelectedWords]:
        self.require("choose")
        with torch.inference_mode():
            memory = self.model.encode(self.make_sources(sentences, self.device))[self.config.data.single_source]
        assert memory.selection is not None
        rows = memory.selection.selected.cpu().numpy()  # [B, J]
        # Without EOS and padding.
        return [row[: len(ids)] for row, ids in zip(rows, sentences, strict=True)]

    def encoder_states(self, sentences: Sequence[Sequence[int]]) -> Matrix:
        self.require("states")
        if not sentences:
            return np.zeros((0, self.model.encoder.shapes[-1].size), dtype=np.float32)
        with torch.inference_mode():
            memory = self.model.encode(self.make_sources(sentences, self.device))
        # In fp32, because NumPy has no bf16.
        states: Matrix = memory[self.config.data.single_source].finals[-1].h.float().cpu().numpy()
        return states
