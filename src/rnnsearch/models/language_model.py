"""Language models: p(y_i | y_1..y_{i-1}) without a source. Networks differ in the earlier tokens that they read:

| name         | reads of y_1..y_{i-1}  | the output reads              | source                 |
|--------------|------------------------|-------------------------------|------------------------|
| recurrent    | all, through a state   | h_i of the top layer          | Mikolov et al. 2010    |
| feed-forward | the last n - 1         | tanh(d + H x), and x (direct) | Bengio et al. 2003     |

With `[model.characters]`, the earlier words are composed of their characters (Ling et al. 2015; Kim et al. 2016); the
output layer has a row per word as usual. With `[model.context]`, a recurrent network also reads a summary s of previous
sentences (Wang & Cho 2016): as a further input (early fusion), or in the output gate of its top LSTM (late fusion).

`systems/language.py` trains `LanguageModel`, `fusion.py` puts one inside a translation model,
`objectives/likelihood.py` trains with its losses, and `search/model_scorer.py` and `accel/search.py` score with it.

Axes: N texts, I positions, J positions of previous sentences, E embedding, D state, R readout, P summary, C inputs of a
network that depend on the summary.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig, language_model
from rnnsearch.config.language_model import (
    FeedForwardOptions,
    LanguageModelConfig,
    NetworkConfig,
    RecurrentNetworkOptions,
)
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import CharacterTable, EmbeddingInput
from rnnsearch.models.batch_rng import BatchRng, dropout, dropout_mask, masks_per_cell, word_dropout
from rnnsearch.models.cells import CELLS, LSTM, GateInputs, Units
from rnnsearch.models.class_outputs import make_output
from rnnsearch.models.composition import ComposedEmbedding, Words
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.memory import HiddenAndCell
from rnnsearch.models.stack import Stack, StackState, layer_input
from rnnsearch.text.vocabulary import BOS, SPECIALS, UNK

UNKNOWN_TOKEN_RATE = 0.5
"""Rate of the unknown words that a model with `[model.characters]` reads as `<unk>` in training, so that it learns the
vector of `<unk>`: search and fusion do not know the characters of unknown words."""


class Network(nn.Module, ABC):
    """A function from the embeddings of the tokens so far, starting with BOS, to readouts of `size`."""

    component: ClassVar[type[NetworkConfig]]
    """The declaration of the component, set by `@implements`."""
    size: int
    """R, the size of the output layer's input."""

    @abstractmethod
    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        """Return the readouts of all positions at once; dropout applies only with an rng."""

    @abstractmethod
    def start(self, bos: Float[Tensor, "N E"]) -> Any:
        """Return the state before BOS is read, a tree of tensors with N rows."""

    @abstractmethod
    def step(self, x: Float[Tensor, "N E"], state: Any) -> tuple[Float[Tensor, "N R"], Any]:
        """Return the readout of one position and the state after it, without dropout."""


@implements(RecurrentNetworkOptions)
class Recurrent(Network):
    """h_i = f(x_i, h_{i-1}) in each layer of a stack, from zero states."""

    def __init__(self, options: RecurrentNetworkOptions, embedding: int, dropout: DropoutConfig) -> None:
        super().__init__()
        cell_type = CELLS[options.cell]
        self.stack = Stack(cell_type, embedding, options.size, options.layers, options.residual_from, dropout)
        self.size = options.size

    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I D"]:
        """Return the top layer's outputs, computed layer by layer."""
        return self._unroll_layers(x, rng)

    def _unroll_layers(
        self, x: Float[Tensor, "N I E"], rng: BatchRng | None, top_inputs: Float[Tensor, "N I C"] | None = None
    ) -> Float[Tensor, "N I D"]:
        """Return the top layer's outputs; `top_inputs` are appended to its gate inputs."""
        stack = self.stack
        recurrent_masks = masks_per_cell(dropout_mask(rng, stack.state_dropout, x, len(stack.layers), self.size))
        below = x
        # Nothing is fed back from above, so that each layer reads all positions before the next one starts.
        for l, cell in enumerate(stack.layers):
            inputs = dropout(below, stack.layers_dropout, rng) if l > 0 else below
            recurrent_mask = next(recurrent_masks)
            if top_inputs is not None and l + 1 == len(stack.layers):
                gates = torch.cat([cell.inputs(inputs), top_inputs], dim=-1)
                outputs, _ = cell.run(gates, recurrent_mask=recurrent_mask)
            else:
                outputs, _ = cell.sequence(inputs, recurrent_mask=recurrent_mask)
            below = stack.layer_output(l, dropout(outputs, stack.outputs_dropout, rng), below)
        return below

    def start(self, bos: Float[Tensor, "N E"]) -> StackState:
        zero = bos.new_zeros(len(bos), self.size)
        return self.stack.start(tuple(cell.start(zero) for cell in self.stack.layers))

    def step(self, x: Float[Tensor, "N E"], state: StackState) -> tuple[Float[Tensor, "N D"], StackState]:
        return self.stack.step(self.stack.inputs(x), state)


