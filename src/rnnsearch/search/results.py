"""From arrays of a batch's search to hypotheses: their attention is gathered once the winners are known."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.engine.structs import Array
from rnnsearch.search.hypothesis import Hypothesis, SentenceError, make_hypothesis
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.scorer import Sources

NOT_A_NUMBER = "the scores of {sentence} must be numbers; got NaN at target position {position}"


def refuse(wrong: Callable[[Array], Array], scores: Array, length: Array, message: str) -> None:
    """A SentenceError for the first sentence that has `wrong` scores among the first `length` [B] of scores [T, B]."""
    step = np.arange(len(scores))[:, None]
    for sentence, t in np.argwhere((wrong(scores) & (step < length)).T)[:1].tolist():
        raise SentenceError(sentence, message, t + 1)


def source_lengths(sources: Sources) -> dict[str, list[int]]:
    """Symbols of each sentence, EOS among them, by source name."""
    return {name: source.mask.sum(1).tolist() for name, source in sources.items()}


def gather_attention(steps: Sequence[Mapping[str, Tensor]], rows: Array) -> dict[str, NDArray[np.float32]]:
    """The attention of R hypotheses out of that of every row of every step, in one transfer a source.

    `steps[t]` has the weights [N_t, J] by source name; `rows` [T, R] says which of step t's rows was hypothesis r
    (-1: none, r had ended). Returns [R, T, J] by name, zero after a hypothesis's end.
    """
    names = steps[0].keys() if steps else ()
    step_of, hypothesis_of = np.nonzero(rows >= 0)
    gathered = {}
    for name in names:
        parts = []
        for weights, row in zip((step[name] for step in steps), rows, strict=True):
            parts.append(weights.index_select(0, torch.from_numpy(row[row >= 0]).to(weights.device)))
        out = np.zeros((rows.shape[1], rows.shape[0], parts[0].shape[1]), dtype=np.float32)
        out[hypothesis_of, step_of] = torch.cat(parts).float().cpu().numpy()
        gathered[name] = out
    return gathered


class Scored(NamedTuple):
    """R hypotheses in arrays, before they are cut to their lengths; what is past a length means nothing."""

    sentence: Array
    """[R], which sentence of the batch each translates."""
    tokens: Array
    """[T, R], EOS among them where a hypothesis is finished."""
    scores: Array
    """[T, R], of the tokens."""
    length: Array
    """[R], scored symbols, at most T."""
    finished: Array
    """[R] bool."""
    attention: dict[str, NDArray[np.float32]]
    """Source name -> [R, T, J]."""


def make_hypotheses(scored: Scored, sources: Sources, ranking: Ranking) -> list[Hypothesis]:
    """The hypotheses, one by one; their attention is cut to the source's real symbols."""
    symbols = source_lengths(sources)
    sentence, length = scored.sentence.tolist(), scored.length.tolist()
    made = []
    for r, (b, count, finished) in enumerate(zip(sentence, length, scored.finished.tolist(), strict=True)):
        attention = {n: w[r, :count, : symbols[n][b]].copy() for n, w in scored.attention.items()}
        made.append(make_hypothesis(scored.tokens[:count, r], scored.scores[:count, r], attention, finished, ranking))
    return made
