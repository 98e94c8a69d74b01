"""The steps of attention, stacks and decoders as operations of native recurrences, like cells in `cell_steps.py`.

Each function in `DECODER_STEPS` writes the `step` of the decoders in `models` that it is listed for. Property tests
compare both, with gradients, and so does `verification.py`.

In the functions, `Sums` are ranges of pre-activations, `Value`s are ranges of results, and `Reads` are ranges of inputs
of a product, all of one target position. `v.previous` is the value `v` at the last position. Values from `step.state`
are carried from one position to the next; those from `step.value` are not. Methods of `StepBuilder` append operations;
nothing is computed here. See `ops/step.py`.

Other modules use `DECODER_STEPS`, `ReadoutInputs`, `add_attentional` (`readout_steps.py`), `is_derived` and
`unsupported_reason`. All other functions are helpers of those in `DECODER_STEPS`.

The operations run in training (`recurrences.py`) and search (`search.py`), and engine files store them
(`program_writer.py`). So a changed sequence of operations changes only new files, but a new type of operation needs
native code, too (`ops/step.py`, `ops/native/recurrence.h`). A new decoder needs an entry in `DECODER_STEPS`, and its
word layer and initial states in `program_writer.py` (`_word_layer`, `_initial_states`). A new score, window or feature
needs an entry in `SUPPORTED_SCORES`, `SUPPORTED_WINDOWS` or `SUPPORTED_FEATURES`.

Tests: tests/properties/test_recurrences.py, tests/properties/test_native_search.py.

Axes: B sentences, K hypotheses per sentence, N = B * K, I target positions, J source positions, D decoder state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rnnsearch.accel import cell_steps
from rnnsearch.engine.structs import round_up
from rnnsearch.models.attention import scores
from rnnsearch.models.attention.attention import Attention, AttentionState, Query
from rnnsearch.models.attention.features import (
    LinguisticCoverage,
    LocalFertility,
    Markov,
    NeuralCoverage,
    Position,
)
from rnnsearch.models.attention.normalisers import Softmax
from rnnsearch.models.attention.windows import Global, LocalMonotonic, LocalPredictive
from rnnsearch.models.batch_rng import masks_per_cell
from rnnsearch.models.cells import Cell, LayerNorm
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauState, BahdanauTanh, Cohn
from rnnsearch.models.decoders.bi_scale import BiScale, BiScaleState
from rnnsearch.models.decoders.conditional import (
    BiDeep,
    BiDeepState,
    ConditionalGRU,
    ConditionalRecurrence,
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
from rnnsearch.models.memory import CellState, Memory, mean_weights
from rnnsearch.models.sources import CombinedAttention
from rnnsearch.models.stack import Stack, StackState
from rnnsearch.ops.linear import linear
from rnnsearch.ops.step import AttentionSource, Reads, StepBuilder, StepFeature, Sums, Value, pad_to_vectors
from rnnsearch.utils.tensors import repeat_rows


class ReadoutInputs(NamedTuple):
    """Inputs of a decoder's readout: `Reading.state` and `Reading.context`."""

    state: Value  # `Reading.state`
    context: Value | None  # None without attention


# Attention.

AdditiveScore = scores.Additive | scores.MultiHeadAdditive | scores.Concat | scores.ConcatIdentity
"""Scores v^T tanh(projected query + key)."""


def add_attention(
    step: StepBuilder,
    attention: Attention | CombinedAttention,
    query: Value,
    state: AttentionState,
    memory: Memory,
    to: Value | None = None,
) -> Value:
    """Write `Attention.step`, or that of several sources, and return the context.

    If the memory's values have more columns than the annotations, the additional columns of the context follow it.

    Args:
        to: Where the context is written to; None: it is allocated.
    """
    if isinstance(attention, CombinedAttention):
        return _add_combined_attention(step, attention, query, state, memory, to)
    score = attention.score
    N = step.x.shape[0]
    assert memory.keys is not None
    # [N, J, .]: one row per hypothesis, although hypotheses of a sentence share the memory.
    keys, annotations, mask = (repeat_rows(tensor, N) for tensor in (memory.keys, memory.context_values, memory.mask))
    source = AttentionSource(keys, annotations, mask, heads=score.heads)
    source, centre = _local_window(step, attention, query, source, state, memory)
    if isinstance(score, AdditiveScore):
        query_sums, source = _additive_query(step, attention, query, source, state, memory)
        context = step.attend(query_sums, source, to, centre)
    else:
        scale = query.size**-0.5 if isinstance(score, scores.ScaledDot) else 1.0
        # The score is a product with the keys, which contain everything else of the score.
        context = step.attend(query, source._replace(scale=scale), to, centre)
    return context.slice(0, memory.annotations.shape[2])


