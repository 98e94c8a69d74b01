"""Noisy parallel approximate decoding (Cho 2016, "Noisy parallel approximate decoding for conditional recurrent
language model"): chains that search side by side with noise in the decoder's hidden state, of which the likeliest
translation, scored without noise, is taken.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.sampling import StreamKeys, Variant, normal, require_all, require_divisible, stream_keys
from rnnsearch.search.scorer import Scorer, Sources, Step, map_hidden_states


@dataclass(frozen=True)
class Noisy(Variant):
    """h_t = phi(h_{t-1} + e_t, y_{t-1}), e_t from N(0, (sigma / t)^2 I), in every one of `chains` but the first, which
    share the beam: where it holds as many hypotheses, each chain is greedy. The first has no noise, so that what is
    found never scores less than what it finds. Noise hangs on the source, the chain and the seed alone."""

    chains: int
    sigma: float = 0.3
    seed: int = 1
    name: ClassVar[str] = "noisy chains"
    rescored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_all(
            (
                ("chains", self.chains >= 1, "at least 1", self.chains),
                ("sigma", 0 <= self.sigma < float("inf"), "at least 0", self.sigma),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def default_beam(self, model_beam: int, n_best: int) -> int:
        return self.chains * -(-n_best // self.chains)

    def copies(self, beam: int) -> int:
        return require_divisible(beam, self.chains, "chains")

    def wrap_scorer(self, scorer: Scorer, sources: Sources, copies: int) -> Scorer:
        own = stream_keys(sources, copies, self.seed)
        return NoisyScorer(scorer, self.sigma, own, np.arange(len(own)) % copies > 0)


class _Memory(NamedTuple):
    inner: Any
    sentences: Tensor
    """[B], their numbers in the call."""


class _State(NamedTuple):
    inner: Any
    length: Tensor
    """[N], symbols so far, BOS not counted."""


class NoisyScorer:
    """`scorer`, with noise in its hidden states before each step."""

    def __init__(self, scorer: Scorer, sigma: float, keys: StreamKeys, loud: Array) -> None:
        """`keys`: the random numbers of each sentence of the batch; `loud`: [B] bool, whether it has noise."""
        self._scorer, self._sigma = scorer, sigma
        self._keys, self._loud = keys, loud
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        sentences = torch.arange(len(self._keys), device=self.device)
        return _Memory(memory, sentences), _State(state, torch.zeros_like(sentences))

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        width, position = len(y) // len(memory.sentences), int(state.length[0]) + 1
        sentences = memory.sentences.cpu().numpy()
        loud, count = self._loud[sentences], 0

        def noisy(h: Tensor) -> Tensor:
            nonlocal count
            noise = np.zeros((len(sentences), width * h.shape[1]), np.float32)
            noise[loud] = normal(self._keys[sentences[loud]], noise.shape[1], position, count)
            count += 1
            return h + self._sigma / position * torch.from_numpy(noise).to(h).view_as(h)

        inner = map_hidden_states(self._scorer, state.inner, noisy)
        if not count:
            raise RnnsearchError("noisy chains need a decoder with a recurrent cell; this one has none")
        step = self._scorer.step(memory.inner, inner, y)
        return step._replace(state=_State(step.state, state.length + 1))
