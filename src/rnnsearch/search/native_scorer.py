"""Translation models in native code as Scorers, over the whole vocabulary or over candidate lists; the choice of the
fastest Scorer that a model has here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.backend.decoding import NativeMemory, NativeRNNsearch
from rnnsearch.backend.packed_model import PackedOutput, packed
from rnnsearch.errors import RnnsearchError
from rnnsearch.kernels.native import rows
from rnnsearch.kernels.native.packed import Kind, Packed, decoding, multiplies_bf16
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.candidates import Candidates
from rnnsearch.search.greedy import Whole
from rnnsearch.search.hypothesis import Numbers
from rnnsearch.search.scorer import SOURCE, ModelScorer, Scorer, Sources, Step
from rnnsearch.text.vocabulary import BOS, EOS


class Columns:
    """The symbols of a batch's score columns, None for all, and their rows of the output layer, where these are laid
    out. Not a tuple: it stays as it is when a memory's sentences are selected."""

    def __init__(self, ids: Tensor | None, output: Packed | None) -> None:
        self.ids = ids
        self.output = output


class Narrowed(NamedTuple):
    """The memory of a batch, and its columns."""

    memory: Any
    columns: Columns


class NativeScorer:
    """As `ModelScorer` of the same model, in native code on the CPU."""

    normalised = True
    device = torch.device("cpu")

    def __init__(self, twin: NativeRNNsearch, candidates: Candidates | None = None, name: str = SOURCE) -> None:
        self._twin = twin
        self._candidates = candidates
        self._name = name

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """The encoded sources and the decoder's first state."""
        memory = self._remember(sources)
        return memory, self._twin.start(memory.memory)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """One step of the decoder, its readout and the output layer."""
        logits, norm, state, alpha = self._twin.step(memory.memory, state, y, memory.columns.output)
        return Step(logits, memory.columns.ids, state, {self._name: alpha}, norm)

    def greedy(self, sources: Sources, most: Numbers, banned: Sequence[int]) -> Whole:
        """The whole search without coming back to Python."""
        encoded, columns = self._remember(sources)
        ids, never = columns.ids, torch.tensor(banned, dtype=torch.int64)
        if ids is not None:
            never = torch.isin(ids, never).nonzero()[:, 0]
        assert isinstance(encoded, NativeMemory)
        assert columns.output is not None
        found = self._twin.greedy(encoded, columns.output, ids, never, torch.from_numpy(most), BOS, EOS)
        last = found.tokens.gather(0, found.length[None] - 1)[0]
        attention = {self._name: found.attention.numpy()}
        return Whole(found.tokens.numpy(), found.scores.numpy(), found.length.numpy(), last.numpy() == EOS, attention)

    def _remember(self, sources: Sources) -> Narrowed:
        source = sources[self._name]
        columns = Columns(None, self._twin.output)
        if self._candidates is not None:
            ids = self._candidates(source.ids)
            columns = Columns(ids, self._twin.rows(ids))
        return Narrowed(self._twin.encode(source.ids, source.mask), columns)


class LogitScorer(ModelScorer):
    """As `ModelScorer`, giving logits and their norm, over all symbols or over candidate lists; for a model with its
    products in native code (see `packed`) and for any other."""

    def __init__(self, model: TranslationModel, candidates: Candidates | None = None, name: str = SOURCE) -> None:
        super().__init__(model, name)
        self._candidates = candidates

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """The encoded sources and the decoder's first state."""
        memory, state = super().start(sources)
        ids, output = None, None
        if self._candidates is not None:
            ids = self._candidates(sources[self._name].ids)
            layer = self._model.output
            output = layer.packed_rows(ids) if isinstance(layer, PackedOutput) else None
        return Narrowed(memory, Columns(ids, output)), state

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """One step of the decoder, its readout and the output layer."""
        readout, state, alpha = self._model.step(y, state, memory.memory)
        ids, output = memory.columns.ids, memory.columns.output
        logits = self._model.output.logits(readout, ids) if output is None else output(readout)
        logits = logits.float().contiguous()
        attention = {} if alpha is None else {self._name: alpha}
        norm = rows.norms(logits) if rows.serves(logits) else logits.logsumexp(1)
        return Step(logits, ids, state, attention, norm)


class Fastest(NamedTuple):
    """The fastest Scorer of a model, the same over the whole vocabulary where that is over candidate lists, and what
    it is, in words."""

    scorer: Scorer
    whole: Scorer
    what: str


def fastest(model: TranslationModel, precision: str = "auto", candidates: Candidates | None = None) -> Fastest:
    """The fastest Scorer of a model on the device where it is.

    precision: `fp32`; `bf16`, products of bf16 numbers summed in fp32; `int8`, products of bytes, which rounds most;
    `auto`, bf16 where the processor multiplies it.
    Errors: RnnsearchError for bf16 and int8 where there is no native code.
    """
    lists = "" if candidates is None else ", candidate lists"
    on_cpu = next(model.parameters()).device.type == "cpu"
    if not on_cpu or decoding() is None:
        if precision in ("bf16", "int8"):
            raise RnnsearchError(
                f"search.precision must be fp32 or auto without native code for the CPU; got {precision}"
            )
        whole = ModelScorer(model)
        some = whole if candidates is None else LogitScorer(model, candidates)
        return Fastest(some, whole, f"the library's products, fp32{lists}")
    if precision == "auto":
        precision = "bf16" if multiplies_bf16() else "fp32"
    kind = Kind[precision.upper()]
    twin = NativeRNNsearch.of(model, kind)
    if twin is not None:
        return Fastest(NativeScorer(twin, candidates), NativeScorer(twin), f"native search, {precision}{lists}")
    other = packed(model, kind)
    assert other is not None
    return Fastest(LogitScorer(other, candidates), LogitScorer(other), f"native products, {precision}{lists}")
