"""Choice of fast implementations for the modules of a model, and those that need no native code of their own.

The definitions are methods in `models`: a cell's `sequence`, a decoder's `unroll`, attention's `attend` and the
output layer's `losses`. Each of these classes has an attribute `fast_forward`. `choose` sets it by exact class: a
derived class may have changed the equations. An edited class is noticed, too, because each fast implementation is
compared with the definition before it is used. (In addition, `verification.py` sets the attribute of tiny modules for
this comparison, and `export/onnx_cells.py` that of a model's modules during an export.)

Fast implementations of whole searches are chosen in `search/model_scorer.py`.

Callers: `systems/translation.py` and `systems/language.py` call `choose` when they build a model; `rnnsearch inspect`
(`cli/inspect.py`) prints `describe_training`. `search/model_scorer.py` reads the switch, `rnnsearch_search.py` calls
`is_rnnsearch`. A new fast implementation is an entry in `FAST_IMPLEMENTATIONS`. The environment variable
RNNSEARCH_FAST=0 runs the definitions only. Tests: `tests/models/test_choice.py`, `tests/properties/test_derived.py`,
`tests/properties/test_gradients.py`.

Axes: B sentences, Q queries, N = B * Q, M heads, J source positions, K values per row of a memory, D half the
window's width (Luong et al. 2015), P = 2 D + 1 positions of a window.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from rnnsearch.accel import recurrences, verification
from rnnsearch.accel.decoder_steps import is_derived, unsupported_reason
from rnnsearch.accel.verification import TRAINING, Conditions
from rnnsearch.models.attention.attention import Attention, AttentionInputs, AttentionOutput, Query
from rnnsearch.models.attention.normalisers import Softmax
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.attention.windows import Global, WindowMask
from rnnsearch.models.cells import GRU, LSTM, RNMTLSTM, SSRU, Cell, ChoGRU, GateNormLSTM, LayerNormGRU, Tanh, TorchGRU
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauState, BahdanauTanh, Cohn
from rnnsearch.models.decoders.bi_scale import BiScale
from rnnsearch.models.decoders.conditional import BiDeep, ConditionalGRU, DeepTransition
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.stack_decoders import (
    LayersState,
    Luong,
    LuongInputFeeding,
    Neubig,
    RNMTPlus,
    Sutskever,
    reading_without_context,
)
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell, Memory
from rnnsearch.models.outputs import Losses, Output
from rnnsearch.models.stack import Stack, StackState, layer_input
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops import autotune, torch_recurrences
from rnnsearch.ops.autotune_cases import cases
from rnnsearch.ops.loss import cross_entropy
from rnnsearch.ops.torch_recurrences import gru_sequence
from rnnsearch.utils.tensors import repeat_rows

FAST_SWITCH = "RNNSEARCH_FAST"
"""Environment variable; 0 runs the definitions only."""


class FastImplementation(NamedTuple):
    """A fast implementation of a method of one class of modules."""

    description: str
    """Description in `rnnsearch inspect`."""
    run: Callable[..., Any]  # takes the module and the arguments of the method
    unsupported_reason: Callable[[Any], str | None] = lambda _: None  # why it cannot replace the method of a module


class Choice(NamedTuple):
    """The decision for one module."""

    module: str  # its name in the model
    implementation: str | None  # description of the fast implementation; None: the definition runs
    reason: str = ""  # why the definition runs


def fast_implementations_are_enabled() -> bool:
    """Return True unless the environment variable RNNSEARCH_FAST is 0."""
    return os.environ.get(FAST_SWITCH) != "0"


def choose(model: nn.Module, fast: bool = True, conditions: Conditions = TRAINING) -> list[Choice]:
    """Set `fast_forward` of each module in a model that has a fast implementation, and return all choices.

    Args:
        fast: If False, all modules run their definitions.
        conditions: The use of the model, for which fast implementations are compared with the definitions.
    """
    autotune.register_cases(cases)
    choices = []
    for name, module in model.named_modules():
        if not isinstance(module, Cell | Decoder | Attention | Output):
            continue
        implementation = FAST_IMPLEMENTATIONS.get(type(module))
        if not fast or implementation is None:
            reason = f"{type(module).__name__} has no fast implementation"
        elif not fast_implementations_are_enabled():
            reason = f"{FAST_SWITCH}=0"
        else:
            reason = (
                implementation.unsupported_reason(module) or _problem(model, name, implementation, conditions) or ""
            )
        if reason or implementation is None:
            # An earlier choice may have set it.
            module.fast_forward = None
            choices.append(Choice(name, None, reason))
        else:
            module.fast_forward = implementation.run
            choices.append(Choice(name, implementation.description))
    return choices


def _problem(model: nn.Module, name: str, implementation: FastImplementation, conditions: Conditions) -> str | None:
    """Return why a module's fast implementation must not be used, or None if it equals the definition."""
    module = model.get_submodule(name)
    if any(parameter.is_meta for parameter in module.parameters()):
        return None  # the model is built for its shapes only
    if isinstance(module, Cell):
        return verification.cell_problem(module, implementation.run, conditions)
    if isinstance(module, Output):
        return verification.output_problem(module, implementation.run, conditions)
    # A decoder or an attention is built from the config of the translation model that it belongs to.
    path = name
    while not isinstance(model, TranslationModel):
        child, dot, path = path.partition(".")
        if not dot:
            return None  # built without a translation model, as in tests
        model = model.get_submodule(child)
    return verification.component_problem(model, path, implementation.run, conditions)


