"""Native recurrences in the place of a cell's and a decoder's loops, of the steps that `steps.py` writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rnnsearch.accel.cell_steps import Mask, cell_step, given, states
from rnnsearch.accel.decoder_steps import STEPS
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.cells import LSTM, Cell
from rnnsearch.models.decoders.decoder import Decoder, Reading
from rnnsearch.models.memory import CellState, Memory
from rnnsearch.ops import autotune, recurrence
from rnnsearch.ops.step import Step
from rnnsearch.utils.tensors import product_type

TIMED: dict[type[nn.Module], str] = {LSTM: autotune.LSTM}
"""Cells whose sequence has been timed by itself, for the library has it fused."""


def sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, keep: Mask
) -> tuple[Tensor, CellState]:
    """`Cell.run`."""
    step = Step(x)
    nothing = torch.zeros(x.shape[0], cell.size)
    own = states(step, cell.start(nothing) if start is None else start)
    cell_step(step, cell, given(step, cell), own.last, own, keep)
    step.outputs = [own.h] if own.c is None else [own.h, own.c]
    outputs, _ = recurrence.run(step, mask, backward)
    ends = [output[:, 0] if backward else output[:, -1] for output in outputs]
    return outputs[0], cell.state(*ends)


def unroll(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
    """`Decoder.unroll` of a decoder with attention."""
    step = Step(x)
    read = STEPS[type(decoder)](step, decoder, state, memory)
    assert read.context is not None
    step.outputs = [read.state, read.context]
    (h, context), alpha = recurrence.run(step)
    return Reading(h, context, alpha)


def runs(module: nn.Module, x: Tensor) -> bool:
    """Whether a module's step runs natively on x here: on the CPU, with even sizes in bf16, and where the recurrence
    that was timed is faster so. All decoders go by RNNsearch's; sequences by the LSTM's where the library has that, of
    other cells by the GRU's."""
    apart = {
        part
        for attention in module.modules()
        if isinstance(attention, Attention)
        for features in (attention.features, attention.feature_weights)
        for part in features.modules()
    }  # in fp32, or of the query's size
    products = (part for part in module.modules() if isinstance(part, nn.Linear) and part not in apart)
    sizes = {size for part in products for size in part.weight.shape}
    timed = TIMED.get(type(module), autotune.GRU) if isinstance(module, Cell) else autotune.RNNSEARCH
    return recurrence.can_run(x, tuple(sizes)) and autotune.way(timed, product_type(x)) == autotune.NATIVE
