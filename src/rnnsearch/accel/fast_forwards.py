"""Fast implementations of `Cell.sequence`, `Decoder.unroll` and `Output.losses`, in PyTorch or by calling native code.

`registry.py` lists each function with the classes that it replaces a method of, and calls the functions whose names
end in `unsupported_reason` first. Native code is called through `recurrences.py`, where it is faster on this machine.
Recurrences in PyTorch with a manual backward pass are in `ops/torch_recurrences.py`; some functions here wrap one of
them, as their docstrings say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rnnsearch.accel import recurrences
from rnnsearch.accel.decoder_steps import is_derived, unsupported_reason
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.normalisers import Softmax
from rnnsearch.models.attention.scores import Additive
from rnnsearch.models.attention.windows import Global
from rnnsearch.models.cells import GRU, LSTM, Cell, TorchGRU
from rnnsearch.models.decoders.bahdanau import Bahdanau, BahdanauState, BahdanauTanh
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.decoders.stack_decoders import LayersState, Luong, Sutskever, reading_without_context
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell, Memory
from rnnsearch.models.outputs import Losses, Output
from rnnsearch.models.sources import CombinedAttention
from rnnsearch.models.stack import Stack, StackState, layer_input
from rnnsearch.ops import torch_recurrences
from rnnsearch.ops.loss import NO_TARGET, cross_entropy
from rnnsearch.ops.torch_recurrences import gru_sequence
from rnnsearch.text.vocabulary import PAD
from rnnsearch.utils.tensors import repeat_rows

# `Cell.sequence`: in native code where that is faster, otherwise in PyTorch.

SequenceResult = tuple[Tensor, CellState]  # all outputs and the last state


def cell_sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, recurrent_mask: Tensor | None
) -> SequenceResult:
    """Run `Cell.sequence` as one native recurrence where that is faster, otherwise in PyTorch (see `run_cell`)."""
    return run_cell(cell, cell.inputs(x), mask, backward, start, recurrent_mask)


def run_cell(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, recurrent_mask: Tensor | None
) -> SequenceResult:
    """Run `Cell.run` on gate inputs x in native code where that is faster, otherwise in PyTorch.

    In PyTorch, a GRU without dropout runs `torch_recurrences.gru_sequence`; any other cell runs its definition.
    """
    if recurrences.runs_natively(cell, x):
        return recurrences.run(cell, x, mask, backward, start, recurrent_mask)
    if recurrent_mask is not None or type(cell) is not GRU:
        return cell.run(x, mask, backward, start, recurrent_mask)
    weights = cell.recurrent_gates.weight, cell.recurrent.weight
    outputs, last = gru_sequence(x, mask, *weights, backward, None if start is None else start.h)
    return outputs, Hidden(last)


def _native_or_library(library_sequence: Callable[..., SequenceResult]) -> Callable[..., SequenceResult]:
    """Return a function like `Cell.sequence` that prefers native code, then PyTorch's fused sequence, then the loop.

    Args:
        library_sequence: Wrapper of a function in `torch_recurrences` that calls PyTorch's fused sequence. Takes cell,
            inputs, mask, backward and start.
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
            return recurrences.run(cell, cell.inputs(x), mask, backward, start, recurrent_mask)
        if recurrent_mask is None and torch_recurrences.can_run(mask, start, backward):
            return library_sequence(cell, x, mask, backward, start)
        return cell.run(cell.inputs(x), mask, backward, start, recurrent_mask)

    return sequence


def _library_gru(
    cell: TorchGRU, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None
) -> SequenceResult:
    """Run `torch_recurrences.torch_gru_sequence` with the parameters of a cell."""
    weights = cell.input.weight, cell.recurrent.weight, cell.input.bias, cell.recurrent.bias
    first = None if start is None else start.h
    outputs, h = torch_recurrences.torch_gru_sequence(x, mask, weights, backward, first)
    return outputs, Hidden(h)


def _library_lstm(
    cell: LSTM, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None
) -> SequenceResult:
    """Run `torch_recurrences.lstm_sequence` with the parameters of a cell."""
    assert start is None or isinstance(start, HiddenAndCell)
    weights = cell.input.weight, cell.input.bias, cell.recurrent.weight
    outputs, h, c = torch_recurrences.lstm_sequence(x, mask, *weights, backward, start)
    return outputs, HiddenAndCell(h, c)