def _add_combined_attention(
    step: StepBuilder,
    attention: CombinedAttention,
    query: Value,
    state: AttentionState,
    memory: Memory,
    to: Value | None,
) -> Value:
    """Write `CombinedAttention.step` and return the combined context; only for search.

    A missing source has no positions to attend to, which gives weights and a context of 0.
    """
    assert memory.sources is not None
    memories = []
    mean = mean_weights(memory.sources.present)  # [B, S]
    for index, source in enumerate(memory.sources.memories):
        values = source.context_values  # [B, J, H]
        if memory.sources.averages:
            # A context is linear in the values, so the mean's weights are applied to these, once per sentence.
            values = values * mean[:, index, None, None].to(values.dtype)
        mask = source.mask & memory.sources.present[:, index, None]
        memories.append(source._replace(values=values, mask=mask))
    sizes = [source.context_values.shape[2] for source in memories]
    if to is None:
        to = step.value(sizes[0] if memory.sources.averages else sum(sizes))
    offset = 0
    sources = zip(attention.attentions, state.features, memories, sizes, strict=True)
    for index, (source_attention, source_state, source, size) in enumerate(sources):
        if not memory.sources.averages:
            add_attention(step, source_attention, query, source_state, source, to.slice(offset, size))
            offset += size
        elif index == 0:
            add_attention(step, source_attention, query, source_state, source, to)
        else:
            step.add(to, add_attention(step, source_attention, query, source_state, source), to=to)
    return to


def _local_window(
    step: StepBuilder,
    attention: Attention,
    query: Value,
    source: AttentionSource,
    state: AttentionState,
    memory: Memory,
) -> tuple[AttentionSource, Value | None]:
    """Write a local window; return the source with it, and its centre if that depends on the query."""
    window = attention.window
    if isinstance(window, LocalMonotonic):
        centres = window_centres(attention, state, memory, step.x)
        return source._replace(window_radius=window.reach, window_centres=centres), None
    if isinstance(window, LocalPredictive):
        # sigma = D / 2 (Luong et al. 2015, section 3.2).
        source = source._replace(window_radius=window.reach, window_sigma=window.reach / 2)
        sums = step.sums(query.size)
        step.product(window.query.weight, step.read((query, None)), sums)
        hidden = step.value(query.size)
        step.tanh(sums, hidden)
        return source, step.window_centre(hidden, window.vector)
    return source, None


def _additive_query(
    step: StepBuilder,
    attention: Attention,
    query: Value,
    source: AttentionSource,
    state: AttentionState,
    memory: Memory,
) -> tuple[Sums, AttentionSource]:
    """Write the projected query of an additive score and return it, and the source with score vector and features."""
    score = attention.score
    assert isinstance(score, AdditiveScore)
    # `Concat` has one weight for query and key: its first columns are the query's.
    query_weight = score.weight[:, : score.query_size] if isinstance(score, scores.Concat) else score.query.weight
    query_sums = step.sums(score.hidden_size)
    reads = step.read((query, None))
    step.product(query_weight, reads, query_sums)
    if isinstance(score, scores.AdditiveBias):
        assert score.query.bias is not None
        step.bias(score.query.bias, query_sums)
    source = source._replace(score_vector=score.vector)
    features = zip(attention.features, attention.feature_weights, memory.features, strict=True)
    for feature, layer, prepared in features:
        assert isinstance(layer, nn.Linear)
        prepared_rows = None if prepared is None else repeat_rows(prepared, step.x.shape[0])
        source = add_feature(step, feature, layer.weight, prepared_rows, reads, source, state, query_sums)
    return query_sums, source


