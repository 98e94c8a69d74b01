"""Translation models as Scorers, and the choice of the fastest one that a model has here."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.accel.rnnsearch_search import Among, Greedy, NativeRNNsearch
from rnnsearch.accel.search import NativeDecoder, packed, search_lacks
from rnnsearch.data.batch import Stream
from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.rnnsearch import CBeamOptions
from rnnsearch.engine.structs import Array, DType, PackedMatrix
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.decoders.decoder import map_hidden
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.outputs import LogitsFunction
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops import rows
from rnnsearch.ops.autotune import search_kind
from rnnsearch.ops.native.library import library
from rnnsearch.search.native_beam import NativeBeamRequest
from rnnsearch.search.results import HypothesisArrays
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.vocabulary import BOS, EOS, UNK


class _Memory(NamedTuple):
    encoded: Any
    logits: LogitsFunction
    """The output layer over the batch's columns."""


class ModelScorer:
    """One translation model as a Scorer: its logits, and their norm, which makes them log-probabilities.

    The model is used as it is: put it in evaluation mode first. It reads all sources of the batch.
    """

    normalised = True

    def __init__(self, model: TranslationModel) -> None:
        self._model = model
        self.vocabulary = model.output.vocabulary

    @property
    def device(self) -> torch.device:
        """That of the model's parameters."""
        return self._model.device

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory = self._model.encode(sources)
        return _Memory(memory, self._model.output.logits_function(columns)), self._model.start(memory)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        y = y.where(y < self.vocabulary, UNK)
        readout, state, alpha = self._model.step(y, state, memory.encoded)
        logits = memory.logits(readout).float().contiguous()
        return Step(logits, state, alpha, rows.norms(logits))

    def map_hidden(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        return map_hidden(by, state)


class _NativeMemory(NamedTuple):
    source: str
    encoded: Any
    output: PackedMatrix
    """The output layer over the batch's columns."""


@runtime_checkable
class NativeModel(Protocol):
    """A model's native twin: `NativeRNNsearch`, or `NativeDecoder` of the other families. Each has a memory of its own
    kind."""

    @property
    def output(self) -> PackedMatrix: ...
    @property
    def hidden(self) -> Sequence[slice]:
        """Where in a state the hidden vectors of cells are."""

    @property
    def searches_whole(self) -> bool: ...
    def rows(self, ids: Tensor) -> PackedMatrix: ...
    def encode(self, source: Stream) -> Any: ...
    def start(self, memory: Any) -> Tensor: ...
    def step(
        self, memory: Any, state: Tensor, y: Tensor, output: PackedMatrix
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]: ...
    def greedy(self, memory: Any, output: PackedMatrix, among: Among) -> Greedy: ...
    def beam(self, memory: Any, output: PackedMatrix, among: Among, asked: CBeamOptions) -> NBestArrays | None: ...


class NativeStepScorer:
    """As `ModelScorer` of the same model, in native code on the CPU."""

    normalised = True
    device = torch.device("cpu")

    def __init__(self, twin: NativeModel) -> None:
        self._twin = twin
        self.vocabulary = twin.output.struct.outputs

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory = self._remember(sources, columns)
        return memory, self._twin.start(memory.encoded)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        logits, norm, state, alpha = self._twin.step(memory.encoded, state, y, memory.output)
        return Step(logits, state, {} if alpha is None else {memory.source: alpha}, norm)

    def map_hidden(self, state: Tensor, by: Callable[[Tensor], Tensor]) -> Tensor:
        state = state.clone()
        for part in self._twin.hidden:
            state[:, part] = by(state[:, part])
        return state

    def _remember(self, sources: Sources, columns: Tensor | None) -> _NativeMemory:
        ((name, source),) = sources.items()
        output = self._twin.output if columns is None else self._twin.rows(columns)
        return _NativeMemory(name, self._twin.encode(source), output)


class NativeScorer(NativeStepScorer):
    """With greedy and beam search of a whole batch in one call."""

    def greedy(self, sources: Sources, columns: Tensor | None, most: Array, banned: Sequence[int]) -> HypothesisArrays:
        source, encoded, output = self._remember(sources, columns)
        found = self._twin.greedy(encoded, output, _among(columns, most, banned))
        finished = found.tokens.gather(0, found.length[None] - 1)[0].numpy() == EOS
        length = found.length.numpy() - ~finished
        attention = {} if found.attention is None else {source: found.attention.numpy()}
        return HypothesisArrays(
            np.arange(len(most)), found.tokens.numpy(), found.scores.numpy(), length, finished, attention
        )

    def beam(
        self, sources: Sources, columns: Tensor | None, most: Array, banned: Sequence[int], asked: NativeBeamRequest
    ) -> NBestArrays | None:
        _, encoded, output = self._remember(sources, columns)
        return self._twin.beam(encoded, output, _among(columns, most, banned), asked.c_struct)


def _among(columns: Tensor | None, most: Array, banned: Sequence[int]) -> Among:
    never = torch.tensor(banned, dtype=torch.int64)
    if columns is not None:
        never = torch.isin(columns, never).nonzero()[:, 0]
    return Among(columns, never, torch.from_numpy(most), BOS, EOS)


TORCH_PRODUCTS = "the library's products, fp32"


class FastestScorer(NamedTuple):
    """The fastest Scorer of a model, and what it is, in words."""

    scorer: Scorer
    description: str


def native_dtype(device: torch.device, precision: str = "auto") -> DType | None:
    """What native code is to multiply; None where the library's products in fp32 serve: elsewhere than on a CPU, and
    where these were faster than what fp32 or `auto` allow.

    precision: `fp32`; `bf16`, products of bf16 numbers summed in fp32; `int8`, products of bytes, which rounds most;
    `auto`, bf16 or fp32, whichever was faster when they were timed.
    Errors: RnnsearchError for bf16 and int8 where there is no native code.
    """
    if device.type != "cpu" or library() is None:
        if precision in ("bf16", "int8"):
            raise RnnsearchError(
                f"search.precision must be fp32 or auto without native code for the CPU; got {precision}"
            )
        return None
    if precision in ("auto", "fp32"):
        found = search_kind(("bf16", "fp32") if precision == "auto" else ("fp32",))
        return None if found is None else DType[found.upper()]
    return DType[precision.upper()]


def fastest_scorer(model: TranslationModel, precision: str = "auto") -> FastestScorer:
    """The fastest Scorer of a model on the device where it is, with products in a precision as in `native_kind`."""
    kind = native_dtype(model.device, precision)
    if kind is None:
        return FastestScorer(ModelScorer(model), TORCH_PRODUCTS)
    twin: NativeModel | None = NativeRNNsearch.of(model, kind) or NativeDecoder.of(model, kind)
    if twin is not None:
        scorer = NativeScorer if twin.searches_whole else NativeStepScorer
        return FastestScorer(scorer(twin), f"native search, {kind.name.lower()}")
    other = packed(model, kind)
    assert other is not None
    why = search_lacks(model)
    return FastestScorer(ModelScorer(other), f"native products, {kind.name.lower()} (no native search: {why})")


# A language model as a Scorer: alone, or beside a translation model over the same symbols (shallow fusion).


class _LanguageModelMemory(NamedTuple):
    logits: LogitsFunction
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
        return _LanguageModelMemory(self._model.output.logits_function(columns)), self._model.start(texts)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        readout, state = self._model.step(y.where(y < self.vocabulary, UNK), state)
        logits = memory.logits(readout).float().contiguous()
        return Step(logits, state, {}, rows.norms(logits))

    def map_hidden(self, state: Any, by: Callable[[Tensor], Tensor]) -> Any:
        return map_hidden(by, state)
