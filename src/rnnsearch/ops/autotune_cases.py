"""What is timed of native code beside the library's: each kernel at a few sizes of training and of search.

Rows differ a little from call to call, as batches do: a library that builds a kernel for each shape is timed with that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from rnnsearch.engine.structs import Kind
from rnnsearch.ops import autotune, linear, loss, recurrence, torch_recurrences
from rnnsearch.ops.autotune import NATIVE, ONEDNN, TORCH, Case, Run
from rnnsearch.ops.linear import Packed
from rnnsearch.ops.native.library import TYPES, function, library
from rnnsearch.ops.step import Source, Step
from rnnsearch.ops.torch_recurrences import gru_sequence
from rnnsearch.utils.tensors import lengths_mask

UNITS = 512
WORDS = 8000
Onward = Callable[[int], tuple[Tensor, ...]]


def cases() -> Iterator[Case]:
    """All that have a choice here. Products come first: others are made of them."""
    for case in _all():
        if len(case.ways) > 1:
            yield case


def _all() -> Iterator[Case]:
    for kind in TYPES:
        fewer = 2 if kind == torch.float32 else 1  # slower, and no more is needed: no kernel is built for a shape
        yield _product(kind, 1024 // fewer, 3 * UNITS, UNITS)
        yield _product(kind, 512 // fewer, WORDS, UNITS)
        yield _weight_gradient(kind, 3 * UNITS, UNITS, 1024)
    for kind in TYPES:
        yield _gru(kind)
        yield _lstm(kind)
        yield _rnnsearch(kind)
        yield _softmax_loss(kind)
    for rows in (1, 64):
        for packed in Kind:
            yield _packed(packed, rows)


def _numbers(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).mul_(0.05).to(kind)


def _library_products(kind: torch.dtype) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {TORCH: linear.by_torch}
    if kind == torch.float32 and linear.has_onednn():
        ways[ONEDNN] = linear.by_onednn
    return ways


def _product(kind: torch.dtype, M: int, N: int, K: int) -> Case:
    x, wide = _numbers(M, K, kind=kind), _numbers(N, K)  # weights are in fp32; a library is given them rounded
    w, ways = wide.to(kind), _library_products(kind)
    if linear.can_run(kind):
        ways = {NATIVE: lambda x, _: linear.native_product(x, wide, kind), **ways}
    runs: dict[str, Run] = {name: lambda n, way=way: way(x[n:], w) for name, way in ways.items()}  # type: ignore[misc]
    return Case(autotune.PRODUCT, TYPES[kind], f"{M} x {N} x {K}", 2.0 * M * N * K, 1, runs)


def _weight_gradient(kind: torch.dtype, M: int, N: int, K: int) -> Case:
    d, x = _numbers(K, M, kind=kind), _numbers(K, N + 64, kind=kind)[:, :N]  # a part of all that was read
    runs: dict[str, Run] = {}
    if linear.can_run(kind):
        runs[NATIVE] = lambda n: linear.native_product(d[n:].t(), x[n:].t(), kind, torch.float32)
    for name, way in _library_products(kind).items():
        runs[name] = lambda n, way=way: way(d[n:].t(), x[n:].t()).float()  # type: ignore[misc]
    return Case(autotune.WEIGHT_GRADIENT, TYPES[kind], f"{M} x {N} x {K}", 2.0 * M * N * K, 1, runs)


def _there_and_back(kind: torch.dtype, run: Callable[[], tuple[Tensor, ...]], inputs: list[Tensor]) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        found = run()
    torch.autograd.grad(found, inputs, [torch.ones_like(part) for part in found])


def _gru(kind: torch.dtype, B: int = 32, J: int = 6) -> Case:
    D = UNITS
    x = _numbers(B, J, 3 * D, kind=kind).requires_grad_()
    weights = _numbers(2 * D, D).requires_grad_(), _numbers(D, D).requires_grad_()
    mask, start = lengths_mask(torch.full((B,), J), J), torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = Step(x[n:])
        own, sums = step.state(start[n:]), step.sums(3 * D)
        step.input(0, sums)
        step.reset_before(*weights, sums, own.last, own)
        step.outputs = [own]
        return tuple(recurrence.run(step, mask[n:])[0])

    def twin(n: int) -> tuple[Tensor, ...]:
        return gru_sequence(x[n:], mask[n:], *weights, False, start[n:])[:1]

    operations = 3 * 2.0 * B * J * 3 * D * D
    runs = _trained(kind, {NATIVE: native, TORCH: twin}, x, *weights)
    return Case(autotune.GRU, TYPES[kind], f"{B} rows, {J} positions, {D} units", operations, 1, runs)


def _lstm(kind: torch.dtype, B: int = 64, J: int = 6) -> Case:
    """From its inputs on, as the library has it; of so many rows that their share is a product of our own."""
    D = UNITS
    x, W, b, U = (_numbers(*shape).requires_grad_() for shape in ((B, J, D), (4 * D, D), (4 * D,), (4 * D, D)))
    mask, start = lengths_mask(torch.full((B,), J), J), torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = Step(linear.linear(x[n:], W, b))
        h, c, sums = step.state(start[n:]), step.state(start[n:]), step.sums(4 * D)
        step.input(0, sums)
        step.product(U, step.read((h.last, None)), sums)
        step.lstm(h, c, sums, h.last, c.last)
        step.outputs = [h]
        return tuple(recurrence.run(step, mask[n:])[0])

    def twin(n: int) -> tuple[Tensor, ...]:
        return torch_recurrences.lstm_sequence(x[n:], mask[n:], W, b, U)[:1]

    operations = 3 * 2.0 * B * J * 8 * D * D
    runs = _trained(kind, {NATIVE: native, TORCH: twin}, x, W, b, U)
    return Case(autotune.LSTM, TYPES[kind], f"{B} rows, {J} positions, {D} units", operations, 1, runs)


def _rnnsearch(kind: torch.dtype, B: int = 32, I: int = 6) -> Case:
    D = UNITS
    x, h, k = (_numbers(B, I, size, kind=kind).requires_grad_() for size in (3 * D, D, D))
    shapes = ((D, D), (D,), (3 * D, D), (2 * D, D), (D, D))
    weights = torch_recurrences.Parameters(*(_numbers(*shape).requires_grad_() for shape in shapes))
    mask, start = lengths_mask(torch.full((B,), I), I), torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = Step(x[n:])
        own, asked, sums = step.state(start[n:]), step.sums(D), step.sums(3 * D)
        step.product(weights.W_a, step.read((own.last, None)), asked)
        context = step.attend(asked, Source(k[n:], h[n:], mask[n:], weights.v_a))
        step.input(0, sums)
        step.product(weights.C, step.read((context, None)), sums)
        step.reset_before(weights.U_gates, weights.U, sums, own.last, own)
        step.outputs = [own.last, context]
        return tuple(recurrence.run(step)[0])

    def twin(n: int) -> tuple[Tensor, ...]:
        return torch_recurrences.unroll(x[n:], start[n:], h[n:], k[n:], mask[n:], weights)[:2]

    operations = 3 * 2.0 * B * I * (7 * D * D + 2 * I * D)
    sizes = f"{B} rows, {I} x {I} positions, {D} units"
    runs = _trained(kind, {NATIVE: native, TORCH: twin}, x, h, k, *weights)
    return Case(autotune.RNNSEARCH, TYPES[kind], sizes, operations, 1, runs)


def _trained(kind: torch.dtype, ways: dict[str, Onward], *inputs: Tensor) -> dict[str, Run]:
    """Each way onward and back, ours where it is there."""
    return {
        name: lambda n, way=way: _there_and_back(kind, partial(way, n), list(inputs))  # type: ignore[misc]
        for name, way in ways.items()
        if name != NATIVE or function("recurrence_forward", kind) is not None
    }


def _softmax_loss(kind: torch.dtype, M: int = 256) -> Case:
    V = WORDS
    logits, bias, target, d_bias = _numbers(M, V, kind=kind), _numbers(V), torch.arange(M) % V, torch.zeros(V)
    ways = {TORCH: loss.softmax_loss}
    if function("softmax_loss", kind) is not None:
        ways = {NATIVE: loss.native_softmax_loss, **ways}
    runs: dict[str, Run] = {
        name: lambda n, way=way: way(logits[n:], bias, target[n:], 0.1, d_bias)  # type: ignore[misc]
        for name, way in ways.items()
    }
    return Case(autotune.SOFTMAX, TYPES[kind], f"{M} x {V}", 5.0 * M * V, 1, runs)


def _packed(kind: Kind, rows: int) -> Case:
    N, K = 3 * UNITS, UNITS
    x, weight, native = _numbers(rows, K), _numbers(N, K), library()
    ways: dict[str, Run] = {TORCH: lambda _: functional.linear(x, weight)}  # all that search has without native code
    if native is not None:
        laid = Packed(native, weight, None, kind)
        ways = {NATIVE: lambda _: laid(x), **ways}
    return Case(
        autotune.PACKED, kind.name.lower(), f"{rows} x {N} x {K}", 2.0 * rows * N * K, 20 if rows == 1 else 4, ways
    )
