"""The steps of attention, stacks and decoders, written for native recurrences as cells' are in `cell_steps.py`.

The definitions are in `models`; a law holds each equal to its own, gradients included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rnnsearch.accel.cell_steps import CELLS, Mask, Room, State, between, cell_step, given, inputs, room, states
from rnnsearch.engine.structs import rounded_up
from rnnsearch.models.attention.attention import Query, Attention, AttentionState
from rnnsearch.models.attention.features import (
    LinguisticCoverage,
    LocalFertility,
    Markov,
    NeuralCoverage,
    Position,
)
from rnnsearch.models.attention.normalisers import Softmax
from rnnsearch.models.attention.scores import (
    Additive,
    AdditiveBias,
    Concat,
    ConcatIdentity,
    Dot,
    General,
    Location,
    MultiHeadAdditive,
    ScaledDot,
)
from rnnsearch.models.attention.windows import Global, LocalMonotonic, LocalPredictive
from rnnsearch.models.batch_rng import masks_per_cell
from rnnsearch.models.cells import Cell, LayerNorm
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauState, BahdanauTanh, Cohn
from rnnsearch.models.decoders.bi_scale import BiScale, BiScaleState
from rnnsearch.models.decoders.conditional import (
    BiDeep,
    BiDeepState,
    ConditionalRecurrence,
    ConditionalGRU,
    ConditionalState,
    DeepTransition,
    RecurrentMasks,
    Transitions,
    UpperLayer,
)
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.readouts import Attentional, BiasedAttentional, LinearAttentional
from rnnsearch.models.decoders.stack_decoders import (
    LayersState,
    Luong,
    LuongInputFeeding,
    Neubig,
    RNMTPlus,
    StackDecoder,
    Sutskever,
)
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.ops.linear import linear
from rnnsearch.ops.step import Feature, Reads, Source, Step, Sums, Value, padded
from rnnsearch.utils.tensors import each


class Read(NamedTuple):
    """What a decoder's readout reads: `Reading.state` and, where there is one, the context."""

    state: Value
    context: Value | None


def attention(
    step: Step, part: Attention, query: Value, state: AttentionState, memory: Memory, to: Value | None = None
) -> Value:
    """`Attention.step`: where the context stands, which is `to` where that is given. What the memory's values hold
    behind those of the context is attended to along with them, and stands behind it."""
    score, window, rows = part.score, part.window, step.x.shape[0]
    assert memory.keys is not None
    keys, annotations, mask = (each(tensor, rows) for tensor in (memory.keys, memory.context_values, memory.mask))
    source = Source(keys, annotations, mask, heads=score.heads)
    centre = None
    if isinstance(window, LocalMonotonic):
        source = source._replace(reach=window.reach, centres=centres(part, state, memory, step.x))
    if isinstance(window, LocalPredictive):
        source = source._replace(reach=window.reach, spread=window.reach / 2)
        hidden = step.sums(query.size)
        step.product(window.query.weight, step.read((query, None)), hidden)
        bent = step.value(query.size)
        step.tanh(hidden, bent)
        centre = step.centre(bent, window.vector)
    if isinstance(score, Additive | MultiHeadAdditive | Concat | ConcatIdentity):
        of_query = score.weight[:, : score.query_size] if isinstance(score, Concat) else score.query.weight
        asked, reads = step.sums(score.hidden_size), step.read((query, None))
        step.product(of_query, reads, asked)
        if isinstance(score, AdditiveBias):
            assert score.query.bias is not None
            step.bias(score.query.bias, asked)
        source = source._replace(vector=score.vector)
        for own, weight, prepared in zip(part.features, part.feature_weights, memory.features, strict=True):
            assert isinstance(weight, nn.Linear)
            once = None if prepared is None else each(prepared, rows)
            source = feature(step, own, weight.weight, once, reads, source, state, asked)
        context = step.attend(asked, source, to, centre)
    else:
        scale = query.size**-0.5 if isinstance(score, ScaledDot) else 1.0
        context = step.attend(query, source._replace(scale=scale), to, centre)
    return context.part(0, memory.annotations.shape[2])


