"""The contract between search and whatever scores the next symbol: one model, an ensemble, a fusion, ...

Axes: `B` sentences of the batch, `K` hypotheses a sentence, `N = B * K` rows, `V` symbols, `C` score columns, `J`
source positions. Row n belongs to sentence n // K. A Scorer keeps nothing between calls: all that it needs is in
`memory` and `state`, which are trees for `tensors.select` (nested named tuples of tensors).

- `memory` has one row a sentence. It never moves with the beam; only the rows of finished sentences leave it.
- `state` has one row a hypothesis. The search reorders, repeats and drops its rows after every step.
- What is neither (the score columns of the batch) must not be a tensor leaf of either tree: hold it in
  a plain object, which `tensors.select` leaves as it is.
- What a Scorer must remember of a hypothesis (its length, coverage, the symbols so far) belongs to the state;
  a constraint on a hypothesis's history is a Scorer of a Scorer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from rnnsearch.data.batch import Side
from rnnsearch.errors import RnnsearchError

Sources = Mapping[str, Side]
"""The batch's sentences by the source's name."""

SOURCE = "source"
"""What the one source of a batch is called where nobody has named it."""


class Step(NamedTuple):
    """What a Scorer says of the next symbol of N hypotheses."""

    scores: Tensor
    """[N, C] log-probabilities, or scores that add up like them. Made anew each step: the search overwrites
    them."""
    state: Any
    """The state after this step, N rows."""
    attention: dict[str, Tensor]
    """Source name -> [N, J] weights behind these scores; empty where there is no attention."""
    norm: Tensor | None = None
    """[N], what each row's scores are too high by (the logarithm of a softmax's sum, say), so that nobody need subtract
    it from C columns; None for nothing."""

    def log_probs(self, columns: Tensor | None = None) -> Tensor:
        """The scores in fp32 without the norm's excess: of all columns, or of columns [N, M]."""
        scores = (self.scores if columns is None else self.scores.gather(1, columns)).float()
        return scores if self.norm is None else scores - self.norm[:, None]


@runtime_checkable
class Scorer(Protocol):
    """What search knows of a system. It is full: it scores every column that search has chosen."""

    @property
    def vocabulary(self) -> int:
        """V: its own symbols are the ids below."""

    @property
    def normalised(self) -> bool:
        """Whether each row of scores is a log-distribution: a hypothesis's sum then only falls."""

    @property
    def device(self) -> torch.device:
        """Where it works: sources, columns and `y` must be there."""

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        """(memory, state) of a batch, before the first symbol: one row a sentence in both (K = 1).

        columns: [C] int64, the symbol that each score column of this batch stands for, distinct, EOS among them; None:
        all V, in order. An id of V or more is a copy of a source symbol.
        """

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """Scores of the symbol after `y` [N] (BOS at first), for any K in N = B * K. Ids of V or more (source
        copies) may be among `y`: read them as UNK."""


@runtime_checkable
class Disturbable(Protocol):
    """A Scorer whose hidden states can be got at (see `noisy`)."""

    def disturbed(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        """The state with `by` of each hidden vector [N, D] that its cells carry, always in one order; the state that is
        given stays as it is."""


def disturbed(scorer: Scorer, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
    """The same of any Scorer. Errors: RnnsearchError where it has no such states."""
    if not isinstance(scorer, Disturbable):
        raise RnnsearchError(f"noise needs a recurrent model's own scorer; got {type(scorer).__name__}")
    return scorer.disturbed(state, by)


class PartialStep(NamedTuple):
    """What a PartialScorer says of M symbols that may come next, for each of N hypotheses."""

    scores: Tensor
    """[N, M], as those of a `Step`, without any norm."""
    state: Any
    """The state after this step, N rows."""


class PartialScorer(Protocol):
    """A scorer that costs too much for all columns (a large language model, a reranker): it is asked about the symbols
    that survive what full ones say. Its memory and state are as a Scorer's."""

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """(memory, state) of a batch, before the first symbol."""

    def step(self, memory: Any, state: Any, y: Tensor, symbols: Tensor) -> PartialStep:
        """Scores of the symbols [N, M] after `y` [N]."""
