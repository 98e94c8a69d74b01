"""Scheduled sampling: the decoder reads some of the model's tokens in place of the reference's (Bengio et al. 2015).

The tokens are chosen step by step without gradients or dropout; then one pass with gradients reads them, so that fast
implementations run. Random numbers depend only on the source, the position and the seed, so that a batch may be split.
Tests: tests/objectives/sequence/test_scheduled_sampling.py.

Axes: B sentences, I target positions, P = I - 1 tokens of the references that the decoder reads, M tokens to replace.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from rnnsearch.config import sequence
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.sequence import (
    DecayOptions,
    ExponentialDecayOptions,
    InverseSigmoidDecayOptions,
    LinearDecayOptions,
    ScheduledSamplingOptions,
)
from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.objectives.likelihood import Likelihood
from rnnsearch.objectives.loss import Loss
from rnnsearch.objectives.sequence.hypotheses import without_special_tokens
from rnnsearch.objectives.sequence.objective import Generation, SequenceObjective
from rnnsearch.search.sampling import Sampling, StreamKeys, stream_keys, uniform
from rnnsearch.utils.tensors import to_device

NUM_INPUTS = "inputs.count"
NUM_REPLACED = "inputs.replaced"

CHOICES_STREAM = 0
"""Random numbers that choose between the reference's token and the model's."""
SAMPLES_STREAM = 1
"""Random numbers that sample the model's tokens."""


class Decay(ABC):
    """eps_i, the probability that the decoder reads the reference's token at update i."""

    component: ClassVar[type[DecayOptions]]
    """The declaration of the component, set by `@implements`."""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def __call__(self, update: int) -> float:
        """Return the probability at an update, counted from 1."""


@implements(LinearDecayOptions)
class LinearDecay(Decay):
    """eps_i = max(eps, k - c i) (Bengio et al. 2015, section 2.4)."""

    def __call__(self, update: int) -> float:
        options: LinearDecayOptions = self.options
        slope = (options.start - options.minimum) / options.updates
        return max(options.minimum, options.start - slope * update)


@implements(ExponentialDecayOptions)
class ExponentialDecay(Decay):
    """eps_i = k^i (Bengio et al. 2015, section 2.4)."""

    def __call__(self, update: int) -> float:
        return float(self.options.base**update)


@implements(InverseSigmoidDecayOptions)
class InverseSigmoidDecay(Decay):
    """eps_i = k / (k + exp(i / k)) (Bengio et al. 2015, section 2.4)."""

    def __call__(self, update: int) -> float:
        k = self.options.k
        # Both terms are divided by exp(i / k), which would overflow.
        scaled = k * math.exp(-update / k)
        return float(scaled / (scaled + 1.0))


DECAYS: Implementations[type[Decay]] = Implementations(sequence.DECAYS)
"""Class by `type` of `[objective.sequence.decay]`; names are stored in model folders."""


@implements(ScheduledSamplingOptions)
class ScheduledSampling(SequenceObjective):
    """Negative log-likelihood of the references, where the decoder reads y'_{i-1} (Bengio et al. 2015, section 2.4).

        L = - sum_i log p(y_i | y'_1, ..., y'_{i-1}, x)

    y'_i is y_i with probability eps, otherwise the model's token given y'_1, ..., y'_{i-1}. No gradient goes through
    the choice. If eps is 1, this is `Likelihood` bit for bit.
    """

    def __init__(self, options: ScheduledSamplingOptions, likelihood: Likelihood, generation: Generation) -> None:
        super().__init__(options, likelihood, generation)
        self.decay = DECAYS[options.decay.type](options.decay)

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        loss, statistics = self._mixed_loss(model, batch, rng)
        total = loss.total
        if self.likelihood_weight > 0:
            total = total + self.likelihood_weight * self.likelihood(model, batch, rng).total
        return Loss(total, loss.nll, {**loss.statistics, **statistics})

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        self.likelihood.after_update(model, statistics)

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the fraction of decoder inputs, except BOS, that the model generated."""
        return {"sampled_inputs": statistics[NUM_REPLACED] / statistics[NUM_INPUTS].clamp_min(1.0)}

    def _mixed_loss(
        self, model: TranslationModel, batch: Batch, rng: BatchRng | None
    ) -> tuple[Loss, dict[str, Tensor]]:
        options: ScheduledSamplingOptions = self.options
        keys = stream_keys(batch.sources, 1, 0 if rng is None else rng.seed)
        is_input = batch.target.mask[:, 1:].cpu()  # [B, P]
        is_replaced = replaced_inputs(keys, is_input, 1.0 - self.decay(self.update), options.per == "sentence")
        previous = mixed_inputs(model, batch, is_replaced, None if options.choice == "argmax" else keys)
        loss, _ = self.likelihood.loss_and_pass(model, batch, rng, previous)
        counts = torch.stack([is_input.sum(), is_replaced.sum()]).to(loss.nll.dtype).to(loss.nll.device)
        return loss, {NUM_INPUTS: counts[0], NUM_REPLACED: counts[1]}


def replaced_inputs(
    keys: StreamKeys, is_input: Bool[Tensor, "B P"], rate: float, whole_sentences: bool
) -> Bool[Tensor, "B P"]:
    """Return True for each token of the references, in place of which the decoder reads the model's, on the CPU.

    Args:
        keys: Keys of the sentences' random numbers.
        is_input: False on padding.
        rate: Probability of a replacement, 1 - eps.
        whole_sentences: True to replace all tokens of a sentence or none.
    """
    # Numbers are in (0, 1), so that a rate of 0 replaces no token and a rate of 1 all.
    numbers = torch.from_numpy(uniform(keys, 1 if whole_sentences else is_input.shape[1], CHOICES_STREAM))
    return (numbers < rate) & is_input


@torch.no_grad()
def mixed_inputs(
    model: TranslationModel, batch: Batch, is_replaced: Bool[Tensor, "B P"], keys: StreamKeys | None
) -> Int[Tensor, "B I"]:
    """Return the tokens y'_{i-1} that the decoder reads: those of the references, or the model's.

    Args:
        model: The model.
        batch: The batch.
        is_replaced: True where y_{i-1} is replaced, from the token after BOS on.
        keys: Keys of the sentences' random numbers; without them, the model's token is the most probable one.
    """
    previous = batch.target.previous().clone()  # [B, I]
    counts = is_replaced.sum(0).tolist()
    steps = max((position + 1 for position, count in enumerate(counts) if count), default=0)
    if steps == 0:
        return previous
    # Rows to replace, position by position: one transfer to the device.
    rows_by_position = to_device(is_replaced.t().nonzero()[:, 1], previous.device).split(counts)
    numbers = None
    if keys is not None:
        numbers = to_device(torch.from_numpy(uniform(keys, steps, SAMPLES_STREAM)), previous.device)  # [B, steps]
    memories = model.encode(batch.sources)
    state = model.start(memories)
    for position in range(steps):
        readout, state, _ = model.step(previous[:, position], state, memories)
        rows = rows_by_position[position]
        if len(rows):
            u = None if numbers is None else numbers[rows, position]
            previous[rows, position + 1] = _choose_tokens(model, readout[rows], u)
    return previous


def _choose_tokens(
    model: TranslationModel, readout: Float[Tensor, "M R"], u: Float64[Tensor, "M"] | None
) -> Int[Tensor, "M"]:
    """Return a token per row, sampled by the random numbers u or else the most probable one; never PAD or BOS."""
    logits = without_special_tokens(model.output.logits(readout))  # [M, V]
    return logits.argmax(1) if u is None else Sampling().draw(logits, u)
