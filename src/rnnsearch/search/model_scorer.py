"""Scorers of models: in PyTorch, in native code, and `fastest_scorer`, which chooses between them.

A scorer uses its model as it is: put the model in evaluation mode first. `systems` creates the scorers.

Before changing it: `fastest_scorer` compares native code with the definition (`accel/verification.py`) and falls back
to `ModelScorer`, whose results are the reference. Native scorers are used by several threads at once, so a call must
not change the scorer. Tests: tests/models/test_choice.py, tests/properties/test_native_search.py,
tests/properties/test_search_agrees.py.

Axes: B sentences, N hypotheses, C score columns, J source positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rnnsearch.accel.registry import FAST_SWITCH, fast_implementations_are_enabled
from rnnsearch.accel.rnnsearch_search import GreedyOutput, NativeRNNsearch, SearchConstraints
from rnnsearch.accel.search import NativeDecoder, packed_model, products_problem, search_unsupported_reason
from rnnsearch.accel.verification import SEARCH_TOLERANCE, TinyModel, code_of, find_problem, search_problem
from rnnsearch.engine.n_best import NBestArrays
from rnnsearch.engine.rnnsearch import CBeamOptions
from rnnsearch.engine.structs import Array, DType, PackedMatrix
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.decoders.decoder import map_hidden
from rnnsearch.models.language_model import LanguageModel
from rnnsearch.models.outputs import LogitsFunction, Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops import rows
from rnnsearch.ops.autotune import fastest_search_dtype
from rnnsearch.ops.device import TF32_PRODUCTS
from rnnsearch.ops.native.library import library
from rnnsearch.search.beam import BeamSearch, beam_search, greedy_search
from rnnsearch.search.expansion import BeamExpansion
from rnnsearch.search.native_beam import NativeBeamRequest
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.ranking import ENGINE_NORMS, LENGTH_NORMS, Ranking
from rnnsearch.search.results import HypothesisArrays
from rnnsearch.search.scorer import Scorer, Sources, Step
from rnnsearch.text.vocabulary import BOS, EOS, UNK


class FastestScorer(NamedTuple):
    """The fastest Scorer of a model."""

    scorer: Scorer
    """Scorer in native code, or in PyTorch."""
    description: str
    """Name of the implementation, shown by `rnnsearch inspect`."""


TORCH_PRODUCTS = "PyTorch, fp32"
TORCH_TF32_PRODUCTS = "PyTorch, tf32"
"""Descriptions of scorers without native code."""


def fastest_scorer(model: TranslationModel, precision: str = "auto", normalised: bool = True) -> FastestScorer:
    """Return the fastest Scorer of a model on its device.

    Args:
        model: The model.
        precision: Precision of matrix products (see `native_dtype`).
        normalised: False if scores are those of the output layer without a softmax.
    """
    dtype = native_dtype(model.device, precision)
    if dtype is None:
        return torch_scorer(ModelScorer, model, precision, normalised)
    native, reason = _native_search(model, dtype)
    if native is not None and not normalised:
        description = f"native steps, {dtype.name.lower()} (no native search: its scores are not normalised)"
        return FastestScorer(NativeStepScorer(native, normalised=False), description)
    if native is not None:
        in_one_call = native.searches_in_one_call and _one_call_problem(model, type(native)) is None
        scorer = NativeScorer(native) if in_one_call else NativeStepScorer(native)
        return FastestScorer(scorer, f"native search, {dtype.name.lower()}")
    native_products = packed_model(model, dtype)
    assert native_products is not None
    description = f"native products, {dtype.name.lower()} (no native search: {reason})"
    return FastestScorer(ModelScorer(native_products, normalised=normalised), description)


def _native_search(model: TranslationModel, dtype: DType) -> tuple[NativeModel | None, str]:
    """Return the native search of a model, or None and the reason why there is none."""
    if not fast_implementations_are_enabled():
        return None, f"{FAST_SWITCH}=0"
    if (reason := products_problem(model, dtype)) is not None:
        return None, reason
    if NativeRNNsearch.supports(model) and search_problem(model, NativeRNNsearch.create) is None:
        return NativeRNNsearch.create(model, dtype), ""
    reason = search_unsupported_reason(model) or search_problem(model, NativeDecoder.create)
    return (NativeDecoder.create(model, dtype), "") if reason is None else (None, reason)


def _one_call_problem(model: TranslationModel, native_class: type[Any]) -> str | None:
    """Return why a native search must not search a whole batch, or None if it does so like `BeamSearch`."""

    def check() -> bool:
        tiny = TinyModel.like(model)
        assert isinstance(tiny.model.output, Output)
        tiny.model.output.bias.data[EOS] += 1.0  # hypotheses of different lengths compete
        native = native_class.create(tiny.model, DType.FP32)
        assert native is not None
        sources = tiny.sources
        limits: dict[str, Any] = {"max_ratio": 0.0, "max_extra": 4}
        for options in (
            SearchOptions(beam=4, n_best=2, length_penalty=1.5, **limits),
            SearchOptions(beam=3, n_best=3, length_norm="gnmt", length_penalty=0.6, **limits),
        ):
            results = beam_search(NativeScorer(native), sources, options)
            if results != beam_search(NativeStepScorer(native), sources, options):
                return False
        options = SearchOptions(beam=1, **limits)
        results = greedy_search(NativeScorer(native), sources, options)
        if results != greedy_search(NativeStepScorer(native), sources, options):
            return False
        return _native_norms_are_equal()

    # The components of a model decide which operations `ops/native/shared_states.h` runs once for several hypotheses.
    code = code_of(BeamSearch, BeamExpansion, Ranking), *(norm.__code__ for norm in LENGTH_NORMS.values())
    return find_problem(check, "the native version", BeamSearch, native_class, TinyModel.key(model), code)


def _native_norms_are_equal() -> bool:
    """Return True if hypotheses are scored as in `ops/native/beam_search.h`; few searches would show a difference."""
    for length in (1, 3, 10):
        for exponent in (0.6, 1.3):
            norms = {"power": length**exponent, "gnmt": ((5 + length) / 6) ** exponent}
            for name in ENGINE_NORMS:
                score = Ranking(length_penalty=exponent, length_norm=name).score(-1.0, length)
                if abs(score + 1.0 / norms[name]) > SEARCH_TOLERANCE:
                    return False
    return True


def native_dtype(device: torch.device, precision: str = "auto") -> DType | None:
    """Return the type of native matrix products, or None to use PyTorch's in fp32.

    PyTorch is used on other devices than the CPU, and if its fp32 products were faster than those that `precision`
    allows.

    Args:
        device: Device of the model.
        precision: `fp32`; `bf16` (products of bf16 numbers, summed in fp32); `int8` (products of bytes, with the
            largest rounding errors); or `auto`, the faster of bf16 and fp32 when they were timed.

    Raises:
        RnnsearchError: There is no native code, and `precision` is bf16 or int8.
    """
    uses_definitions = precision in ("auto", "fp32") and not fast_implementations_are_enabled()
    if device.type != "cpu" or library() is None or uses_definitions:
        if precision in ("bf16", "int8"):
            raise RnnsearchError(
                f"search.precision must be fp32 or auto without native code for the CPU; got {precision}"
            )
        return None
    if precision in ("auto", "fp32"):
        name = fastest_search_dtype(("bf16", "fp32") if precision == "auto" else ("fp32",))
        return None if name is None else DType[name.upper()]
    return DType[precision.upper()]


class _Memory(NamedTuple):
    encoded: Any  # the model's memories; None for a language model
    logits: LogitsFunction  # the output layer over the batch's columns


AnyModel = TypeVar("AnyModel", bound=TranslationModel | LanguageModel)


class _TorchScorer(ABC, Generic[AnyModel]):
    """Scorer of a model in PyTorch; a subclass starts the model and runs one step up to the output layer."""

    def __init__(self, model: AnyModel, tf32: bool = False, normalised: bool = True) -> None:
        """Create a scorer.

        Args:
            model: A model in evaluation mode.
            tf32: Round the operands of matrix products to TF32 on a GPU.
            normalised: False if scores are those of the output layer without a softmax.
        """
        self._model = model
        self.normalised = normalised
        self._products: AbstractContextManager[None] = TF32_PRODUCTS if tf32 else nullcontext()
        self.vocabulary = model.output.vocabulary

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self._model.device

    @property
    def recording_owner(self) -> object:
        """The model: scorers of the same model share recordings."""
        return self._model

    @property
    def recording_key(self) -> object:
        """The precision of products, and the type of scores."""
        return self._products is TF32_PRODUCTS, self.normalised

    def recorded_weights(self) -> Sequence[Tensor]:
        """Return all parameters and buffers of the model."""
        return [*self._model.parameters(), *self._model.buffers()]

    @abstractmethod
    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]: ...

    @abstractmethod
    def _readout(self, y: Tensor, state: Any, encoded: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        """Return the input of the output layer, the next state and the attention by source."""

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        # Ids of V or more are copies of source tokens (see `Scorer.step`).
        with self._products:
            readout, state, alpha = self._readout(y.masked_fill(y >= self.vocabulary, UNK), state, memory.encoded)
            # Native row operations (`ops/rows.py`) read contiguous fp32.
            logits = memory.logits(readout).float().contiguous()  # [N, C]
        return Step(logits, state, alpha, rows.log_sum_exp(logits) if self.normalised else None)

    def map_hidden(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        return map_hidden(function, state)


class ModelScorer(_TorchScorer[TranslationModel]):
    """Scorer of a translation model in PyTorch, which reads all sources of the batch."""

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        with self._products:
            encoded = self._model.encode(sources)
            return _Memory(encoded, self._model.output.logits_function(columns)), self._model.start(encoded)

    def _readout(self, y: Tensor, state: Any, encoded: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        return self._model.step(y, state, encoded)


class LanguageScorer(_TorchScorer[LanguageModel]):
    """Scorer of a language model, by itself or with a translation model over the same tokens (shallow fusion).

    Of the sources it uses only their number, and the previous sentences of a model that reads them.
    """

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        texts = len(next(iter(sources.values())).ids)
        context = sources.get(self._model.context_stream) if self._model.context_stream else None
        state = self._model.start(texts, None if context is None else context.ids)
        return _Memory(None, self._model.output.logits_function(columns)), state

    def _readout(self, y: Tensor, state: Any, encoded: Any) -> tuple[Tensor, Any, dict[str, Tensor]]:
        readout, state = self._model.step(y, state)
        return readout, state, {}


def torch_scorer(
    scorer: type[ModelScorer] | type[LanguageScorer], model: Any, precision: str, normalised: bool = True
) -> FastestScorer:
    """Return a scorer in PyTorch, whose products are in TF32 on a GPU if `precision` is auto."""
    if precision == "auto" and model.device.type == "cuda":
        return FastestScorer(scorer(model, tf32=True, normalised=normalised), TORCH_TF32_PRODUCTS)
    return FastestScorer(scorer(model, normalised=normalised), TORCH_PRODUCTS)


@runtime_checkable
class NativeModel(Protocol):
    """A model in native code: `NativeRNNsearch`, or `NativeDecoder` for other decoders.

    Each has its own type of memory; a state is one tensor [N, size].
    """

    @property
    def output(self) -> PackedMatrix:
        """The output layer over the whole vocabulary."""

    @property
    def hidden(self) -> Sequence[slice]:
        """Columns of the hidden vectors of cells in a state."""

    @property
    def searches_in_one_call(self) -> bool:
        """True if the model has `greedy` and `beam`."""

    @property
    def source_names(self) -> tuple[str, ...] | None:
        """Names of the sources in the order of their attention weights; None for the only one, with any name."""

    def rows(self, ids: Tensor) -> PackedMatrix:
        """Return the output layer over some tokens."""

    def encode(self, sources: Sources) -> Any: ...
    def start(self, memory: Any) -> Tensor: ...
    def step(
        self, memory: Any, state: Tensor, y: Tensor, output: PackedMatrix
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return logits, their norm, the next state and the attention to all source positions, if there is any."""

    def greedy(self, memory: Any, output: PackedMatrix, constraints: SearchConstraints) -> GreedyOutput:
        """Search a whole batch greedily."""

    def beam(
        self, memory: Any, output: PackedMatrix, constraints: SearchConstraints, options: CBeamOptions
    ) -> NBestArrays | None:
        """Search a whole batch with a beam; None if a score was NaN."""