def feature(
    step: Step,
    part: nn.Module,
    weight: Tensor,
    prepared: Tensor | None,
    reads: Reads,
    source: Source,
    state: AttentionState,
    asked: Sums,
) -> Source:
    """A feature inside an additive score; what does not depend on the weights before goes into keys and query."""
    if isinstance(part, Position):
        assert prepared is not None
        assert state.position is not None
        step.clock(weight[:, 0].float(), asked, int(state.position[0]))
        return source._replace(keys=source.keys + linear(prepared.to(weight.dtype), weight[:, 1:]))
    if isinstance(part, NeuralCoverage):
        assert prepared is not None
        cell, units = part.cell, part.cell.size
        fixed = step.sums(3 * rounded_up(units))
        step.product(padded(cell.input.weight[:, 1 + part.annotation_size :], units, 0), reads, fixed)
        weights = cell.input.weight[:, 0], cell.recurrent_gates.weight, cell.recurrent.weight
        found = Feature(weight, prepared, cell=weights, fixed=fixed)
    elif isinstance(part, LinguisticCoverage):
        assert prepared is not None
        found = Feature(weight, prepared.reciprocal().unsqueeze(2))
    else:
        assert isinstance(part, Markov | LocalFertility)
        ones = torch.ones(*source.mask.shape, 1)
        found = Feature(weight, ones, part.neighbours, keeps=isinstance(part, LocalFertility))
    return source._replace(features=(*source.features, found))


def centres(part: Attention, state: AttentionState, memory: Memory, x: Tensor) -> Tensor:
    """p_t of all positions [N, I], which do not depend on what is asked."""
    N, I, _ = x.shape
    assert state.position is not None
    at = (state.position[:, None] + torch.arange(I)).view(memory.mask.shape[0], -1)
    found = part.window_centre(Query(x.new_empty(*at.shape, 0), at), memory)
    assert found is not None
    return found.view(N, I)


def stack(
    step: Step,
    layers: Stack,
    bottom: Room,
    own: list[State],
    before: StackState,
    context: Value | None = None,
) -> Value:
    """`Stack.step` from the sums of the bottom layer: where the top's output stands."""
    below = own[0].h
    for l, (cell, state, mask) in enumerate(zip(layers.layers, own, before.layer_masks(step.x.shape[1]), strict=True)):
        to = bottom
        if l > 0:
            to = room(step, cell)
            inputs(step, cell, to, (below, mask.inputs), *(() if context is None else ((context, None),)))
        cell_step(step, cell, to, state.last, state, mask.recurrent)
        below = step.add(state.h, below if layers.is_residual(l) else None, mask.outputs)
    return below


def layers_of(step: Step, state: StackState) -> list[State]:
    """Room for all layers' states."""
    return [states(step, first) for first in state.cells]


def fed(step: Step, cell: Cell, weight: Tensor, value: Value) -> Room:
    """A cell's sums with the words' share and W of a value."""
    to, reads = given(step, cell), step.read((value, None))
    for row, sums in to.inputs:
        step.product(weight, reads, sums, row)
    return to


def _bahdanau(step: Step, decoder: Bahdanau, state: BahdanauState, memory: Memory) -> tuple[State, Value]:
    """The cell's state and the context."""
    cell = decoder.cell
    own = states(step, state.cell)
    context = attention(step, decoder.attention, own.h.last, state.attention, memory)
    to = fed(step, cell, decoder.context.weight, context)
    cell_step(step, cell, to, own.last, own, state.recurrent_mask)
    return own, context


def bahdanau(step: Step, decoder: Bahdanau, state: BahdanauState, memory: Memory) -> Read:
    own, context = _bahdanau(step, decoder, state, memory)
    return Read(own.h.last, context)


def cohn(step: Step, decoder: Cohn, state: BahdanauState, memory: Memory) -> Read:
    own, context = _bahdanau(step, decoder, state, memory)
    return Read(own.h, context)


def attentional(step: Step, part: Attentional, context: Value, h: Value, to: Value) -> None:
    """`Attentional`: h~ of a context and a state."""
    combined = step.sums(to.size)
    step.product(part.combine.weight, step.read((context, None), (h, None)), combined)
    if part.has_bias:
        step.bias(part.combine.bias, combined)
    step.tanh(combined, to)


