"""A language model: p(y_i | y_1..y_{i-1}) without a source. Networks differ in what they read of the symbols before.

| name         | reads of y_1..y_{i-1} | the output reads              | source                 |
|--------------|-----------------------|-------------------------------|------------------------|
| recurrent    | all, by a state       | h_i of the top layer          | Mikolov et al. 2010    |
| feed-forward | the last n - 1        | tanh(d + H x), and x (direct) | Bengio et al. 2003     |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rnnsearch.config import DropoutConfig, language_model
from rnnsearch.config.language_model import FeedForwardOptions, LanguageModelConfig, NetworkConfig, RecurrentOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batch import Symbols
from rnnsearch.models.batch_rng import BatchRng, dropout, dropout_mask, masks_per_cell, word_dropout
from rnnsearch.models.cells import CELLS
from rnnsearch.models.class_outputs import make_output
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.text.vocabulary import BOS


class Network(nn.Module, ABC):
    """From the vectors of the symbols so far, BOS the first, to what the output layer reads of them, `size` numbers."""

    component: ClassVar[type[NetworkConfig]]
    """The declaration of the component, set by `@implements`."""
    size: int

    @abstractmethod
    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        """All positions at once."""

    @abstractmethod
    def start(self, bos: Float[Tensor, "N E"]) -> Any:
        """The state before BOS is read; a tree of N rows."""

    @abstractmethod
    def step(self, x: Float[Tensor, "N E"], state: Any) -> tuple[Float[Tensor, "N R"], Any]:
        """One position, and the state after it. Nothing is random."""


@implements(RecurrentOptions)
class Recurrent(Network):
    """h_i = f(x_i, h_{i-1}) in each layer of a stack, from zero states."""

    def __init__(self, options: RecurrentOptions, embedding: int, dropout: DropoutConfig) -> None:
        super().__init__()
        cell, layers = CELLS[options.cell], options.layers
        self.stack = Stack(cell, embedding, options.size, layers, options.residual_from, dropout)
        self.size = options.size

    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I D"]:
        """Layer by layer, each over all positions."""
        stack, below = self.stack, x
        keeps = masks_per_cell(dropout_mask(rng, stack.state_dropout, x, len(stack.layers), self.size))
        for l, cell in enumerate(stack.layers):
            read = dropout(below, stack.layers_dropout, rng) if l > 0 else below
            outputs, _ = cell.sequence(read, recurrent_mask=next(keeps))
            below = stack.layer_output(l, dropout(outputs, stack.outputs_dropout, rng), below)
        return below

    def start(self, bos: Float[Tensor, "N E"]) -> StackState:
        zero = bos.new_zeros(len(bos), self.size)
        return self.stack.start(tuple(cell.start(zero) for cell in self.stack.layers))

    def step(self, x: Float[Tensor, "N E"], state: StackState) -> tuple[Float[Tensor, "N D"], StackState]:
        return self.stack.step(self.stack.inputs(x), state)


@implements(FeedForwardOptions)
class FeedForward(Network):
    """tanh(d + H x), x = [C(y_{i-1}); ...; C(y_{i-n+1})] (Bengio et al. 2003, eq. 1); with `direct` [tanh(d + H x); x],
    so that an output layer [U, W] over it gives their b + W x + U tanh(d + H x). BOS stands before a text so often as
    is needed."""

    def __init__(self, options: FeedForwardOptions, embedding: int, dropout: DropoutConfig) -> None:
        super().__init__()
        self.words, self.direct = options.order - 1, options.direct
        self.hidden = Linear(self.words * embedding, options.size)
        """H and d."""
        self.size = options.size + (self.words * embedding if self.direct else 0)

    def unroll(self, x: Float[Tensor, "N I E"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        return self.hidden_units(self._windows(x, self.start(x[:, 0]), x.shape[1]))

    def _windows(self, x: Tensor, before: Tensor, count: int) -> Tensor:
        """At each of `count` positions the vectors of the last symbols, the newest first, side by side."""
        whole = torch.cat([before, x], dim=1)
        return torch.cat([whole[:, self.words - 1 - k :][:, :count] for k in range(self.words)], dim=-1)

    def hidden_units(self, x: Float[Tensor, "*rows X"]) -> Float[Tensor, "*rows R"]:
        """What the output reads of x."""
        h = torch.tanh(self.hidden(x))
        return torch.cat([h, x.to(h.dtype)], dim=-1) if self.direct else h

    def start(self, bos: Float[Tensor, "N E"]) -> Tensor:
        """[N, n - 2, E], the vectors before."""
        return bos[:, None].expand(-1, self.words - 1, -1)

    def step(self, x: Float[Tensor, "N E"], state: Tensor) -> tuple[Float[Tensor, "N R"], Tensor]:
        readout = self.hidden_units(self._windows(x[:, None], state, 1)[:, 0])
        return readout, torch.cat([state, x[:, None]], dim=1)[:, 1:]


NETWORKS: Implementations[type[Network]] = Implementations(language_model.NETWORKS)


class LanguageModel(nn.Module):
    """An embedding, a network and an output layer over `vocabulary` symbols. With `draws` dropout applies."""

    def __init__(self, config: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, config.embedding)
        make: Any = NETWORKS[config.network.type]
        self.network: Network = make(config.network, config.embedding, config.dropout)
        tied = None if config.tie == "none" else self.embedding
        self.output = make_output(config.output, self.network.size, vocabulary, tied)
        self.dropout = config.dropout

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    def unroll(self, previous: Int[Tensor, "N I"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        """The readouts of all positions at once, given the symbols before each (BOS first)."""
        x = word_dropout(self.embedding(Symbols(previous)), self.dropout.word, rng)
        readout = self.network.unroll(dropout(x, self.dropout.embedding, rng), rng)
        return dropout(readout, self.dropout.readout, rng)

    def start(self, rows: int) -> Any:
        """The state before the first symbol of so many texts."""
        bos = torch.full((rows,), BOS, device=self.device)
        return self.network.start(self.embedding(Symbols(bos)))

    def step(self, y: Int[Tensor, "N"], state: Any) -> tuple[Float[Tensor, "N R"], Any]:
        """The readout after one more symbol, and the state."""
        return self.network.step(self.embedding(Symbols(y)), state)
