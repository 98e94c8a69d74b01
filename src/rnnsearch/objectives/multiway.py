"""The objective of multi-way models: the likelihood of each batch in its direction or task.

`systems/multiway.py` creates it. Parameters of languages that a batch does not contain get no gradient:
tests/models/test_multiway.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.multiway import MultiwayModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss, Objective


@dataclass(frozen=True)
class MultiwayLikelihood(Objective[MultiwayModel]):
    """The likelihood of the bilingual model of each batch's direction."""

    likelihood: Likelihood
    """Objective of all directions, without a state (`after_update`)."""

    def __call__(self, model: MultiwayModel, batch: Batch, rng: BatchRng | None) -> Loss:
        # Penalties are on attention, which language modelling has none of.
        likelihood = self.likelihood if batch.direction.sources else replace(self.likelihood, penalties=())
        return likelihood(model.view(batch.direction), batch, rng)
