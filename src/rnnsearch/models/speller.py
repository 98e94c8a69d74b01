"""The character decoder of a hybrid model, which spells target words that the vocabulary lacks (Luong & Manning 2016,
"Achieving open vocabulary neural machine translation with hybrid word-character models")."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config.encoders import TargetCharactersConfig
from rnnsearch.data.characters import NOTHING
from rnnsearch.models.cells import CELLS, Cell
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import CellState
from rnnsearch.models.outputs import Output
from rnnsearch.text.vocabulary import BOS, EOS

SpellerState = tuple[CellState, ...]
"""Of each layer, bottom first."""


class Speller(nn.Module):
    """p(word | h˘_t) = prod_k softmax(W d_k + b), d_k the top state of a stack that reads the characters before the
    k-th, BOS first; EOS ends the word.

    Its bottom layer begins at h˘_t = tanh(W˘ [c_t; h_t]) (eq. 7: a path of its own, beside the h~_t that the word is
    predicted from), the other layers at zero, all with empty memories. h_t is the state that the decoder's reading
    holds; of a decoder with input feeding that is h~_t.
    """

    def __init__(self, options: TargetCharactersConfig, characters: int, state: int, context: int) -> None:
        """Over readings of a decoder's `state` and `context` numbers."""
        super().__init__()
        self.path = Linear(context + state, options.size, bias=False)
        """W˘."""
        self.characters = parameter("embedding", characters, options.embedding)
        below = [options.embedding, *[options.size] * (options.layers - 1)]
        self.layers = nn.ModuleList(CELLS[options.cell](inputs, options.size) for inputs in below)
        self.output = Output(options.size, characters)
        self.size = options.size

    def initial_state(self, state: Float[Tensor, "M S"], context: Float[Tensor, "M H"]) -> Float[Tensor, "M D"]:
        """h˘ of M positions, from what the decoder's readings hold there."""
        return torch.tanh(self.path(torch.cat([context.to(state.dtype), state], dim=-1)))

    def start(self, first: Float[Tensor, "M D"]) -> SpellerState:
        """The state before the first character."""
        zero = torch.zeros_like(first)
        return tuple(cell.start(zero if number else first) for number, cell in enumerate(self._cells))

    def step(self, y: Int[Tensor, "M"], state: SpellerState) -> tuple[Float[Tensor, "M D"], SpellerState]:
        """d of the characters after `y`, for the output layer, and the next state."""
        below, new = functional.embedding(y, self.characters), list[CellState]()
        for cell, old in zip(self._cells, state, strict=True):
            new.append(cell.step(cell.inputs(below), old))
            below = new[-1].h
        return below, tuple(new)

    def losses(self, first: Float[Tensor, "M D"], words: Int[Tensor, "M L"]) -> tuple[Tensor, Float[Tensor, "M"]]:
        """Of M words: the sum of -log p(word), and that of each, which has no gradient."""
        words = functional.pad(words, (0, 1), value=NOTHING)
        length = (words != NOTHING).sum(1, keepdim=True)
        target = words.scatter(1, length, EOS)
        x = functional.embedding(functional.pad(words[:, :-1], (1, 0), value=BOS), self.characters)
        mask = target != NOTHING
        for cell, start in zip(self._cells, self.start(first), strict=True):
            x, _ = cell.sequence(x, mask, start=start)
        real = mask.flatten().nonzero()[:, 0]
        readout, ids = x.flatten(0, 1).index_select(0, real), target.flatten().index_select(0, real)
        total, each = self.output.losses(readout, ids)
        return total, each.new_zeros(len(words)).index_add(0, real // words.shape[1], each)

    @property
    def _cells(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.layers if isinstance(cell, Cell))
