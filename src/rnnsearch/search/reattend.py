"""Attention recomputed for given translations: where each target word came from, given the word itself.

`posterior_attention` (Shankar & Sarawagi 2019, "Posterior attention models for sequence to sequence learning", section
3): attention at position i is a guess before y_i is known. With the attended position a as a hidden variable,

    p(a = j | y_1..y_i, x)  is proportional to  alpha_ij p(y_i | y_1..y_{i-1}, c_i = h_j),

so the readout is computed for each source position as if all attention were there. Some decoders' states have read c_i
before the readout does (cgru, deep-transition, bideep, cohn, memdec, bi-scale, rnmt-plus). They keep the c_i of their
attention in the state; h_j replaces it only in the readout, which is an approximation. For hard attention, alpha is the
distribution that positions are sampled from.

`copied_attention`, for decoders that copy (Gu et al. 2016): the fraction of each token's probability that is copied
from each source position.

Both work on trained models without any changes. `systems/translation.py` calls them after a search, and
`systems/dev_set.py` calls `copied_attention`.

Tests: tests/properties/test_posterior.py, tests/properties/test_copying.py.

Axes: B sentence pairs, I target positions, J source positions, R readout, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.models.copying import CopyOutput
from rnnsearch.models.memory import Memory
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidates import ColumnChooser
from rnnsearch.search.decode import MAX_ATTENTION_WEIGHTS, Ids, MakeSources, make_sources, pad_with_eos, pair_batches
from rnnsearch.search.scorer import Sources
from rnnsearch.text.vocabulary import BOS, EOS

Weights = dict[str, NDArray[np.float32]]
"""Attention by source name, as in `Hypothesis.attention`: [I, J], with EOS on both sides."""

MIN_WEIGHT = 1e-9
"""Lower limit of attention: a word may come from a position with no weight."""
MAX_CHUNK_PROBABILITIES = 2**24
"""Probabilities (vocabulary * pairs of positions) that are computed at once, if this is at least one target word."""
VALUES_PER_WEIGHT = 16
"""Memory of `copied_attention` per attention weight: scores and tokens of all positions for every readout."""


@torch.inference_mode()
def posterior_attention(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make_batch: MakeSources = make_sources,
) -> list[Weights]:
    """Return the posterior attention of each sentence pair, whose rows sum to 1; ids are without EOS."""
    return [_posterior(model, make_batch([x], model.device), y) for x, y in zip(sources, targets, strict=True)]


def _posterior(model: TranslationModel, source: Sources, target: Ids) -> Weights:
    """Return the posterior attention of one sentence pair."""
    memories = model.encode(source)
    ((name, memory),) = memories.items()
    previous = torch.tensor([[BOS, *target]], device=model.device)  # [1, I]
    y = torch.tensor([*target, EOS], device=model.device)  # [I]
    reading = model.unroll_separate(previous, memories)
    assert reading.soft_alpha is not None
    alpha = reading.soft_alpha[0].float()  # [I, J]
    rows = max(1, MAX_CHUNK_PROBABILITIES // (alpha.shape[1] * model.output.vocabulary))
    chunks = zip(previous.split(rows, 1), reading.state.split(rows, 1), y.split(rows), strict=True)
    log_p = torch.cat([_log_p_per_position(model, p, state, memory, tokens) for p, state, tokens in chunks])  # [I, J]
    # Bayes: p(j | y_i) is proportional to alpha_ij p(y_i | c_i = h_j).
    scores = (alpha.clamp_min(MIN_WEIGHT).log() + log_p).masked_fill(~memory.mask, -torch.inf)
    posterior = torch.softmax(scores, dim=-1)
    return {name: memory.to_source(posterior[None])[0].cpu().numpy()}


def _log_p_per_position(model: TranslationModel, previous: Tensor, state: Tensor, memory: Memory, y: Tensor) -> Tensor:
    """Return log p(y_i) [I, J] if all attention were on source position j."""
    readout = model.readouts_per_position(previous, state, memory)  # [I, J, R]
    log_p = model.log_probs(readout.flatten(0, 1)).view(*readout.shape[:2], -1)  # [I, J, V]
    return log_p.gather(2, y[:, None, None].expand(*readout.shape[:2], 1))[..., 0]


@torch.inference_mode()
def copied_attention(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make_batch: MakeSources = make_sources,
    batch_sentences: int = 64,
    candidates: ColumnChooser | None = None,
) -> list[Weights]:
    """Return the copied fractions of each token's probability; the rest of a row is distributed as attention is.

    Args:
        model: Model whose output layer copies.
        sources: Source token ids without EOS.
        targets: Target token ids without EOS.
        make_batch: Creates a batch from ids.
        batch_sentences: Maximum number of pairs per batch.
        candidates: Candidate lists of the search, in which <unk> represented all other tokens.
    """
    results: list[Weights] = [{} for _ in sources]
    for batch in pair_batches(sources, targets, batch_sentences, MAX_ATTENTION_WEIGHTS // VALUES_PER_WEIGHT):
        batch_sources = [sources[n] for n in batch]
        batch_targets = [targets[n] for n in batch]
        weights = _copied_in_batch(model, batch_sources, batch_targets, make_batch, candidates)
        for n, pair_weights in zip(batch, weights, strict=True):
            results[n] = pair_weights
    return results


def _copied_in_batch(
    model: TranslationModel,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    make_batch: MakeSources,
    candidates: ColumnChooser | None,
) -> list[Weights]:
    """Return the copied fractions of one batch (see `copied_attention`)."""
    assert isinstance(model.output, CopyOutput)
    y = pad_with_eos(targets).to(model.device)  # [B, I]
    batch = make_batch(sources, model.device)
    memories = model.encode(batch)
    ((name, memory),) = memories.items()
    unrolled = model.unroll(Stream.from_ids(y).previous(), memories)
    assert unrolled.reading.alpha is not None
    candidate_ids = None if candidates is None else candidates(batch)
    if candidate_ids is not None:
        # The search's batch may have been larger, with more candidates: all tokens it produced were among them.
        candidate_ids = torch.cat([candidate_ids, y.flatten()]).unique()
    copied = model.output.copy_fractions(unrolled.readout.flatten(0, 1), y.flatten(), candidate_ids)
    copied = copied.view(*y.shape, -1)  # [B, I, J]
    # Rounding may make the sum of copied fractions larger than 1.
    generated = (1 - copied.sum(-1, keepdim=True)).clamp_min(0)  # [B, I, 1]
    weights = (copied + generated * memory.to_source(unrolled.reading.alpha)).float().cpu().numpy()
    results: list[Weights] = []
    for pair_weights, x, target in zip(weights, sources, targets, strict=True):
        results.append({name: pair_weights[: len(target) + 1, : len(x) + 1].copy()})
    return results
