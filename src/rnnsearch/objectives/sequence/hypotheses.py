"""Translations that the model generates during training, and passes over them with gradients.

`sample_translations` and `search_n_best` search without gradients or dropout, like `rnnsearch translate`;
`unroll_hypotheses` runs the model over their K translations per sentence with one memory per sentence.

Samples depend only on the source, the seed and the model, so that a batch may be split. Tests:
tests/objectives/sequence/test_policy_gradient.py.

Axes: B sentences, K hypotheses per sentence, N = B * K, I target positions, M tokens of all hypotheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rnnsearch.data.batch import previous_ids
from rnnsearch.data.batches import Batch
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import Memories, TranslationModel, Unrolled
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.constraints import NEVER_PRODUCED, max_lengths
from rnnsearch.search.decode import search_variant
from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.search.model_scorer import ModelScorer, fastest_scorer
from rnnsearch.search.options import LengthLimit, SearchOptions
from rnnsearch.search.sampling import Sampling
from rnnsearch.search.scorer import Scorer
from rnnsearch.text.vocabulary import EOS, PAD
from rnnsearch.utils.tensors import at_least_fp32

MAX_LENGTH_GROUPS = 5
"""Maximum number of groups of hypotheses that the decoder runs over one after the other."""
MIN_GROUP_ROWS = 64
"""Minimum number of hypotheses per group; fewer do not fill a matrix product."""


class Hypotheses(NamedTuple):
    """K translations per sentence, row n is that of sentence n // K; a sentence may have fewer, then rows are empty."""

    ids: Int[Tensor, "N I"]
    """Tokens, each translation ended by EOS unless it was cut, and padded with PAD."""
    log_probs: Float[Tensor, "N I"]
    """log p of each token when it was generated; 0 on padding."""

    @property
    def mask(self) -> Bool[Tensor, "N I"]:
        """True on tokens."""
        return self.ids != PAD

    @property
    def previous(self) -> Int[Tensor, "N I"]:
        """The token before each position: BOS first."""
        return previous_ids(self.ids)

    def positions(self) -> Int[Tensor, "M"]:
        """Return the indices in [N * I] of all tokens, in order."""
        return self.mask.flatten().nonzero()[:, 0]

    def words(self) -> list[list[int]]:
        """Return the tokens of each row without EOS."""
        rows = []
        for tokens, mask in zip(self.ids.tolist(), (self.mask & (self.ids != EOS)).tolist(), strict=True):
            rows.append(list(compress(tokens, mask)))
        return rows

    def to(self, device: torch.device) -> Hypotheses:
        """Return a copy on a device."""
        return Hypotheses(self.ids.to(device), self.log_probs.to(device))