@implements(FeedForwardOptions)
class FeedForward(Network):
    """tanh(d + H x), x = [C(y_{i-1}); ...; C(y_{i-n+1})] (Bengio et al. 2003, eq. 1).

    With `direct`, the readout is [tanh(d + H x); x], so that an output layer [U, W] over it gives the paper's
    b + W x + U tanh(d + H x). Text is padded at its start with BOS.
    """

    def __init__(self, options: FeedForwardOptions, embedding: int, dropout: DropoutConfig) -> None:
        super().__init__()
        self.num_words = options.order - 1
        self.direct = options.direct
        self.hidden = Linear(self.num_words * embedding, options.size)  # H and d
        self.size = options.size + (self.num_words * embedding if self.direct else 0)

    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        return self.readout(self._windows(x, self.start(x[:, 0]), x.shape[1]))

    def start(self, bos: Float[Tensor, "N E"]) -> Tensor:
        """Return the earlier embeddings, all BOS, [N, n - 2, E]."""
        return bos[:, None].expand(-1, self.num_words - 1, -1)

    def step(self, x: Float[Tensor, "N E"], state: Tensor) -> tuple[Float[Tensor, "N R"], Tensor]:
        readout = self.readout(self._windows(x[:, None], state, 1)[:, 0])
        # The oldest embedding leaves the window: [N, n - 2, E].
        return readout, torch.cat([state, x[:, None]], dim=1)[:, 1:]

    def readout(self, x: Float[Tensor, "*rows X"]) -> Float[Tensor, "*rows R"]:
        """Return the input of the output layer."""
        h = torch.tanh(self.hidden(x))
        return torch.cat([h, x.to(h.dtype)], dim=-1) if self.direct else h

    def _windows(self, x: Tensor, earlier: Tensor, num_positions: int) -> Tensor:
        """Concatenate the last embeddings at each position, the newest first."""
        history = torch.cat([earlier, x], dim=1)  # [N, n - 2 + I, E]
        last = self.num_words - 1
        # Slice k holds y_{i-1-k}: the words that were read k positions earlier. [N, I, (n - 1) E]
        return torch.cat([history[:, last - k :][:, :num_positions] for k in range(self.num_words)], dim=-1)


class EarlyFusion(Recurrent):
    """A recurrent network whose bottom layer reads [x_i; s] (Wang & Cho 2016, section 3.2)."""

    def __init__(self, options: RecurrentNetworkOptions, embedding: int, dropout: DropoutConfig, context: int) -> None:
        super().__init__(options, embedding + context, dropout)

    def context_inputs(self, summary: Float[Tensor, "N P"]) -> Float[Tensor, "N P"]:
        """Return what the network reads of the summary at every position."""
        return summary

    def unroll_with(
        self, x: Float[Tensor, "N I E"], context: Float[Tensor, "N C"], rng: BatchRng | None = None
    ) -> Float[Tensor, "N I D"]:
        """Return the top layer's outputs."""
        return self.unroll(torch.cat([x, _at_positions(context, x)], dim=-1), rng)

    def step_with(
        self, x: Float[Tensor, "N E"], context: Float[Tensor, "N C"], state: StackState
    ) -> tuple[Float[Tensor, "N D"], StackState]:
        """Return the readout of one position and the state after it, without dropout."""
        return self.step(torch.cat([x, context.to(x.dtype)], dim=-1), state)


class LateFusionLSTM(LSTM):
    """An LSTM whose output gate reads a context vector p next to its memory (Wang & Cho 2016, section 3.2).

    r = sigma(W_r p + U_r c' + b_r),  h' = o * tanh(c' + r * p).

    The caller appends p and W_r p + b_r to the gate inputs.
    """

    def __init__(self, inputs_size: int | None, size: int) -> None:
        super().__init__(inputs_size, size)
        self.influence = Linear(size, size, bias=False, role="recurrent")  # U_r

    def next(self, x: GateInputs, h: Units, state: HiddenAndCell) -> HiddenAndCell:
        gates, p, r_inputs = x.split([4 * self.size, self.size, self.size], dim=-1)
        i, f, o, candidate = (gates + self.recurrent(h)).chunk(4, dim=-1)  # [N, D] each
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(candidate)
        r = torch.sigmoid(r_inputs + self.influence(c))
        return HiddenAndCell(torch.sigmoid(o) * torch.tanh(c + r * p), c)


