"""The character decoder of a hybrid model, which generates target words that are not in the vocabulary.

Luong & Manning 2016, "Achieving open vocabulary neural machine translation with hybrid word-character models".

`TranslationModel` creates a `Speller`; `objectives/likelihood.py` adds its loss and `search/char_decoding.py` writes
words with it. Tests: tests/properties/test_spelled.py.

Axes: M target words, L characters per word, S state and H context of the decoder's readings, D hidden size, E
embedding of characters.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from rnnsearch.config.encoders import TargetCharactersConfig
from rnnsearch.data.characters import CHARACTER_PAD
from rnnsearch.models.cells import CELLS, Cell
from rnnsearch.models.layers import Linear, parameter
from rnnsearch.models.memory import CellState
from rnnsearch.models.outputs import Output
from rnnsearch.text.vocabulary import BOS, EOS

SpellerState = tuple[CellState, ...]
"""The state of each layer, bottom first."""


class Speller(nn.Module):
    """p(word | h˘_t) = prod_k softmax(W d_k + b), d_k the top state of a stack of cells.

    The stack reads the characters before the k-th, BOS first; EOS ends the word. Its bottom layer starts from
    h˘_t = tanh(W˘ [c_t; h_t]) (eq. 7: a separate path, in addition to the h~_t that predicts the word), the others from
    zero, and all memories are empty. h_t is the state of the decoder's reading; with input feeding, this is h~_t unless
    the option `reads_hidden` is set.
    """

    def __init__(self, options: TargetCharactersConfig, characters: int, state: int, context: int) -> None:
        """Create the layers; `state` and `context` are the sizes in the decoder's readings."""
        super().__init__()
        self.path = Linear(context + state, options.size, bias=False)  # W˘
        self.characters = parameter("embedding", characters, options.embedding)
        input_sizes = [options.embedding, *[options.size] * (options.layers - 1)]
        self.layers = nn.ModuleList(CELLS[options.cell](input_size, options.size) for input_size in input_sizes)
        self.output = Output(options.size, characters)
        self.size = options.size

    def initial_state(self, state: Float[Tensor, "M S"], context: Float[Tensor, "M H"]) -> Float[Tensor, "M D"]:
        """Return h˘ of M target positions, given the state and context of the decoder's readings."""
        return torch.tanh(self.path(torch.cat([context.to(state.dtype), state], dim=-1)))

    def start(self, initial: Float[Tensor, "M D"]) -> SpellerState:
        """Return the state before the first character, given h˘."""
        zero = torch.zeros_like(initial)
        # Only the bottom layer starts from h˘.
        return tuple(cell.start(zero if l else initial) for l, cell in enumerate(self._cells))

    def step(self, y: Int[Tensor, "M"], state: SpellerState) -> tuple[Float[Tensor, "M D"], SpellerState]:
        """Return d after the characters y, for the output layer, and the next state."""
        below = functional.embedding(y, self.characters)
        states = list[CellState]()
        for cell, old in zip(self._cells, state, strict=True):
            states.append(cell.step(cell.inputs(below), old))
            below = states[-1].h
        return below, tuple(states)

    def losses(self, initial: Float[Tensor, "M D"], words: Int[Tensor, "M L"]) -> tuple[Tensor, Float[Tensor, "M"]]:
        """Return the summed -log p(word) of M words, and that of each, without a gradient.

        Args:
            initial: From `initial_state`.
            words: Character ids, padded with CHARACTER_PAD.
        """
        words = functional.pad(words, (0, 1), value=CHARACTER_PAD)  # space for EOS
        length = (words != CHARACTER_PAD).sum(1, keepdim=True)  # [M, 1]
        target = words.scatter(1, length, EOS)  # [M, L + 1]
        # [M, L + 1, E]: BOS, then the characters shifted right. Positions after EOS are masked, so that padding is
        # not read.
        x = functional.embedding(functional.pad(words[:, :-1], (1, 0), value=BOS), self.characters)
        mask = target != CHARACTER_PAD
        for cell, start in zip(self._cells, self.start(initial), strict=True):
            x, _ = cell.sequence(x, mask, start=start)
        real = mask.flatten().nonzero()[:, 0]  # indices of characters in [M * L]
        readout = x.flatten(0, 1).index_select(0, real)
        total, nll = self.output.losses(readout, target.flatten().index_select(0, real))
        # Sum the characters' NLL by word, [M].
        return total, nll.new_zeros(len(words)).index_add(0, real // words.shape[1], nll)

    @property
    def _cells(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.layers if isinstance(cell, Cell))
