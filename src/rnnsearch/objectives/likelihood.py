"""Maximum likelihood: -log p(y|x) of reference translations (Bahdanau et al. 2015, section 4.2), with penalties.

`Likelihood` is the objective of translation models: it runs the model over a batch (`teacher_force`), takes the loss
of every target token, and adds weighted penalties. `LanguageModelLikelihood` is the objective of language models.
`systems/translation.py` and `systems/language.py` create them from `[objective]`; `symmetry.py` and
`training/tasks.py` use `Likelihood` for both directions and for teachers.

Before changing it: the sums are over target tokens, and the training loop divides them (`training/gradients.py`), so a
batch may be split. The pass runs as a CUDA graph on a GPU (`accel/cuda_graphs.py`) and must not wait for values of
tensors. Tests: tests/properties/test_recorded.py.

Axes: B sentences, I target positions, J source positions, M target tokens without padding, R readout, K noise words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rnnsearch.accel.cuda_graphs import run_recorded
from rnnsearch.data.batch import NoiseWords, Stream
from rnnsearch.data.batches import Batch
from rnnsearch.models.batch_rng import BatchRng
from rnnsearch.models.copying import MIN_POINTER_WEIGHT, CopyOutput, PointerOutput
from rnnsearch.models.decoders.decoder import Reading
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.outputs import Losses, Output, OutputLayer, PlainLoss
from rnnsearch.models.speller import Speller
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled, only_memory
from rnnsearch.objectives.contrast import Contrast
from rnnsearch.objectives.loss import ForwardPass, Loss, Objective, Penalty
from rnnsearch.ops.loss import chunk_rows
from rnnsearch.utils.tensors import at_least_fp32, map_tree

MAX_DISTRIBUTION_BYTES = 1 << 26
"""Size of a teacher's distributions at all positions; larger ones are computed in chunks, and again for gradients."""

WeightedPenalties = Sequence[tuple[float, Penalty]]


