"""Rewards: scores of translations against their references, which sequence objectives raise.

`Reward.start` begins, and the returned function waits for the result: slow rewards are computed by worker processes
while the model runs. To add a reward, declare its options in `config/sequence.py`, implement it in
`metrics/sentence_scores.py`, which workers import, and add a subclass here. Tests:
tests/objectives/sequence/test_rewards.py.

Axes: N translations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.config import sequence
from rnnsearch.config.registry import Implementations, implements
from rnnsearch.config.sequence import BleuRewardOptions, ChrfRewardOptions, FunctionRewardOptions, TerRewardOptions
from rnnsearch.data.workers import Pool, SharedCall, cores
from rnnsearch.errors import ConfigError, RnnsearchError, TrainingError
from rnnsearch.metrics.sentence_scores import chrf, import_function, inverse_ter, smoothed_bleu, user_scores

Ids = Sequence[int]
Rewards = NDArray[np.float64]
"""[N], higher is better."""
Detokenize = Callable[[Ids], str]
"""Returns the text of token ids without EOS."""

MIN_TASK_PAIRS = 16
"""Pairs that are worth sending to a process."""
MAX_PROCESSES = 8
"""Maximum number of worker processes per training process."""
FUNCTION_PATH = "objective.sequence.reward.function"


class Reward(ABC):
    """A score per translation, where higher is better."""

    def __init__(self, options: Any, detokenize: Detokenize) -> None:
        """Create a reward from its options, for token ids that `detokenize` converts to text."""
        self._detokenize = detokenize

    @abstractmethod
    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Rewards:
        """Return the score of each translation, given its reference."""

    def start(self, hypotheses: Sequence[Ids], references: Sequence[Ids]) -> Callable[[], Rewards]:
        """Start to score translations, given as token ids without EOS, and return a function that waits for the result.

        Args:
            hypotheses: N translations; equal ones of one reference are scored once.
            references: The reference of each.
        """
        pairs = [
            (tuple(hypothesis), tuple(reference)) for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
        distinct = list(dict.fromkeys(pairs))
        texts = {ids: self._detokenize(ids) for ids in dict.fromkeys(ids for pair in distinct for ids in pair)}
        pending = self._submit([texts[pair[0]] for pair in distinct], [texts[pair[1]] for pair in distinct])

        def wait() -> Rewards:
            by_pair = dict(zip(distinct, pending().tolist(), strict=True))
            return np.array([by_pair[pair] for pair in pairs])

        return wait

    def start_prefixes(self, hypotheses: Sequence[Ids], references: Sequence[Ids]) -> Callable[[], list[Rewards]]:
        """Start to score all prefixes of translations, like `start`, and return a function that waits for the result.

        The scores of a translation of n words are those of its prefixes with 0 to n words.
        """
        prefixes: list[Ids] = []
        repeated: list[Ids] = []
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            for length in range(len(hypothesis) + 1):
                prefixes.append(hypothesis[:length])
                repeated.append(reference)
        scores = self.start(prefixes, repeated)
        ends = np.cumsum([len(hypothesis) + 1 for hypothesis in hypotheses])
        return lambda: np.split(scores(), ends[:-1])

    def close(self) -> None:
        """End the worker processes, if there are any; they are started again when needed."""

    def _submit(self, hypotheses: Sequence[str], references: Sequence[str]) -> Callable[[], Rewards]:
        # Computed when the result is needed: until then, a GPU may run the model.
        return lambda: self.score(hypotheses, references)


@implements(BleuRewardOptions)
class SentenceBleu(Reward):
    """BLEU of a sentence (`metrics.sentence_scores.smoothed_bleu`), which is fast enough without processes."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Rewards:
        return smoothed_bleu(hypotheses, references)


class PooledReward(Reward):
    """A reward that worker processes compute."""

    def __init__(self, options: Any, detokenize: Detokenize) -> None:
        super().__init__(options, detokenize)
        # At least two, because a pool of one process computes in the calling one.
        self._num_processes = max(2, min(MAX_PROCESSES, cores() - 1))
        self._pool: Pool | None = None
        self._thread = ThreadPoolExecutor(1)  # waits for the processes, one batch after another
        self._running: set[Future[Rewards]] = set()

    @abstractmethod
    def call(self) -> SharedCall:
        """Return the function that scores hypotheses and references, and its first arguments."""

    def score(self, hypotheses: Sequence[str], references: Sequence[str]) -> Rewards:
        function, arguments = self.call()
        values: Rewards = function(*arguments, hypotheses, references)
        return values

    def _submit(self, hypotheses: Sequence[str], references: Sequence[str]) -> Callable[[], Rewards]:
        num_tasks = min(2 * self._num_processes, len(hypotheses) // MIN_TASK_PAIRS)
        if num_tasks < 2:
            return super()._submit(hypotheses, references)
        if self._pool is None:
            self._pool = Pool(self._num_processes)
            self._pool.start()
        future = self._thread.submit(self._run, self._pool, hypotheses, references, num_tasks)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future.result

    def _run(self, pool: Pool, hypotheses: Sequence[str], references: Sequence[str], num_tasks: int) -> Rewards:
        # Every task gets translations of all sentences, so that all take about the same time.
        tasks = [(hypotheses[first::num_tasks], references[first::num_tasks]) for first in range(num_tasks)]
        function, arguments = self.call()
        values = np.zeros(len(hypotheses))
        for first, result in enumerate(pool.map(function, tasks, arguments)):
            values[first::num_tasks] = result
        return values

    def close(self) -> None:
        if self._pool is not None:
            # An exception ends processes that still compute something nobody waits for.
            error = TrainingError("training has ended") if self._running else None
            self._pool.__exit__(None, error, None)
            self._pool = None


@implements(ChrfRewardOptions)
class SentenceChrf(PooledReward):
    """chrF2 of a sentence (`metrics.sentence_scores.chrf`)."""

    def call(self) -> SharedCall:
        return chrf, ()


@implements(TerRewardOptions)
class InverseTer(PooledReward):
    """1 - TER of a sentence (`metrics.sentence_scores.inverse_ter`)."""

    def call(self) -> SharedCall:
        return inverse_ter, ()


@implements(FunctionRewardOptions)
class UserReward(PooledReward):
    """The value of a user's function (`metrics.sentence_scores.user_scores`)."""

    def __init__(self, options: FunctionRewardOptions, detokenize: Detokenize) -> None:
        super().__init__(options, detokenize)
        self._name = options.function
        try:
            import_function(self._name)
        except RnnsearchError as error:
            raise ConfigError([f"{FUNCTION_PATH}: {error}"]) from error

    def call(self) -> SharedCall:
        return user_scores, (self._name,)

    def _submit(self, hypotheses: Sequence[str], references: Sequence[str]) -> Callable[[], Rewards]:
        def wait() -> Rewards:
            try:
                return pending()
            except RnnsearchError as error:
                raise TrainingError(f"{FUNCTION_PATH}: {error}") from error

        pending = super()._submit(hypotheses, references)
        return wait


REWARDS: Implementations[type[Reward]] = Implementations(sequence.REWARDS)
"""Class by `type` of `[objective.sequence.reward]`; names are stored in model folders."""
