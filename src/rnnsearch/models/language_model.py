"""Language models: p(y_i | y_1..y_{i-1}) without a source. Networks differ in the earlier tokens that they read:

| name         | reads of y_1..y_{i-1}  | the output reads              | source                 |
|--------------|------------------------|-------------------------------|------------------------|
| recurrent    | all, through a state   | h_i of the top layer          | Mikolov et al. 2010    |
| feed-forward | the last n - 1         | tanh(d + H x), and x (direct) | Bengio et al. 2003     |

`systems/language.py` trains `LanguageModel`, `fusion.py` puts one inside a translation model,
`objectives/likelihood.py` trains with its losses, and `search/model_scorer.py` and `accel/search.py` score with it.

Axes: N texts, I positions, E embedding, D state, R readout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

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
from rnnsearch.data.batch import EmbeddingInput
from rnnsearch.models.batch_rng import BatchRng, dropout, dropout_mask, masks_per_cell, word_dropout
from rnnsearch.models.cells import CELLS
from rnnsearch.models.class_outputs import make_output
from rnnsearch.models.layers import Embedding, Linear
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.text.vocabulary import BOS


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
        stack = self.stack
        recurrent_masks = masks_per_cell(dropout_mask(rng, stack.state_dropout, x, len(stack.layers), self.size))
        below = x
        # Nothing is fed back from above, so that each layer reads all positions before the next one starts.
        for l, cell in enumerate(stack.layers):
            inputs = dropout(below, stack.layers_dropout, rng) if l > 0 else below
            outputs, _ = cell.sequence(inputs, recurrent_mask=next(recurrent_masks))
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


NETWORKS: Implementations[type[Network]] = Implementations(language_model.NETWORKS)
"""Class by `type` of `[model.network]`; names are stored in model folders."""


class LanguageModel(nn.Module):
    """An embedding, a network and an output layer over `vocabulary` tokens."""

    def __init__(self, config: LanguageModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, config.embedding)
        network_type: Any = NETWORKS[config.network.type]
        self.network: Network = network_type(config.network, config.embedding, config.dropout)
        tied = None if config.tie == "none" else self.embedding
        self.output = make_output(config.output, self.network.size, vocabulary, tied)
        self.dropout = config.dropout

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def unroll(self, previous: Int[Tensor, "N I"], rng: BatchRng | None = None) -> Float[Tensor, "N I R"]:
        """Return the readouts of all positions at once, given the previous tokens (BOS first).

        Dropout applies only with an rng.
        """
        x = word_dropout(self.embedding(EmbeddingInput(previous)), self.dropout.word, rng)  # [N, I, E]
        readout = self.network.unroll(dropout(x, self.dropout.embedding, rng), rng)
        return dropout(readout, self.dropout.readout, rng)

    def start(self, rows: int) -> Any:
        """Return the state before the first token of `rows` texts."""
        bos = torch.full((rows,), BOS, device=self.device)
        return self.network.start(self.embedding(EmbeddingInput(bos)))

    def step(self, y: Int[Tensor, "N"], state: Any) -> tuple[Float[Tensor, "N R"], Any]:
        """Return the readout after token y, and the next state."""
        return self.network.step(self.embedding(EmbeddingInput(y)), state)