class LateFusion(Recurrent):
    """A recurrent network whose top layer is a `LateFusionLSTM` over p = W_p s."""

    def __init__(self, options: RecurrentNetworkOptions, embedding: int, dropout: DropoutConfig, context: int) -> None:
        super().__init__(options, embedding, dropout)
        self.stack.cells[-1] = LateFusionLSTM(options.size if options.layers > 1 else embedding, options.size)
        self.projection = Linear(context, options.size, bias=False)  # W_p
        self.influence = Linear(options.size, options.size)  # W_r and b_r

    def context_inputs(self, summary: Float[Tensor, "N P"]) -> Float[Tensor, "N C"]:
        """Return p and W_r p + b_r, which do not depend on the position."""
        p = self.projection(summary)
        return torch.cat([p, self.influence(p)], dim=-1)

    def unroll_with(
        self, x: Float[Tensor, "N I E"], context: Float[Tensor, "N C"], rng: BatchRng | None = None
    ) -> Float[Tensor, "N I D"]:
        """Return the top layer's outputs."""
        return self._unroll_layers(x, rng, _at_positions(context, x))

    def step_with(
        self, x: Float[Tensor, "N E"], context: Float[Tensor, "N C"], state: StackState
    ) -> tuple[Float[Tensor, "N D"], StackState]:
        """Return the readout of one position and the state after it, without dropout."""
        stack = self.stack
        states = []
        below = x
        for l, (cell, old) in enumerate(zip(stack.layers, state.cells, strict=True)):
            gates = cell.inputs(layer_input(below, None))
            if l + 1 == len(stack.layers):
                gates = torch.cat([gates, context.to(gates.dtype)], dim=-1)
            states.append(cell.step(gates, old))
            below = stack.layer_output(l, states[-1].h, below)
        return below, state.advance(states)


def _at_positions(context: Float[Tensor, "N C"], x: Float[Tensor, "N I E"]) -> Float[Tensor, "N I C"]:
    """Return the context at every position of x."""
    return context[:, None].expand(-1, x.shape[1], -1).to(x.dtype)


class BagOfWords(nn.Module):
    """s = tanh(W sum_j E x_j + b) over the words x_j of previous sentences (Wang & Cho 2016, section 3.1)."""

    def __init__(self, embedding: int, size: int) -> None:
        super().__init__()
        self.projection = Linear(embedding, size)  # W and b

    def forward(self, words: Int[Tensor, "N J"], embedding: Embedding) -> Float[Tensor, "N P"]:
        """Return the summary of words; special tokens (separators, EOS, unknown words, padding) do not count."""
        x = embedding(EmbeddingInput(words))  # [N, J, E]
        is_word = (words >= len(SPECIALS)).unsqueeze(-1)
        return torch.tanh(self.projection(x.masked_fill(~is_word, 0.0).sum(1)))


class ContextState(NamedTuple):
    """The state of a network that reads a summary of previous sentences."""

    network: StackState
    context: Float[Tensor, "N C"]
    """Result of `context_inputs`, the same at all positions."""


NETWORKS: Implementations[type[Network]] = Implementations(language_model.NETWORKS)
"""Class by `type` of `[model.network]`; names are stored in model folders."""


FUSION_TYPES: dict[str, type[EarlyFusion] | type[LateFusion]] = {"early": EarlyFusion, "late": LateFusion}
"""Network by `fusion` of `[model.context]`; names are stored in model folders."""