torch_gru_sequence = _native_or_library(_library_gru)
"""`Cell.sequence` of `TorchGRU`: native code, else `torch_recurrences.torch_gru_sequence`."""
lstm_sequence = _native_or_library(_library_lstm)
"""`Cell.sequence` of `LSTM`: native code, else `torch_recurrences.lstm_sequence`."""


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
            run = cell.run if cell.fast_forward is None else partial(run_cell, cell)
            outputs, last = run(x, None, False, old, masks.recurrent)
        else:
            outputs, last = cell.sequence(layer_input(below, masks.inputs), None, False, old, masks.recurrent)
        states.append(last)
        below = stack.layer_output(l, outputs, below, masks.outputs)
    return below, state.advance(states, I)


def unroll_sutskever(decoder: Sutskever, x: Tensor, state: LayersState, _: Memory) -> Reading:
    """Run `Sutskever.unroll` layer by layer."""
    return reading_without_context(layer_by_layer(decoder.stack, x, state.stack)[0])


def unroll_luong(decoder: Luong, x: Tensor, state: LayersState, memory: Memory) -> Reading:
    """Run `Luong.unroll` layer by layer, then attend from all positions at once: no context feeds back."""
    h, _ = layer_by_layer(decoder.stack, x, state.stack)
    return Reading.from_attention(h, decoder.attention.attend_all(h, state.attention, memory))


def stack_unsupported_reason(decoder: Luong | Sutskever) -> str | None:
    """Return why `layer_by_layer` does not apply to a decoder, or None if it does."""
    return "its stack is of a derived class" if is_derived(decoder.stack, Stack) else None


def luong_unsupported_reason(decoder: Luong) -> str | None:
    """Return why `unroll_luong` does not apply to a decoder, or None if it does."""
    # Of several sources, each has an attention.
    if any(is_derived(part, Attention) for part in decoder.attention.modules()):
        return "its attention is of a derived class"
    if (reason := stack_unsupported_reason(decoder)) is not None:
        return reason
    return None if decoder.attention.is_parallel else "attention remembers its weights"


def _native_or(unroll_in_pytorch: Callable[[Any, Tensor, Any, Memory], Reading]) -> Callable[..., Reading]:
    """Return a function like `Decoder.unroll` that prefers native code.

    Args:
        unroll_in_pytorch: Runs where native code does not.
    """

    def unroll(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
        run = recurrences.unroll if recurrences.runs_natively(decoder, x) else unroll_in_pytorch
        return run(decoder, x, state, memory)

    return unroll


def recurrence_unsupported_reason(decoder: Decoder) -> str | None:
    """Return why no native recurrence applies to a decoder, or None if one does."""
    if any(isinstance(part, CombinedAttention) for part in decoder.modules()):
        return "it attends to several sources"
    has_dropout = any(isinstance(part, Attention) and part.dropout > 0 for part in decoder.modules())
    return unsupported_reason(decoder) or ("its attention drops weights" if has_dropout else None)


def _repeat_step(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
    return decoder.repeat_step(x, state, memory)


def _bahdanau_in_pytorch(decoder: Bahdanau, x: Tensor, state: BahdanauState, memory: Memory) -> Reading:
    """Run `torch_recurrences.unroll_rnnsearch` with the parameters of a decoder.

    With dropout or other components than the paper's, the step is repeated.
    """
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


unroll_rnnsearch = _native_or(_bahdanau_in_pytorch)
"""`Decoder.unroll` of `Bahdanau` and `BahdanauTanh`: native code, else `torch_recurrences.unroll_rnnsearch`."""
unroll_recurrence = _native_or(_repeat_step)
"""`Decoder.unroll` of the other decoders whose attention feeds back: native code, else the repeated step."""


def is_rnnsearch(decoder: Decoder) -> bool:
    """Return True for the decoder of Bahdanau et al. (2015) with its components, under either output."""
    if type(decoder) not in (Bahdanau, BahdanauTanh):
        return False
    assert isinstance(decoder, Bahdanau)
    return _other_component(decoder) is None


# `Output.losses`: softmax and gradients in chunks.


def output_losses(
    output: Output,
    readout: Tensor,
    target: Tensor,
    smoothing: float,
    rows: Tensor | None = None,
    log_weights: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> Losses:
    """Compute `Output.losses` in chunks of rows, so that the scores of a whole batch are never in memory.

    Wraps `ops.loss.cross_entropy`.
    """
    weight, lexical, bias = output.select_rows(rows)
    if lexical is not None:
        # The readout has the lexical model's hidden layer in its last columns.
        weight = torch.cat([weight, lexical], dim=1)
    if log_weights is not None:
        bias = bias + log_weights
    # `rows` are sorted ids: their positions replace the ids of the targets.
    column = target if rows is None else torch.searchsorted(rows, target)
    column = column.masked_fill(target == PAD, NO_TARGET)
    return cross_entropy(readout, weight, bias, column, smoothing, token_weights)
