"""Which modules run a faster twin of their definition, and why the others do not. (Whole models' twins, which search,
are chosen in `search/model_scorer.py`.)

The definitions are in `models`: a cell's `sequence`, a decoder's `unroll`, attention's `attend`, the output layer's
`losses`. Each has one hook, `module.twin`, which is set here alone, by the module's exact class: a derived class may
have changed its equations, so it never meets its parent's twin. The laws hold each twin equal to its definition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from rnnsearch.accel import recurrences
from rnnsearch.accel.decoder_steps import is_derived, lacks
from rnnsearch.models.attention.attention import Query, AttentionOutput, Attention, AttentionInputs
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
    reading_of,
)
from rnnsearch.models.memory import CellState, Hidden, HiddenAndCell, Memory
from rnnsearch.models.outputs import Losses, Output
from rnnsearch.models.stack import Stack, StackState, layer_input
from rnnsearch.ops import autotune, torch_recurrences
from rnnsearch.ops.autotune_cases import cases
from rnnsearch.ops.loss import cross_entropy
from rnnsearch.ops.torch_recurrences import gru_sequence
from rnnsearch.utils.tensors import each

# Local windows' fast twin of `Attention.attend`: the positions within reach alone.

PRODUCTS_A_PICK = 24
"""How many products with a key in one matrix product take as long as one with a key picked by itself (measured)."""


def attend(attention: Attention, asked: Query, memory: Memory) -> AttentionOutput:
    """`Attention.attend`, where that is less work over the P = 2 D + 1 positions of each query alone."""
    centre = attention.window_centre(asked, memory)
    if centre is None or not gathers(attention, asked.vectors.shape[1], memory.mask.shape[1]):
        return attention.forward(asked.vectors, attention.inputs(asked, memory, centre))
    return within(attention, centre, asked, memory)


def gathers(attention: Attention, queries: int, width: int) -> bool:
    """Whether looking at the windows' positions alone is less work than at all J and masking them.

    Both are the same but for rounding. A score's hidden layer costs as much a position either way; a product of all
    queries with all keys is so much quicker than products with keys picked one by one that these must be few.
    """
    if attention.window.reach is None or attention.score.neighbours:
        return False
    reached = 2 * attention.window.reach + 1
    cost = min(2 * queries, PRODUCTS_A_PICK) if attention.score.is_product else 1
    return reached * cost < width


def within(attention: Attention, centre: Float[Tensor, "B Q"], asked: Query, memory: Memory) -> AttentionOutput:
    """Each query is a sentence of its own, [B * Q, 1, P]; the weights are put back into J columns."""
    reach = attention.window.reach
    assert memory.keys is not None
    assert reach is not None
    (B, J), Q, P = memory.mask.shape, asked.vectors.shape[1], 2 * reach + 1
    first = (centre.detach() - reach).ceil().clamp(0, J - P).long()
    index = first.unsqueeze(2) + torch.arange(P, device=centre.device)
    real = memory.mask.unsqueeze(1).expand(B, Q, J).gather(2, index)
    allowed, factor = attention.window.mask(centre, index, real)
    extra = attention.feature_sum(asked, memory, index)
    seen = AttentionInputs(
        _pick(memory.keys, index),
        _pick(memory.context_values, index),
        None if extra is None else extra.view(B * Q, 1, P, -1),
        WindowMask(allowed.view(B * Q, 1, P), None if factor is None else factor.view(B * Q, 1, P)),
        *attention.split_random(None if asked.random is None else _pick_drawn(asked.random, index)),
    )
    attended = attention.forward(asked.vectors.reshape(B * Q, 1, -1), seen)
    alpha, expected = (
        None if w is None else w.new_zeros(B, Q, J).scatter(2, index, w.view(B, Q, P))
        for w in (attended.alpha, attended.expected_alpha)
    )
    assert alpha is not None
    return AttentionOutput(alpha, attended.context.view(B, Q, -1), expected)


def _pick_drawn(drawn: Float[Tensor, "B Q M J"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N 1 M P"]:
    heads = index.unsqueeze(2).expand(-1, -1, drawn.shape[2], -1)
    return drawn.gather(3, heads).flatten(0, 1).unsqueeze(1)


def _pick(rows: Float[Tensor, "B J K"], index: Int[Tensor, "B Q P"]) -> Float[Tensor, "N P K"]:
    """Rows of every sentence, N = B * Q; its gradient is summed in a fixed order on every device."""
    B, J, K = rows.shape
    offset = torch.arange(0, B * J, J, device=index.device)[:, None, None]
    return embedding((index + offset).flatten(0, 1), rows.reshape(B * J, K))


Sequence = tuple[Tensor, CellState]


class Twin(NamedTuple):
    """what: in words. run: in the place of the definition, the module first. lacks: why a module of the class must do
    without; None where it need not."""

    what: str
    run: Callable[..., Any]
    lacks: Callable[[Any], str | None] = lambda _: None


class Choice(NamedTuple):
    """module: its name in the model. twin: what it runs in place of its definition; None: nothing, for the reason
    `why`."""

    module: str
    twin: str | None
    why: str = ""


def choose(model: nn.Module, fast: bool = True) -> list[Choice]:
    """Give each module its twin, where it has one; without `fast` all run their definitions."""
    autotune.time_at_first_use(cases)
    choices = []
    for name, module in model.named_modules():
        if isinstance(module, Cell | Decoder | Attention | Output):
            twin = TWINS.get(type(module)) if fast else None
            why = f"{type(module).__name__} has no twin" if twin is None else twin.lacks(module)
            module.fast_forward = None if twin is None or why else twin.run
            choices.append(Choice(name, None if twin is None or why else twin.what, why or ""))
    return choices


def in_training(model: nn.Module) -> str:
    """In words: which parts of a model train by fast twins, which as they are defined, and why. Of what is inside a
    decoder, attention alone runs apart from it, and counts where the decoder has no twin."""
    choices = choose(model)
    bare = {name for name, twin, _ in choices if twin is None}
    decoders = [name for name, module in model.named_modules() if isinstance(module, Decoder)]

    def counts(name: str) -> bool:
        inside = next((decoder for decoder in decoders if name.startswith(f"{decoder}.")), None)
        return inside is None or (inside in bare and isinstance(model.get_submodule(name), Attention))

    shown = {name: why for name, _, why in choices if counts(name)}
    names: dict[str, list[str]] = {}
    for name, why in shown.items():
        part = name.partition(".")[0]
        alike = {other_why for other, other_why in shown.items() if other.partition(".")[0] == part} == {why}
        names.setdefault(why, []).append(part if alike else name)
    groups = {why: ", ".join(dict.fromkeys(of_why)) for why, of_why in names.items()}
    fast = groups.pop("", None)
    defined = ", ".join(f"{of_why} ({why})" for why, of_why in groups.items())
    told = {"fast twins of": fast, "as defined:": defined}
    return "; ".join(f"{what} {parts}" for what, parts in told.items() if parts)


def _sequence(
    cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, keep: Tensor | None
) -> Sequence:
    return _run(cell, cell.inputs(x), mask, backward, start, keep)


def _run(
    cell: Cell, share: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, keep: Tensor | None
) -> Sequence:
    """From the inputs' share: the cell's loop in native code; where that cannot run, in PyTorch, the GRU's without a
    dropout mask with its backward pass by hand."""
    if recurrences.runs(cell, share):
        return recurrences.sequence(cell, share, mask, backward, start, keep)
    if keep is not None or type(cell) is not GRU:
        return cell.run(share, mask, backward, start, keep)
    weights = cell.recurrent_gates.weight, cell.recurrent.weight
    outputs, last = gru_sequence(share, mask, *weights, backward, None if start is None else start.h)
    return outputs, Hidden(last)


def _or_library(call: Callable[..., Sequence]) -> Callable[..., Sequence]:
    """The cell's loop in native code; else the library's sequence, by a function of cell, inputs, mask, backward and
    start; the loop where neither can run."""

    def sequence(
        cell: Cell, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None, keep: Tensor | None
    ) -> Sequence:
        if recurrences.runs(cell, x):
            return recurrences.sequence(cell, cell.inputs(x), mask, backward, start, keep)
        if keep is None and torch_recurrences.can_run(mask, start, backward):
            return call(cell, x, mask, backward, start)
        return cell.run(cell.inputs(x), mask, backward, start, keep)

    return sequence


def _torch_gru(cell: TorchGRU, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None) -> Sequence:
    weights = cell.input.weight, cell.recurrent.weight, cell.input.bias, cell.recurrent.bias
    first = None if start is None else start.h
    outputs, h = torch_recurrences.torch_gru_sequence(x, mask, weights, backward, first)
    return outputs, Hidden(h)


def _lstm(cell: LSTM, x: Tensor, mask: Tensor | None, backward: bool, start: CellState | None) -> Sequence:
    assert start is None or isinstance(start, HiddenAndCell)
    weights = cell.input.weight, cell.input.bias, cell.recurrent.weight
    outputs, h, c = torch_recurrences.lstm_sequence(x, mask, *weights, backward, start)
    return outputs, HiddenAndCell(h, c)


def layer_by_layer(stack: Stack, x: Tensor, state: StackState) -> tuple[Tensor, StackState]:
    """`Stack.step` over I positions [N, I, .], for a decoder into whose recurrence nothing else feeds: each layer over
    all positions. x: the bottom layer's share."""
    new: list[CellState] = []
    below, I = x, x.shape[1]
    for l, (cell, old, masks) in enumerate(zip(stack.layers, state.cells, state.layer_masks(I), strict=True)):
        if l == 0:
            run = cell.run if cell.fast_forward is None else partial(_run, cell)
            outputs, last = run(x, None, False, old, masks.recurrent)
        else:
            outputs, last = cell.sequence(layer_input(below, masks.inputs), None, False, old, masks.recurrent)
        new.append(last)
        below = stack.layer_output(l, outputs, below, masks.outputs)
    return below, state.advance(new, I)