class _NativeMemory(NamedTuple):
    widths: dict[str, int]  # positions of each source, in the order of their attention weights
    encoded: Any
    output: PackedMatrix  # the output layer over the batch's columns

    def attention_by_source(self, alpha: Tensor) -> dict[str, Tensor]:
        """Return attention weights over the positions of each source, given those of all [..., J_all]."""
        return dict(zip(self.widths, alpha.split([*self.widths.values()], dim=-1), strict=True))


class NativeStepScorer:
    """Scorer of a translation model in native code on the CPU, step by step."""

    device = torch.device("cpu")

    def __init__(self, native: NativeModel, normalised: bool = True) -> None:
        """Create a scorer; with `normalised` False, scores are those of the output layer without a softmax."""
        self._native = native
        self.normalised = normalised
        self.vocabulary = native.output.struct.outputs

    def start(self, sources: Sources, columns: Tensor | None) -> tuple[Any, Any]:
        memory = self._encode(sources, columns)
        return memory, self._native.start(memory.encoded)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        logits, norm, state, alpha = self._native.step(memory.encoded, state, y, memory.output)
        attention = {} if alpha is None else memory.attention_by_source(alpha)
        return Step(logits, state, attention, norm if self.normalised else None)

    def map_hidden(self, state: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        state = state.clone()  # the argument must not be modified
        for columns in self._native.hidden:
            state[:, columns] = function(state[:, columns])
        return state

    def _encode(self, sources: Sources, columns: Tensor | None) -> _NativeMemory:
        widths = {}
        for name in self._native.source_names or sources:
            # A missing source is read as one position.
            widths[name] = max(1, sources[name].ids.shape[1]) if name in sources else 1
        output = self._native.output if columns is None else self._native.rows(columns)
        return _NativeMemory(widths, self._native.encode(sources), output)


class NativeScorer(NativeStepScorer):
    """A `NativeStepScorer` that also searches a whole batch in one call, with normalised scores."""

    def greedy(
        self, sources: Sources, columns: Tensor | None, max_length: Array, banned: Sequence[int]
    ) -> HypothesisArrays:
        """Return the result of a greedy search (see `beam.NativeGreedyScorer`)."""
        memory = self._encode(sources, columns)
        result = self._native.greedy(memory.encoded, memory.output, _search_constraints(columns, max_length, banned))
        # A translation whose last token is not EOS was cut: that token is one too many.
        finished = result.tokens.gather(0, result.length[None] - 1)[0].numpy() == EOS
        length = result.length.numpy() - ~finished
        attention = {} if result.attention is None else memory.attention_by_source(result.attention)
        return HypothesisArrays(
            sentence=np.arange(len(max_length)),
            tokens=result.tokens.numpy(),
            scores=result.scores.numpy(),
            length=length,
            finished=finished,
            attention={name: weights.numpy() for name, weights in attention.items()},
        )

    def beam(
        self,
        sources: Sources,
        columns: Tensor | None,
        max_length: Array,
        banned: Sequence[int],
        request: NativeBeamRequest,
    ) -> tuple[NBestArrays, dict[str, Array]] | None:
        """Return the result of a beam search (see `beam.NativeBeamScorer`)."""
        memory = self._encode(sources, columns)
        constraints = _search_constraints(columns, max_length, banned)
        n_best = self._native.beam(memory.encoded, memory.output, constraints, request.c_struct)
        if n_best is None or not n_best.attention.shape[-1]:
            return None if n_best is None else (n_best, {})
        attention = memory.attention_by_source(torch.from_numpy(n_best.attention))
        return n_best, {name: weights.numpy() for name, weights in attention.items()}


def _search_constraints(columns: Tensor | None, max_length: Array, banned: Sequence[int]) -> SearchConstraints:
    banned_columns = torch.tensor(banned, dtype=torch.int64)
    if columns is not None:
        # Native code compares columns, not token ids.
        banned_columns = torch.isin(columns, banned_columns).nonzero()[:, 0]
    return SearchConstraints(columns, banned_columns, torch.from_numpy(max_length), BOS, EOS)