def add_feature(
    step: StepBuilder,
    feature: nn.Module,
    weight: Tensor,
    prepared: Tensor | None,
    query_reads: Reads,
    source: AttentionSource,
    state: AttentionState,
    query_sums: Sums,
) -> AttentionSource:
    """Write a feature inside an additive score and return the source with it.

    What does not depend on earlier weights is added to the keys and to the query.
    """
    if isinstance(feature, Position):
        assert prepared is not None and state.position is not None
        # Columns of the weight: log(2 + t) of the target position, then the values of the source position.
        step.log_position(weight[:, 0].float(), query_sums, int(state.position[0]))
        return source._replace(keys=source.keys + linear(prepared.to(weight.dtype), weight[:, 1:]))
    if isinstance(feature, NeuralCoverage):
        assert prepared is not None
        cell = feature.cell
        # Columns of the input weight: alpha, the annotation, the query.
        query_weight = cell.input.weight[:, 1 + feature.annotation_size :]
        projected_query = step.sums(3 * round_up(cell.size))
        step.product(pad_to_vectors(query_weight, cell.size, 0), query_reads, projected_query)
        gru = cell.input.weight[:, 0], cell.recurrent_gates.weight, cell.recurrent.weight
        step_feature = StepFeature(weight, prepared, gru=gru, query_sums=projected_query)
    elif isinstance(feature, LinguisticCoverage):
        assert prepared is not None
        # The feature is the sum of earlier weights divided by the fertility, so native code multiplies by 1 /
        # fertility.
        step_feature = StepFeature(weight, prepared.reciprocal().unsqueeze(2))
    else:
        assert isinstance(feature, Markov | LocalFertility)
        rate = torch.ones(*source.mask.shape, 1)  # [N, J, 1]
        step_feature = StepFeature(weight, rate, feature.neighbours, accumulates=isinstance(feature, LocalFertility))
    return source._replace(features=(*source.features, step_feature))


def window_centres(attention: Attention, state: AttentionState, memory: Memory, x: Tensor) -> Tensor:
    """Return the window's centre at all target positions [N, I], if it does not depend on the query."""
    N, I, _ = x.shape
    assert state.position is not None
    # [B, K I]: the hypotheses of a sentence become further queries of the same memory.
    position = (state.position[:, None] + torch.arange(I)).view(memory.mask.shape[0], -1)
    centre = attention.window_centre(Query(x.new_empty(*position.shape, 0), position), memory)
    assert centre is not None
    return centre.view(N, I)


# Stacks and chains of cells.


def add_stack(
    step: StepBuilder,
    stack: Stack,
    bottom: cell_steps.GateSums,
    states: list[cell_steps.StateValues],
    before: StackState,
    context: Value | None = None,
) -> Value:
    """Write `Stack.step` and return its output.

    Args:
        bottom: Sums of the bottom layer, with its gate inputs.
        context: A further input of the upper layers.
    """
    below = states[0].h
    # Masks of inputs and outputs are [N, I, size], recurrent ones [N, size]: the same at all positions.
    masks_of_layers = before.layer_masks(step.x.shape[1])
    for l, (cell, state, masks) in enumerate(zip(stack.layers, states, masks_of_layers, strict=True)):
        to = bottom
        # The bottom layer's inputs do not depend on the step, so the caller has added them.
        if l > 0:
            to = cell_steps.allocate_sums(step, cell)
            context_input = () if context is None else ((context, None),)
            cell_steps.add_inputs(step, cell, to, (below, masks.inputs), *context_input)
        cell_steps.add_cell(step, cell, to, state.previous, state, masks.recurrent)
        below = step.add(state.h, below if stack.is_residual(l) else None, masks.outputs)
    return below


def allocate_stack_states(step: StepBuilder, state: StackState) -> list[cell_steps.StateValues]:
    """Allocate the states of all layers of a stack."""
    return [cell_steps.allocate_state(step, initial) for initial in state.cells]


def sums_with_feedback(
    step: StepBuilder, cell: Cell, weight: Tensor, value: Value, mask: Tensor | None = None
) -> cell_steps.GateSums:
    """Allocate the sums of a cell and add the step's gate inputs and the product of a weight with a masked value."""
    to = cell_steps.sums_of_inputs(step, cell)
    reads = step.read((value, mask))
    for row, sums in to.inputs:
        step.product(weight, reads, sums, row)
    return to


