"""How hard attention is trained: the REINFORCE estimator with a baseline (Xu et al. 2015, section 4.1).

What is maximised is E[log p(y | a, x)] over the drawn positions a_i ~ expected_i. Its gradient is the mean of

    d log p(y | a, x)  +  sum_i (R_i - b_i) d log expected_i(a_i),    R_i = sum_{k >= i} log p(y_k | a, x):

what is drawn at i cannot change what came before, so only what follows counts; b_i may be anything that does not
depend on a_i or later draws. The first term is the likelihood's own; this penalty is the second, negated.
"""

from __future__ import annotations

from torch import Tensor

from rnnsearch.objectives.penalty import Pass, Penalty


def reinforce(entropy: float = 0.0) -> Penalty:
    """The estimator's penalty, with what its baseline learns from; `entropy` weights -H[expected_i], which keeps the
    weights from settling too early (Xu et al. 2015, eq. 12)."""

    def penalty(done: Pass) -> Tensor:
        reading, real = done.unrolled.reading, done.batch.target.mask
        assert reading.alpha is not None and reading.expected is not None, "REINFORCE needs hard attention"
        auxiliary = done.model.auxiliary
        assert auxiliary is not None and auxiliary.baseline is not None
        expected = done.weights()
        # Padding is given probability 1, so that its logarithm is 0.
        drawn = (expected * reading.alpha).sum(-1).masked_fill(~real, 1.0)
        returns = -done.nll.flip(1).cumsum(1).flip(1)
        remaining = real.flip(1).cumsum(1).flip(1).clamp_min(1)
        means = returns / remaining
        guess = auxiliary.baseline(done.unrolled.readout)
        advantage = (returns - guess.detach() * remaining) * real
        total: Tensor = -(advantage * drawn.clamp_min(_TINY).log()).sum() + auxiliary.baseline.learn(guess, means, real)
        if entropy > 0:
            total = total + entropy * (expected * expected.clamp_min(_TINY).log()).sum()
        return total

    return penalty


_TINY = 1e-30
