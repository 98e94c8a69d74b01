"""The translation model: embeddings, encoder, decoder and output layer.

Training calls `encode`, `unroll` and the output layer's losses; search calls `encode`, `start`, `step` and `log_probs`.

`systems/translation.py` builds it from `[model]`. Attribute names are checkpoint keys, and the order in which
`__init__` creates modules determines initial values (tests/old_models, tests/models/test_translation_model.py).

Axes: B sentences, N = B * K hypotheses, I target positions, J source positions, R readout, C score columns (the
vocabulary, or the tokens `rows`), E embedding, H annotation.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.config.data import ArrayConfig
from rnnsearch.config.sequence import GreedyActorOptions, ReadWriteOptions
from rnnsearch.data.batch import EmbeddingInput, Stream
from rnnsearch.models.actor import Actor
from rnnsearch.models.agent import Agent
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.auxiliary import Auxiliary
from rnnsearch.models.batch_rng import BatchRng, dropout, word_dropout
from rnnsearch.models.class_outputs import make_output
from rnnsearch.models.composition import ComposedEmbedding
from rnnsearch.models.copying import CopyOutput, Lexical, PointerOutput, Switch, TargetWordTable, copy_positions
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.copynet import PSI, CopyNet
from rnnsearch.models.decoders.decoder import HIDDEN, Reading, State
from rnnsearch.models.encoders import ENCODERS, Encoder
from rnnsearch.models.fusion import FUSIONS, FusedState, Fusion
from rnnsearch.models.layers import ArrayProjection, Embedding
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.outputs import PlainLoss
from rnnsearch.models.speller import Speller
from rnnsearch.utils.tensors import select

Memories = Mapping[str, Memory]
"""Memories by the name of their source stream; a tree for `tensors.select`."""


def only_memory(memories: Memories) -> Memory:
    """Return the memory of a system with one source."""
    (memory,) = memories.values()
    return memory


class CharacterCounts(NamedTuple):
    """Sizes of the character inventories of source and target; 0 without character models."""

    source: int = 0
    target: int = 0


SourceSize = int | ArrayConfig
"""Number of tokens of a source, or the options of its arrays."""
NO_CHARACTERS = CharacterCounts()
"""Sizes for a model without character models."""


class Unrolled(NamedTuple):
    """All target positions of N rows: readouts [N, I, R] for the output layer, and the decoder's readings."""

    readout: Tensor
    reading: Reading