def add_transitions(
    step: StepBuilder,
    cells: list[Cell],
    old: cell_steps.StateValues,
    new: cell_steps.StateValues,
    recurrent_masks: RecurrentMasks,
    *inputs: tuple[Value, cell_steps.RecurrentMask],
) -> None:
    """Write a chain of cells from an old to a new state; only the first one has inputs."""
    for n, cell in enumerate(cells):
        to = cell_steps.allocate_sums(step, cell)
        cell_steps.add_inputs(step, cell, to, *(inputs if n == 0 else ()))
        # Only the last cell's state is carried to the next position.
        target = new if n == len(cells) - 1 else cell_steps.allocate_inner_state(step, cell)
        cell_steps.add_cell(step, cell, to, old, target, next(recurrent_masks))
        old = target


def add_attentional(step: StepBuilder, layer: Attentional, context: Value, h: Value, to: Value) -> None:
    """Write `Attentional`: h~ of a context and a state."""
    sums = step.sums(to.size)
    step.product(layer.combine.weight, step.read((context, None), (h, None)), sums)
    if layer.has_bias:
        step.bias(layer.combine.bias, sums)
    step.tanh(sums, to)


# Decoders, with the arguments of `Decoder.step`.


def bahdanau(step: StepBuilder, decoder: Bahdanau, state: BahdanauState, memory: Memory) -> ReadoutInputs:
    """Write the step of `bahdanau` and `bahdanau-tanh`, whose readout reads the previous state s_{i-1}."""
    s, context = _add_bahdanau(step, decoder, state, memory)
    return ReadoutInputs(s.h.previous, context)


def cohn(step: StepBuilder, decoder: Cohn, state: BahdanauState, memory: Memory) -> ReadoutInputs:
    """Write the step of `cohn`, whose readout reads the new state s_i."""
    s, context = _add_bahdanau(step, decoder, state, memory)
    return ReadoutInputs(s.h, context)


def _add_bahdanau(
    step: StepBuilder, decoder: Bahdanau, state: BahdanauState, memory: Memory
) -> tuple[cell_steps.StateValues, Value]:
    """Write the recurrence and return the cell's state and the context."""
    cell = decoder.cell
    s = cell_steps.allocate_state(step, state.cell)
    context = add_attention(step, decoder.attention, s.h.previous, state.attention, memory)
    to = sums_with_feedback(step, cell, decoder.context.weight, context)
    cell_steps.add_cell(step, cell, to, s.previous, s, state.recurrent_mask)
    return s, context


def cgru(step: StepBuilder, decoder: ConditionalGRU, state: ConditionalState, memory: Memory) -> ReadoutInputs:
    """Write the step of `cgru` and `deep-transition`: attention between two cells, and further transitions."""
    masks = masks_per_cell(state.masks)
    s, context = add_conditional(step, decoder.cell, state.cell, state.attention, memory, masks)
    return ReadoutInputs(s.h, context)


def bideep(step: StepBuilder, decoder: BiDeep, state: BiDeepState, memory: Memory) -> ReadoutInputs:
    """Write the step of `bideep`: a conditional recurrence, and layers above it that also read the context."""
    recurrent_masks = masks_per_cell(state.masks)
    s, context = add_conditional(step, decoder.first, state.cells[0], state.attention, memory, recurrent_masks)
    below = s.h
    for r, (layer, initial) in enumerate(zip(decoder.upper, state.cells[1:], strict=True), start=2):
        assert isinstance(layer, UpperLayer)
        input_mask = None
        if state.layer_masks is not None:
            input_mask = state.layer_masks[:, state.position :, r - 2]
        s = cell_steps.allocate_state(step, initial)
        cells = [layer.cell, *layer.transitions.layers]
        add_transitions(step, cells, s.previous, s, recurrent_masks, (below, input_mask), (context, None))
        below = step.add(s.h, below) if r >= decoder.first_residual else s.h
    return ReadoutInputs(below, context)


