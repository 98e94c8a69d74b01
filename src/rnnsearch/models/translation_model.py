"""A translation model: embeddings, encoder, decoder and output layer, in the order text flows through them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import ModelConfig, ObjectiveConfig
from rnnsearch.data.batch import Side, Symbols
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.auxiliary import Auxiliary
from rnnsearch.models.batch_rng import BatchRng, dropout, word_dropout
from rnnsearch.models.class_outputs import make_output
from rnnsearch.models.composition import ComposedEmbedding
from rnnsearch.models.copying import CopyOutput, Lexical, PointerOutput, Switch, TargetWordTable, copy_positions
from rnnsearch.models.decoders import DECODERS
from rnnsearch.models.decoders.copynet import PSI, CopyNet
from rnnsearch.models.decoders.decoder import Reading, State
from rnnsearch.models.encoders import ENCODERS
from rnnsearch.models.fusion import FUSIONS, FusedState, Fusion
from rnnsearch.models.layers import Embedding
from rnnsearch.models.memory import Encoded, Memory
from rnnsearch.models.outputs import PlainLoss
from rnnsearch.models.speller import Speller
from rnnsearch.utils.tensors import select

Memories = Mapping[str, Memory]
"""By the source's name. A tree for `tensors.select`."""


def only_memory(memories: Memories) -> Memory:
    """The one memory of a system with one source."""
    (memory,) = memories.values()
    return memory


class CharacterCounts(NamedTuple):
    """How many characters either side's words are made of, where they are."""

    source: int = 0
    target: int = 0


NO_CHARACTERS = CharacterCounts()


class Unrolled(NamedTuple):
    """All target positions of N rows: readout [N, I, R] for the output layer, and the decoder's readings."""

    readout: Tensor
    reading: Reading


