"""Scores by which hypotheses are ranked: normalised log-probability and a coverage penalty (Wu et al. 2016, eq. 14).

    score(Y, X) = log P(Y|X) / norm(|Y|) + beta * sum_j log(min(sum_i alpha_ij, 1))

|Y| counts the target tokens with EOS. j runs over the source tokens without EOS, i over the target tokens.

`BeamOptions` adds the options that every beam search has; `SearchOptions` (`search/options.py`) and the options of the
runtime (`runtime/search.py`) extend it. The runtime has no PyTorch, so this module must not import torch.

A new norm needs an entry in `LENGTH_NORMS` and must not decrease with the length, because beam search stops by this
bound; native code knows only those in `ENGINE_NORMS` (`ops/native/beam_search.h`). Names and fields are settings of
`[search]` and of engine files. Tests: tests/properties/test_verification.py.

Axes: I target positions, J source positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.errors import RnnsearchError, must_be_one_of

MIN_COVERAGE = 1e-6  # of a source token; the logarithm of exactly 0 would dominate the score
MAX_LENGTH_PENALTY = 10.0  # length ** penalty is then finite for every length


def power(length: Any, exponent: float) -> Any:
    """Return length ** exponent: 1 at exponent 0 (sum of log-probabilities), the length at exponent 1 (their mean)."""
    return length**exponent


def gnmt(length: Any, exponent: float) -> Any:
    """Return ((5 + length) / (5 + 1)) ** exponent (Wu et al. 2016, eq. 14, with exponent 0.2)."""
    return ((5.0 + length) / 6.0) ** exponent


def power_with_bos(length: Any, exponent: float) -> Any:
    """Return (length + 1) ** exponent: BOS counts, too (`avg` of OpenNMT-py)."""
    return (length + 1.0) ** exponent


LENGTH_NORMS: dict[str, Callable[[Any, float], Any]] = {
    "power": power,
    "gnmt": gnmt,
    "power-with-bos": power_with_bos,
}
"""Divisors of log-probabilities by name, for a length or an array of lengths. None decreases with the length."""
ENGINE_NORMS = ("power", "gnmt")
"""Length norms that the engine's search supports (`ops/native/beam_search.h`)."""


@dataclass(frozen=True)
class Ranking:
    """Parameters of the score of a hypothesis."""

    length_penalty: float = 1.0
    """Exponent of the length norm; "power" divides the log-probability by length ** length_penalty."""
    length_norm: str = "power"
    """Key of `LENGTH_NORMS`."""
    coverage_penalty: float = 0.0
    """Weight beta of the coverage term; 0 ignores attention."""

    def __post_init__(self) -> None:
        for name in ("length_penalty", "coverage_penalty"):
            if not getattr(self, name) >= 0:  # also rejects NaN
                raise RnnsearchError(f"{name} must be at least 0; got {getattr(self, name)}")
        if self.length_penalty > MAX_LENGTH_PENALTY:
            raise RnnsearchError(f"length_penalty must be at most {MAX_LENGTH_PENALTY:g}; got {self.length_penalty:g}")
        if self.length_norm not in LENGTH_NORMS:
            raise RnnsearchError(f"length_norm {must_be_one_of(LENGTH_NORMS, self.length_norm)}")

    @property
    def uses_coverage(self) -> bool:
        """True if the score depends on attention."""
        return self.coverage_penalty > 0

    def score(self, log_prob: Any, length: Any, penalty: Any = 0.0) -> Any:
        """Return the score of log-probabilities (floats or arrays) of hypotheses with `length` tokens.

        For log_prob <= 0 the score does not decrease with `length`. `penalty` is the value of `coverage`, at most 0.
        """
        return log_prob / LENGTH_NORMS[self.length_norm](length, self.length_penalty) + penalty

    def coverage(self, attention: Mapping[str, NDArray[np.float32]]) -> float:
        """Return the coverage term of one hypothesis.

        Args:
            attention: Weights [I, J] by source name. The last of the J source tokens is EOS, which need not be covered.

        Raises:
            RnnsearchError: The term is not 0 and there is no attention.
        """
        if not self.uses_coverage:
            return 0.0
        require_attention(attention)
        total = 0.0
        for weights in attention.values():
            # A sequential sum in float32, like that of a beam, so that both agree to the last bit.
            covered = np.cumsum(weights[:, :-1], axis=0, dtype=np.float32)[-1:]  # [1, J - 1]
            total += np.log(np.clip(covered, MIN_COVERAGE, 1.0)).sum()
        return self.coverage_penalty * float(total)


@dataclass(frozen=True)
class BeamOptions(Ranking):
    """Options of every beam search. Lengths count target tokens without EOS."""

    beam: int = 5
    """Live hypotheses per sentence, and the number of finished ones after which a sentence stops."""
    n_best: int = 1
    """Maximum number of hypotheses returned per sentence, at most `beam`."""
    max_ratio: float = 2.0
    """Maximum translation length per source token (without EOS), to which `max_extra` is added."""
    max_extra: int = 20
    """Tokens added to max_ratio * source length; a forced prefix and one further token always fit."""
    banned: frozenset[int] = frozenset()
    """Tokens that must not be produced, in addition to PAD and BOS."""

    @property
    def ranking(self) -> Ranking:
        """The score that hypotheses are ranked by, without the other options."""
        return Ranking(self.length_penalty, self.length_norm, self.coverage_penalty)


MEAN_LOG_PROB = Ranking()
"""Ranking by the mean log-probability per token."""
SUM_LOG_PROB = Ranking(length_penalty=0.0)
"""Ranking by the log-probability."""


def require_attention(attention: Mapping[str, Any]) -> None:
    """Raise RnnsearchError if a Scorer returned no attention to compute the coverage from."""
    if not attention:
        raise RnnsearchError("coverage_penalty must be 0 for a model without attention")