def pad_hypotheses(groups: Sequence[Sequence[Hypothesis]], K: int) -> Hypotheses:
    """Return the hypotheses of each sentence, at most K, in one tensor on the CPU."""
    lengths = [len(hypothesis.token_scores) for group in groups for hypothesis in group]
    ids = torch.full((len(groups) * K, max(lengths, default=1)), PAD)
    log_probs = torch.zeros(ids.shape)
    for sentence, group in enumerate(groups):
        for k, hypothesis in enumerate(group):
            tokens = [*hypothesis.ids, EOS] if hypothesis.finished else [*hypothesis.ids]
            row = sentence * K + k
            ids[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
            log_probs[row, : len(tokens)] = torch.tensor(hypothesis.token_scores)
    return Hypotheses(ids, log_probs)


def unscored(ids: Int[Tensor, "N I"]) -> Hypotheses:
    """Return given translations, which no search has scored, with log-probabilities of 0."""
    return Hypotheses(ids, torch.zeros(ids.shape, device=ids.device))


def reference_words(batch: Batch) -> list[list[int]]:
    """Return the tokens of each reference without EOS."""
    return unscored(batch.target.ids).words()


def current_scorer(model: TranslationModel) -> Scorer:
    """Return the fastest scorer of the current weights in fp32."""
    if model.output.bias.dtype != torch.float32:
        return ModelScorer(model)
    return fastest_scorer(model, "fp32").scorer


def sample_translations(
    scorer: Scorer,
    batch: Batch,
    samples: int,
    seed: int,
    limit: LengthLimit,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Hypotheses:
    """Return K = `samples` translations per sentence, sampled from the model; equal ones occur several times.

    PAD and BOS are never sampled. A translation of maximum length has no EOS: the search cuts it there anyway, so that
    its probability is that of its words.

    Args:
        scorer: Scorer of the model (`current_scorer`).
        batch: The batch.
        samples: Number of translations per sentence.
        seed: Seed of the random numbers.
        limit: Maximum length; with a prefix, a translation may have at least one more token.
        prefixes: Tokens per sentence that its translations begin with.
    """
    variant = Sampling(seed=seed)
    options = SearchOptions(beam=samples, n_best=samples, variant=variant, prefix=_tuples(prefixes), **limit._asdict())
    with torch.inference_mode():
        groups = search_variant(scorer, batch.sources, options, variant)
    for group, max_length in zip(groups, max_lengths(batch.sources, options), strict=True):
        for k, hypothesis in enumerate(group):
            if hypothesis.finished and len(hypothesis.ids) == max_length:
                group[k] = replace(hypothesis, token_scores=hypothesis.token_scores[:-1], finished=False)
    return pad_hypotheses(groups, samples).to(batch.target.ids.device)


def search_n_best(
    scorer: Scorer,
    batch: Batch,
    count: int,
    limit: LengthLimit,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Hypotheses:
    """Return the `count` best translations of a beam search of this width; the greedy translation if it is 1.

    `prefixes` are tokens per sentence that its translations begin with.
    """
    options = SearchOptions(beam=count, n_best=count, prefix=_tuples(prefixes), **limit._asdict())
    search = greedy_search if count == 1 else beam_search
    with torch.inference_mode():
        groups = search(scorer, batch.sources, options)
    return pad_hypotheses(groups, count).to(batch.target.ids.device)


def without_special_tokens(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """Return scores in fp32 or wider with -inf for PAD and BOS, which no translation contains."""
    scores = at_least_fp32(logits).clone()
    for token in NEVER_PRODUCED:
        # A tensor of both indices would be copied to the device, and the host would wait for it, at every step.
        scores[..., token] = -torch.inf
    return scores


def _tuples(prefixes: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...] | None:
    return None if prefixes is None else tuple(tuple(prefix) for prefix in prefixes)


def unroll_hypotheses(model: TranslationModel, hypotheses: Hypotheses, memories: Memories) -> Unrolled:
    """Return the decoder's outputs for given translations, with gradients and without dropout."""
    return model.unroll(hypotheses.previous, memories, None)


def weighted_nll(
    model: TranslationModel, hypotheses: Hypotheses, readout: Float[Tensor, "N I R"], weights: Float[Tensor, "N I"]
) -> Float[Tensor, ""]:
    """Return sum_n sum_i weights[n, i] * -log p(y_i), differentiable in the readouts and the output layer.

    Args:
        model: The model.
        hypotheses: Translations.
        readout: Readouts of `unroll_hypotheses`.
        weights: Weights without gradients; those of padding are ignored.
    """
    positions = hypotheses.positions()  # [M]
    rows = readout.flatten(0, 1).index_select(0, positions)  # [M, R]
    ids = hypotheses.ids.flatten().index_select(0, positions)
    token_weights = weights.detach().flatten().index_select(0, positions)
    assert isinstance(model.output, Output), "the config requires an ordinary softmax"
    total, _ = model.output.losses(rows, ids, token_weights=token_weights)
    return total


class LengthGroup(NamedTuple):
    """Some hypotheses of every sentence, of similar length."""

    hypotheses: Hypotheses
    rows: Int[Tensor, "M"]
    """Their rows among all hypotheses."""


def group_by_length(hypotheses: Hypotheses, sentences: int) -> list[LengthGroup]:
    """Return all hypotheses in groups of similar length, so that few positions are padding.

    Each group has the same number of rows of every sentence, consecutive as in `Hypotheses`. Empty rows come first.
    """
    lengths = hypotheses.mask.sum(1).view(sentences, -1)  # [B, K]
    order = lengths.argsort(dim=1, stable=True)
    K = order.shape[1]
    groups = max(1, min(MAX_LENGTH_GROUPS, K, len(hypotheses.ids) // MIN_GROUP_ROWS))
    first_rows = torch.arange(sentences, device=order.device)[:, None] * K
    result = []
    for part in order.tensor_split(groups, dim=1):
        rows = (first_rows + part).flatten()
        width = max(1, int(lengths.gather(1, part).max()))
        selected = Hypotheses(hypotheses.ids[rows, :width], hypotheses.log_probs[rows, :width])
        result.append(LengthGroup(selected, rows))
    return result


@torch.no_grad()
def forced_log_probs(model: TranslationModel, hypotheses: Hypotheses, memories: Memories) -> Float[Tensor, "N I"]:
    """Return log p of each token of given translations, without gradients; 0 on padding."""
    readout = unroll_hypotheses(model, hypotheses, memories).readout
    positions = hypotheses.positions()  # [M]
    ids = hypotheses.ids.flatten().index_select(0, positions)
    assert isinstance(model.output, Output), "the config requires an ordinary softmax"
    _, nll = model.output.losses(readout.flatten(0, 1).index_select(0, positions), ids)
    log_probs = nll.new_zeros(hypotheses.ids.numel()).index_copy(0, positions, -nll)
    return log_probs.view(hypotheses.ids.shape)
