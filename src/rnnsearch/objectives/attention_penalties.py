"""Penalties on attention: supervision by word alignments, and priors on the total attention per source token.

Supervised attention (Liu et al. 2016, section 3): the attention weights should be given word alignments. The links of a
target token, normalised, are its gold weights g_ij: 1 / n over the n source tokens that it is linked to. With `spread`
they are Gaussians around these (after Mi, Wang & Ittycheriah 2016, "Supervised attentions for neural machine
translation", whose smoothed alignments are Gaussians). `penalties()` in this package creates the penalties from
`[objective]`.

A new penalty is a `Penalty` here and a declaration in `config/objective.py`. The names in `ALIGNMENT_LOSSES` are
options of run files.

Axes: B sentences, I target positions, J source positions.
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
from rnnsearch.objectives.loss import ForwardPass, Penalty
from rnnsearch.utils.tensors import without_last

Weights = Float[Tensor, "B I J"]
PerToken = Float[Tensor, "B I"]


class DoublyStochastic(Penalty):
    """sum_j (1 - sum_i alpha_ij)^2: total attention 1 per source token (Xu et al. 2015, eq. 14; tutorial part 3b).

    i runs over the target tokens with EOS, j over the source tokens without EOS, because attention to the end of the
    source translates nothing.
    """

    def __call__(self, forward: ForwardPass) -> Tensor:
        total = forward.attention().sum(1)  # [B, J]
        return ((1.0 - total).square() * forward.word_mask()).sum()


class RemainingCoverage(Penalty):
    """sum_j ||c_Tj||: no coverage embeddings of source words left at EOS (Mi et al. 2016).

    j runs over the source tokens without EOS. The paper's c_T includes the update by EOS.
    """

    def __call__(self, forward: ForwardPass) -> Tensor:
        untranslated = forward.decoder_outputs.reading.extras[UNTRANSLATED]  # [B, I, J]
        last = forward.batch.target.mask.sum(1) - 1  # [B], position of EOS
        last = last[:, None, None].expand(-1, 1, untranslated.shape[2])  # [B, 1, J]
        at_eos: Tensor = untranslated.gather(1, last).squeeze(1)  # [B, J]
        return (at_eos * forward.word_mask()).sum()


class GlobalFertility(Penalty):
    """-sum_j log N(sum_i alpha_ij; mu_j, sigma_j^2), with mu and sigma from h_j (Cohn et al. 2016, section 3.3).

    i and j run over the same tokens as in `DoublyStochastic`.
    """

    def __call__(self, forward: ForwardPass) -> Tensor:
        auxiliary = forward.model.auxiliary
        assert auxiliary is not None and auxiliary.fertility is not None
        mean, variance = auxiliary.fertility(forward.memory.annotations)  # [B, J]
        total = forward.attention().sum(1)  # [B, J]
        deviation = (total - mean).square() / variance
        negative_log_density: Tensor = 0.5 * (deviation + variance.log() + math.log(2 * math.pi))  # [B, J]
        return (negative_log_density * forward.word_mask()).sum()


@implements(CrossEntropyOptions)
def cross_entropy(alpha: Weights, gold: Weights) -> PerToken:
    """Return -sum_j g_ij log alpha_ij (Liu et al. 2016, CE).

    A weight of exactly 0 (outside a window, or of a sparse normaliser) counts as the smallest positive number, without
    a gradient.
    """
    return -(gold * alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log()).sum(-1)


@implements(SquaredErrorOptions)
def squared_error(alpha: Weights, gold: Weights) -> PerToken:
    """Return 1/2 sum_j (alpha_ij - g_ij)^2 (Liu et al. 2016, MSE)."""
    return 0.5 * (alpha - gold).square().sum(-1)


@implements(ProductOptions)
def product(alpha: Weights, gold: Weights) -> PerToken:
    """Return -log sum_j alpha_ij g_ij (Liu et al. 2016, MUL); attention may choose among several linked tokens."""
    return -(gold * alpha).sum(-1).clamp_min(torch.finfo(alpha.dtype).tiny).log()


ALIGNMENT_LOSSES: Implementations[Callable[[Weights, Weights], PerToken]] = Implementations(objective.ALIGNMENT_LOSSES)
"""Loss of each target token whose gold weights sum to 1, by `type` of `[objective.supervision]`; names are stored in
model folders."""


@dataclass(frozen=True)
class SupervisedAttention(Penalty):
    """Distance of the attention from gold weights, summed over the target tokens that have any."""

    config: SupervisionConfig
    """Options of `[objective.supervision]`."""

    def __call__(self, forward: ForwardPass) -> Tensor:
        config = self.config
        gold = gold_weights(forward.batch, config.unaligned == "end", config.word == "read", config.spread)
        distance = ALIGNMENT_LOSSES[config.type](forward.source_attention(), gold)  # [B, I]
        return (distance * gold.any(-1)).sum()


def gold_weights(
    batch: Batch, unaligned_to_end: bool, for_read_token: bool = False, spread: float | None = None
) -> Weights:
    """Return the gold weights of each target token; zeros if it has no link.

    Args:
        batch: Batch with links.
        unaligned_to_end: Put all weight of a token without links (usually EOS) on the source's EOS.
        for_read_token: Row i is for the token read there, y_{i-1}, as in the alignments of Chen et al. 2020,
            "Accurate word alignment induction from neural machine translation", section 3. The first row is zeros.
        spread: Standard deviation of the Gaussians around links, in tokens.
    """
    assert batch.links is not None, "supervised attention needs batches with links"
    links = batch.links.to(torch.float32)  # [B, I, J]
    if spread is not None:
        position = torch.arange(links.shape[2], device=links.device, dtype=links.dtype)
        gaussians = torch.exp((position[:, None] - position).square() / (-2 * spread**2))  # [J, J]
        # EOS is never linked: words must not spread weight to it, nor to padding.
        links = (links @ gaussians) * without_last(batch.source.mask)[:, None, :]
    if unaligned_to_end:
        end = batch.source.mask.sum(1) - 1  # [B]
        unaligned = batch.target.mask & ~batch.links.any(-1)  # [B, I]
        links = links + unaligned[:, :, None] * torch.nn.functional.one_hot(end, links.shape[2])[:, None, :]
    if for_read_token:
        # Row i gets the links of y_{i-1}. The mask removes those of EOS, which is read only on padding.
        links = torch.cat([torch.zeros_like(links[:, :1]), links[:, :-1]], dim=1) * batch.target.mask[:, :, None]
    # A row with links sums to at least 1, with Gaussians, too (their peak is 1): the clamp affects only rows of
    # zeros.
    return links / links.sum(-1, keepdim=True).clamp_min(1.0)
