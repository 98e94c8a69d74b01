"""The contract between search and whatever scores the next symbol: one model, an ensemble, a fusion, ...

Axes: `B` sentences of the batch, `K` hypotheses a sentence, `N = B * K` rows, `C` score columns, `J` source
positions. Row n belongs to sentence n // K. A Scorer keeps nothing between calls: all that it needs is in
`memory` and `state`, which are trees for `tensors.select` (nested named tuples of tensors).

- `memory` has one row a sentence. It never moves with the beam; only the rows of finished sentences leave it.
- `state` has one row a hypothesis. The search reorders, repeats and drops its rows after every step.
- What is neither (a candidate list shared by the batch) must not be a tensor leaf of either tree: hold it in
  a plain object, which `tensors.select` leaves as it is.
- What a Scorer must remember of a hypothesis (its length, coverage, the symbols so far) belongs to the state;
  a constraint on a hypothesis's history is a Scorer of a Scorer.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from rnnsearch.data.sides import Side
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.text.vocabulary import EOS

Sources = Mapping[str, Side]
"""The batch's sentences by source name. Most systems have one source, `SOURCE`."""

SOURCE = "source"


class Step(NamedTuple):
    """What a Scorer says of the next symbol of N hypotheses."""

    scores: Tensor
    """[N, C] log-probabilities, or scores that add up like them. Made anew each step: the search overwrites
    them."""
    ids: Tensor | None
    """[C] int64, distinct: the symbol of each column, EOS among them; None where column c is symbol c. An id
    of V or more is a copy of a source symbol. Give the same tensor again while the columns stay the same:
    the search then reads it once."""
    state: Any
    """The state after this step, N rows."""
    attention: dict[str, Tensor]
    """Source name -> [N, J] weights behind these scores; empty where there is no attention."""
    norm: Tensor | None = None
    """[N], what each row's scores are too high by (the logarithm of a softmax's sum, say), so that nobody need subtract
    it from C columns; None for nothing."""

    def of(self, columns: Tensor) -> Tensor:
        """The scores of columns [N, M] in fp32, without the norm's excess."""
        chosen = self.scores.gather(1, columns).float()
        return chosen if self.norm is None else chosen - self.norm[:, None]


@runtime_checkable
class Scorer(Protocol):
    """What search knows of a system."""

    @property
    def normalised(self) -> bool:
        """Whether each row of scores is a log-distribution: a hypothesis's sum then only falls."""

    @property
    def device(self) -> torch.device:
        """Where it works: sources and `y` must be there."""

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """(memory, state) of a batch, before the first symbol: one row a sentence in both (K = 1)."""

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """Scores of the symbol after `y` [N] (BOS at first), for any K in N = B * K. Ids of V or more (source
        copies) may be among `y`: read them as UNK."""


class ModelScorer:
    """One translation model as a Scorer: its log-probabilities over the whole vocabulary.

    The model is used as it is: put it in evaluation mode first. `name` is the source it reads.
    """

    normalised = True

    def __init__(self, model: TranslationModel, name: str = SOURCE) -> None:
        self._model = model
        self._name = name

    @property
    def device(self) -> torch.device:
        """That of the model's parameters."""
        return next(self._model.parameters()).device

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """The encoded sources and the decoder's first state."""
        source = sources[self._name]
        memory = self._model.encode(source.ids, source.mask)
        return memory, self._model.start(memory)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """One step of the decoder, its readout and the output layer."""
        readout, state, alpha = self._model.step(y, state, memory)
        attention = {} if alpha is None else {self._name: alpha}
        return Step(self._model.log_probs(readout), None, state, attention)


class Columns:
    """The score columns of a Step, read once for as long as the Scorer's `ids` stay the same tensor.

    Errors: RnnsearchError where EOS is not among them.
    """

    def __init__(self, ids: Tensor | None, count: int) -> None:
        self.ids = ids
        self.count = count
        self._column_of: Tensor | None = None
        if ids is not None:
            if ids.shape != (count,):
                raise ValueError(f"Step.ids must be one a score column ({count}); got shape {tuple(ids.shape)}")
            self._column_of = ids.new_full((int(ids.max()) + 1,), -1)
            self._column_of[ids] = torch.arange(count, device=ids.device)
            if int(self._column_of.shape[0]) <= EOS or int(self._column_of[EOS]) < 0:
                raise RnnsearchError(f"a scorer's candidate symbols must include EOS (id {EOS}); got none")

    def same(self, step: Step) -> bool:
        """Whether `step` has these columns."""
        return step.ids is self.ids and step.scores.shape[1] == self.count

    def tokens(self, columns: Tensor) -> Tensor:
        """The symbols of score columns, in any shape."""
        return columns if self.ids is None else self.ids[columns]

    def find(self, tokens: Tensor) -> Tensor:
        """The score columns of symbols, in any shape; -1 for a symbol without one (and for a negative id)."""
        table = self._column_of
        size = self.count if table is None else table.shape[0]
        known = (tokens >= 0) & (tokens < size)
        found = tokens if table is None else table[tokens.clamp(0, size - 1)]
        return found.where(known, -1)


def columns_of(step: Step, last: Columns | None) -> Columns:
    """The columns of a step: `last` where they have not changed."""
    return last if last is not None and last.same(step) else Columns(step.ids, step.scores.shape[1])
