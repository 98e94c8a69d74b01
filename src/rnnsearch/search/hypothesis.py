"""What a search returns, and the gathering of its attention once the winners are known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.search.ranking import Ranking
from rnnsearch.search.scorer import Sources

Numbers = NDArray[Any]


@dataclass(frozen=True)
class Hypothesis:
    """A target sentence and what its Scorer said of it."""

    ids: tuple[int, ...]
    """Its symbols, without BOS and EOS."""
    score: float
    """log_prob / length ** length_penalty, with the length in scored symbols (EOS counts), or what else the search's
    `ranking.Ranking` says."""
    log_prob: float
    """The sum of `token_scores`, natural logarithm."""
    token_scores: tuple[float, ...]
    """One score a symbol; where the hypothesis is finished the last is that of EOS."""
    attention: dict[str, NDArray[np.float32]] = field(compare=False, repr=False)
    """Source name -> [scored symbols, J] weights over the source's symbols and its EOS; or empty."""
    finished: bool
    """Whether it ended with EOS; False where it was cut at its maximal length."""

    @property
    def blocked(self) -> bool:
        """Whether it is `BLOCKED`, no translation: what is cut at its maximal length has a symbol at least."""
        return not self.finished and not self.ids

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """The attention over its one source; None where there is none."""
        return next(iter(self.attention.values()), None)


EMPTY = Hypothesis(ids=(), score=0.0, log_prob=0.0, token_scores=(), attention={}, finished=True)
"""The translation of an empty sentence, which no Scorer is asked for."""
BLOCKED = replace(EMPTY, finished=False)
"""What stands for a sentence of which nothing was found: wherever the search had come, no symbol was allowed."""


class SentenceError(RnnsearchError):
    """Something is wrong with one sentence of a batch: {sentence} in `message` stands for its number."""

    def __init__(self, sentence: int, message: str, position: int = 0) -> None:
        """`position`: what {position} in `message` stands for, a target position from 1."""
        message = message.replace("{position}", str(position))
        super().__init__(message.replace("{sentence}", f"sentence {sentence} (counting from 0)"))
        self.sentence = sentence
        self.message = message

    def renumbered(self, sentence: int) -> "SentenceError":
        """The same error under the sentence's number in a larger collection."""
        return SentenceError(sentence, self.message)


NOT_A_NUMBER = "the scores of {sentence} must be numbers; got NaN at target position {position}"


def refuse(wrong: Callable[[Numbers], Numbers], scores: Numbers, length: Numbers, message: str) -> None:
    """A SentenceError for the first sentence that has `wrong` scores among the first `length` [B] of scores [T, B]."""
    step = np.arange(len(scores))[:, None]
    for sentence, t in np.argwhere((wrong(scores) & (step < length)).T)[:1].tolist():
        raise SentenceError(sentence, message, t + 1)


def source_lengths(sources: Sources) -> dict[str, list[int]]:
    """Symbols of each sentence, EOS among them, by source name."""
    return {name: source.mask.sum(1).tolist() for name, source in sources.items()}


def gather_attention(steps: Sequence[Mapping[str, Tensor]], rows: Numbers) -> dict[str, NDArray[np.float32]]:
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

    sentence: Numbers
    """[R], which sentence of the batch each translates."""
    tokens: Numbers
    """[T, R], EOS among them where a hypothesis is finished."""
    scores: Numbers
    """[T, R], of the tokens."""
    length: Numbers
    """[R], scored symbols, at most T."""
    finished: Numbers
    """[R] bool."""
    attention: dict[str, NDArray[np.float32]]
    """Source name -> [R, T, J]."""


def make_hypotheses(scored: Scored, sources: Sources, ranking: Ranking) -> list[Hypothesis]:
    """The hypotheses, one by one; their attention is cut to the source's real symbols."""
    symbols = source_lengths(sources)
    sentence, length = scored.sentence.tolist(), scored.length.tolist()
    # One symbol after another in float32, as the beam adds them up: the two agree to the last bit.
    sums = np.cumsum(scored.scores, axis=0, dtype=np.float32)
    made = []
    for r, (b, count, finished) in enumerate(zip(sentence, length, scored.finished.tolist(), strict=True)):
        log_prob = float(sums[count - 1, r])
        attention = {n: w[r, :count, : symbols[n][b]].copy() for n, w in scored.attention.items()}
        made.append(
            Hypothesis(
                ids=tuple(scored.tokens[: count - finished, r].tolist()),
                score=float(ranking.score(log_prob, count, ranking.coverage(attention))),
                log_prob=log_prob,
                token_scores=tuple(scored.scores[:count, r].tolist()),
                attention=attention,
                finished=finished,
            )
        )
    return made
