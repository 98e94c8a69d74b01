"""A translation model's native twin as a Scorer, and the choice of the fastest Scorer that a model has here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.errors import RnnsearchError
from rnnsearch.models.native import rows
from rnnsearch.models.native.decoding import NativeRNNsearch
from rnnsearch.models.native.packed import decoding, multiplies_bf16
from rnnsearch.models.native.packed_model import packed
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.greedy import Whole
from rnnsearch.search.hypothesis import Numbers
from rnnsearch.search.scorer import SOURCE, ModelScorer, Scorer, Sources, Step
from rnnsearch.text.vocabulary import BOS, EOS


class NativeScorer:
    """As `ModelScorer` of the same model, in native code on the CPU; one symbol table, no copies."""

    normalised = True
    device = torch.device("cpu")

    def __init__(self, twin: NativeRNNsearch, name: str = SOURCE) -> None:
        self._twin = twin
        self._name = name

    def start(self, sources: Sources) -> tuple[Any, Any]:
        """The encoded sources and the decoder's first state."""
        source = sources[self._name]
        memory = self._twin.encode(source.ids, source.mask)
        return memory, self._twin.start(memory)

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """One step of the decoder, its readout and the output layer."""
        logits, norm, state, alpha = self._twin.step(memory, state, y, self._twin.output)
        return Step(logits, None, state, {self._name: alpha}, norm)

    def greedy(self, sources: Sources, most: Numbers, banned: Sequence[int]) -> Whole:
        """The whole search without coming back to Python."""
        source = sources[self._name]
        memory = self._twin.encode(source.ids, source.mask)
        found = self._twin.greedy(
            memory, self._twin.output, None, torch.tensor(banned), torch.from_numpy(most), BOS, EOS
        )
        end = found.length.numpy()
        last = found.tokens.gather(0, found.length[None] - 1)[0]
        return Whole(
            found.tokens.numpy(), found.scores.numpy(), end, last.numpy() == EOS, {self._name: found.attention.numpy()}
        )


class PackedScorer(ModelScorer):
    """As `ModelScorer`, of a model with its products in native code (see `packed`)."""

    def step(self, memory: Any, state: Any, y: Tensor) -> Step:
        """One step of the decoder, its readout and the output layer."""
        readout, state, alpha = self._model.step(y, state, memory)
        logits = self._model.output.logits(readout).contiguous()
        attention = {} if alpha is None else {self._name: alpha}
        return Step(logits, None, state, attention, rows.norms(logits))


class Fastest(NamedTuple):
    """The fastest Scorer of a model, and what it is, in words."""

    scorer: Scorer
    what: str


def fastest(model: TranslationModel, precision: str = "auto") -> Fastest:
    """The fastest Scorer of a model on the device where it is.

    precision: `fp32`; `bf16`, products of bf16 numbers summed in fp32; `auto`, bf16 where the processor multiplies it.
    Errors: RnnsearchError for bf16 where there is no native code.
    """
    on_cpu = next(model.parameters()).device.type == "cpu"
    if not on_cpu or decoding() is None:
        if precision == "bf16":
            raise RnnsearchError("search.precision must be fp32 or auto without native code for the CPU; got bf16")
        return Fastest(ModelScorer(model), "the library's products, fp32")
    bf16 = precision == "bf16" or (precision == "auto" and multiplies_bf16())
    kind = "bf16" if bf16 else "fp32"
    twin = NativeRNNsearch.of(model, bf16)
    if twin is not None:
        return Fastest(NativeScorer(twin), f"native search, {kind}")
    other = packed(model, bf16)
    assert other is not None
    return Fastest(PackedScorer(other), f"native products, {kind}")