class LanguageModel(nn.Module):
    """An embedding, a network and an output layer over `vocabulary` tokens."""

    def __init__(self, config: LanguageModelConfig, vocabulary: int, characters: int = 0) -> None:
        """Create a model; `characters` is the size of the character inventory of a model that composes words."""
        super().__init__()
        self.embedding = _make_embedding(config, vocabulary, characters)
        self.network: Network = _make_network(config)
        self.context = None if config.context is None else BagOfWords(config.embedding, config.context.size)
        self.context_stream: str | None = None
        """Name of the stream of previous sentences in batches of a search; None if the model reads none there."""
        tied = None if config.tie == "none" else self.embedding
        self.output = make_output(config.output, self.network.size, vocabulary, tied)
        self.dropout = config.dropout

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def with_table(self, known: Words | None) -> LanguageModel:
        """Return a model with a table of the composed vectors of all words, computed now, that shares all else.

        It reads words without characters, and so does `step`.

        Args:
            known: Characters of the known words, see `ComposedEmbedding.table`.
        """
        assert isinstance(self.embedding, ComposedEmbedding)
        # A shallow copy shares the dict of modules, so it gets a new one.
        other = copy.copy(self)
        other._modules = {**self._modules, "embedding": self.embedding.table(known)}
        return other

    def unroll(
        self,
        previous: Int[Tensor, "N I"],
        rng: BatchRng | None = None,
        context: Int[Tensor, "N J"] | None = None,
        *,
        characters: CharacterTable | None = None,
    ) -> Float[Tensor, "N I R"]:
        """Return the readouts of all positions at once, given the previous tokens (BOS first).

        Dropout applies only with an rng.

        Args:
            previous: The previous tokens.
            rng: Random numbers of dropout.
            context: Tokens of the previous sentences of each text; None if there are none. Only a model with
                `[model.context]` reads them.
            characters: Characters of the previous tokens, for a model that composes words.
        """
        if characters is not None and rng is not None:
            characters = _without_some_unknown(characters, previous, rng)
        x = self.embedding(EmbeddingInput(previous, characters))  # [N, I, E]
        x = word_dropout(x, self.dropout.word, rng)
        x = dropout(x, self.dropout.embedding, rng)
        if isinstance(self.network, EarlyFusion | LateFusion):
            readout = self.network.unroll_with(x, self._context_inputs(len(previous), context), rng)
        else:
            readout = self.network.unroll(x, rng)
        return dropout(readout, self.dropout.readout, rng)

    def start(self, rows: int, context: Int[Tensor, "N J"] | None = None) -> Any:
        """Return the state before the first token of `rows` texts, with `context` as in `unroll`."""
        bos = torch.full((rows,), BOS, device=self.device)
        state = self.network.start(self.embedding(EmbeddingInput(bos)))
        return state if self.context is None else ContextState(state, self._context_inputs(rows, context))

    def step(self, y: Int[Tensor, "N"], state: Any) -> tuple[Float[Tensor, "N R"], Any]:
        """Return the readout after token y, and the next state."""
        x = self.embedding(EmbeddingInput(y))
        if not isinstance(self.network, EarlyFusion | LateFusion):
            return self.network.step(x, state)
        readout, network_state = self.network.step_with(x, state.context, state.network)
        return readout, ContextState(network_state, state.context)

    def _context_inputs(self, rows: int, context: Int[Tensor, "N J"] | None) -> Float[Tensor, "N C"]:
        """Return what the network reads of the previous sentences of `rows` texts at every position."""
        assert self.context is not None and isinstance(self.network, EarlyFusion | LateFusion)
        words = torch.full((rows, 1), BOS, device=self.device) if context is None else context
        return self.network.context_inputs(self.context(words, self.embedding))


def _make_embedding(config: LanguageModelConfig, vocabulary: int, characters: int) -> Embedding:
    if config.characters is None:
        return Embedding(vocabulary, config.embedding)
    return ComposedEmbedding(config.characters, vocabulary, characters, config.embedding)


def _without_some_unknown(characters: CharacterTable, ids: Int[Tensor, "N I"], rng: BatchRng) -> CharacterTable:
    """Return a table without the characters of some unknown words (`UNKNOWN_TOKEN_RATE`)."""
    kept = rng.mask(tuple(ids.shape), UNKNOWN_TOKEN_RATE, characters.indices.new_empty(0, dtype=torch.float32)) > 0
    # Row 0 belongs to tokens without characters.
    return CharacterTable(characters.indices.masked_fill((ids == UNK) & ~kept, 0), characters.characters)


def _make_network(config: LanguageModelConfig) -> Network:
    context = config.context
    if context is None:
        network_type: Any = NETWORKS[config.network.type]
        network: Network = network_type(config.network, config.embedding, config.dropout)
        return network
    assert isinstance(config.network, RecurrentNetworkOptions), "`config.model_rules` rejects other networks"
    fusion = FUSION_TYPES[context.fusion]
    return fusion(config.network, config.embedding, config.dropout, context.size)
