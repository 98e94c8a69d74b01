"""Noisy parallel approximate decoding (Cho 2016, "Noisy parallel approximate decoding for conditional recurrent
language model"): chains that search side by side with noise in the decoder's hidden state, of which the likeliest
translation, scored without noise, is taken.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.scorer import Scorer, Sources, Step, disturbed
from rnnsearch.search.variants import Variant, require, seeds, shared


@dataclass(frozen=True)
class Noisy(Variant):
    """h_t = phi(h_{t-1} + e_t, y_{t-1}), e_t from N(0, (sigma / t)^2 I), in every one of `chains` but the first, which
    share the beam: where it holds as many hypotheses, each chain is greedy. The first has no noise, so that what is
    found never scores less than what it finds. Noise hangs on the source, the chain and the seed alone."""

    chains: int
    sigma: float = 0.3
    seed: int = 1
    what: ClassVar[str] = "noisy chains"
    rescored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(
            (
                ("chains", self.chains >= 1, "at least 1", self.chains),
                ("sigma", 0 <= self.sigma < float("inf"), "at least 0", self.sigma),
                ("seed", self.seed >= 0, "at least 0", self.seed),
            )
        )

    def beam(self, own: int, n_best: int) -> int:
        return self.chains * -(-n_best // self.chains)

    def copies(self, beam: int) -> int:
        return shared(beam, self.chains, "chains")

    def scorer(self, scorer: Scorer, sources: Sources, copies: int) -> Scorer:
        keys = [None if seed[1] == 0 else seed for seed in seeds(sources, copies, self.seed)]
        return NoisyScorer(scorer, self.sigma, keys)


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

    def __init__(self, scorer: Scorer, sigma: float, seeds: list[list[int] | None]) -> None:
        """`seeds`: what the noise of each sentence of the batch hangs on; None: it has none."""
        self._scorer, self._sigma = scorer, sigma
        # Keys, and no generators: nothing is kept from one step to the next.
        keys = [None if one is None else np.random.SeedSequence(one).generate_state(2, np.uint64) for one in seeds]
        self._keys = keys
        self.vocabulary, self.device = scorer.vocabulary, scorer.device
        self.normalised = scorer.normalised

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        sentences = torch.arange(len(self._keys), device=self.device)
        return _Memory(memory, sentences), _State(state, torch.zeros_like(sentences))

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        width, position = len(y) // len(memory.sentences), int(state.length[0]) + 1
        each = [self._generator(n, position) for n in memory.sentences.tolist()]
        count = 0

        def noisy(h: Tensor) -> Tensor:
            nonlocal count
            count += 1
            shape = width, h.shape[1]
            drawn = [np.zeros(shape, np.float32) if g is None else g.standard_normal(shape, np.float32) for g in each]
            noise = torch.from_numpy(np.concatenate(drawn)).to(h)
            return h + self._sigma / position * noise

        inner = disturbed(self._scorer, state.inner, noisy)
        if not count:
            raise RnnsearchError("noisy chains need a decoder with a recurrent cell; this one has none")
        step = self._scorer.step(memory.inner, inner, y)
        return step._replace(state=_State(step.state, state.length + 1))

    def _generator(self, sentence: int, position: int) -> np.random.Generator | None:
        key = self._keys[sentence]
        return None if key is None else np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position]))
