"""Word-level knowledge distillation (Kim & Rush 2016, sections 2.2 and 3.1): a student learns from a trained teacher
how probable every symbol is at each position of a reference.

    L = (1 - alpha) L_NLL + alpha L_KD,    L_KD = - sum_j sum_k q(y_j = k | x, y_<j) log p(y_j = k | x, y_<j)

q is the teacher's distribution, p the student's; both read the reference. Sequence-level distillation needs no
objective of its own: the teacher's translations are a corpus (`rnnsearch distil`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rnnsearch.data.batches import Batch
from rnnsearch.kernels.cross_entropy import chunk_rows
from rnnsearch.models.outputs import OutputLayer
from rnnsearch.models.translation_model import TranslationModel

HELD_BYTES = 1 << 26
"""Of a distribution over all symbols at all positions; a larger one is formed in chunks, and again for gradients."""


@dataclass(frozen=True)
class Teacher:
    """A trained model, which stays as it is, and alpha, how much of the likelihood's place it takes."""

    model: TranslationModel
    weight: float

    def __call__(self, output: OutputLayer, readout: Float[Tensor, "M R"], batch: Batch) -> Float[Tensor, ""]:
        """L_KD summed over the target symbols of a batch; M readouts of the student and its output layer."""
        target = batch.target
        with torch.no_grad():
            unrolled = self.model.unroll(target.previous(), self.model.encode(batch.sources, None), None)
            read = unrolled.readout.flatten(0, 1).index_select(0, target.places)

        def loss(own: Tensor, its: Tensor) -> Tensor:
            with torch.no_grad():
                q = self.model.output.log_probs(its).exp()
            return -(q * output.log_probs(own)).sum()

        row_bytes = 4 * output.vocabulary
        if len(readout) * row_bytes <= HELD_BYTES:
            return loss(readout, read)
        rows = chunk_rows(len(readout), row_bytes)
        parts = zip(readout.split(rows), read.split(rows), strict=True)
        found = [checkpoint(loss, own, its, use_reentrant=False, preserve_rng_state=False) for own, its in parts]
        return torch.stack(found).sum()
