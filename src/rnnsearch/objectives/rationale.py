"""How an encoder learns which source words to read (Lei, Barzilay & Jaakkola 2016, "Rationalizing neural predictions",
section 4).

What is minimised is E[cost(z)] over the words z that are drawn,

    cost(z) = -log p(y | z, x) + lambda_1 sum_j z_j + lambda_2 sum_j |z_j - z_{j-1}|,

whose gradient is the mean of d cost(z) + (cost(z) - b) d log p(z | x), for any b that does not depend on z. The first
term is the likelihood's own; this penalty is the second. b is here what the sentence's length and a moving average of
the cost a target symbol let expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from rnnsearch.config.objective import RationaleConfig
from rnnsearch.models.auxiliary import Baseline
from rnnsearch.models.memory import Chosen
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.penalty import Pass, Penalty

MEANS, SENTENCES = "rationale.means", "rationale.sentences"


@dataclass(frozen=True)
class Rationales(Penalty):
    """The estimator's penalty, with what its baseline learns from."""

    config: RationaleConfig

    def __call__(self, made: Pass) -> Tensor:
        log_p = _chosen(made).log_p
        expected = (_baseline(made.model)(made.unrolled.readout) * made.batch.target.mask).sum(1)
        total: Tensor = ((self._rewards(made) - expected) * -log_p).sum()
        return total

    def _rewards(self, made: Pass) -> Float[Tensor, "B"]:
        """-cost(z)."""
        chosen = _chosen(made)
        changes = ((chosen.read[:, 1:] != chosen.read[:, :-1]) & chosen.words[:, 1:]).sum(1)
        rewards: Tensor = -made.nll.sum(1) - self.config.sparsity * chosen.read.sum(1)
        return rewards - self.config.coherence * changes

    def parts(self, made: Pass) -> dict[str, Tensor]:
        """The mean reward of a target symbol of each sentence that has words to choose, summed; and their number."""
        choice = _chosen(made).words.any(1)
        means = self._rewards(made) / made.batch.target.mask.sum(1)
        return {MEANS: (means * choice).sum(), SENTENCES: choice.sum()}

    def after_update(self, model: TranslationModel, parts: Mapping[str, Tensor]) -> None:
        _baseline(model).after_update(parts[MEANS] / parts[SENTENCES].clamp_min(1))


def _chosen(made: Pass) -> Chosen:
    chosen = made.memory.chosen
    assert chosen is not None, "rationales need an encoder that chooses"
    return chosen


def _baseline(model: TranslationModel) -> Baseline:
    assert model.auxiliary is not None and model.auxiliary.rationale is not None
    return model.auxiliary.rationale
