"""How much attention each source symbol has received so far, for the hypotheses of a beam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rnnsearch.search.ranking import LEAST, Ranking, require_attention
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import EOS


class Attended(NamedTuple):
    """One entry a source, in the sources' order; a tree for `tensors.select`, but that the two have different rows.

    words: [A, J], True on the symbols to cover (not EOS), one row a sentence. sums: [N, J], one row a hypothesis.
    """

    words: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]

    @classmethod
    def start(cls, sources: Sources) -> Attended:
        """Nothing covered yet; one hypothesis a sentence."""
        words = tuple(source.mask & (source.ids != EOS) for source in sources.values())
        return cls(words, tuple(torch.zeros(w.shape, device=w.device) for w in words))

    def after(self, attention: Mapping[str, Tensor], names: list[str]) -> Attended:
        """What is so after a step's weights [N, J]. Errors: RnnsearchError without attention."""
        require_attention(attention)
        return self._replace(sums=tuple(s + attention[name].float() for s, name in zip(self.sums, names, strict=True)))

    def penalty(self, ranking: Ranking) -> Tensor:
        """beta * sum_j log(min(sum, 1)) of each hypothesis, [A, K]."""
        total: Tensor | None = None
        for words, sums in zip(self.words, self.sums, strict=True):
            logs = sums.clamp(LEAST, 1.0).log().unflatten(0, (words.shape[0], -1))
            part = (logs * words[:, None, :]).sum(-1)
            total = part if total is None else total + part
        assert total is not None
        return ranking.coverage_penalty * total