@dataclass(frozen=True)
class Likelihood(Objective[TranslationModel]):
    """Negative log-likelihood summed over a batch, with label smoothing and weighted penalties.

    For a model that spells unknown words the loss is J = J_w + alpha J_c (Luong & Manning 2016, eq. 6): the likelihood
    of the words, with <unk> for unknown ones, and of the characters of these. Without gradients (on a dev set) the
    total is the likelihood only, without penalties and teacher.
    """

    smoothing: float = 0.0
    """Label smoothing."""
    penalties: WeightedPenalties = ()
    """Penalties with their weights."""
    spelling_weight: float = field(default=1.0, kw_only=True)
    """Weight alpha of the characters of unknown words."""
    contrast: Contrast | None = field(default=None, kw_only=True)
    """Loss, and NLL, of batches with noise words."""
    teacher: Teacher | None = field(default=None, kw_only=True)
    """Trained model whose distributions replace part of the likelihood."""
    freeze_null_sources: bool = field(default=False, kw_only=True)
    """True if empty sources, which represent missing ones, give no gradient to the encoder and attention's keys.

    (Sennrich et al. 2016, section 3.1. The rest of attention has none anyway: the softmax over one position is 1.)
    """

    def __call__(self, model: TranslationModel, batch: Batch, rng: BatchRng | None) -> Loss:
        return self.loss_and_pass(model, batch, rng)[0]

    def loss_and_pass(
        self, model: TranslationModel, batch: Batch, rng: BatchRng | None, previous: Int[Tensor, "B I"] | None = None
    ) -> tuple[Loss, ForwardPass]:
        """Return the loss of a batch, with penalties, and the pass that it was computed from.

        Args:
            model: The model.
            batch: The batch.
            rng: Random numbers; without them nothing is random.
            previous: Tokens y_{i-1} that the decoder reads; by default those of the references.
        """
        target = batch.target
        memories, outputs = teacher_force(model, batch, rng, self.freeze_null_sources, previous)

        # Losses of the M target tokens, without padding.
        positions = target.token_positions  # [M], indices in [B * I]
        readout = outputs.readout.flatten(0, 1).index_select(0, positions)  # [M, R]
        ids = target.ids.flatten(0, 1).index_select(0, positions)  # [M]
        total, token_nll = self._token_losses(model, batch, readout, ids, memories, outputs.reading)
        # Before penalties and spelling, which the teacher has no part in.
        if self.teacher is not None and torch.is_grad_enabled():
            alpha = self.teacher.weight
            total = (1 - alpha) * total + alpha * self.teacher(model.output, readout, batch)
        nll_sum = token_nll.sum()
        # Back to [B, I] with 0 on padding, for penalties.
        nll = token_nll.new_zeros(target.ids.numel()).index_copy(0, positions, token_nll).view(target.ids.shape)
        if model.speller is not None:
            spelling_total, spelling_nll = spelling_losses(model.speller, target, outputs.reading)
            total = total + self.spelling_weight * spelling_total
            nll = nll + spelling_nll
            nll_sum = nll_sum + spelling_nll.sum()

        forward = ForwardPass(model, batch, memories, outputs, nll)
        statistics: dict[str, Tensor] = {}
        if torch.is_grad_enabled():
            for weight, penalty in self.penalties:
                total = total + weight * penalty(forward)
                statistics |= penalty.statistics(forward)
        return Loss(total, nll_sum, statistics), forward

    def _token_losses(
        self,
        model: TranslationModel,
        batch: Batch,
        readout: Float[Tensor, "M R"],
        ids: Int[Tensor, "M"],
        memories: Memories,
        reading: Reading,
    ) -> Losses:
        """Return the summed loss of the target tokens and the NLL [M] of each, without a gradient."""
        output = model.output
        positions = batch.target.token_positions
        if isinstance(output, PointerOutput):
            pointed = copied_attention(batch, memories, reading).flatten().index_select(0, positions)  # [M]
            return output.losses(readout, ids, self.smoothing, pointed, batch.vocabulary)
        if isinstance(output, CopyOutput):
            copies = None
            if batch.copies is not None:
                copies = batch.copies.flatten(0, 1).index_select(0, positions)  # [M, J]
            return output.losses(readout, ids, self.smoothing, batch.vocabulary, copies)
        return token_losses(output, readout, ids, batch, self.smoothing, self.contrast)

    def after_update(self, model: TranslationModel, statistics: Mapping[str, Tensor]) -> None:
        for _, penalty in self.penalties:
            penalty.after_update(model, statistics)


def token_losses(
    output: PlainLoss,
    readout: Float[Tensor, "M R"],
    ids: Int[Tensor, "M"],
    batch: Batch,
    smoothing: float,
    contrast: Contrast | None,
) -> Losses:
    """Return the summed loss of M target tokens and the NLL of each, without a gradient.

    With a contrast and a batch with noise words, both are the contrast's loss.
    """
    if contrast is not None and batch.noise is not None:
        assert isinstance(output, Output), "other outputs have no scores of single tokens"
        return contrastive_losses(contrast, output, readout, ids, batch.noise, batch.target.token_positions)
    if batch.log_weights is not None:
        assert isinstance(output, Output), "other outputs have no softmax over selected tokens"
        return output.losses(readout, ids, smoothing, batch.vocabulary, batch.log_weights)
    return output.losses(readout, ids, smoothing, batch.vocabulary)


def contrastive_losses(
    contrast: Contrast,
    output: Output,
    readout: Float[Tensor, "M R"],
    ids: Int[Tensor, "M"],
    noise: NoiseWords,
    positions: Int[Tensor, "M"],
) -> Losses:
    """Return the summed loss of M target tokens against K noise words, and that of each token, without a gradient."""
    target_scores, noise_scores = output.sampled_logits(readout, ids, noise.ids)  # [M], [M, K]
    target_log_q = noise.target_log_q.flatten().index_select(0, positions)  # [M]
    is_target = ids[:, None] == noise.ids  # [M, K]
    losses = contrast(target_scores, noise_scores, target_log_q, noise.log_q, is_target)
    return losses.sum(), losses.detach()