class TranslationModel(nn.Module):
    """p(y_i | y_1..y_{i-1}, x), from source ids that end with EOS or an array, with the components of `[model]`.

    A memory has one row for each of B sentences; hypotheses have N = B * K rows, K consecutive rows per sentence.
    R is the width of the output layer's input, including appended columns (`_append_lexical`, `_append_output_inputs`).
    Dropout applies only with an rng, as in training; without one the model is deterministic.
    """

    def __init__(
        self,
        config: ModelConfig,
        source_vocabulary: SourceSize | Mapping[str, SourceSize],
        target_vocabulary: int,
        objective: ObjectiveConfig | None = None,
        characters: CharacterCounts = NO_CHARACTERS,
    ) -> None:
        super().__init__()
        self.config = config
        """Options of the model; `accel/verification.py` builds a tiny model of the same structure from them."""
        self.dropout = config.dropout

        # Embeddings; parameters are initialised in the order of creation
        target_embedding = Embedding(target_vocabulary, config.embedding, zero_bos=config.decoder.first == "zero")
        self.source_embedding = self.make_source_embedding(source_vocabulary, characters, target_embedding)
        self.target_embedding = target_embedding

        # Encoder and decoder
        self.encoder = self.make_encoder(source_vocabulary)
        self.decoder = DECODERS[config.decoder.type](config.decoder, config, self.encoder)
        context_size = config.decoder.attended_size(self.encoder.annotation_size)

        # Output layer
        readout_size = self.decoder.readout_size
        tied = None if config.tie == "none" else target_embedding
        lexical_size = config.embedding if config.lexical else 0
        self.output = _output_layer(config, readout_size, target_vocabulary, tied, lexical_size)

        # Optional components
        self.auxiliary: Auxiliary | None = None
        """Modules that only training uses."""
        if objective is not None and objective.has_parameters:
            self.auxiliary = Auxiliary(objective, context_size, readout_size + lexical_size, target_vocabulary)
        self.lexical = Lexical(config.embedding) if config.lexical else None
        attentions = (module for module in self.decoder.modules() if isinstance(module, Attention))
        self.reads_source_words = self.lexical is not None or any(attention.reads_words for attention in attentions)
        """True if anything after the encoder reads the embedded source words."""
        self.switch: Switch | None = None
        """The switch of the pointer softmax."""
        if config.pointer is not None:
            self.switch = Switch(config.pointer, self.decoder.state_size, context_size, config.embedding)
        self.target_words: TargetWordTable | None = None
        """The target word of each source word, for a copying decoder."""
        if config.decoder.copies:
            assert isinstance(source_vocabulary, int)
            self.target_words = TargetWordTable(source_vocabulary, target_vocabulary)
        self.speller: Speller | None = None
        """The character decoder of target words that are not in the vocabulary."""
        if (spelling := config.target_characters) is not None:
            size = self.decoder.hidden_size if spelling.reads_hidden else self.decoder.state_size
            self.speller = Speller(spelling, characters.target, size, context_size)
        self.language_model: Fusion | None = None
        """A language model that the readout reads."""
        if (fusion := config.language_model) is not None:
            fusion_type: Any = FUSIONS[fusion.type]
            self.language_model = fusion_type(fusion, fusion.trained, target_vocabulary, self.decoder.state_size)
            readout_layer = self.decoder.readout_layer
            assert readout_layer is not None, "`check` requires it"
            readout_layer.add_fusion(self.language_model.size)

        self.actor: Actor | None = None
        """The network that changes the decoder's state before each step."""
        self.agent: Agent | None = None
        """The network that decides when simultaneous translation reads and writes; no other translation uses it."""
        if objective is not None:
            self._add_policies(objective, context_size)

    def _add_policies(self, objective: ObjectiveConfig, context_size: int) -> None:
        """Create the actor or the agent that an objective trains."""
        sequence = objective.sequence
        sizes = (self.decoder.state_size, context_size, self.config.embedding)
        if isinstance(sequence, GreedyActorOptions):
            self.actor = Actor(sequence.actor_size, *sizes)
        elif isinstance(sequence, ReadWriteOptions):
            self.agent = Agent(sum(sizes), sequence.agent_size)

    def make_source_embedding(
        self, source: SourceSize | Mapping[str, SourceSize], characters: CharacterCounts, target: Embedding
    ) -> Embedding | ArrayProjection:
        """Create the embedding of source words, or return that of the target if both share one.

        Args:
            source: Number of source tokens, or options of the array in their place; for `MultiSourceModel`, by source.
            characters: Sizes of the character inventories.
            target: The embedding of target words.
        """
        assert not isinstance(source, Mapping)
        if isinstance(source, ArrayConfig):
            return ArrayProjection(source, self.config.embedding)
        vocabulary = source
        config = self.config
        if config.source_characters is not None:
            return ComposedEmbedding(config.source_characters, vocabulary, characters.source, config.embedding)
        return target if config.tie == "all" else Embedding(vocabulary, config.embedding)

    def make_encoder(self, source: SourceSize | Mapping[str, SourceSize]) -> Encoder:
        """Create the encoder; `source` is that of `make_source_embedding`."""
        config = self.config
        return ENCODERS[config.encoder.type](config.encoder, config.embedding, config.dropout)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def with_source_embedding(self, embedding: Embedding) -> TranslationModel:
        """Return a model that shares all modules except the source embedding."""
        return self.with_modules({"source_embedding": embedding})

    def with_modules(self, modules: Mapping[str, nn.Module]) -> TranslationModel:
        """Return a model with some other modules, by attribute name, that shares the rest."""
        # A shallow copy shares the dict of modules, so it gets a new one.
        other = copy.copy(self)
        other._modules = {**self._modules, **modules}
        return other

    def encode(self, sources: Mapping[str, Stream], rng: BatchRng | None = None) -> dict[str, Memory]:
        """Return the memories of B sentences by the name of their source stream."""
        return {name: self._remember(source, rng) for name, source in sources.items()}

    def _remember(self, source: Stream, rng: BatchRng | None) -> Memory:
        x = self._embed(self.source_embedding, source.embedding_input, rng)  # [B, J, E]
        encoded: Encoded = self.encoder(x, source.mask, rng)
        # Before `remember`, so that keys and contexts see the same dropout. [B, J, H]
        annotations = dropout(encoded.annotations, self.dropout.annotations, rng)
        words = x if self.reads_source_words else None
        memory = self.decoder.remember(encoded._replace(annotations=annotations, words=words))
        if self.target_words is None:
            return memory
        return memory._replace(target_ids=self.target_words.lookup(source.ids, source.mask))

    def empty_memories(self, batch_size: int) -> dict[str, Memory]:
        """Return the memories of sentences without a source: one annotation, summary and last states of zeros."""
        encoder = self.encoder
        new_zeros = next(self.parameters()).new_zeros
        finals = []
        for shape in encoder.shapes:
            finals.append(shape.state_type(*[new_zeros(batch_size, shape.size) for _ in shape.state_type._fields]))
        encoded = Encoded(
            annotations=new_zeros(batch_size, 1, encoder.annotation_size),
            mask=torch.ones(batch_size, 1, dtype=torch.bool, device=self.device),
            summary=new_zeros(batch_size, encoder.summary_size),
            finals=tuple(finals),
            words=new_zeros(batch_size, 1, self.config.embedding) if self.reads_source_words else None,
        )
        return {"": self.decoder.remember(encoded)}

    def combined(self, memories: Memories) -> Memory:
        """Return the memory that the decoder reads: that of the only source."""
        return only_memory(memories)

    def attention_by_source(self, alpha: Float[Tensor, "*rows J"], memories: Memories) -> dict[str, Tensor]:
        """Return attention weights over the positions of each source, given those of a reading."""
        ((name, memory),) = memories.items()
        return {name: memory.to_source(alpha)}

    def start(self, memories: Memories, rng: BatchRng | None = None, steps: int = 0) -> State:
        """Return the state before the first target word, one row per sentence (see `Decoder.start`).

        With a language model inside, it is a `FusedState`.
        """
        memory = self.combined(memories)
        state = self.decoder.start(memory, rng, steps)
        if self.language_model is None:
            return state
        return FusedState(state, self.language_model.model.start(len(memory.mask)))

    def unroll(self, previous: Int[Tensor, "N I"], memories: Memories, rng: BatchRng | None = None) -> Unrolled:
        """Return the readouts of all target positions at once, given the previous words y_{i-1} (BOS first).

        The random numbers that are generated once per sentence are the same for its K rows.
        """
        memory = self.combined(memories)
        B = memory.mask.shape[0]
        N, I = previous.shape
        by_sentence = previous.unflatten(0, (B, -1))  # [B, K, I], because random numbers are per sentence
        y_prev = self._embed(self.target_embedding, EmbeddingInput(by_sentence), rng).flatten(0, 1)  # [N, I, E]
        state = self.decoder.start(memory, rng, I)
        if N > B:
            # From one row per sentence to K consecutive rows, with the sentence's dropout masks and noise.
            state = select(state, torch.arange(B, device=previous.device).repeat_interleave(N // B))
        x = self._decoder_inputs(previous, y_prev, memory)
        if self.actor is None:
            reading = self.decoder.unroll(x, state, memory)
        else:
            assert isinstance(self.decoder, Bahdanau), "`check` requires it"
            reading = self.actor.unroll(self.decoder, x, y_prev, state, memory)
        if self.config.target_characters is not None and self.config.target_characters.reads_hidden:
            hidden = self.decoder.hidden_states(x, state, reading)
            reading = reading._replace(extras={**reading.extras, HIDDEN: hidden})
        if self.language_model is not None:
            fusion = self.language_model(self.language_model.model.unroll(previous), reading.state)
            reading = reading._replace(fusion=fusion)
        readout = self._readout(y_prev, reading, memory)  # [N, I, R]
        # [B, K, I, R], because random numbers are per sentence.
        dropped = dropout(readout.unflatten(0, (B, -1)), self.dropout.readout, rng)
        return Unrolled(self._append_output_inputs(dropped.flatten(0, 1), y_prev, reading, memory), reading)

    def step(
        self, y: Int[Tensor, "N"], state: State, memories: Memories
    ) -> tuple[Float[Tensor, "N R"], State, dict[str, Float[Tensor, "N J"]]]:
        """Compute one target position after the words y, without dropout.

        Returns:
            The readout, the next state, and attention by the name of the source stream (empty without attention). The
            attention is over source positions; that of `unroll` is over annotations.
        """
        readout, state, reading = self.read(y, state, memories)
        alpha = {} if reading.alpha is None else self.attention_by_source(reading.alpha, memories)  # [N, J]
        return readout, state, alpha

    def read(
        self, y: Int[Tensor, "N"], state: State, memories: Memories, noise: Float[Tensor, "N D"] | None = None
    ) -> tuple[Float[Tensor, "N R"], State, Reading]:
        """Compute one target position like `step`, and return the decoder's reading instead of attention.

        Args:
            y: The previous words.
            state: The state.
            memories: The memories.
            noise: Noise of the actions, for a model with an actor.
        """
        memory = self.combined(memories)
        y_prev = self.target_embedding(EmbeddingInput(y))  # [N, E]
        decoder_state, language_state = state if isinstance(state, FusedState) else (state, None)
        x = self._decoder_inputs(y, y_prev, memory)
        if self.actor is not None:
            assert isinstance(self.decoder, Bahdanau), "`check` requires it"
            decoder_state = self.actor.act(self.decoder, x, y_prev, decoder_state, memory, noise)
        state, reading = self.decoder.step(x, decoder_state, memory)
        if self.language_model is not None:
            h, language_state = self.language_model.model.step(y, language_state)
            reading = reading._replace(fusion=self.language_model(h, reading.state))
            state = FusedState(state, language_state)
        readout = self._readout(y_prev, reading, memory)
        return self._append_output_inputs(readout, y_prev, reading, memory), state, reading

    def log_probs(self, readout: Float[Tensor, "N R"], rows: Int[Tensor, "C"] | None = None) -> Float[Tensor, "N C"]:
        """Return log p(y_i) of every target token, or over the tokens `rows`."""
        return self.output.log_probs(readout, rows)

    def unroll_separate(self, previous: Int[Tensor, "N I"], memories: Memories) -> Reading:
        """Return `Decoder.unroll_separate` for all target positions at once, without dropout."""
        memory = only_memory(memories)
        y_prev = self.target_embedding(EmbeddingInput(previous))
        return self.decoder.unroll_separate(self.decoder.inputs(y_prev), self.decoder.start(memory), memory)

    def readouts_per_position(
        self, previous: Int[Tensor, "1 I"], state: Float[Tensor, "1 I S"], memory: Memory
    ) -> Float[Tensor, "I J R"]:
        """Return the readouts of one sentence with all attention of i on j, for every i and j: c_i = h_j.

        Args:
            state: The states of the reading from `unroll_separate`.
        """
        values = memory.context_values  # [1, J, H]
        I, J = previous.shape[1], values.shape[1]
        one_hot = torch.eye(J, dtype=values.dtype, device=values.device).repeat(I, 1)[None]  # [1, I * J, J]
        y_prev = self.target_embedding(EmbeddingInput(previous)).repeat_interleave(J, dim=1)
        # Row i * J + j combines target position i with annotation j, [1, I * J, ...].
        reading = Reading(state.repeat_interleave(J, dim=1), values.repeat(1, I, 1), one_hot)
        readout = self._append_lexical(self.decoder.readout_separate(y_prev, reading), reading, memory)
        assert readout.shape[:2] == (1, I * J)
        return readout.view(I, J, -1)

    def _embed(self, table: Embedding | ArrayProjection, inputs: EmbeddingInput, rng: BatchRng | None) -> Tensor:
        x = word_dropout(table(inputs), self.dropout.word, rng)
        return dropout(x, self.dropout.embedding, rng)

    def _decoder_inputs(self, previous: Tensor, y_prev: Tensor, memory: Memory) -> Tensor:
        """Return the decoder's inputs, with the source positions of the previous words for a copying decoder."""
        x = self.decoder.inputs(y_prev)
        if memory.target_ids is None:
            return x
        return CopyNet.append_copy_positions(x, copy_positions(previous, memory.target_ids))

    def _readout(self, y_prev: Tensor, reading: Reading, memory: Memory) -> Tensor:
        return self._append_lexical(self.decoder.readout(y_prev, reading), reading, memory)

    def _append_lexical(self, readout: Tensor, reading: Reading, memory: Memory) -> Tensor:
        """Concatenate a decoder's readout with that of the lexical model, if there is one."""
        if self.lexical is None:
            return readout
        assert reading.alpha is not None
        return torch.cat([readout, self.lexical(reading.alpha, memory).to(readout.dtype)], dim=-1)

    def _append_output_inputs(self, readout: Tensor, y_prev: Tensor, reading: Reading, memory: Memory) -> Tensor:
        """Concatenate a readout with the switch's logit, for a pointer, or with copy scores, for a copying decoder."""
        if memory.target_ids is not None:
            return CopyOutput.append_copy_scores(readout, reading.extras[PSI], memory.target_ids)
        if self.switch is None:
            return readout
        return torch.cat([readout, self.switch(reading.state, reading.context, y_prev).to(readout.dtype)], dim=-1)


def _output_layer(
    config: ModelConfig, readout_size: int, vocabulary: int, tied: Embedding | None, lexical_size: int
) -> PlainLoss | PointerOutput:
    if config.pointer is not None:
        return PointerOutput(readout_size, vocabulary, tied, lexical_size)
    if config.decoder.copies:
        return CopyOutput(readout_size, vocabulary, tied, lexical_size)
    return make_output(config.output, readout_size, vocabulary, tied, lexical_size)


class TranslationPair(nn.Module):
    """Two models, one per direction, as one module, for training with bilingual symmetry.

    `onward` translates source into target, `back` target into source; they share no parameters.
    """

    def __init__(self, onward: TranslationModel, back: TranslationModel) -> None:
        super().__init__()
        self.onward = onward
        self.back = back


def direction_tensors(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors of one direction (`onward` or `back`) of a `TranslationPair`, without the prefix."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
