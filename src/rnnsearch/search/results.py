"""Conversion of the arrays of a finished search to `Hypothesis` objects, with their attention.

The searches keep tokens and scores of a batch in arrays and the attention of every step on the device. Only when the
best hypotheses are known is their attention copied to the host.

Native searches return the same arrays, so the axes are part of the interface to `engine/n_best.py`.

Axes: B sentences, R hypotheses, T steps, J source positions.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.hypothesis import Hypothesis, SentenceError, make_hypothesis
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.scorer import Sources

NAN_MESSAGE = "the scores of {sentence} must be numbers; got NaN at target position {position}"
"""Message of the error for NaN scores; `SentenceError` fills in the sentence."""


def require_no_nan(scores: Array, length: Array) -> None:
    """Raise SentenceError for the first sentence with NaN among the first `length` [B] of its scores [T, B]."""
    step = np.arange(len(scores))[:, None]
    for sentence, t in np.argwhere((np.isnan(scores) & (step < length)).T)[:1].tolist():
        raise SentenceError(sentence, NAN_MESSAGE, t + 1)


def source_lengths(sources: Sources) -> dict[str, list[int]]:
    """Return the number of tokens of each sentence, EOS included, by source name."""
    return {name: source.mask.sum(1).tolist() for name, source in sources.items()}


def gather_attention(steps: Sequence[Mapping[str, Tensor]], rows: Array) -> dict[str, NDArray[np.float32]]:
    """Return the attention [R, T, J] of R hypotheses by source name, with one transfer per source.

    Args:
        steps: Weights [N_t, J] of all rows of each step t, by source name.
        rows: [T, R], row of step t that belongs to hypothesis r; -1 after its end, where the result is zero.
    """
    names = steps[0].keys() if steps else ()
    step_index, hypothesis_index = np.nonzero(rows >= 0)
    gathered = {}
    for name in names:
        # Select on the device, where all rows of all steps are much larger than those of the result.
        index = torch.from_numpy(rows[rows >= 0]).to(steps[0][name].device)
        by_step = index.split((rows >= 0).sum(1).tolist())
        selected = [step[name].index_select(0, row) for step, row in zip(steps, by_step, strict=True)]
        attention = np.zeros((rows.shape[1], rows.shape[0], selected[0].shape[1]), dtype=np.float32)
        attention[hypothesis_index, step_index] = torch.cat(selected).float().cpu().numpy()
        gathered[name] = attention
    return gathered


class HypothesisArrays(NamedTuple):
    """R hypotheses in padded arrays; values after a hypothesis's length are undefined."""

    sentence: Array
    """[R], index in the batch of the sentence that each translates."""
    tokens: Array
    """[T, R], including EOS if a hypothesis is finished."""
    scores: Array
    """[T, R], of the tokens."""
    length: Array
    """[R], number of scored tokens, at most T."""
    finished: Array
    """[R] bool."""
    attention: dict[str, NDArray[np.float32]]
    """Source name -> [R, T, J]."""


def make_hypotheses(arrays: HypothesisArrays, sources: Sources, ranking: Ranking) -> list[Hypothesis]:
    """Return the R hypotheses, cut to their lengths; their attention is cut to the source's tokens."""
    source_tokens = source_lengths(sources)
    sentences = arrays.sentence.tolist()
    lengths = arrays.length.tolist()
    hypotheses = []
    for r, (sentence, length, finished) in enumerate(zip(sentences, lengths, arrays.finished.tolist(), strict=True)):
        attention = {}
        for name, weights in arrays.attention.items():
            attention[name] = weights[r, :length, : source_tokens[name][sentence]].copy()
        tokens = arrays.tokens[:length, r]
        hypotheses.append(make_hypothesis(tokens, arrays.scores[:length, r], attention, finished, ranking))
    return hypotheses