def conditional(
    step: Step, part: ConditionalRecurrence, first: CellState, carried: AttentionState, memory: Memory, keeps: RecurrentMasks
) -> tuple[State, Value]:
    """`Conditional.step`: the state after the last transition, and the context."""
    own, word, middle = states(step, first), part.word, between(step, part.word)
    cell_step(step, word, given(step, word), own.last, middle, next(keeps))
    context = attention(step, part.attention, middle.h, carried, memory)
    chain(step, [part.context, *part.transitions.layers], middle, own, keeps, (context, None))
    return own, context


def chain(step: Step, cells: list[Cell], old: State, new: State, keeps: RecurrentMasks, *read: tuple[Value, Mask]) -> None:
    """Cells one after the other, from a state to a state; the first reads values, the others nothing but the state."""
    for number, cell in enumerate(cells):
        to = room(step, cell)
        inputs(step, cell, to, *(read if number == 0 else ()))
        target = new if number == len(cells) - 1 else between(step, cell)
        cell_step(step, cell, to, old, target, next(keeps))
        old = target


def cgru(step: Step, decoder: ConditionalGRU, state: ConditionalState, memory: Memory) -> Read:
    own, context = conditional(step, decoder.cell, state.cell, state.attention, memory, masks_per_cell(state.masks))
    return Read(own.h, context)


def bideep(step: Step, decoder: BiDeep, state: BiDeepState, memory: Memory) -> Read:
    keeps = masks_per_cell(state.masks)
    own, context = conditional(step, decoder.first, state.cells[0], state.attention, memory, keeps)
    w = own.h
    for r, (layer, first) in enumerate(zip(decoder.upper, state.cells[1:], strict=True), start=2):
        assert isinstance(layer, UpperLayer)
        up = None if state.layer_masks is None else state.layer_masks[:, state.position :, r - 2]
        own = states(step, first)
        chain(step, [layer.cell, *layer.transitions.layers], own.last, own, keeps, (w, up), (context, None))
        w = step.add(own.h, w) if r >= decoder.first_residual else own.h
    return Read(w, context)


def bi_scale(step: Step, decoder: BiScale, state: BiScaleState, memory: Memory) -> Read:
    keeps, D = masks_per_cell(state.masks), decoder.size
    both, g1, left = (step.state(part.float()) for part in (state.hidden, state.gate, state.retained))
    h1, h2 = both.part(0, D), both.part(D, D)
    context = attention(step, decoder.attention, h2.last, state.attention, memory)
    read, fast, slow = step.read((context, None)), step.sums(2 * D), step.sums(2 * D)
    step.input(0, fast)
    step.product(decoder.fast.weight, step.read((left.last.part(0, D), next(keeps))), fast)
    step.product(decoder.down.weight, step.read((h2.last, next(keeps)), times=g1.last), fast)
    step.product(decoder.context.weight, read, fast)
    step.sigmoid(fast.part(0, D), g1)
    step.tanh(fast.part(D, D), h1)
    assert decoder.up.bias is not None
    step.bias(decoder.up.bias, slow)
    step.product(decoder.up.weight, step.read((h1, None), times=g1), slow)
    step.product(decoder.slow.weight, step.read((left.last.part(D, D), next(keeps))), slow)
    step.product(decoder.context.weight, read, slow, 2 * D)
    g2 = step.sigmoid(slow.part(0, D))
    step.gru(h2, slow.part(D, D), g1, h2.last)
    for gate, h, to in ((g1, h1, left.part(0, D)), (g2, h2, left.part(D, D))):
        step.gru(to, step.sums(D), gate, h)  # sums of nothing: (1 - g) h
    return Read(both, context)


def sutskever(step: Step, decoder: StackDecoder, state: LayersState, _: Memory) -> Read:
    layers, to = layers_of(step, state.stack), given(step, decoder.stack.bottom)
    return Read(stack(step, decoder.stack, to, layers, state.stack), None)


