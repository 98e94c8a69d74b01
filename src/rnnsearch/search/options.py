"""What hypotheses are compared by: log-probability over a norm of the length, and a penalty for what was not covered.

    score(Y, X) = log P(Y|X) / norm(|Y|) + beta * sum_j log(min(sum_i alpha_ij, 1))      (Wu et al. 2016, eq. 14)

|Y| counts scored symbols, EOS too. j runs over the source's symbols without its EOS, i over the scored symbols.

Imports no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.config import search
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.search import GNMTOptions, PowerOptions, PowerWithBOSOptions
from rnnsearch.errors import RnnsearchError, must_be_one_of

MIN_COVERAGE = 1e-6
"""What a source symbol that was never attended to counts as: the logarithm of exactly 0 would drown all else."""


@implements(PowerOptions)
def power(length: Any, exponent: float) -> Any:
    """length ** exponent: 1 at exponent 0 (the plain sum), the length at exponent 1 (the mean a symbol)."""
    return length**exponent


@implements(GNMTOptions)
def gnmt(length: Any, exponent: float) -> Any:
    """((5 + length) / (5 + 1)) ** exponent (Wu et al. 2016, eq. 14; 0.2 there)."""
    return ((5.0 + length) / 6.0) ** exponent


@implements(PowerWithBOSOptions)
def power_with_bos(length: Any, exponent: float) -> Any:
    """(length + 1) ** exponent: the symbol before the first counts, too (OpenNMT-py's `avg`)."""
    return (length + 1.0) ** exponent


MAX_LENGTH_PENALTY = 10.0
"""The greatest exponent: a power of any length is then a number."""
LENGTH_NORMS: Implementations[Callable[[Any, float], Any]] = Implementations(search.LENGTH_NORMS)
"""What log-probabilities of lengths (a number or an array) are divided by; none falls with the length."""
ENGINE_NORMS = ("power", "gnmt")
"""Those that the engine's search has (`ops/native/beam_search.h`)."""


@dataclass(frozen=True)
class Ranking:
    """How hypotheses are scored."""

    length_penalty: float = 1.0
    """The norm's exponent."""
    length_norm: str = "power"
    coverage_penalty: float = 0.0
    """beta; 0 looks at no attention."""

    def __post_init__(self) -> None:
        for name in ("length_penalty", "coverage_penalty"):
            if not getattr(self, name) >= 0:  # nor NaN
                raise RnnsearchError(f"{name} must be at least 0; got {getattr(self, name)}")
        if self.length_penalty > MAX_LENGTH_PENALTY:
            raise RnnsearchError(f"length_penalty must be at most {MAX_LENGTH_PENALTY:g}; got {self.length_penalty:g}")
        if self.length_norm not in LENGTH_NORMS:
            raise RnnsearchError(f"length_norm {must_be_one_of(LENGTH_NORMS, self.length_norm)}")

    @property
    def uses_coverage(self) -> bool:
        """Whether attention has a part in the score."""
        return self.coverage_penalty > 0

    def score(self, log_prob: Any, length: Any, penalty: Any = 0.0) -> Any:
        """The score of log-probabilities of so many symbols, `penalty` (of `coverage`) added; numbers or arrays.

        It does not fall with `length` where log_prob is at most 0, and the penalty is at most 0.
        """
        return log_prob / LENGTH_NORMS[self.length_norm](length, self.length_penalty) + penalty

    def coverage(self, attention: Mapping[str, NDArray[np.float32]]) -> float:
        """beta * sum_j log(min(sum_i alpha_ij, 1)) of one hypothesis's weights [I, J] by source name, the last of the
        J symbols being EOS, which need not be covered. Errors: RnnsearchError without attention."""
        if not self.uses_coverage:
            return 0.0
        require_attention(attention)
        sums = (np.cumsum(weights[:, :-1], axis=0, dtype=np.float32)[-1:] for weights in attention.values())
        return self.coverage_penalty * float(sum(np.log(np.clip(s, MIN_COVERAGE, 1.0)).sum() for s in sums))


MEAN_LOG_PROB = Ranking()
"""The mean log-probability a symbol."""
SUM_LOG_PROB = Ranking(length_penalty=0.0)
"""The log-probability itself."""


def require_attention(attention: Mapping[str, Any]) -> None:
    """Errors: RnnsearchError where a Scorer gives no attention to cover the source with."""
    if not attention:
        raise RnnsearchError("coverage_penalty must be 0 for a model without attention")
