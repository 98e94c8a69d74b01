"""Maximum likelihood: -log p(y|x) of the reference, teacher-forced (Bahdanau et al., section 4.2), with penalties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rnnsearch.accel.cuda_graphs import recorded
from rnnsearch.data.batch import Noise, Side
from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.copying import MIN_POINTER_WEIGHT, CopyOutput, PointerOutput
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.outputs import Losses, Output, OutputLayer, PlainLoss
from rnnsearch.models.speller import Speller
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled, only_memory
from rnnsearch.objectives.contrast import Contrast
from rnnsearch.objectives.loss import Loss, Objective, Pass, Penalty
from rnnsearch.ops.loss import chunk_rows
from rnnsearch.utils.tensors import at_least_fp32, map_tree

# Word-level knowledge distillation (Kim & Rush 2016, sections 2.2 and 3.1): a student learns from a trained teacher
# how probable every symbol is at each position of a reference.
#
#     L = (1 - alpha) L_NLL + alpha L_KD,    L_KD = - sum_j sum_k q(y_j = k | x, y_<j) log p(y_j = k | x, y_<j)
#
# q is the teacher's distribution, p the student's; both read the reference. Sequence-level distillation needs no
# objective of its own: the teacher's translations are a corpus (`rnnsearch distil`).

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


Weighted = Sequence[tuple[float, Penalty]]


@dataclass(frozen=True)
class Likelihood(Objective[TranslationModel]):
    """The negative log-likelihood, summed over words and sentences, with label smoothing and weighted penalties.

    Of a model that spells unknown words it is J = J_w + alpha J_c (Luong & Manning 2016, eq. 6), the likelihood of the
    words, with <unk> for some, and that of those words' characters; alpha is `spelling`.
    With `frozen_null` sources that are nothing but their end, which stand for missing ones, give the encoder and
    attention's keys no gradient (Sennrich et al. 2016, section 3.1). The rest of attention has none from them anyway:
    the softmax over one position is 1.
    With a `contrast` it is that loss of batches that hold noise words, and what stands for the NLL there.
    With a `teacher` what is minimised of the words is, by its weight, the cross-entropy to its distributions.
    Without gradients (on a dev set) nothing is minimised: the total is then the likelihood's alone.
    """

    smoothing: float = 0.0
    penalties: Weighted = ()
    spelling: float = field(default=1.0, kw_only=True)
    contrast: Contrast | None = field(default=None, kw_only=True)
    teacher: Teacher | None = field(default=None, kw_only=True)
    frozen_null: bool = field(default=False, kw_only=True)

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        return self.passed(model, batch, rng)[0]

    def passed(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> tuple[Loss, Pass]:
        """The loss of one teacher-forced pass, its penalties among it, and the pass."""
        target = batch.target
        memories, unrolled = forced(model, batch, rng, self.frozen_null)
        real = target.places
        readout, ids = (tensor.flatten(0, 1).index_select(0, real) for tensor in (unrolled.readout, target.ids))
        if isinstance(model.output, PointerOutput):
            copied = copied_weight(batch, memories, unrolled.reading).flatten().index_select(0, real)
            total, each = model.output.losses(readout, ids, self.smoothing, copied, batch.vocabulary)
        elif isinstance(model.output, CopyOutput):
            places = None if batch.copies is None else batch.copies.flatten(0, 1).index_select(0, real)
            total, each = model.output.losses(readout, ids, self.smoothing, batch.vocabulary, places)
        else:
            total, each = symbol_losses(model.output, readout, ids, batch, self.smoothing, self.contrast)
        if self.teacher is not None and torch.is_grad_enabled():
            alpha = self.teacher.weight
            total = (1 - alpha) * total + alpha * self.teacher(model.output, readout, batch)
        nll = each.new_zeros(target.ids.numel()).index_copy(0, real, each).view(target.ids.shape)
        whole = each.sum()
        if model.speller is not None:
            spelled, of_each = spelling_losses(model.speller, target, unrolled.reading)
            total, nll, whole = total + self.spelling * spelled, nll + of_each, whole + of_each.sum()
        made = Pass(model, batch, memories, unrolled, nll)
        parts: dict[str, Tensor] = {}
        if torch.is_grad_enabled():
            for weight, penalty in self.penalties:
                total = total + weight * penalty(made)
                parts |= penalty.parts(made)
        return Loss(total, whole, parts), made

    def after_update(self, model: TranslationModel, parts: Mapping[str, Tensor]) -> None:
        for _, penalty in self.penalties:
            penalty.after_update(model, parts)


class Forced(NamedTuple):
    """What a model makes of translations that it is given (`Unrolled`), and the memories of their sources."""

    memories: Memories
    unrolled: Unrolled


@dataclass(frozen=True)
class TeacherForcing:
    """Of each source's ids and mask, in the order of their names, and y_{i-1}; as `recorded` wants it."""

    sources: tuple[str, ...]
    frozen_null: bool

    def __call__(self, model: TranslationModel, tensors: Sequence[Tensor], rng: BatchRng | None) -> Forced:
        *sources, previous = tensors
        each = zip(self.sources, sources[::2], sources[1::2], strict=True)
        sides = {name: Side.unplaced(ids, mask) for name, ids, mask in each}
        return self.of(model, sides, previous, rng)

    def of(self, model: TranslationModel, sources: Mapping[str, Side], previous: Tensor, rng: BatchRng | None) -> Forced:
        """Of sources that may be spelled."""
        memories: Memories = model.encode(sources, rng)
        if self.frozen_null:
            (source,) = sources.values()
            memories = frozen(memories, source.mask.sum(1) == 1)
        return Forced(memories, model.unroll(previous, memories, rng))


