"""`Hypothesis`, the result of every search, and the error that names a sentence of a batch.

Also used by the torch-free runtime, so this module must not import torch.

Equality ignores attention, which tests rely on when they compare searches (`tests/search/test_decode.py`).

Axes: I scored tokens, J source positions with EOS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.ranking import Ranking


@dataclass(frozen=True)
class Hypothesis:
    """A target sentence with its scores and attention."""

    ids: tuple[int, ...]
    """Tokens without BOS and EOS."""
    score: float
    """Score that hypotheses are ranked by (see `Ranking`), by default log_prob / length with EOS in the length."""
    log_prob: float
    """Sum of `token_scores`, in nats."""
    token_scores: tuple[float, ...]
    """Log-probability of each token; the last one is that of EOS if the hypothesis is finished."""
    attention: dict[str, NDArray[np.float32]] = field(compare=False, repr=False)
    """Source name -> weights [scored tokens, J] over the source tokens with EOS; empty without attention."""
    finished: bool
    """True if it ended with EOS, False if it was cut at its maximum length."""

    @property
    def blocked(self) -> bool:
        """True if this is `BLOCKED`; hypotheses cut at their maximum length have at least one token."""
        return not self.finished and not self.ids

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """The attention over the only source, or None."""
        return next(iter(self.attention.values()), None)


MIN_LOG_PROB = float(np.finfo(np.float32).min)
"""Minimum log-probability of a hypothesis whose tokens have finite scores."""
EMPTY = Hypothesis(ids=(), score=0.0, log_prob=0.0, token_scores=(), attention={}, finished=True)
"""Translation of an empty sentence, which is not searched."""
BLOCKED = replace(EMPTY, finished=False)
"""Result for a sentence whose search ended because no continuation of any hypothesis was allowed."""


def make_hypothesis(
    tokens: Array, scores: Array, attention: dict[str, NDArray[np.float32]], finished: bool, ranking: Ranking
) -> Hypothesis:
    """Return a hypothesis of scored tokens [I], the last of which is EOS if it is `finished`, and scores in float32."""
    # Sequential summation in float32 is what the beam does, so that both agree to the last bit. Scores of a model with
    # enormous weights may overflow.
    with np.errstate(over="ignore"):
        log_prob = float(np.cumsum(scores, dtype=np.float32)[-1])
    if log_prob == -np.inf and np.isfinite(scores).all():
        log_prob = MIN_LOG_PROB
    return Hypothesis(
        ids=tuple(tokens[: len(tokens) - finished].tolist()),
        score=float(ranking.score(log_prob, len(scores), ranking.coverage(attention))),
        log_prob=log_prob,
        token_scores=tuple(scores.tolist()),
        attention=attention,
        finished=finished,
    )


def n_best_hypotheses(
    n_best: NBestArrays,
    attention_by_source: Mapping[str, Array],
    source_lengths: Mapping[str, Sequence[int]],
    ranking: Ranking,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of a native search per sentence, best first; `BLOCKED` if there is none.

    Args:
        n_best: The result of the search.
        attention_by_source: Its attention [B, n, T, J] by source name; empty without attention.
        source_lengths: Tokens of each source sentence, with EOS, by source name.
        ranking: Score of hypotheses.
    """
    results = []
    for b, lengths in enumerate(n_best.length):
        hypotheses = []
        for n in np.flatnonzero(lengths).tolist():
            length = int(lengths[n])
            attention = {}
            for name, weights in attention_by_source.items():
                attention[name] = weights[b, n, :length, : source_lengths[name][b]].copy()
            tokens = n_best.tokens[b, n, :length]
            scores = n_best.scores[b, n, :length]
            hypotheses.append(make_hypothesis(tokens, scores, attention, bool(n_best.finished[b, n]), ranking))
        results.append(hypotheses or [BLOCKED])
    return results


class SearchCancelled(RnnsearchError):
    """A search whose result is not needed any more (see `SearchOptions.is_cancelled`)."""

    def __init__(self) -> None:
        super().__init__("the search was cancelled")


class SentenceError(RnnsearchError):
    """An error in one sentence of a batch; {sentence} in the message is replaced by the sentence's index."""

    def __init__(self, sentence: int, message: str, position: int = 0) -> None:
        """Create the error for a sentence and, in place of {position} in the message, a target position from 1."""
        message = message.replace("{position}", str(position))
        super().__init__(message.replace("{sentence}", f"sentence {sentence} (counting from 0)"))
        self.sentence = sentence
        self.message = message

    def renumbered(self, sentence: int) -> "SentenceError":
        """Return the same error with the sentence's index in a larger collection."""
        return SentenceError(sentence, self.message)
