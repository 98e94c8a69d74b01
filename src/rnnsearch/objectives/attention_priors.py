"""Priors on attention as penalties: what the weights a source symbol receives should sum to."""

from __future__ import annotations

import math

from torch import Tensor

from rnnsearch.models.decoders.decoder import LEFT
from rnnsearch.objectives.penalty import Pass, Penalty


class DoublyStochastic(Penalty):
    """sum_j (1 - sum_i alpha_ij)^2: every source symbol should be attended to once in all (Xu et al. 2015, eq. 14;
    tutorial part 3b). i runs over the target symbols with EOS, j over the source symbols without it: what attends to
    the end of the source is no translation of it."""

    def __call__(self, made: Pass) -> Tensor:
        received = made.weights().sum(1)
        return ((1.0 - received).square() * made.words()).sum()


class CoverageLeft(Penalty):
    """sum_j ||c_Tj||: nothing of the source words' coverage embeddings should be left when the end symbol is written
    (Mi et al. 2016, whose c_T has seen the end symbol, too). j runs over the source symbols without EOS."""

    def __call__(self, made: Pass) -> Tensor:
        left = made.unrolled.reading.extras[LEFT]
        last = (made.batch.target.mask.sum(1) - 1)[:, None, None].expand(-1, 1, left.shape[2])
        at_end: Tensor = left.gather(1, last).squeeze(1)
        return (at_end * made.words()).sum()


class GlobalFertility(Penalty):
    """-sum_j log N(sum_i alpha_ij; mu_j, sigma_j^2), mu and sigma read from h_j (Cohn et al. 2016, section 3.3), over
    the same i and j."""

    def __call__(self, made: Pass) -> Tensor:
        auxiliary = made.model.auxiliary
        assert auxiliary is not None and auxiliary.fertility is not None
        mean, variance = auxiliary.fertility(made.memory.annotations)
        received = made.weights().sum(1)
        deviation = (received - mean).square() / variance
        negative: Tensor = 0.5 * (deviation + variance.log() + math.log(2 * math.pi))
        return (negative * made.words()).sum()
