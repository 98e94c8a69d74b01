"""Noisy parallel decoding: chains with noise in the decoder's hidden state.

Cho 2016, "Noisy parallel approximate decoding for conditional recurrent language model". The translation with the
highest score without noise is taken.

`cli/options.py` creates a `Noisy` for `--noisy`; it is a `Variant` (`sampling.py`). It needs a scorer with
`map_hidden`; native scorers have it, too. Tests: tests/properties/test_noisy.py.

Axes: A sentences still in the batch, B sentences of the call, K chains per sentence, N = A * K, D hidden state.
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
    """Noisy chains: h_t = phi(h_{t-1} + e_t, y_{t-1}) with e_t from N(0, (sigma / t)^2 I).

    The chains divide the beam; if it has as many hypotheses as there are chains, each is greedy. The first chain has
    no noise, so that the result never scores less than that chain's. The noise depends only on the source, the chain
    and the seed.
    """

    chains: int
    """Number of chains per sentence."""
    sigma: float = 0.3
    """Standard deviation of the noise at the first target position."""
    seed: int = 1
    """Seed of the noise."""
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
        streams = stream_keys(sources, copies, self.seed)
        return NoisyScorer(scorer, self.sigma, streams, has_noise=np.arange(len(streams)) % copies > 0)


class _Memory(NamedTuple):
    inner: Any
    sentences: Tensor  # [B], indices in the call


class _State(NamedTuple):
    inner: Any
    length: Tensor  # [N], number of tokens so far, without BOS


class NoisyScorer:
    """A scorer with noise added to its hidden states before each step."""

    def __init__(self, scorer: Scorer, sigma: float, keys: StreamKeys, has_noise: Array) -> None:
        """Wrap `scorer`.

        Args:
            scorer: Scorer of a recurrent model.
            sigma: Standard deviation of the noise at the first position.
            keys: [B], stream of random numbers of each sentence.
            has_noise: [B] bool, sentences whose state gets noise.
        """
        self._scorer = scorer
        self._sigma = sigma
        self._keys = keys
        self._has_noise = has_noise
        self.vocabulary = scorer.vocabulary
        self.device = scorer.device
        self.normalised = scorer.normalised

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory, state = self._scorer.start(sources, columns)
        sentences = torch.arange(len(self._keys), device=self.device)
        return _Memory(memory, sentences), _State(state, torch.zeros_like(sentences))

    def step(self, memory: _Memory, state: _State, y: Tensor) -> Step:
        width = len(y) // len(memory.sentences)
        position = int(state.length[0]) + 1  # the same for all hypotheses of a search
        sentences = memory.sentences.cpu().numpy()
        has_noise = self._has_noise[sentences]
        num_vectors = 0  # each hidden vector of a step has its own substream

        def add_noise(h: Tensor) -> Tensor:
            nonlocal num_vectors
            # [A, K * D]; 0 for chains without noise. One stream per sentence serves all its hypotheses.
            noise = np.zeros((len(sentences), width * h.shape[1]), np.float32)
            noise[has_noise] = normal(self._keys[sentences[has_noise]], noise.shape[1], position, num_vectors)
            num_vectors += 1
            return h + self._sigma / position * torch.from_numpy(noise).to(h).view_as(h)

        noisy_state = map_hidden_states(self._scorer, state.inner, add_noise)
        if num_vectors == 0:
            raise RnnsearchError("noisy chains need a decoder with a recurrent cell; this one has none")
        step = self._scorer.step(memory.inner, noisy_state, y)
        return step._replace(state=_State(step.state, state.length + 1))