def _sutskever(decoder: Sutskever, x: Tensor, state: LayersState, _: Memory) -> Reading:
    return reading_of(layer_by_layer(decoder.stack, x, state.stack)[0])


def _luong(decoder: Luong, x: Tensor, state: LayersState, memory: Memory) -> Reading:
    h, _ = layer_by_layer(decoder.stack, x, state.stack)
    return Reading.from_attention(h, decoder.attention.attend_all(h, state.attention, memory))


def _luong_lacks(decoder: Luong) -> str | None:
    if is_derived(decoder.attention, Attention):
        return "its attention is of a derived class"
    return _stack_lacks(decoder) or (None if decoder.attention.is_parallel else "attention remembers its weights")


def _stack_lacks(decoder: Luong | Sutskever) -> str | None:
    return "its stack is of a derived class" if is_derived(decoder.stack, Stack) else None


def _native(otherwise: Callable[[Any, Tensor, Any, Memory], Reading]) -> Twin:
    """The native recurrence; where that cannot run, something else."""

    def unroll(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
        run = recurrences.unroll if recurrences.runs(decoder, x) else otherwise
        return run(decoder, x, state, memory)

    return Twin("the whole recurrence, its backward pass by hand", unroll, _native_lacks)


def _native_lacks(decoder: Decoder) -> str | None:
    drops = any(isinstance(part, Attention) and part.dropout > 0 for part in decoder.modules())
    return lacks(decoder) or ("its attention drops weights" if drops else None)


def _repeat_step(decoder: Decoder, x: Tensor, state: Any, memory: Memory) -> Reading:
    return decoder.repeat_step(x, state, memory)


def _bahdanau_in_pytorch(decoder: Bahdanau, x: Tensor, state: BahdanauState, memory: Memory) -> Reading:
    """With other parts than the paper's, or a dropout mask, the step is repeated."""
    cell, score = decoder.cell, decoder.attention.score
    if state.recurrent_mask is not None or _bahdanau_lacks(decoder) is not None:
        return decoder.repeat_step(x, state, memory)
    assert isinstance(cell, GRU)
    assert isinstance(score, Additive)
    assert memory.keys is not None
    weights = torch_recurrences.Parameters(
        score.query.weight, score.vector, decoder.context.weight, cell.recurrent_gates.weight, cell.recurrent.weight
    )
    annotations, keys, mask = (each(part, len(x)) for part in (memory.annotations, memory.keys, memory.mask))
    return Reading(*torch_recurrences.unroll(x, state.cell.h, annotations, keys, mask, weights))


def _bahdanau_lacks(decoder: Bahdanau) -> str | None:
    attention = decoder.attention
    parts = {"cell": (decoder.cell, GRU), "attention": (attention, Attention), "score": (attention.score, Additive)}
    parts |= {"window": (attention.window, Global), "normaliser": (attention.normaliser, Softmax)}
    for part, (own, wanted) in parts.items():
        if type(own) is not wanted:
            return f"its {part} is not {wanted.__name__}"
    return "its attention has features" if attention.features else None


def is_rnnsearch(decoder: Decoder) -> bool:
    """Whether a decoder is that of Bahdanau et al. with the papers' parts, under either output."""
    if type(decoder) not in (Bahdanau, BahdanauTanh):
        return False
    assert isinstance(decoder, Bahdanau)
    return _bahdanau_lacks(decoder) is None


def _losses(output: Output, readout: Tensor, target: Tensor, smoothing: float, rows: Tensor | None = None) -> Losses:
    weight, lexical, bias = output.select_rows(rows)
    weight = weight if lexical is None else torch.cat([weight, lexical], dim=1)
    return cross_entropy(readout, weight, bias, target if rows is None else torch.searchsorted(rows, target), smoothing)


SEQUENCE = "the whole sequence, its backward pass by hand"
NATIVE = Twin(SEQUENCE, _sequence, lacks)
RNNSEARCH = _native(_bahdanau_in_pytorch)
RECURRENCE = _native(_repeat_step)
TWINS: dict[type[nn.Module], Twin] = {
    GRU: Twin(SEQUENCE, _sequence),
    **dict.fromkeys((ChoGRU, Tanh, LayerNormGRU, GateNormLSTM, RNMTLSTM, SSRU), NATIVE),
    TorchGRU: Twin(SEQUENCE, _or_library(_torch_gru)),
    LSTM: Twin(SEQUENCE, _or_library(_lstm)),
    Attention: Twin(
        "the window's positions alone",
        attend,
        lambda attention: None if attention.window.reach is not None else "its window sees all positions",
    ),
    Bahdanau: RNNSEARCH,
    BahdanauTanh: RNNSEARCH,
    **dict.fromkeys(
        (Cohn, ConditionalGRU, DeepTransition, BiDeep, BiScale, LuongInputFeeding, Neubig, RNMTPlus), RECURRENCE
    ),
    Luong: Twin("layer by layer, attention to all positions at once", _luong, _luong_lacks),
    Sutskever: Twin("layer by layer", _sutskever, _stack_lacks),
    Output: Twin("softmax and gradient in chunks", _losses),
}
"""By exact class."""
