"""The agent of simultaneous translation, which decides when to read and when to write (Gu, Neubig, Cho & Li 2017).

`TranslationModel` creates it if `[objective.sequence]` trains one; `search/read_write.py` observes the model and
follows its decisions. It is part of the model: names of parameters are a file format. Its baseline is in
`model.auxiliary` (`models/critics.py`). Tests: tests/objectives/sequence/test_read_write.py.

Axes: N translations, T decisions, O observation, S state of the agent.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rnnsearch.models.cells import GRU
from rnnsearch.models.layers import Linear, parameter, set_role
from rnnsearch.models.memory import CellState
from rnnsearch.utils.tensors import at_least_fp32

EPSILON = 1e-4
"""Lower limit of the variance that advantages are normalised by."""


class Agent(nn.Module):
    """s_t = GRU(s_{t-1}, o_t),  P(write | o_1..o_t) = sigma(w^T s_t + b) (Gu et al. 2017, section 3).

    It is the softmax over two actions, of which only the difference of the scores matters. w and b start at 0, so that
    a new agent reads and writes equally often.
    """

    def __init__(self, observation_size: int, size: int) -> None:
        super().__init__()
        self.observation_size = observation_size
        self.cell = GRU(observation_size, size)
        self.write = Linear(size, 1, role=0.0)  # w and b
        set_role(self.write.bias, 0.0)

    def start(self, rows: int) -> CellState:
        """Return the state s_0 = 0 of N = `rows` translations."""
        return self.cell.start(at_least_fp32(self.write.weight.new_zeros(rows, self.cell.size)))

    def step(self, observation: Float[Tensor, "N O"], state: CellState) -> tuple[Float[Tensor, "N"], CellState]:
        """Return log P(write) / P(read) in fp32 or wider, and the next state."""
        state = self.cell.step(self.cell.inputs(observation), state)
        return at_least_fp32(self.write(state.h)).squeeze(-1), state

    def forward(self, observations: Float[Tensor, "N T O"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """Return log P(write) / P(read) of all decisions."""
        states, _ = self.cell.sequence(observations, mask)
        return at_least_fp32(self.write(states)).squeeze(-1)


class AgentBaseline(nn.Module):
    """b(o_t) = w^T tanh(W o_t + b) + c, the rewards that are still to come, and the moments of its errors.

    Advantages R_t - b(o_t) are divided by their standard deviation after subtraction of their mean. Both are moving
    averages over the previous updates, so that they do not depend on the decisions that they are applied to, with the
    divisor of Adam, which makes them means from the first update on. They are parameters without gradients, so that
    checkpoints include them.
    """

    def __init__(self, observation_size: int, size: int, decay: float) -> None:
        super().__init__()
        self.network = nn.Sequential(Linear(observation_size, size), nn.Tanh(), Linear(size, 1, role=0.0))
        self.decay = decay
        self.total = parameter(0.0).requires_grad_(False)
        self.squares = parameter(0.0).requires_grad_(False)
        self.weight = parameter(0.0).requires_grad_(False)

    def forward(self, observations: Float[Tensor, "N T O"]) -> Float[Tensor, "N T"]:
        """Return the expected rewards from each decision on, in fp32 or wider."""
        return at_least_fp32(self.network(observations)).squeeze(-1)

    def normalise(self, advantages: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """Return the advantages minus their moving mean, divided by their standard deviation; unchanged at first."""
        if not self.weight:
            return advantages
        mean = self.total / self.weight
        variance = (self.squares / self.weight - mean.square()).clamp_min(0.0)
        return (advantages - mean) / (variance + EPSILON).sqrt()

    def update(self, mean: Float[Tensor, ""], mean_square: Float[Tensor, ""]) -> None:
        """Update the moving averages after a training update with the moments of its advantages."""
        moments = ((self.total, mean), (self.squares, mean_square), (self.weight, torch.ones_like(mean)))
        for average, value in moments:
            # In place: the parameters have no gradient, so that no optimiser updates them.
            average.lerp_(value.to(average), 1.0 - self.decay)
