"""Native recurrences for `Cell.run` and `Decoder.unroll`, from the steps in `cell_steps.py` and `decoder_steps.py`.

A `StepBuilder` records the operations of one position; `ops/recurrence.run` executes them at all positions, forwards
and backwards, in native code. `fast_forwards.py` prefers these functions where `runs_natively` is true, which depends
on measurements on this machine (`ops/autotune.py`).

Tests: tests/properties/test_recurrences.py (results and gradients equal the definition).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rnnsearch.accel.cell_steps import RecurrentMask, add_cell, allocate_state, sums_of_inputs
from rnnsearch.accel.decoder_steps import DECODER_STEPS
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import LSTM, Cell
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.ops import autotune, recurrence
from rnnsearch.ops.step import StepBuilder
from rnnsearch.utils.tensors import matmul_dtype


def run(
    cell: Cell,
    x: Tensor,
    mask: Tensor | None,
    backward: bool,
    start: CellState | None,
    recurrent_mask: RecurrentMask,
) -> tuple[Tensor, CellState]:
    """Return the result of `Cell.run` from gate inputs x."""
    step = StepBuilder(x)
    initial = cell.start(torch.zeros(x.shape[0], cell.size)) if start is None else start
    state = allocate_state(step, initial)
    add_cell(step, cell, sums_of_inputs(step, cell), state.previous, state, recurrent_mask)
    step.outputs = [state.h] if state.c is None else [state.h, state.c]
    outputs, _ = recurrence.run(step, mask, backward)
    # Padding leaves the state unchanged, so the last index has the last state of every row.
    last = [output[:, 0] if backward else output[:, -1] for output in outputs]
    return outputs[0], cell.state(*last)


def unroll(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
    """Return the result of `Decoder.unroll` for a decoder with attention."""
    step = StepBuilder(x)
    inputs = DECODER_STEPS[type(decoder)](step, decoder, state, memory)
    assert inputs.context is not None
    step.outputs = [inputs.state, inputs.context]
    (h, context), alpha = recurrence.run(step)
    return Reading(h, context, alpha)


def runs_natively(module: nn.Module, x: Tensor) -> bool:
    """Return True if the step of a cell or decoder can run in native code on x and is faster so.

    All decoders follow the timing of RNNsearch, and cells that of the GRU, except for the LSTM, which PyTorch has as a
    fused kernel.
    """
    # `recurrence.can_run` needs the sizes that products sum over. Weights of attention features are left out: their
    # products are in fp32, or sum over the query's size only, which other weights of the decoder have, too. Their
    # shapes, such as 1 + H + D columns, would exclude bf16 for nothing.
    feature_modules: set[nn.Module] = set()
    for attention in module.modules():
        if isinstance(attention, Attention):
            feature_modules.update(attention.features.modules(), attention.feature_weights.modules())
    sizes: set[int] = set()
    for part in module.modules():
        if isinstance(part, nn.Linear) and part not in feature_modules:
            # Both axes: one is summed over in the forward pass, the other in the backward pass.
            sizes.update(part.weight.shape)
    kernel = autotune.RNNSEARCH
    if isinstance(module, Cell):
        kernel = autotune.LSTM if type(module) is LSTM else autotune.GRU
    if not recurrence.can_run(x, tuple(sizes)):
        return False
    return autotune.implementation(kernel, matmul_dtype(x)) == autotune.NATIVE
