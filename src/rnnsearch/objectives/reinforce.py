"""How hard attention is trained: the REINFORCE estimator with a baseline (Xu et al. 2015, section 4.1).

What is maximised is E[log p(y | a, x)] over the drawn positions a_i ~ expected_i. Its gradient is the mean of

    d log p(y | a, x)  +  sum_i (R_i - b_i) d log expected_i(a_i),    R_i = sum_{k >= i} log p(y_k | a, x):

what is drawn at i cannot change what came before, so only what follows counts (Xu et al. give each draw the reward of
the whole sentence: the same mean, with more noise); b_i may be anything that does not depend on a_i or later draws. The
first term is the likelihood's own; this penalty is the second, negated. Sentences that use the expected value have no
draws: theirs is the first term alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config.objective import RationaleConfig
from rnnsearch.models.auxiliary import Baseline
from rnnsearch.models.memory import WordSelection
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.loss import Pass, Penalty

_TINY = 1e-30
MEANS, SENTENCES = "reinforce.means", "reinforce.sentences"


@dataclass(frozen=True)
class Reinforce(Penalty):
    """The estimator's penalty, with what its baseline learns from; `entropy` weights -H[expected_i], which keeps the
    weights from settling too early (Xu et al. 2015, section 4.1)."""

    entropy: float = 0.0

    def __call__(self, made: Pass) -> Tensor:
        reading, real, baseline = made.unrolled.reading, made.batch.target.mask, _baseline(made.model)
        assert reading.alpha is not None and reading.expected_alpha is not None, "REINFORCE needs hard attention"
        expected = made.weights()
        sampled = (reading.alpha != reading.expected_alpha).any(-1) & real
        # What is not drawn is given probability 1, so that its logarithm is 0.
        drawn = (expected * reading.alpha).sum(-1).masked_fill(~sampled, 1.0)
        returns, remaining = _returns(made)
        guess = baseline(made.unrolled.readout)
        advantage = (returns - guess.detach() * remaining) * real
        total: Tensor = -(advantage * drawn.clamp_min(_TINY).log()).sum()
        total = total + baseline.loss(guess, returns / remaining, real)
        if self.entropy > 0:
            total = total + self.entropy * (expected * expected.clamp_min(_TINY).log()).sum()
        return total

    def parts(self, made: Pass) -> dict[str, Tensor]:
        """The mean log-probability of a symbol of each sentence, summed; and the number of sentences."""
        returns, remaining = _returns(made)
        means = (returns / remaining)[:, 0]
        return {MEANS: means.sum(), SENTENCES: means.new_full((), len(means))}

    def after_update(self, model: TranslationModel, parts: Mapping[str, Tensor]) -> None:
        _baseline(model).update(parts[MEANS] / parts[SENTENCES])


def _baseline(model: TranslationModel) -> Baseline:
    assert model.auxiliary is not None and model.auxiliary.baseline is not None
    return model.auxiliary.baseline


def _returns(made: Pass) -> tuple[Tensor, Tensor]:
    """R_i and the number of symbols from i on, which is 1 on padding."""
    returns = -made.nll.flip(1).cumsum(1).flip(1)
    return returns, made.batch.target.mask.flip(1).cumsum(1).flip(1).clamp_min(1)


# How an encoder learns which source words to read (Lei, Barzilay & Jaakkola 2016, "Rationalizing neural predictions",
# section 4).
#
# What is minimised is E[cost(z)] over the words z that are drawn,
#
#     cost(z) = -log p(y | z, x) + lambda_1 sum_j z_j + lambda_2 sum_j |z_j - z_{j-1}|,
#
# whose gradient is the mean of d cost(z) + (cost(z) - b) d log p(z | x), for any b that does not depend on z. The first
# term is the likelihood's own; this penalty is the second. b is here what the sentence's length and a moving average of
# the cost a target symbol let expect.

RATIONALE_MEANS, RATIONALE_SENTENCES = "rationale.means", "rationale.sentences"


@dataclass(frozen=True)
class Rationales(Penalty):
    """The estimator's penalty, with what its baseline learns from."""

    config: RationaleConfig

    def __call__(self, made: Pass) -> Tensor:
        log_p = _chosen(made).log_prob
        expected = (_rationale_baseline(made.model)(made.unrolled.readout) * made.batch.target.mask).sum(1)
        total: Tensor = ((self._rewards(made) - expected) * -log_p).sum()
        return total

    def _rewards(self, made: Pass) -> Float[Tensor, "B"]:
        """-cost(z)."""
        chosen = _chosen(made)
        changes = ((chosen.selected[:, 1:] != chosen.selected[:, :-1]) & chosen.candidates[:, 1:]).sum(1)
        rewards: Tensor = -made.nll.sum(1) - self.config.sparsity * chosen.selected.sum(1)
        return rewards - self.config.coherence * changes

    def parts(self, made: Pass) -> dict[str, Tensor]:
        """The mean reward of a target symbol of each sentence that has words to choose, summed; and their number."""
        choice = _chosen(made).candidates.any(1)
        means = self._rewards(made) / made.batch.target.mask.sum(1)
        return {RATIONALE_MEANS: (means * choice).sum(), RATIONALE_SENTENCES: choice.sum()}

    def after_update(self, model: TranslationModel, parts: Mapping[str, Tensor]) -> None:
        _rationale_baseline(model).update(parts[RATIONALE_MEANS] / parts[RATIONALE_SENTENCES].clamp_min(1))


def _chosen(made: Pass) -> WordSelection:
    chosen = made.memory.selection
    assert chosen is not None, "rationales need an encoder that chooses"
    return chosen


def _rationale_baseline(model: TranslationModel) -> Baseline:
    assert model.auxiliary is not None and model.auxiliary.rationale is not None
    return model.auxiliary.rationale