def describe_training(model: nn.Module) -> str:
    """Return which components of a model train with fast implementations, and why the others run their definitions.

    Components inside a decoder do not run separately and are left out, except for the attention of a decoder without a
    fast implementation.
    """
    choices = choose(model)
    without = {name for name, implementation, _ in choices if implementation is None}
    decoders = [name for name, module in model.named_modules() if isinstance(module, Decoder)]

    def runs_separately(name: str) -> bool:
        owner = next((decoder for decoder in decoders if name.startswith(f"{decoder}.")), None)
        return owner is None or (owner in without and isinstance(model.get_submodule(name), Attention))

    reasons = {name: reason for name, _, reason in choices if runs_separately(name)}
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        part = name.partition(".")[0]
        # Name the encoder, for example, instead of its cells if the same is true of all of them.
        is_uniform = {other_reason for other, other_reason in reasons.items() if other.partition(".")[0] == part} == {
            reason
        }
        names_by_reason.setdefault(reason, []).append(part if is_uniform else name)
    lists = {reason: ", ".join(dict.fromkeys(names)) for reason, names in names_by_reason.items()}
    sentences = []
    if fast := lists.pop("", None):
        sentences.append(f"fast implementations of {fast}")
    if lists:
        definitions = ", ".join(f"{names} ({reason})" for reason, names in lists.items())
        sentences.append(f"definitions of {definitions}")
    return "; ".join(sentences)


# `Attention.attend` with a local window: only the positions inside the window are read.

PRODUCTS_PER_GATHER = 24  # products with a key in one matrix product that take as long as one with a gathered key


def attend(attention: Attention, query: Query, memory: Memory) -> AttentionOutput:
    """Attend only to the P = 2 D + 1 positions of each query's window, if that is less work."""
    centre = attention.window_centre(query, memory)
    if centre is None or not gathering_is_faster(attention, query.vectors.shape[1], memory.mask.shape[1]):
        return attention.forward(query.vectors, attention.inputs(query, memory, centre))
    return attend_gathered(attention, centre, query, memory)


def gathering_is_faster(attention: Attention, num_queries: int, num_positions: int) -> bool:
    """Return True if reading only the positions in the windows is less work than reading all and masking them.

    The results are equal up to rounding. The hidden layer of a score costs the same per position either way, but the
    product of all queries with all keys is so much faster than products with gathered keys that these must be few.
    """
    if attention.window.reach is None or attention.score.neighbours:
        return False
    positions_in_window = 2 * attention.window.reach + 1
    cost = min(2 * num_queries, PRODUCTS_PER_GATHER) if attention.score.is_product else 1
    return positions_in_window * cost < num_positions


