"""Supervised attention: the weights should be the given word alignments (Liu et al. 2016, section 3).

The links of a target symbol, normalised, are the gold weights g_ij: 1 / n over the n source symbols it is linked
to, or as many bells around these (after Mi, Wang & Ittycheriah 2016, "Supervised attentions for neural machine
translation", whose smoothed alignments are Gaussians; their width is an option here). A loss is the sum over target
symbols with gold weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rnnsearch.config import SupervisionConfig, objective
from rnnsearch.config.objective import CrossEntropyOptions, ProductOptions, SquaredErrorOptions
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.data.batches import Batch
from rnnsearch.models.decoders.decoder import UNTRANSLATED
from rnnsearch.objectives.loss import Pass, Penalty
from rnnsearch.utils.tensors import without_last

# Priors on attention as penalties: what the weights a source symbol receives should sum to.


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
        left = made.unrolled.reading.extras[UNTRANSLATED]
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


Weights = Float[Tensor, "B I J"]
EachSymbol = Float[Tensor, "B I"]


@implements(CrossEntropyOptions)
def cross_entropy(alpha: Weights, gold: Weights) -> EachSymbol:
    """-sum_j g_ij log alpha_ij (Liu et al. 2016, CE). A weight of exactly 0 (a window, sparse weights) costs what the
    smallest number does, and has no gradient."""
    return -(gold * alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()).sum(-1)


@implements(SquaredErrorOptions)
def squared_error(alpha: Weights, gold: Weights) -> EachSymbol:
    """1/2 sum_j (alpha_ij - g_ij)^2 (Liu et al. 2016, MSE)."""
    return 0.5 * (alpha - gold).square().sum(-1)


@implements(ProductOptions)
def product(alpha: Weights, gold: Weights) -> EachSymbol:
    """-log sum_j alpha_ij g_ij (Liu et al. 2016, MUL): which of several linked symbols is attended to is left open."""
    return -(gold * alpha).sum(-1).clamp_min(torch.finfo(alpha.dtype).tiny).log()


ALIGNMENT_LOSSES: Implementations[Callable[[Weights, Weights], EachSymbol]] = Implementations(
    objective.ALIGNMENT_LOSSES
)
"""The loss of each target symbol, where its gold weights sum to 1."""


def gold_weights(batch: Batch, unaligned_to_end: bool, of_read: bool = False, spread: float | None = None) -> Weights:
    """The gold weights of each target symbol; a row of zeros where it has no link.

    With `unaligned_to_end` such a row (EOS, as a rule) is all on the source's EOS instead. With `of_read` row i is of
    the symbol read there, y_{i-1} (as Chen et al. 2020, "Accurate word alignment induction from neural machine
    translation", section 3, take alignments from the step after); the first reads none.
    """
    assert batch.links is not None, "supervised attention needs batches with links"
    links = batch.links.to(torch.float32)
    if spread is not None:
        place = torch.arange(links.shape[2], device=links.device, dtype=links.dtype)
        bells = torch.exp((place[:, None] - place).square() / (-2 * spread**2))
        links = (links @ bells) * without_last(batch.source.mask)[:, None, :]
    if unaligned_to_end:
        end = batch.source.mask.sum(1) - 1
        alone = batch.target.mask & ~batch.links.any(-1)
        ends = torch.nn.functional.one_hot(end, links.shape[2])[:, None, :]
        links = links + alone[:, :, None] * ends
    if of_read:
        links = torch.cat([torch.zeros_like(links[:, :1]), links[:, :-1]], dim=1) * batch.target.mask[:, :, None]
    return links / links.sum(-1, keepdim=True).clamp_min(1.0)


@dataclass(frozen=True)
class SupervisedAttention(Penalty):
    """The penalty that `[objective.supervision]` asks for, without its weight."""

    config: SupervisionConfig

    def __call__(self, made: Pass) -> Tensor:
        gold = gold_weights(made.batch, self.config.unaligned == "end", self.config.word == "read", self.config.spread)
        distance = ALIGNMENT_LOSSES[self.config.type](made.source_weights(), gold)
        return (distance * gold.any(-1)).sum()
