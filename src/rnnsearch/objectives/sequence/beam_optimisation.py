"""Beam-search optimisation: the reference must stay in the beam of a search by a margin (Wiseman & Rush 2016).

`find_violations` searches a batch without gradients. `BeamSearchOptimisation` then runs the model with gradients over
the references and the hypotheses that violated the margin. The search is that of `search/beam.py` with `stop = "top"`
and unnormalised scores (`model_scorer.py`): with a loss of 0, it finds the reference. Tests:
tests/objectives/sequence/test_beam_optimisation.py.

Axes: B sentences, K hypotheses per sentence, I target positions, V vocabulary, R violations of a batch, N rows of a
pass with gradients, P its positions, M tokens with a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rnnsearch.config.registry import implements
from rnnsearch.config.sequence import BeamSearchOptimisationOptions
from rnnsearch.data.batch import Stream
from rnnsearch.data.batches import Batch
from rnnsearch.metrics.sentence_scores import smoothed_bleu
from rnnsearch.models.decoders.decoder import State
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import Memories, TranslationModel
from rnnsearch.objectives.sequence.hypotheses import unroll_hypotheses, unscored, without_special_tokens
from rnnsearch.objectives.sequence.objective import GenerationObjective
from rnnsearch.search.topk import best_continuations
from rnnsearch.text.vocabulary import BOS, EOS, PAD
from rnnsearch.utils.tensors import at_least_fp32, select

MARGIN = 1.0
MIN_PASS_ROWS = 64
"""Violating hypotheses in a pass with gradients, if there are so many; a pass has those of similar length."""
NUM_SENTENCES = "margin.sentences"
NUM_VIOLATIONS = "margin.violations"


class Violations(NamedTuple):
    """R prefixes of references whose score did not exceed that of a hypothesis by the margin, ordered by sentence."""

    sentence: Int[Tensor, "R"]
    """Index of the sentence."""
    start: Int[Tensor, "R"]
    """First position at which reference and hypothesis may differ: that after the violation before this one."""
    end: Int[Tensor, "R"]
    """End (exclusive) of the reference's prefix."""
    tokens: Int[Tensor, "R I"]
    """Tokens of the hypothesis, followed by PAD; after an early EOS it is shorter than the prefix of the reference."""

    def segments(self, references: Int[Tensor, "B I"]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the tokens of hypotheses and references from `start` on."""
        hypotheses = []
        gold = []
        rows = (self.tokens, references[self.sentence], self.start, self.end)
        for tokens, reference, start, end in zip(*(row.tolist() for row in rows), strict=True):
            hypotheses.append([token for token in tokens[start:] if token != PAD])
            gold.append(reference[start:end])
        return hypotheses, gold


@implements(BeamSearchOptimisationOptions)
class BeamSearchOptimisation(GenerationObjective):
    """Beam-search optimisation (Wiseman & Rush 2016, section 4).

        L = sum_t Delta_t (1 - f(y_1..t) + f(y^_1..t)),    f(y_1..t) = sum_i W_o[y_i] t_i + b[y_i]

    over the positions t at which the hypothesis y^ violates the margin: f(y_1..t) < f(y^_1..t) + 1. y^ has rank K in
    the beam or, at the end of the reference, is the best one that is not the reference. After a violation, the search
    goes on from the reference's prefix only. Delta is 1, or 1 - smoothed BLEU.

    The paper's rule is extended by hypotheses that end at the top of the beam before the reference ends: the reference
    must exceed these, too, because the search stops there. If the reference has rank K itself, y^ has rank K - 1, since
    the paper's loss would have no gradient.
    """

    def sequence_loss(self, model: TranslationModel, batch: Batch, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
        memories = model.encode(batch.sources)
        violations = find_violations(model, memories, batch.target, self.beam)
        costs = self._costs(violations, batch.target.ids)
        total = MARGIN * costs.sum()
        for rows in weighted_rows(violations, costs, batch.target.ids):
            total = total + _weighted_scores(model, memories, rows)
        counts = total.new_tensor([batch.sentences, len(costs)])
        return total, {NUM_SENTENCES: counts[0], NUM_VIOLATIONS: counts[1]}

    @property
    def beam(self) -> int:
        """K of the current epoch."""
        options: BeamSearchOptimisationOptions = self.options
        return min(options.beam, options.first_beam + int(self.epoch / options.epochs_per_beam))

    def report(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the violations of the margin per sentence."""
        return {"violations": statistics[NUM_VIOLATIONS] / statistics[NUM_SENTENCES]}

    def _costs(self, violations: Violations, references: Int[Tensor, "B I"]) -> Float[Tensor, "R"]:
        if self.options.cost == "constant":
            return torch.ones(len(violations.sentence), device=references.device)
        hypotheses, gold = violations.segments(references)
        texts = [[" ".join(map(str, ids)) for ids in rows] for rows in (hypotheses, gold)]
        return torch.from_numpy(1.0 - smoothed_bleu(*texts)).to(references.device)


class WeightedRows(NamedTuple):
    """Prefixes whose scores are summed with factors, for one pass with gradients."""

    sentence: Int[Tensor, "N"]
    """Index of the sentence."""
    tokens: Int[Tensor, "N P"]
    """Tokens, followed by PAD."""
    weights: Float[Tensor, "N P"]
    """Factor of each token's score; 0 on padding."""


def weighted_rows(
    violations: Violations, costs: Float[Tensor, "R"], references: Int[Tensor, "B I"]
) -> list[WeightedRows]:
    """Return the references and the violating hypotheses, in passes with prefixes of similar length.

    The loss is a sum of scores with the factors Delta for hypotheses and -Delta for references, from the first position
    at which they may differ on: before it, the scores are equal.
    """
    B, I = references.shape
    device = references.device
    positions = torch.arange(I, device=device)
    from_start = positions >= violations.start[:, None]  # [R, I]
    # The segments of a sentence's violations do not overlap.
    in_segment = from_start & (positions < violations.end[:, None])
    reference_weights = torch.zeros(B, I, dtype=costs.dtype, device=device)
    reference_weights.index_put_((violations.sentence,), -costs[:, None] * in_segment, accumulate=True)
    hypothesis_weights = costs[:, None] * (from_start & (violations.tokens != PAD))
    width = max(violations.end.tolist(), default=1)
    passes = [WeightedRows(torch.arange(B, device=device), references[:, :width], reference_weights[:, :width])]
    for rows in violations.end.argsort(stable=True).split(max(B, MIN_PASS_ROWS)):
        width = int(violations.end[rows].amax()) if len(rows) else 1
        tokens = violations.tokens[rows, :width]
        passes.append(WeightedRows(violations.sentence[rows], tokens, hypothesis_weights[rows, :width]))
    return passes


def _weighted_scores(model: TranslationModel, memories: Memories, rows: WeightedRows) -> Float[Tensor, ""]:
    """Return the weighted sum of the scores of the rows' tokens, differentiable in the model."""
    if len(rows.sentence) == 0:
        return rows.weights.new_zeros(())
    # A copy of the memory per row: sentences have different numbers of violations.
    readout = unroll_hypotheses(model, unscored(rows.tokens), select(memories, rows.sentence)).readout
    positions = rows.weights.flatten().nonzero()[:, 0]  # [M]
    readout = at_least_fp32(readout.flatten(0, 1).index_select(0, positions))  # [M, R]
    ids = rows.tokens.flatten().index_select(0, positions)
    output = model.output
    assert isinstance(output, Output), "the config requires an ordinary softmax"
    scores, _ = output.sampled_logits(readout, ids, ids[:0])
    return scores @ rows.weights.flatten().index_select(0, positions).to(scores.dtype)


class Beam(NamedTuple):
    """The K hypotheses of each sentence. The reference's prefix is always one of them."""

    state: State
    """Decoder state, B * K rows."""
    prefixes: Int[Tensor, "B K I"]
    """Tokens so far, followed by PAD."""
    totals: Float[Tensor, "B K"]
    """Scores minus that of the reference's prefix; -inf in an empty slot."""
    is_reference: Bool[Tensor, "B K"]
    """True for the reference's prefix."""
    finished_total: Float[Tensor, "B"]
    """Score of the best hypothesis that has ended, relative like `totals`; -inf if there is none."""
    finished: Int[Tensor, "B I"]
    """Tokens of that hypothesis."""
    start: Int[Tensor, "B"]
    """Positions before this one are those of the reference in all hypotheses."""


class Continuations(NamedTuple):
    """The K best continuations of each sentence's hypotheses, best first."""

    state: State
    """Decoder state after the step, B * K rows in the order of the hypotheses."""
    parent: Int[Tensor, "B K"]
    """Slot of the hypothesis that each one continues."""
    prefixes: Int[Tensor, "B K I"]
    totals: Float[Tensor, "B K"]
    is_eos: Bool[Tensor, "B K"]
    is_reference: Bool[Tensor, "B K"]
    reference_score: Float[Tensor, "B"]
    """Score of the reference's token, which is subtracted from the totals."""


@torch.no_grad()
def find_violations(model: TranslationModel, memories: Memories, target: Stream, K: int) -> Violations:
    """Search a batch with a beam of K, and return the violations of the margin."""
    references = target.ids  # [B, I]
    lengths = target.mask.sum(1)
    beam = _first_beam(model, memories, references, K)
    violations = []
    starts = []
    tokens = []
    for position in range(references.shape[1]):
        continuations = _continue(model, memories, beam, references, position)
        total, hypothesis = _competitor(beam, continuations, lengths == position + 1)
        violates = (total > -MARGIN) & (position < lengths)
        violations.append(violates)
        starts.append(beam.start)
        tokens.append(hypothesis)
        # A sentence that has ended goes on from its reference, so that all slots are defined; this affects nothing.
        restarts = violates | (lengths <= position + 1)
        beam = _restart(_advance(beam, continuations), restarts, beam, continuations, references, position)
    sentence, end = torch.stack(violations, 1).nonzero(as_tuple=True)  # ordered by sentence
    start = torch.stack(starts, 1)[sentence, end]
    return Violations(sentence, start, end + 1, torch.stack(tokens, 1)[sentence, end])


def _first_beam(model: TranslationModel, memories: Memories, references: Int[Tensor, "B I"], K: int) -> Beam:
    """Return the beam with one empty hypothesis per sentence."""
    B, I = references.shape
    device = references.device
    rows = torch.arange(B, device=device).repeat_interleave(K)
    totals = torch.full((B, K), -torch.inf, device=device)
    totals[:, 0] = 0.0
    return Beam(
        state=select(model.start(memories), rows),
        prefixes=torch.full((B, K, I), PAD, device=device),
        totals=totals,
        is_reference=totals == 0.0,
        finished_total=torch.full((B,), -torch.inf, device=device),
        finished=torch.full((B, I), PAD, device=device),
        start=torch.zeros(B, dtype=torch.int64, device=device),
    )


def _continue(
    model: TranslationModel, memories: Memories, beam: Beam, references: Int[Tensor, "B I"], position: int
) -> Continuations:
    """Return the best continuations of the hypotheses by the token at a position."""
    B, K, _ = beam.prefixes.shape
    previous = beam.prefixes[:, :, position - 1] if position else torch.full_like(beam.prefixes[:, :, 0], BOS)
    readout, state, _ = model.step(previous.flatten(), beam.state, memories)
    scores = without_special_tokens(model.output.logits(readout)).view(B, K, -1)  # [B, K, V]
    totals = beam.totals.to(scores.dtype)
    # For a sentence that has ended, any token will do, because the score of PAD is -inf.
    gold = references[:, position].masked_fill(references[:, position] == PAD, EOS)
    slot = beam.is_reference.int().argmax(1)  # [B]
    reference_score = scores[torch.arange(B, device=slot.device), slot, gold]
    index = best_continuations(scores, totals, K)  # [B, K]
    parent = index // scores.shape[2]
    token = index % scores.shape[2]
    prefixes = beam.prefixes.gather(1, parent[:, :, None].expand_as(beam.prefixes))
    prefixes[:, :, position] = token
    return Continuations(
        state=state,
        parent=parent,
        prefixes=prefixes,
        totals=totals.gather(1, parent) + scores.flatten(1).gather(1, index) - reference_score[:, None],
        is_eos=token == EOS,
        is_reference=beam.is_reference.gather(1, parent) & (token == gold[:, None]),
        reference_score=reference_score,
    )


def _competitor(
    beam: Beam, continuations: Continuations, is_end: Bool[Tensor, "B"]
) -> tuple[Float[Tensor, "B"], Int[Tensor, "B I"]]:
    """Return the hypothesis per sentence that the reference's prefix must exceed: its relative score and tokens.

    Args:
        beam: Hypotheses before the step.
        continuations: Those after it.
        is_end: True if the step adds the reference's last token.
    """
    K = continuations.totals.shape[1]
    is_reference = continuations.is_reference
    # Rank K, or K - 1 if the reference has rank K.
    rank = K - 1 - is_reference[:, -1].long()
    # The search would stop at a hypothesis that ends at the top.
    rank = rank.masked_fill(continuations.is_eos[:, 0], 0)
    best_other = continuations.totals.masked_fill(is_reference, -torch.inf).argmax(1)
    rank = torch.where(is_end, best_other, rank)[:, None]  # [B, 1]
    total = continuations.totals.gather(1, rank)[:, 0]
    width = continuations.prefixes.shape[2]
    tokens = continuations.prefixes.gather(1, rank[:, :, None].expand(-1, 1, width))[:, 0]
    finished_total = beam.finished_total - continuations.reference_score
    is_finished = is_end & (finished_total > total)
    return torch.where(is_finished, finished_total, total), torch.where(is_finished[:, None], beam.finished, tokens)


def _advance(beam: Beam, continuations: Continuations) -> Beam:
    """Return the beam of those continuations that have not ended; the states stay in place."""
    ended = continuations.totals.masked_fill(~continuations.is_eos, -torch.inf)
    best_total, best = ended.max(1, keepdim=True)  # [B, 1]
    width = continuations.prefixes.shape[2]
    best_tokens = continuations.prefixes.gather(1, best[:, :, None].expand(-1, 1, width))[:, 0]
    finished_total = beam.finished_total - continuations.reference_score
    is_better = best_total[:, 0] > finished_total
    return beam._replace(
        prefixes=continuations.prefixes,
        totals=continuations.totals.masked_fill(continuations.is_eos, -torch.inf),
        is_reference=continuations.is_reference,
        finished_total=torch.where(is_better, best_total[:, 0], finished_total),
        finished=torch.where(is_better[:, None], best_tokens, beam.finished),
    )


def _restart(
    advanced: Beam,
    restarts: Bool[Tensor, "B"],
    before: Beam,
    continuations: Continuations,
    references: Int[Tensor, "B I"],
    position: int,
) -> Beam:
    """Return the next beam, with only the reference's prefix where `restarts` is True, and states in the same order."""
    B, K = advanced.totals.shape
    device = references.device
    first_slot = torch.arange(K, device=device) == 0
    only_reference = torch.full((K,), -torch.inf, device=device).masked_fill(first_slot, 0.0)
    so_far = torch.arange(references.shape[1], device=device) <= position
    slot = before.is_reference.int().argmax(1)
    rows = torch.where(restarts[:, None], slot[:, None], continuations.parent)  # [B, K]
    rows = rows + torch.arange(0, B * K, K, device=device)[:, None]
    return Beam(
        state=select(continuations.state, rows.flatten()),
        prefixes=torch.where(restarts[:, None, None], references.masked_fill(~so_far, PAD)[:, None], advanced.prefixes),
        totals=torch.where(restarts[:, None], only_reference.to(advanced.totals.dtype), advanced.totals),
        is_reference=torch.where(restarts[:, None], first_slot, advanced.is_reference),
        finished_total=advanced.finished_total.masked_fill(restarts, -torch.inf),
        finished=advanced.finished,
        start=before.start.masked_fill(restarts, position + 1),
    )