def copied_attention(batch: Batch, memories: Memories, reading: Reading) -> Float[Tensor, "B I"]:
    """Return the attention on the source words that each target token is a copy of; 0 if it is not a copy."""
    assert batch.copies is not None and reading.alpha is not None, "a model that points needs copies and attention"
    alpha = at_least_fp32(only_memory(memories).to_source(reading.alpha))  # [B, I, J]
    return (alpha.clamp_min(MIN_POINTER_WEIGHT) * batch.copies).sum(-1)


def spelling_losses(speller: Speller, target: Stream, reading: Reading) -> tuple[Tensor, Tensor]:
    """Return J_c and the NLL [B, I] of each token's characters, 0 for known words, without a gradient."""
    assert target.characters is not None, "a model that spells words needs their characters"
    indices = target.characters.indices  # [B, I], 0 for known words
    unknown = indices.nonzero(as_tuple=True)
    # [M, D] of M unknown words
    initial_state = speller.initial_state(reading.hidden[unknown], reading.context[unknown])
    # Each occurrence of a word has its own state, so that its characters [M, L] are repeated.
    total, nll = speller.losses(initial_state, target.characters.characters[indices[unknown]])
    return total, nll.new_zeros(indices.shape).index_put(unknown, nll)


class TeacherForcedOutputs(NamedTuple):
    """Source memories and decoder outputs of a pass that reads the reference translations."""

    memories: Memories
    """Memory of each source stream."""
    decoder_outputs: Unrolled
    """Outputs at all target positions."""


def teacher_force(
    model: TranslationModel,
    batch: Batch,
    rng: BatchRng | None,
    freeze_null_sources: bool = False,
    previous: Int[Tensor, "B I"] | None = None,
) -> TeacherForcedOutputs:
    """Run a model over a batch; in training on a GPU as a CUDA graph.

    The decoder reads `previous`, by default the tokens of the reference translations. Without sources, it reads
    `TranslationModel.empty_memories`. Batches with characters or arrays are never recorded; hardly any two batches with
    characters have the same shape.
    """
    sources = batch.sources
    if previous is None:
        previous = batch.target.previous()
    run = TeacherForcing(tuple(sources), freeze_null_sources)
    if not all(stream.is_ids_only for stream in sources.values()):
        return run.on_streams(model, sources, previous, rng)
    tensors = []
    for stream in sources.values():
        tensors += [stream.ids, stream.mask]
    return run_recorded(run, model, [*tensors, previous], rng)


@dataclass(frozen=True)
class TeacherForcing:
    """The pass of `teacher_force` as a hashable function of tensors, which `run_recorded` requires."""

    source_names: tuple[str, ...]
    """Names of the source streams, in the order of their tensors."""
    freeze_null_sources: bool
    """See `teacher_force`."""

    def __call__(
        self, model: TranslationModel, tensors: Sequence[Tensor], rng: BatchRng | None
    ) -> TeacherForcedOutputs:
        """Run the model on ids and mask of each source, in the order of the names, and y_{i-1}."""
        *source_tensors, previous = tensors
        streams = {}
        for name, ids, mask in zip(self.source_names, source_tensors[::2], source_tensors[1::2], strict=True):
            # Positions of tokens have no fixed shape, and the model does not read them.
            streams[name] = Stream.without_positions(ids, mask)
        return self.on_streams(model, streams, previous, rng)

    def on_streams(
        self, model: TranslationModel, sources: Mapping[str, Stream], previous: Tensor, rng: BatchRng | None
    ) -> TeacherForcedOutputs:
        """Run the model on source streams, which may have characters."""
        if not sources:
            memories: Memories = model.empty_memories(len(previous))
            return TeacherForcedOutputs(memories, model.unroll(previous, memories, rng))
        memories = model.encode(sources, rng)
        if self.freeze_null_sources:
            (source,) = sources.values()
            # An empty sentence has one position, its EOS.
            memories = stop_gradients(memories, source.mask.sum(1) == 1)
        return TeacherForcedOutputs(memories, model.unroll(previous, memories, rng))


