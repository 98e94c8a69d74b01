"""A language model as a Scorer: alone, or beside a translation model over the same symbols (shallow fusion)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.kernels.native import rows
from rnnsearch.models.decoders.decoder import each_hidden
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.outputs import Logits
from rnnsearch.search.scorer import Sources, Step
from rnnsearch.text.vocabulary import UNK


class _Memory(NamedTuple):
    logits: Logits
    """The output layer over the batch's columns."""


class LanguageScorer:
    """One language model as a Scorer. Of the sources it takes how many there are. The model is used as it is: put it in
    evaluation mode first."""

    normalised = True

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.vocabulary = model.output.vocabulary

    @property
    def device(self) -> torch.device:
        """That of the model's parameters."""
        return self._model.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        texts = len(next(iter(sources.values())).ids)
        return _Memory(self._model.output.over(columns)), self._model.start(texts)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        readout, state = self._model.step(y.where(y < self.vocabulary, UNK), state)
        logits = memory.logits(readout).float().contiguous()
        return Step(logits, state, {}, rows.norms(logits))

    def disturbed(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        return each_hidden(by, state)