class TranslationModel(nn.Module):
    """p(y_i | y_1..y_{i-1}, x), from source ids that end with EOS, of the parts that `[model]` names.

    Memory has one row for each of B sentences; what is asked of it has N = B * K rows, K consecutive ones a sentence.
    Without `draws` nothing is random; with them dropout applies, as in training.
    """

    def __init__(
        self,
        config: ModelConfig,
        source_vocabulary: int,
        target_vocabulary: int,
        objective: ObjectiveConfig | None = None,
        characters: CharacterCounts = NO_CHARACTERS,
    ) -> None:
        super().__init__()
        self.config = config
        """Options of the model; `accel/verification.py` builds a tiny model of the same structure from them."""
        target = Embedding(target_vocabulary, config.embedding, zero_bos=config.decoder.first == "zero")
        composed, size = config.source_characters, config.embedding
        if composed is not None:
            self.source_embedding: Embedding = ComposedEmbedding(composed, source_vocabulary, characters.source, size)
        else:
            self.source_embedding = target if config.tie == "all" else Embedding(source_vocabulary, size)
        self.target_embedding = target
        self.encoder = ENCODERS[config.encoder.type](config.encoder, config.embedding, config.dropout)
        self.decoder = DECODERS[config.decoder.type](config.decoder, config, self.encoder)
        tied = None if config.tie == "none" else target
        beside = config.embedding if config.lexical else 0
        self.output: PlainLoss | PointerOutput
        if config.pointer is not None:
            self.output = PointerOutput(self.decoder.readout_size, target_vocabulary, tied, beside)
        elif config.decoder.copies:
            self.output = CopyOutput(self.decoder.readout_size, target_vocabulary, tied, beside)
        else:
            self.output = make_output(config.output, self.decoder.readout_size, target_vocabulary, tied, beside)
        self.dropout = config.dropout
        self.auxiliary: Auxiliary | None = None
        """What only training uses."""
        if objective is not None and (objective.fertility or objective.reinforce or objective.rationale):
            annotation, readout = config.decoder.attended_size(self.encoder.annotation_size), self.decoder.readout_size
            self.auxiliary = Auxiliary(objective, annotation, readout + beside, target_vocabulary)
        self.lexical = Lexical(config.embedding) if config.lexical else None
        context = config.decoder.attended_size(self.encoder.annotation_size)
        attends = (part for part in self.decoder.modules() if isinstance(part, Attention))
        self.reads_source_words = self.lexical is not None or any(attention.reads_words for attention in attends)
        """Whether something after the encoder reads the source's words."""
        self.switch: Switch | None = None
        """Between saying a word and pointing at one of the source."""
        if config.pointer is not None:
            self.switch = Switch(self.decoder.state_size, context, config.embedding, config.pointer.size)
        self.target_words = TargetWordTable(source_vocabulary, target_vocabulary) if config.decoder.copies else None
        """What a decoder that copies knows of the two vocabularies."""
        self.speller: Speller | None = None
        """What spells the target words that the vocabulary lacks."""
        if config.target_characters is not None:
            self.speller = Speller(config.target_characters, characters.target, self.decoder.state_size, context)
        self.language_model: Fusion | None = None
        """A language model whose say the readout reads."""
        if (told := config.language_model) is not None:
            make: Any = FUSIONS[told.type]
            self.language_model = make(told, told.trained, target_vocabulary, self.decoder.state_size)
            layer = self.decoder.readout_layer
            assert layer is not None  # as `check` says
            layer.add_fusion(self.language_model.size)

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    def with_source_embedding(self, embedding: Embedding) -> TranslationModel:
        """A model of the same parts but that one."""
        other = copy.copy(self)
        other._modules = {**self._modules, "source_embedding": embedding}
        return other

    def encode(self, sources: Mapping[str, Side], rng: BatchRng | None = None) -> dict[str, Memory]:
        """What the decoder remembers of B sentences, by the source's name."""
        return {name: self._remember(side, rng) for name, side in sources.items()}

    def _remember(self, source: Side, rng: BatchRng | None) -> Memory:
        x = self._embed(self.source_embedding, source.symbols, rng)
        encoded: Encoded = self.encoder(x, source.mask, rng)
        annotations = dropout(encoded.annotations, self.dropout.annotations, rng)
        words = x if self.reads_source_words else None
        memory = self.decoder.remember(encoded._replace(annotations=annotations, words=words))
        if self.target_words is None:
            return memory
        return memory._replace(target_ids=self.target_words.lookup(source.ids, source.mask))

    def start(self, memories: Memories, rng: BatchRng | None = None, steps: int = 0) -> State:
        """The state before the first target word, one row a sentence: the decoder's, and that of a language model
        inside; `steps`: as in `Decoder.start`."""
        state, beside = self.decoder.start(only_memory(memories), rng, steps), self.language_model
        return state if beside is None else FusedState(state, beside.model.start(len(only_memory(memories).mask)))

    def unroll(self, previous: Int[Tensor, "N I"], memories: Memories, rng: BatchRng | None = None) -> Unrolled:
        """All target positions at once, given the previous words y_{i-1} (BOS first). The K rows of a sentence share
        what is drawn once a sentence."""
        memory = only_memory(memories)
        B, (N, I) = memory.mask.shape[0], previous.shape
        by_sentence = previous.unflatten(0, (B, -1))  # random numbers are drawn a sentence
        y_prev = self._embed(self.target_embedding, Symbols(by_sentence), rng).flatten(0, 1)
        state = self.decoder.start(memory, rng, I)
        if N > B:
            state = select(state, torch.arange(B, device=previous.device).repeat_interleave(N // B))
        reading = self.decoder.unroll(self._inputs(previous, y_prev, memory), state, memory)
        if self.language_model is not None:
            said = self.language_model(self.language_model.model.unroll(previous), reading.state)
            reading = reading._replace(fusion=said)
        readout = self._readout(y_prev, reading, memory)
        dropped = dropout(readout.unflatten(0, (B, -1)), self.dropout.readout, rng)
        return Unrolled(self._with_more(dropped.flatten(0, 1), y_prev, reading, memory), reading)

    def step(
        self, y: Int[Tensor, "N"], state: State, memories: Memories
    ) -> tuple[Float[Tensor, "N R"], State, dict[str, Float[Tensor, "N J"]]]:
        """One target position: readout, next state, and attention by the source's name, empty without. Nothing is
        random.

        The attention is over source positions, whatever the encoder made of them; `unroll`'s is over annotations.
        """
        y_prev = self.target_embedding(Symbols(y))
        memory = only_memory(memories)
        own, language = state if isinstance(state, FusedState) else (state, None)
        state, reading = self.decoder.step(self._inputs(y, y_prev, memory), own, memory)
        if self.language_model is not None:
            h, language = self.language_model.model.step(y, language)
            reading = reading._replace(fusion=self.language_model(h, reading.state))
            state = FusedState(state, language)
        (name,) = memories
        alpha = {} if reading.alpha is None else {name: memory.to_source(reading.alpha)}
        return self._with_more(self._readout(y_prev, reading, memory), y_prev, reading, memory), state, alpha

    def unroll_separate(self, previous: Int[Tensor, "N I"], memories: Memories) -> Reading:
        """All target positions at once, as the decoder's `unroll_apart` reads them; nothing is random."""
        y_prev, memory = self.target_embedding(Symbols(previous)), only_memory(memories)
        return self.decoder.unroll_separate(self.decoder.inputs(y_prev), self.decoder.start(memory), memory)

    def readouts_per_position(
        self, previous: Int[Tensor, "1 I"], state: Float[Tensor, "1 I S"], memory: Memory
    ) -> Float[Tensor, "I J R"]:
        """The readouts of one sentence as if all attention at i had been on j, for every i and j: c_i = h_j. `state` of
        `unroll_apart`."""
        values = memory.context_values
        (I, J), pairs = (previous.shape[1], values.shape[1]), previous.shape[1] * values.shape[1]
        alone = torch.eye(J, dtype=values.dtype, device=values.device).repeat(I, 1)[None]
        y_prev = self.target_embedding(Symbols(previous)).repeat_interleave(J, dim=1)
        at_each = Reading(state.repeat_interleave(J, dim=1), values.repeat(1, I, 1), alone)
        readout = self._with_lexical(self.decoder.readout_separate(y_prev, at_each), at_each, memory)
        assert readout.shape[:2] == (1, pairs)
        return readout.view(I, J, -1)

    def log_probs(self, readout: Float[Tensor, "N R"], rows: Int[Tensor, "C"] | None = None) -> Float[Tensor, "N C"]:
        """log p(y_i) of every target symbol, or over `rows` alone."""
        return self.output.log_probs(readout, rows)

    def _readout(self, y_prev: Tensor, reading: Reading, memory: Memory) -> Tensor:
        return self._with_lexical(self.decoder.readout(y_prev, reading), reading, memory)

    def _with_lexical(self, readout: Tensor, reading: Reading, memory: Memory) -> Tensor:
        """A decoder's readout, and the lexical model's behind it."""
        if self.lexical is None:
            return readout
        assert reading.alpha is not None
        return torch.cat([readout, self.lexical(reading.alpha, memory).to(readout.dtype)], dim=-1)

    def _inputs(self, previous: Tensor, y_prev: Tensor, memory: Memory) -> Tensor:
        """What the decoder reads of the words before, and behind it, for one that copies, where they stand."""
        x = self.decoder.inputs(y_prev)
        return (
            x
            if memory.target_ids is None
            else CopyNet.append_copy_positions(x, copy_positions(previous, memory.target_ids))
        )

    def _with_more(self, readout: Tensor, y_prev: Tensor, reading: Reading, memory: Memory) -> Tensor:
        """A readout, and behind it the switch of a model that points or the places of one that copies."""
        if memory.target_ids is not None:
            return CopyOutput.append_copy_scores(readout, reading.extras[PSI], memory.target_ids)
        if self.switch is None:
            return readout
        return torch.cat([readout, self.switch(reading.state, reading.context, y_prev).to(readout.dtype)], dim=-1)

    def _embed(self, table: Embedding, symbols: Symbols, rng: BatchRng | None) -> Tensor:
        x = word_dropout(table(symbols), self.dropout.word, rng)
        return dropout(x, self.dropout.embedding, rng)


class TranslationPair(nn.Module):
    """Two models, one a direction, as one module: what is trained for bilingual symmetry.

    `onward` translates source into target, `back` target into source; they share no parameter.
    """

    def __init__(self, onward: TranslationModel, back: TranslationModel) -> None:
        super().__init__()
        self.onward = onward
        self.back = back


def direction_tensors(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors of one direction (`onward` or `back`) out of a pair's, by their names there."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
