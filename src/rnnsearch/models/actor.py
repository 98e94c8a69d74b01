"""The actor of trainable greedy decoding, which changes the decoder's state before each step (Gu, Cho & Li 2017).

`TranslationModel` creates it if `[objective.sequence]` trains one, and applies it at each target position, in training,
search and forced decoding alike. It is part of the model: names of parameters are a file format. Fast implementations
of decoders, native search and exports do not know it and refuse such models. Tests:
tests/objectives/sequence/test_greedy_actor.py.

Axes: N = B * K hypotheses, I target positions, D state, H context, E embedding, G gate inputs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauState
from rnnsearch.models.decoders.decoder import Reading, map_hidden, repeat_steps
from rnnsearch.models.layers import Linear, set_role
from rnnsearch.models.memory import Memory


class Actor(nn.Module):
    """a_i = U tanh(W [s_{i-1}; c_i; E y_{i-1}] + b) + u, added to s_{i-1} before the decoder's step.

    c_i is the context that the decoder would attend to without the action. U and u start at 0, so that a new actor
    changes nothing.
    """

    def __init__(self, size: int, state: int, context: int, embedding: int) -> None:
        """Create the layers.

        Args:
            size: Number of hidden units.
            state: D.
            context: H.
            embedding: E.
        """
        super().__init__()
        self.hidden = Linear(state + context + embedding, size)  # W and b
        self.action = Linear(size, state, role=0.0)  # U and u
        set_role(self.action.bias, 0.0)

    def forward(
        self, s: Float[Tensor, "N D"], context: Float[Tensor, "N H"], y_prev: Float[Tensor, "N E"]
    ) -> Float[Tensor, "N D"]:
        """Return the actions."""
        action: Tensor = self.action(torch.tanh(self.hidden(torch.cat([s, context.to(s), y_prev.to(s)], dim=-1))))
        return action

    def act(
        self,
        decoder: Bahdanau,
        x: Float[Tensor, "N G"],
        y_prev: Float[Tensor, "N E"],
        state: BahdanauState,
        memory: Memory,
        noise: Float[Tensor, "N D"] | None = None,
    ) -> BahdanauState:
        """Return the decoder's state with the action, and noise if given, added to s_{i-1}.

        Args:
            decoder: The decoder.
            x: Inputs of its step.
            y_prev: The embedded previous words.
            state: Its state.
            memory: The memory.
            noise: Exploration noise of the action.
        """
        s = state.cell.h
        output, _ = decoder.attention.step(s, state.attention, memory, x)
        action = self(s, output.context, y_prev)
        change = action if noise is None else action + noise.to(action)
        return state._replace(cell=map_hidden(lambda h: h + change.to(h), state.cell))

    def unroll(
        self,
        decoder: Bahdanau,
        x: Float[Tensor, "N I G"],
        y_prev: Float[Tensor, "N I E"],
        state: BahdanauState,
        memory: Memory,
    ) -> Reading:
        """Return `Decoder.unroll` with the actions at all positions."""

        def step(inputs: Tensor, state: BahdanauState, memory: Memory) -> tuple[BahdanauState, Reading]:
            x_i, y_i = inputs.split([x.shape[-1], y_prev.shape[-1]], dim=-1)
            return decoder.step(x_i, self.act(decoder, x_i, y_i, state, memory), memory)

        return repeat_steps(step, torch.cat([x, y_prev.to(x)], dim=-1), state, memory)