def stop_gradients(memories: Memories, rows: Bool[Tensor, "B"]) -> Memories:
    """Return the memories, detached where `rows` is True."""

    def detach_rows(leaf: Tensor) -> Tensor:
        if not leaf.requires_grad:
            return leaf
        # Row by row: the other sentences of the batch still train the encoder.
        return torch.where(rows.view(-1, *[1] * (leaf.dim() - 1)), leaf.detach(), leaf)

    return map_tree(detach_rows, memories)


@dataclass(frozen=True)
class Teacher:
    """Word-level knowledge distillation (Kim & Rush 2016, sections 2.2 and 3.1) from a trained model.

        L = (1 - alpha) L_NLL + alpha L_KD,    L_KD = - sum_j sum_k q(y_j = k | x, y_<j) log p(y_j = k | x, y_<j)

    q is the teacher's distribution and p the student's; both read the reference. (Sequence-level distillation needs no
    objective: the teacher's translations are a corpus, see `rnnsearch distil`.)
    """

    model: TranslationModel
    """The teacher, which is not trained."""
    weight: float
    """alpha."""

    def __call__(self, output: OutputLayer, readout: Float[Tensor, "M R"], batch: Batch) -> Float[Tensor, ""]:
        """Return L_KD summed over the M target tokens of a batch.

        Args:
            output: Output layer of the student.
            readout: Readouts of the student.
            batch: The batch.
        """
        target = batch.target
        with torch.no_grad():
            unrolled = self.model.unroll(target.previous(), self.model.encode(batch.sources, None), None)
            teacher_readout = unrolled.readout.flatten(0, 1).index_select(0, target.token_positions)  # [M, R']

        def cross_entropy(student_rows: Tensor, teacher_rows: Tensor) -> Tensor:
            with torch.no_grad():
                q = self.model.output.log_probs(teacher_rows).exp()
            return -(q * output.log_probs(student_rows)).sum()

        row_bytes = 4 * output.vocabulary  # fp32
        if len(readout) * row_bytes <= MAX_DISTRIBUTION_BYTES:
            return cross_entropy(readout, teacher_readout)
        rows = chunk_rows(len(readout), row_bytes)
        losses = []
        for student_rows, teacher_rows in zip(readout.split(rows), teacher_readout.split(rows), strict=True):
            losses.append(
                # An output layer has no dropout, so that no state of random numbers is needed to repeat it.
                checkpoint(cross_entropy, student_rows, teacher_rows, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.stack(losses).sum()


@dataclass(frozen=True)
class LanguageModelLikelihood(Objective[LanguageModel]):
    """Negative log-likelihood of the tokens of a text, EOS included, with label smoothing."""

    smoothing: float = 0.0
    """Label smoothing."""
    contrast: Contrast | None = None
    """Loss, and NLL, of batches with noise words."""

    def __call__(self, model: LanguageModel, batch: Batch, rng: BatchRng | None) -> Loss:
        total, nll = self.token_losses(model, batch, rng)
        return Loss(total, nll.sum())

    def token_losses(self, model: LanguageModel, batch: Batch, rng: BatchRng | None = None) -> Losses:
        """Return the summed loss, and the NLL of each token of the batch, EOS included, row by row."""
        target = batch.target
        # A model that reads previous sentences has one source, all others have none.
        contexts = [stream.ids for stream in batch.sources.values()]
        characters = target.previous_characters()
        if characters is None:
            readout = run_recorded(_unroll_language_model, model, [target.previous(), *contexts], rng)  # [B, I, R]
        else:  # not recorded, because the number of words to compose differs between batches
            readout = model.unroll(target.previous(), rng, characters=characters)
        readout = readout.flatten(0, 1).index_select(0, target.token_positions)  # [M, R]
        ids = target.ids.flatten(0, 1).index_select(0, target.token_positions)  # [M]
        return token_losses(model.output, readout, ids, batch, self.smoothing, self.contrast)


def _unroll_language_model(model: LanguageModel, tensors: Sequence[Tensor], rng: BatchRng | None) -> Tensor:
    """Return the readouts [B, I, R], as a function that `run_recorded` accepts."""
    previous, *contexts = tensors
    return model.unroll(previous, rng, *contexts)
