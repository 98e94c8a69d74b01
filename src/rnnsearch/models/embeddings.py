"""Word embeddings: one table a language, or one for both."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from rnnsearch.models.initialise import parameter
from rnnsearch.symbols import Symbols
from rnnsearch.text.vocabulary import BOS


class Embedding(nn.Module):
    """A table of V rows of E numbers. With `zero_bos` the symbol before the first word is all zeros."""

    sparse = False
    """Whether its gradient is of the rows alone that were read."""

    def __init__(self, vocabulary: int, size: int, zero_bos: bool = False) -> None:
        super().__init__()
        self.weight = parameter("embedding", vocabulary, size)
        self.zero_bos = zero_bos

    def forward(self, symbols: Symbols) -> Float[Tensor, "*rows E"]:
        """The vectors of symbols."""
        x = nn.functional.embedding(symbols.ids, self.weight, sparse=self.sparse)
        return x.masked_fill((symbols.ids == BOS).unsqueeze(-1), 0.0) if self.zero_bos else x