def forced(model: TranslationModel, batch: Batch, rng: BatchRng | None, frozen_null: bool = False) -> Forced:
    """One teacher-forced pass. Spelled words have no two batches of one shape: only others are recorded."""
    sources, previous = batch.sources, batch.target.previous()
    forcing = TeacherForcing(tuple(sources), frozen_null)
    if any(side.spelling is not None for side in sources.values()):
        return forcing.of(model, sources, previous, rng)
    tensors = [tensor for side in sources.values() for tensor in (side.ids, side.mask)]
    return recorded(forcing, model, [*tensors, previous], rng)


def frozen(memories: Memories, rows: Bool[Tensor, "B"]) -> Memories:
    """Memories through which these rows send no gradient."""

    def apart(leaf: Tensor) -> Tensor:
        given = rows.view(-1, *[1] * (leaf.dim() - 1))
        return torch.where(given, leaf.detach(), leaf) if leaf.requires_grad else leaf

    return map_tree(apart, memories)


def symbol_losses(
    output: PlainLoss, readout: Tensor, ids: Tensor, batch: Batch, smoothing: float, contrast: Contrast | None
) -> Losses:
    """Of the target symbols [M] of a batch: the sum of what is minimised, and the NLL of each without a gradient, or of
    a batch with noise words what stands for both."""
    if contrast is not None and batch.noise is not None:
        assert isinstance(output, Output), "other outputs have no scores to tell from noise"
        return contrasted(contrast, output, readout, ids, batch.noise, batch.target.places)
    return output.losses(readout, ids, smoothing, batch.vocabulary)


def contrasted(contrast: Contrast, output: Output, readout: Tensor, ids: Tensor, noise: Noise, real: Tensor) -> Losses:
    """The sum of a contrast's losses of symbols at the places `real` [M] of a batch, and each without a gradient."""
    own, others = output.sampled_logits(readout, ids, noise.ids)
    log_q, same = noise.of_target.flatten().index_select(0, real), ids[:, None] == noise.ids
    each = contrast(own, others, log_q, noise.log_q, same)
    return each.sum(), each.detach()


def copied_weight(batch: Batch, memories: Memories, reading: Reading) -> Float[Tensor, "B I"]:
    """The attention of each target position on the source words that its symbol is a copy of; 0 of what is no copy."""
    assert batch.copies is not None and reading.alpha is not None, "a model that points needs copies and attention"
    alpha = at_least_fp32(only_memory(memories).to_source(reading.alpha))
    return (alpha.clamp_min(MIN_POINTER_WEIGHT) * batch.copies).sum(-1)


def spelling_losses(speller: Speller, target: Side, reading: Reading) -> tuple[Tensor, Tensor]:
    """J_c, and [B, I] that of each target symbol, 0 of known words, without a gradient."""
    assert target.spelling is not None, "a model that spells words needs their characters"
    which, characters = target.spelling.which, target.spelling.characters
    places = which.nonzero(as_tuple=True)
    first = speller.initial_state(reading.state[places], reading.context[places])
    total, each = speller.losses(first, characters[which[places]])
    return total, each.new_zeros(which.shape).index_put(places, each)


# Maximum likelihood of text by itself: -log p(y) of a language model.


@dataclass(frozen=True)
class NextSymbol(Objective[LanguageModel]):
    """The negative log-likelihood of each symbol given those before it, EOS among them, with label smoothing; with a
    `contrast` that loss of batches that hold noise words."""

    smoothing: float = 0.0
    contrast: Contrast | None = None

    def __call__(self, model: LanguageModel, batch: Batch, rng: BatchRng | None) -> Loss:
        target = batch.target
        both = recorded(_unrolled, model, [target.previous()], rng), target.ids
        readout, ids = (tensor.flatten(0, 1).index_select(0, target.places) for tensor in both)
        total, each = symbol_losses(model.output, readout, ids, batch, self.smoothing, self.contrast)
        return Loss(total, each.sum())


def _unrolled(model: LanguageModel, tensors: Sequence[Tensor], rng: BatchRng | None) -> Tensor:
    """The readouts, as `recorded` wants it."""
    (previous,) = tensors
    return model.unroll(previous, rng)
