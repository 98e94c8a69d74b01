"""The linear layer of every part."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.kernels.linear import linear
from rnnsearch.models.initialise import Role, give_role


class Linear(nn.Linear):
    """y = W x + b: PyTorch's, which is its plain twin; the role of its weight is `role`."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, role: Role = "weight") -> None:
        super().__init__(inputs, outputs, bias)
        give_role(self.weight, role)
        if bias:
            give_role(self.bias, "bias")

    def forward(self, input: Float[Tensor, "*rows E"]) -> Float[Tensor, "*rows G"]:
        return linear(input, self.weight, self.bias)