def luong(step: Step, decoder: Luong, state: LayersState, memory: Memory) -> Read:
    h, _ = sutskever(step, decoder, state, memory)
    return Read(h, attention(step, decoder.attention, h, state.attention, memory))


def luong_input_feeding(step: Step, decoder: LuongInputFeeding, state: LayersState, memory: Memory) -> Read:
    assert state.fed is not None
    h_tilde, layers = step.state(state.fed), layers_of(step, state.stack)
    to = fed(step, decoder.stack.bottom, decoder.feeding.weight, h_tilde.last)
    h = stack(step, decoder.stack, to, layers, state.stack)
    context = attention(step, decoder.attention, h, state.attention, memory)
    attentional(step, decoder.attentional, context, h, h_tilde)
    return Read(h_tilde, context)


def neubig(step: Step, decoder: Neubig, state: LayersState, memory: Memory) -> Read:
    assert state.fed is not None
    context, layers = step.state(state.fed), layers_of(step, state.stack)
    to = fed(step, decoder.stack.bottom, decoder.context.weight, context.last)
    h = stack(step, decoder.stack, to, layers, state.stack)
    attention(step, decoder.attention, h, state.attention, memory, context)
    return Read(h, context)


def rnmt_plus(step: Step, decoder: RNMTPlus, state: LayersState, memory: Memory) -> Read:
    layers = layers_of(step, state.stack)
    context = attention(step, decoder.attention, layers[0].h.last, state.attention, memory)
    to = fed(step, decoder.stack.bottom, decoder.context.weight, context)
    top = stack(step, decoder.stack, to, layers, state.stack, context)
    return Read(top, context)


STEPS: dict[type[Decoder], Callable[..., Read]] = {
    Bahdanau: bahdanau,
    BahdanauTanh: bahdanau,
    Cohn: cohn,
    ConditionalGRU: cgru,
    DeepTransition: cgru,
    BiDeep: bideep,
    BiScale: bi_scale,
    Sutskever: sutskever,
    Luong: luong,
    LuongInputFeeding: luong_input_feeding,
    Neubig: neubig,
    RNMTPlus: rnmt_plus,
}
"""`Decoder.step` of step, decoder, state and memory, by exact class."""


WRITTEN: dict[type[nn.Module], str] = {
    Attention: "attention",
    Stack: "stack",
    Attentional: "attentional layer",
    BiasedAttentional: "attentional layer",
    ConditionalRecurrence: "conditional recurrence",
    Transitions: "chain of transitions",
    UpperLayer: "upper layer",
    LayerNorm: "normalised layer",
}
"""Parts whose equations are written here, each for its very class, in words."""


def is_derived(module: nn.Module, part: type[nn.Module]) -> bool:
    """Whether a module is of a class derived from a part's, which may have changed its equations and is not written."""
    return isinstance(module, part) and type(module) not in WRITTEN


def lacks(decoder: nn.Module) -> str | None:
    """Why a decoder's parts cannot be written so; None where they can."""
    for module in decoder.modules():
        if isinstance(module, Cell) and type(module) not in CELLS:
            return f"its cell is {type(module).__name__}"
        if isinstance(module, LinearAttentional):
            return "its attentional layer is linear"
        if derived := next((what for part, what in WRITTEN.items() if is_derived(module, part)), None):
            return f"its {derived} is of a derived class"
        if not isinstance(module, Attention):
            continue
        if type(module.score) not in SCORES:
            return f"its score is {type(module.score).__name__}"
        if type(module.window) not in (Global, LocalMonotonic, LocalPredictive):
            return f"its window is {type(module.window).__name__}"
        if type(module.normaliser) is not Softmax:
            return f"its normaliser is {type(module.normaliser).__name__}"
        if any(type(part) not in FEATURES for part in module.features):
            return "its attention has a feature without a native step"
        if module.features and module.score.heads > 1:
            return "its attention has features and several heads"
    return None


FEATURES = (LinguisticCoverage, NeuralCoverage, Position, Markov, LocalFertility)
SCORES = (Additive, AdditiveBias, Concat, ConcatIdentity, MultiHeadAdditive, Dot, ScaledDot, General, Location)
