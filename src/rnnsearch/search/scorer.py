"""The `Scorer` protocol between search and what scores the next token: a model, an ensemble, a language model, ...

Axes: `B` sentences of the batch, `K` hypotheses per sentence, `N = B * K` rows, `V` tokens, `C` score columns, `M`
tokens that a partial scorer scores, `J` source positions, `D` hidden vector. Row n belongs to sentence n // K.

A Scorer keeps nothing between calls. Everything it needs is in `memory` and `state`, trees of tensors (nested named
tuples, see `utils.tensors.select`) whose rows the search selects:

- `memory` has one row per sentence; only the rows of finished sentences are dropped.
- `state` has one row per hypothesis. The search reorders, repeats and drops its rows after every step. Everything
  that depends on a hypothesis (its length, coverage, tokens so far) belongs to the state.
- Tensors that have neither kind of rows (such as the score columns of the batch) must not be leaves of these trees:
  put them into an ordinary object, which `select` leaves unchanged.

A restriction that depends on a hypothesis's history is a Scorer that wraps another one.

Scorers are in `model_scorer.py` and `ensemble.py`; wrappers in `prefixes.py`, `phrases.py`, `banned.py` and `noisy.py`;
`char_decoding.py` has one over characters. `beam.py`, `forced.py` and `decode.py` call scorers, `systems` creates them.
A new method in the protocol must be added to all of them and to the scorers of `tests/search/conftest.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from rnnsearch.data.batch import Stream
from rnnsearch.errors import RnnsearchError

Sources = Mapping[str, Stream]
"""Source sentences of a batch by source name."""

SOURCE = "source"
"""Default name of the only source of a batch."""


class Step(NamedTuple):
    """Scores of the next token of N hypotheses."""

    scores: Tensor
    """[N, C] log-probabilities, or scores that add up like them; a new tensor, which the search overwrites."""
    state: Any
    """State after this step, N rows."""
    attention: dict[str, Tensor]
    """Source name -> [N, J] weights of this step; empty without attention."""
    norm: Tensor | None = None
    """[N], a constant to subtract from each row of scores (such as logsumexp), which saves a pass over C columns."""

    def log_probs(self, columns: Tensor | None = None) -> Tensor:
        """Return the normalised scores in fp32, of all columns or of `columns` [N, M]."""
        scores = (self.scores if columns is None else self.scores.gather(1, columns)).float()
        return scores if self.norm is None else scores - self.norm[:, None]


@runtime_checkable
class Scorer(Protocol):
    """A full scorer: it scores every column of the search."""

    @property
    def vocabulary(self) -> int:
        """V; ids of V or more are copies of source tokens."""

    @property
    def normalised(self) -> bool:
        """True if each row of scores is a log-distribution, so that the sum of a hypothesis never increases."""

    @property
    def device(self) -> torch.device:
        """Device of sources, columns and `y`."""

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        """Return (memory, state) before the first token, with one row per sentence in both (K = 1).

        Args:
            sources: The batch.
            columns: [C] int64, distinct tokens of the score columns, EOS among them; None for all V in order.
        """

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """Return the scores of the token after `y` [N] (first BOS), for any K in N = B * K.

        `y` may contain ids of V or more (copies of source tokens), to be read as UNK.
        """


@runtime_checkable
class HasHiddenStates(Protocol):
    """A Scorer that gives access to the hidden states of its cells (see `noisy.py`)."""

    def map_hidden(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        """Return the state with `function` applied to each hidden vector [N, D], always in the same order.

        `state` itself is not modified.
        """


@runtime_checkable
class RecordableScorer(Scorer, Protocol):
    """A Scorer whose `start` and `step` never wait for the device, and whose kernels depend only on shapes.

    On a GPU its searches run from recordings (see `recorded.py`).
    """

    @property
    def recording_owner(self) -> object:
        """The object that recordings are stored for, as long as it exists."""

    @property
    def recording_key(self) -> object:
        """Everything else that the kernels of a step depend on, for the scorers of one owner."""

    def recorded_weights(self) -> Sequence[Tensor] | None:
        """Return all weights that the kernels read, or None if steps cannot be recorded."""


class OwnRecordings:
    """Base of scorers whose members do not change: recordings are stored for the scorer itself."""

    @property
    def recording_owner(self) -> object:
        """The scorer."""
        return self

    @property
    def recording_key(self) -> object:
        """Always None, because nothing else can change."""
        return None


def combined_weights(scorers: Iterable[Scorer]) -> list[Tensor] | None:
    """Return the recorded weights of several scorers, or None if one of them cannot be recorded."""
    combined = list[Tensor]()
    for scorer in scorers:
        weights = scorer.recorded_weights() if isinstance(scorer, RecordableScorer) else None
        if weights is None:
            return None
        combined += weights
    return combined


def map_hidden_states(scorer: Scorer, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return `scorer.map_hidden(state, function)`, or raise RnnsearchError if the scorer has no hidden states."""
    if not isinstance(scorer, HasHiddenStates):
        raise RnnsearchError(f"noise needs the scorer of a recurrent model; got {type(scorer).__name__}")
    return scorer.map_hidden(state, function)


class PartialStep(NamedTuple):
    """Scores of M possible next tokens of each of N hypotheses."""

    scores: Tensor
    """[N, M], like those of a `Step` without a norm."""
    state: Any
    """State after this step, N rows."""


class PartialScorer(Protocol):
    """A scorer that is too expensive for all columns (a large language model, a reranker).

    It scores only tokens with high scores of full scorers (`ensemble.WeightedSumScorer`). Memory and state are like a
    Scorer's.
    """

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """Return (memory, state) before the first token."""

    def step(self, memory: Any, state: Any, y: Tensor, tokens: Tensor) -> PartialStep:
        """Return the scores of `tokens` [N, M] after `y` [N]."""
