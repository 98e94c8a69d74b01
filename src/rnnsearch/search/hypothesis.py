"""What a search returns. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rnnsearch.engine.n_best import NBest
from rnnsearch.engine.structs import Array
from rnnsearch.errors import RnnsearchError
from rnnsearch.search.ranking import Ranking


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


def make_hypothesis(
    tokens: Array, scores: Array, attention: dict[str, NDArray[np.float32]], finished: bool, ranking: Ranking
) -> Hypothesis:
    """From its scored symbols [I], the last of them EOS where it is `finished`, and their scores in float32."""
    # One symbol after another in float32, as the beam adds them up: the two agree to the last bit.
    log_prob = float(np.cumsum(scores, dtype=np.float32)[-1])
    return Hypothesis(
        ids=tuple(tokens[: len(tokens) - finished].tolist()),
        score=float(ranking.score(log_prob, len(scores), ranking.coverage(attention))),
        log_prob=log_prob,
        token_scores=tuple(scores.tolist()),
        attention=attention,
        finished=finished,
    )


def n_best_hypotheses(found: NBest, symbols: Sequence[int], ranking: Ranking, source: str) -> list[list[Hypothesis]]:
    """What was found for each sentence, the best first, `BLOCKED` where that is nothing. symbols: of each source, EOS
    among them; source: its name."""

    def one(b: int, n: int) -> Hypothesis:
        length, attends = int(found.length[b, n]), found.attention.shape[-1] > 0
        attention = {source: found.attention[b, n, :length, : symbols[b]].copy()} if attends else {}
        tokens, scores = found.tokens[b, n, :length], found.scores[b, n, :length]
        return make_hypothesis(tokens, scores, attention, bool(found.finished[b, n]), ranking)

    each = [np.flatnonzero(lengths).tolist() for lengths in found.length]
    return [[one(b, n) for n in own] or [BLOCKED] for b, own in enumerate(each)]


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