def attend_gathered(
    attention: Attention, centre: Float[Tensor, "B Q"], query: Query, memory: Memory
) -> AttentionOutput:
    """Attend to gathered positions, with each query as its own sentence, and scatter the weights to J columns."""
    reach = attention.window.reach
    assert memory.keys is not None and reach is not None
    B, J = memory.mask.shape
    Q = query.vectors.shape[1]
    P = 2 * reach + 1
    # Moved so that P positions fit into the sentence; the window's mask excludes those outside. J > P, because
    # gathering would not be faster otherwise.
    first = (centre.detach() - reach).ceil().clamp(0, J - P).long()  # [B, Q]
    index = first.unsqueeze(2) + torch.arange(P, device=centre.device)  # [B, Q, P]
    real = memory.mask.unsqueeze(1).expand(B, Q, J).gather(2, index)  # [B, Q, P]
    allowed, factor = attention.window.mask(centre, index, real)
    extra = attention.feature_sum(query, memory, index)
    # Each query is a sentence of its own from here on: N = B * Q rows with one query and P positions.
    inputs = AttentionInputs(
        _gather_rows(memory.keys, index),
        _gather_rows(memory.context_values, index),
        None if extra is None else extra.view(B * Q, 1, P, -1),
        WindowMask(allowed.view(B * Q, 1, P), None if factor is None else factor.view(B * Q, 1, P)),
        *attention.split_random(None if query.random is None else _gather_random(query.random, index)),
    )
    output = attention.forward(query.vectors.reshape(B * Q, 1, -1), inputs)

    def scattered(weights: Tensor) -> Tensor:
        return weights.new_zeros(B, Q, J).scatter(2, index, weights.view(B, Q, P))

    expected_alpha = None if output.expected_alpha is None else scattered(output.expected_alpha)
    return AttentionOutput(scattered(output.alpha), output.context.view(B, Q, -1), expected_alpha)