def add_conditional(
    step: StepBuilder,
    recurrence: ConditionalRecurrence,
    initial: CellState,
    attention_state: AttentionState,
    memory: Memory,
    recurrent_masks: RecurrentMasks,
) -> tuple[cell_steps.StateValues, Value]:
    """Write `ConditionalRecurrence.step` and return the state after the last transition, and the context."""
    s = cell_steps.allocate_state(step, initial)
    word = recurrence.word
    after_word = cell_steps.allocate_inner_state(step, word)
    cell_steps.add_cell(
        step, word, cell_steps.sums_of_inputs(step, word), s.previous, after_word, next(recurrent_masks)
    )
    context = add_attention(step, recurrence.attention, after_word.h, attention_state, memory)
    cells = [recurrence.context, *recurrence.transitions.layers]
    add_transitions(step, cells, after_word, s, recurrent_masks, (context, None))
    return s, context


def bi_scale(step: StepBuilder, decoder: BiScale, state: BiScaleState, memory: Memory) -> ReadoutInputs:
    """Write the step of `bi-scale`: a fast and a slow layer."""
    masks = masks_per_cell(state.masks)
    D = decoder.size
    # Order of `BiScaleState` and of the initial states in `program_writer.py`.
    hidden, g1, retained = (step.state(part.float()) for part in (state.hidden, state.gate, state.retained))
    h1, h2 = hidden.slice(0, D), hidden.slice(D, D)
    context = add_attention(step, decoder.attention, h2.previous, state.attention, memory)
    context_reads = step.read((context, None))
    # `next(masks)` follows the order of the products in the definition.
    fast = step.sums(2 * D)  # gate and candidate of the fast layer
    slow = step.sums(2 * D)
    step.input(0, fast)
    step.product(decoder.fast.weight, step.read((retained.previous.slice(0, D), next(masks))), fast)
    step.product(decoder.down.weight, step.read((h2.previous, next(masks)), times=g1.previous), fast)
    step.product(decoder.context.weight, context_reads, fast)
    step.sigmoid(fast.slice(0, D), g1)
    step.tanh(fast.slice(D, D), h1)
    assert decoder.up.bias is not None
    step.bias(decoder.up.bias, slow)
    step.product(decoder.up.weight, step.read((h1, None), times=g1), slow)
    step.product(decoder.slow.weight, step.read((retained.previous.slice(D, D), next(masks))), slow)
    # Rows 2 D to 4 D of the context's weight belong to the slow layer.
    step.product(decoder.context.weight, context_reads, slow, 2 * D)
    g2 = step.sigmoid(slow.slice(0, D))
    step.gru(h2, slow.slice(D, D), g1, h2.previous)
    _add_retained(step, g1, h1, retained.slice(0, D))
    _add_retained(step, g2, h2, retained.slice(D, D))
    return ReadoutInputs(hidden, context)


def _add_retained(step: StepBuilder, gate: Value, h: Value, to: Value) -> None:
    """Write (1 - g) h, the part of a state that `bi-scale` retains."""
    # A GRU's (1 - g) h + g h~ with a candidate of empty sums: h~ = tanh(0) = 0.
    step.gru(to, step.sums(to.size), gate, h)


def sutskever(step: StepBuilder, decoder: StackDecoder, state: LayersState, _: Memory) -> ReadoutInputs:
    """Write the step of `sutskever`: a stack without attention."""
    states = allocate_stack_states(step, state.stack)
    to = cell_steps.sums_of_inputs(step, decoder.stack.bottom)
    return ReadoutInputs(add_stack(step, decoder.stack, to, states, state.stack), None)


def luong(step: StepBuilder, decoder: Luong, state: LayersState, memory: Memory) -> ReadoutInputs:
    """Write the step of `luong`: a stack, whose output h is the query of attention."""
    h, _ = sutskever(step, decoder, state, memory)
    return ReadoutInputs(h, add_attention(step, decoder.attention, h, state.attention, memory))


def luong_input_feeding(
    step: StepBuilder, decoder: LuongInputFeeding, state: LayersState, memory: Memory
) -> ReadoutInputs:
    """Write the step of `luong-input-feeding`: like `luong`, but the bottom layer also reads the last h~."""
    assert state.fed is not None
    # Allocated first, like the fed state in `_initial_states` of `program_writer.py`.
    h_tilde = step.state(state.fed)
    states = allocate_stack_states(step, state.stack)
    mask = state.stack.fed_mask(step.x.shape[1])
    to = sums_with_feedback(step, decoder.stack.bottom, decoder.feeding.weight, h_tilde.previous, mask)
    h = add_stack(step, decoder.stack, to, states, state.stack)
    context = add_attention(step, decoder.attention, h, state.attention, memory)
    add_attentional(step, decoder.attentional, context, h, h_tilde)
    return ReadoutInputs(h_tilde, context)


