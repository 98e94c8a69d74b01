"""REINFORCE penalties: how hard attention, and encoders that select words, are trained.

Both estimate the gradient of an expectation over sampled choices, with a baseline that reduces the variance.

Hard attention (Xu et al. 2015, section 4.1): positions a_i ~ expected_i are sampled, and E[log p(y | a, x)] is
maximised. Its gradient is the mean of

    d log p(y | a, x)  +  sum_i (R_i - b_i) d log expected_i(a_i),    R_i = sum_{k >= i} log p(y_k | a, x).

A sample at i cannot change what came before, so only the tokens from i on count. (Xu et al. use the reward of the whole
sentence for each sample, which has the same mean and more variance.) The baseline b_i may be anything that does not
depend on a_i or later samples. The first term is the gradient of the likelihood; `Reinforce` is the second, negated.
Sentences that use expected values have no samples, and only the first term.

Selected words (Lei, Barzilay & Jaakkola 2016, "Rationalizing neural predictions", section 4): the cost of the sampled
words z is

    cost(z) = -log p(y | z, x) + lambda_1 sum_j z_j + lambda_2 sum_j |z_j - z_{j-1}|,

and the gradient of its expectation is the mean of d cost(z) + (cost(z) - b) d log p(z | x), for any b that does not
depend on z. The first term is the gradient of the likelihood; `RationalePenalty` is the second. Its b is the length of
the target times a moving average of the cost per target token.

`objectives.penalties` creates both. The moving averages of rewards are buffers of the model, which checkpoints contain;
`after_update` changes them.

Axes: B sentences, I target positions, J source positions.
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
from rnnsearch.objectives.loss import ForwardPass, Penalty

_TINY = 1e-30  # lower limit of probabilities in logarithms
# Names of statistics, which processes sum.
MEAN_LOG_PROBS = "reinforce.means"
NUM_SENTENCES = "reinforce.sentences"
RATIONALE_REWARDS = "rationale.means"
NUM_RATIONALE_SENTENCES = "rationale.sentences"


@dataclass(frozen=True)
class Reinforce(Penalty):
    """REINFORCE term of hard attention, and the loss that its baseline is learned from."""

    entropy: float = 0.0
    """Weight of the entropy of expected_i, which keeps attention from settling too early (Xu et al. 2015, 4.1)."""

    def __call__(self, forward: ForwardPass) -> Tensor:
        reading = forward.decoder_outputs.reading
        mask = forward.batch.target.mask  # [B, I]
        baseline = _baseline(forward.model)
        assert reading.alpha is not None and reading.expected_alpha is not None, "REINFORCE needs hard attention"
        expected = forward.attention()  # [B, I, J]
        # Where the expected value was used, both are equal (see `normalisers.Hard`).
        is_sampled = (reading.alpha != reading.expected_alpha).any(-1) & mask  # [B, I]
        # Probability of each sample; 1, whose logarithm is 0, if nothing was sampled.
        probability = (expected * reading.alpha).sum(-1).masked_fill(~is_sampled, 1.0)  # [B, I]
        returns, remaining = _returns(forward)
        expected_mean = baseline(forward.decoder_outputs.readout)  # [B, I]
        # The baseline is learned only from its own loss.
        advantage = (returns - expected_mean.detach() * remaining) * mask
        total: Tensor = -(advantage * probability.clamp_min(_TINY).log()).sum()
        total = total + baseline.loss(expected_mean, returns / remaining, mask)
        if self.entropy > 0:
            # The sum is the negative entropy.
            total = total + self.entropy * (expected * expected.clamp_min(_TINY).log()).sum()
        return total

    def statistics(self, forward: ForwardPass) -> dict[str, Tensor]:
        """Return the mean log-probability per token of each sentence, summed, and the number of sentences."""
        returns, remaining = _returns(forward)
        means = (returns / remaining)[:, 0]
        return {MEAN_LOG_PROBS: means.sum(), NUM_SENTENCES: means.new_full((), len(means))}

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        _baseline(model).update(statistics[MEAN_LOG_PROBS] / statistics[NUM_SENTENCES])


def _baseline(model: TranslationModel) -> Baseline:
    assert model.auxiliary is not None and model.auxiliary.baseline is not None
    return model.auxiliary.baseline


def _returns(forward: ForwardPass) -> tuple[Tensor, Tensor]:
    """Return R_i [B, I] and the number of tokens from i on, which is 1 on padding."""
    # A running sum from the right is the sum over k >= i; padding adds 0.
    returns = -forward.nll.flip(1).cumsum(1).flip(1)
    return returns, forward.batch.target.mask.flip(1).cumsum(1).flip(1).clamp_min(1)


@dataclass(frozen=True)
class RationalePenalty(Penalty):
    """REINFORCE term of an encoder that selects the words to read."""

    config: RationaleConfig
    """Options of `[objective.rationale]`."""

    def __call__(self, forward: ForwardPass) -> Tensor:
        log_p = _selection(forward).log_prob  # [B]
        expected_per_token = _rationale_baseline(forward.model)(forward.decoder_outputs.readout)  # [B, I]
        expected = (expected_per_token * forward.batch.target.mask).sum(1)  # [B]
        total: Tensor = ((self._rewards(forward) - expected) * -log_p).sum()
        return total

    def _rewards(self, forward: ForwardPass) -> Float[Tensor, "B"]:
        """Return -cost(z)."""
        selection = _selection(forward)
        differs = selection.selected[:, 1:] != selection.selected[:, :-1]
        changes = (differs & selection.candidates[:, 1:]).sum(1)  # between neighbouring words, not to EOS
        rewards: Tensor = -forward.nll.sum(1) - self.config.sparsity * selection.selected.sum(1)
        return rewards - self.config.coherence * changes

    def statistics(self, forward: ForwardPass) -> dict[str, Tensor]:
        """Return the mean reward per token, summed over sentences with words to select, and their number."""
        has_candidates = _selection(forward).candidates.any(1)
        means = self._rewards(forward) / forward.batch.target.mask.sum(1)
        return {RATIONALE_REWARDS: (means * has_candidates).sum(), NUM_RATIONALE_SENTENCES: has_candidates.sum()}

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        mean = statistics[RATIONALE_REWARDS] / statistics[NUM_RATIONALE_SENTENCES].clamp_min(1)
        _rationale_baseline(model).update(mean)


def _selection(forward: ForwardPass) -> WordSelection:
    selection = forward.memory.selection
    assert selection is not None, "rationales need an encoder that selects words"
    return selection


def _rationale_baseline(model: TranslationModel) -> Baseline:
    assert model.auxiliary is not None and model.auxiliary.rationale is not None
    return model.auxiliary.rationale