def _gather_random(random: Float[Tensor, "B Q M J"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N 1 M P"]:
    per_head = index.unsqueeze(2).expand(-1, -1, random.shape[2], -1)
    return random.gather(3, per_head).flatten(0, 1).unsqueeze(1)


def _gather_rows(rows: Float[Tensor, "B J K"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N P K"]:
    """Return the rows of each query, N = B * Q; their gradient is summed in a fixed order on every device."""
    B, J, K = rows.shape
    offset = torch.arange(0, B * J, J, device=index.device)[:, None, None]
    return embedding((index + offset).flatten(0, 1), rows.reshape(B * J, K))


# `Cell.sequence`: in native code where that is faster, otherwise in PyTorch.

SequenceResult = tuple[Tensor, CellState]  # all outputs and the last state


def _sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, recurrent_mask: Tensor | None
) -> SequenceResult:
    return _run(cell, cell.inputs(x), mask, backward, start, recurrent_mask)


def _run(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, recurrent_mask: Tensor | None
) -> SequenceResult:
    """Run `Cell.run` on gate inputs x; in PyTorch, only the GRU without dropout has a backward pass of its own."""
    if recurrences.runs_natively(cell, x):
        return recurrences.sequence(cell, x, mask, backward, start, recurrent_mask)
    if recurrent_mask is not None or type(cell) is not GRU:
        return cell.run(x, mask, backward, start, recurrent_mask)
    weights = cell.recurrent_gates.weight, cell.recurrent.weight
    outputs, last = gru_sequence(x, mask, *weights, backward, None if start is None else start.h)
    return outputs, Hidden(last)


def _native_or_library(library_sequence: Callable[..., SequenceResult]) -> Callable[..., SequenceResult]:
    """Return a function like `Cell.sequence` that prefers native code, then PyTorch's fused sequence, then the loop.

    Args:
        library_sequence: Takes cell, inputs, mask, backward and start.
    """

    def sequence(
        cell: Cell,
        x: Tensor,
        mask: Tensor | None,
        backward: bool,
        start: CellState | None,
        recurrent_mask: Tensor | None,
    ) -> SequenceResult:
        if recurrences.runs_natively(cell, x):
            return recurrences.sequence(cell, cell.inputs(x), mask, backward, start, recurrent_mask)
        if recurrent_mask is None and torch_recurrences.can_run(mask, start, backward):
            return library_sequence(cell, x, mask, backward, start)
        return cell.run(cell.inputs(x), mask, backward, start, recurrent_mask)

    return sequence


def _torch_gru(
    cell: TorchGRU, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None
) -> SequenceResult:
    weights = cell.input.weight, cell.recurrent.weight, cell.input.bias, cell.recurrent.bias
    first = None if start is None else start.h
    outputs, h = torch_recurrences.torch_gru_sequence(x, mask, weights, backward, first)
    return outputs, Hidden(h)


def _lstm(cell: LSTM, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None) -> SequenceResult:
    assert start is None or isinstance(start, HiddenAndCell)
    weights = cell.input.weight, cell.input.bias, cell.recurrent.weight
    outputs, h, c = torch_recurrences.lstm_sequence(x, mask, *weights, backward, start)
    return outputs, HiddenAndCell(h, c)


# `Decoder.unroll`: layer by layer if nothing else feeds back, otherwise as a native recurrence or in PyTorch.


def layer_by_layer(stack: Stack, x: Tensor, state: StackState) -> tuple[Tensor, StackState]:
    """Run a stack over all positions, one layer after the other, and return its outputs and last state.

    For decoders that feed nothing but states from one position to the next. Equals repeated `Stack.step`.

    Args:
        x: Gate inputs of the bottom layer [N, I, .].
    """
    states: list[CellState] = []
    below = x
    I = x.shape[1]
    for l, (cell, old, masks) in enumerate(zip(stack.layers, state.cells, state.layer_masks(I), strict=True)):
        if l == 0:
            # x is projected already, so `sequence`, which projects its inputs, cannot be used.
            run = cell.run if cell.fast_forward is None else partial(_run, cell)
            outputs, last = run(x, None, False, old, masks.recurrent)
        else:
            outputs, last = cell.sequence(layer_input(below, masks.inputs), None, False, old, masks.recurrent)
        states.append(last)
        below = stack.layer_output(l, outputs, below, masks.outputs)
    return below, state.advance(states, I)


def _sutskever(decoder: Sutskever, x: Tensor, state: LayersState, _: Memory) -> Reading:
    return reading_without_context(layer_by_layer(decoder.stack, x, state.stack)[0])


def _luong(decoder: Luong, x: Tensor, state: LayersState, memory: Memory) -> Reading:
    h, _ = layer_by_layer(decoder.stack, x, state.stack)
    return Reading.from_attention(h, decoder.attention.attend_all(h, state.attention, memory))


def _stack_unsupported_reason(decoder: Luong | Sutskever) -> str | None:
    return "its stack is of a derived class" if is_derived(decoder.stack, Stack) else None


def _luong_unsupported_reason(decoder: Luong) -> str | None:
    if is_derived(decoder.attention, Attention):
        return "its attention is of a derived class"
    if (reason := _stack_unsupported_reason(decoder)) is not None:
        return reason
    return None if decoder.attention.is_parallel else "attention remembers its weights"


def _native_or(unroll_in_pytorch: Callable[[Any, Tensor, Any, Memory], Reading]) -> FastImplementation:
    """Return the native recurrence of a decoder, with a function that runs where native code does not."""

    def unroll(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
        run = recurrences.unroll if recurrences.runs_natively(decoder, x) else unroll_in_pytorch
        return run(decoder, x, state, memory)

    return FastImplementation("whole recurrence with a manual backward pass", unroll, _recurrence_unsupported_reason)


def _recurrence_unsupported_reason(decoder: Decoder) -> str | None:
    has_dropout = any(isinstance(part, Attention) and part.dropout > 0 for part in decoder.modules())
    return unsupported_reason(decoder) or ("its attention drops weights" if has_dropout else None)


def _repeat_step(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
    return decoder.repeat_step(x, state, memory)


def _bahdanau_in_pytorch(decoder: Bahdanau, x: Tensor, state: BahdanauState, memory: Memory) -> Reading:
    """Unroll in PyTorch; with dropout or other components than the paper's, the step is repeated."""
    if state.recurrent_mask is not None or _other_component(decoder) is not None:
        return decoder.repeat_step(x, state, memory)
    cell = decoder.cell
    score = decoder.attention.score
    assert isinstance(cell, GRU) and isinstance(score, Additive) and memory.keys is not None
    weights = torch_recurrences.RNNsearchParameters(
        score.query.weight, score.vector, decoder.context.weight, cell.recurrent_gates.weight, cell.recurrent.weight
    )
    annotations, keys, mask = (repeat_rows(part, len(x)) for part in (memory.annotations, memory.keys, memory.mask))
    return Reading(*torch_recurrences.unroll_rnnsearch(x, state.cell.h, annotations, keys, mask, weights))


def _other_component(decoder: Bahdanau) -> str | None:
    """Return which component differs from those of Bahdanau et al. (2015), or None."""
    attention = decoder.attention
    components: dict[str, tuple[nn.Module, type[nn.Module]]] = {
        "cell": (decoder.cell, GRU),
        "attention": (attention, Attention),
        "score": (attention.score, Additive),
        "window": (attention.window, Global),
        "normaliser": (attention.normaliser, Softmax),
    }
    for name, (component, wanted) in components.items():
        if type(component) is not wanted:
            return f"its {name} is not {wanted.__name__}"
    return "its attention has features" if attention.features else None


def is_rnnsearch(decoder: Decoder) -> bool:
    """Return True for the decoder of Bahdanau et al. (2015) with its components, under either output."""
    if type(decoder) not in (Bahdanau, BahdanauTanh):
        return False
    assert isinstance(decoder, Bahdanau)
    return _other_component(decoder) is None


# `Output.losses`: softmax and gradients in chunks.


def _losses(output: Output, readout: Tensor, target: Tensor, smoothing: float, rows: Tensor | None = None) -> Losses:
    weight, lexical, bias = output.select_rows(rows)
    if lexical is not None:
        # The readout has the lexical model's hidden layer in its last columns.
        weight = torch.cat([weight, lexical], dim=1)
    # `rows` are sorted ids: their positions replace the ids of the targets.
    return cross_entropy(readout, weight, bias, target if rows is None else torch.searchsorted(rows, target), smoothing)


def _window_unsupported_reason(attention: Attention) -> str | None:
    return None if attention.window.reach is not None else "its window sees all positions"


_SEQUENCE = "whole sequence with a manual backward pass"
_NATIVE_SEQUENCE = FastImplementation(_SEQUENCE, _sequence, unsupported_reason)
_RNNSEARCH = _native_or(_bahdanau_in_pytorch)
_RECURRENCE = _native_or(_repeat_step)
FAST_IMPLEMENTATIONS: dict[type[nn.Module], FastImplementation] = {
    GRU: FastImplementation(_SEQUENCE, _sequence),
    ChoGRU: _NATIVE_SEQUENCE,
    Tanh: _NATIVE_SEQUENCE,
    LayerNormGRU: _NATIVE_SEQUENCE,
    GateNormLSTM: _NATIVE_SEQUENCE,
    RNMTLSTM: _NATIVE_SEQUENCE,
    SSRU: _NATIVE_SEQUENCE,
    TorchGRU: FastImplementation(_SEQUENCE, _native_or_library(_torch_gru)),
    LSTM: FastImplementation(_SEQUENCE, _native_or_library(_lstm)),
    Attention: FastImplementation("only the positions in the window", attend, _window_unsupported_reason),
    Bahdanau: _RNNSEARCH,
    BahdanauTanh: _RNNSEARCH,
    Cohn: _RECURRENCE,
    ConditionalGRU: _RECURRENCE,
    DeepTransition: _RECURRENCE,
    BiDeep: _RECURRENCE,
    BiScale: _RECURRENCE,
    LuongInputFeeding: _RECURRENCE,
    Neubig: _RECURRENCE,
    RNMTPlus: _RECURRENCE,
    Luong: FastImplementation(
        "layer by layer, with attention to all positions at once", _luong, _luong_unsupported_reason
    ),
    Sutskever: FastImplementation("layer by layer", _sutskever, _stack_unsupported_reason),
    Output: FastImplementation("softmax and gradient in chunks", _losses),
}
"""Fast implementations by exact class."""