def neubig(step: StepBuilder, decoder: Neubig, state: LayersState, memory: Memory) -> ReadoutInputs:
    """Write the step of `neubig`: the bottom layer reads the last context."""
    assert state.fed is not None
    # The context is part of the state: attention writes to it, and the next position reads it.
    context = step.state(state.fed)
    states = allocate_stack_states(step, state.stack)
    mask = state.stack.fed_mask(step.x.shape[1])
    to = sums_with_feedback(step, decoder.stack.bottom, decoder.context.weight, context.previous, mask)
    h = add_stack(step, decoder.stack, to, states, state.stack)
    add_attention(step, decoder.attention, h, state.attention, memory, context)
    return ReadoutInputs(h, context)


def rnmt_plus(step: StepBuilder, decoder: RNMTPlus, state: LayersState, memory: Memory) -> ReadoutInputs:
    """Write the step of `rnmt-plus`: the bottom layer's last state is the query, and all layers read the context."""
    states = allocate_stack_states(step, state.stack)
    context = add_attention(step, decoder.attention, states[0].h.previous, state.attention, memory)
    to = sums_with_feedback(step, decoder.stack.bottom, decoder.context.weight, context)
    h = add_stack(step, decoder.stack, to, states, state.stack, context)
    return ReadoutInputs(h, context)


DECODER_STEPS: dict[type[Decoder], Callable[..., ReadoutInputs]] = {
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
"""Functions of step, decoder, state and memory, by exact class."""


# Which decoders are supported.

COMPONENTS: dict[type[nn.Module], str] = {
    Attention: "attention",
    CombinedAttention: "attention to several sources",
    Stack: "stack",
    Attentional: "attentional layer",
    BiasedAttentional: "attentional layer",
    ConditionalRecurrence: "conditional recurrence",
    Transitions: "chain of transitions",
    UpperLayer: "upper layer",
    LayerNorm: "normalised layer",
}
"""Components whose equations are written above, by exact class, with their names in messages."""
SUPPORTED_FEATURES = (LinguisticCoverage, NeuralCoverage, Position, Markov, LocalFertility)
"""Features whose equations are written here, by exact class."""
SUPPORTED_WINDOWS = (Global, LocalMonotonic, LocalPredictive)
"""Windows whose equations are written here, by exact class."""
SUPPORTED_SCORES = (
    scores.Additive,
    scores.AdditiveBias,
    scores.Concat,
    scores.ConcatIdentity,
    scores.MultiHeadAdditive,
    scores.Dot,
    scores.ScaledDot,
    scores.General,
    scores.Location,
)
"""Scores whose equations are written here, by exact class."""


def is_derived(module: nn.Module, component: type[nn.Module]) -> bool:
    """Return True if a module is of a class derived from a component's, which may have changed the equations."""
    return isinstance(module, component) and type(module) not in COMPONENTS


def unsupported_reason(module: nn.Module) -> str | None:
    """Return why a decoder or cell cannot be written as operations, or None if it can."""
    for part in module.modules():
        if isinstance(part, Cell) and type(part) not in cell_steps.CELL_STEPS:
            return f"its cell is {type(part).__name__}"
        if isinstance(part, LinearAttentional):
            return "its attentional layer is linear"
        for component, name in COMPONENTS.items():
            if is_derived(part, component):
                return f"its {name} is of a derived class"
        if isinstance(part, Attention) and (reason := _unsupported_attention(part)) is not None:
            return reason
    return None


def _unsupported_attention(attention: Attention) -> str | None:
    if type(attention.score) not in SUPPORTED_SCORES:
        return f"its score is {type(attention.score).__name__}"
    if type(attention.window) not in SUPPORTED_WINDOWS:
        return f"its window is {type(attention.window).__name__}"
    if type(attention.normaliser) is not Softmax:
        return f"its normaliser is {type(attention.normaliser).__name__}"
    if any(type(feature) not in SUPPORTED_FEATURES for feature in attention.features):
        return "its attention has a feature without a native step"
    if attention.features and attention.score.heads > 1:
        return "its attention has features and several heads"
    return None
