"""The cases that `autotune` times: each kernel at a few sizes of training and search, in native code and by libraries.

The number of rows changes a little from call to call, as that of batches does, because some libraries build a kernel
for each shape. `accel/registry.py` registers `cases`.

Any change of this file, comments included, changes the key of the stored timings. Tests: tests/models/test_choice.py.

Axes: B sentences, M rows of products or target tokens, J positions, E embedding, D state, G gate inputs, R readout,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from rnnsearch.engine.structs import DType
from rnnsearch.ops import autotune, linear, loss, recurrence, torch_recurrences
from rnnsearch.ops.autotune import NATIVE, ONEDNN, TORCH, Case, Run
from rnnsearch.ops.linear import PackedWeight
from rnnsearch.ops.native.library import DTYPE_NAMES, library, native_function
from rnnsearch.ops.step import AttentionSource, StepBuilder
from rnnsearch.ops.torch_recurrences import gru_sequence
from rnnsearch.utils.tensors import lengths_mask

UNITS = 512
VOCABULARY = 8000

Forward = Callable[[int], tuple[Tensor, ...]]
Product = Callable[[Tensor, Tensor], Tensor]


def cases() -> Iterator[Case]:
    """Return the cases with more than one candidate; products come first, since other cases contain products."""
    for case in _all_cases():
        if len(case.candidates) > 1:
            yield case


def _all_cases() -> Iterator[Case]:
    for dtype in DTYPE_NAMES:
        divisor = 2 if dtype == torch.float32 else 1  # slower, and smaller sizes are enough: no kernel is built
        yield _product(dtype, 1024 // divisor, 3 * UNITS, UNITS)
        yield _product(dtype, 512 // divisor, VOCABULARY, UNITS)
        yield _weight_gradient(dtype, 3 * UNITS, UNITS, 1024)
    for dtype in DTYPE_NAMES:
        yield _gru(dtype)
        yield _lstm(dtype)
        yield _rnnsearch(dtype)
        yield _softmax_loss(dtype)
    for rows in (1, 64):
        for packed_dtype in DType:
            yield _packed_product(packed_dtype, rows)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).mul_(0.05).to(dtype)


# Products.


def _product(dtype: torch.dtype, M: int, N: int, K: int) -> Case:
    x = _random(M, K, dtype=dtype)
    fp32_weight = _random(N, K)  # a library gets it rounded
    weight = fp32_weight.to(dtype)
    candidates: dict[str, Run] = {}
    if linear.has_native_product(dtype):
        candidates[NATIVE] = lambda n: linear.native_product(x[n:], fp32_weight, dtype)
    for name, product in _library_products(dtype).items():
        # The default argument binds the product of this iteration.
        candidates[name] = lambda n, product=product: product(x[n:], weight)  # type: ignore[misc]
    return Case(autotune.PRODUCT, DTYPE_NAMES[dtype], f"{M} x {N} x {K}", 2.0 * M * N * K, 1, candidates)


def _weight_gradient(dtype: torch.dtype, M: int, N: int, K: int) -> Case:
    d = _random(K, M, dtype=dtype)
    x = _random(K, N + 64, dtype=dtype)[:, :N]  # some columns of everything that was read
    candidates: dict[str, Run] = {}
    if linear.has_native_product(dtype):
        candidates[NATIVE] = lambda n: linear.native_product(d[n:].t(), x[n:].t(), dtype, torch.float32)
    for name, product in _library_products(dtype).items():
        candidates[name] = lambda n, product=product: product(d[n:].t(), x[n:].t()).float()  # type: ignore[misc]
    return Case(autotune.WEIGHT_GRADIENT, DTYPE_NAMES[dtype], f"{M} x {N} x {K}", 2.0 * M * N * K, 1, candidates)


def _library_products(dtype: torch.dtype) -> dict[str, Product]:
    products: dict[str, Product] = {TORCH: linear.torch_product}
    if dtype == torch.float32 and linear.has_onednn():
        products[ONEDNN] = linear.onednn_product
    return products


# Recurrences, forward and backward.


def _gru(dtype: torch.dtype, B: int = 32, J: int = 6) -> Case:
    D = UNITS
    x = _random(B, J, 3 * D, dtype=dtype).requires_grad_()
    weights = _random(2 * D, D).requires_grad_(), _random(D, D).requires_grad_()
    mask = lengths_mask(torch.full((B,), J), J)
    start = torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = StepBuilder(x[n:])
        h = step.state(start[n:])
        sums = step.sums(3 * D)
        step.input(0, sums)
        step.gru_with_reset_before(*weights, sums, h.previous, h)
        step.outputs = [h]
        return tuple(recurrence.run(step, mask[n:])[0])

    def in_pytorch(n: int) -> tuple[Tensor, ...]:
        return gru_sequence(x[n:], mask[n:], *weights, False, start[n:])[:1]

    # Factor 3: the forward product, and in the backward pass those for the inputs and for the weights.
    operations = 3 * 2.0 * B * J * 3 * D * D
    candidates = _training_candidates(dtype, native, in_pytorch, (x, *weights))
    return Case(autotune.GRU, DTYPE_NAMES[dtype], f"{B} rows, {J} positions, {D} units", operations, 1, candidates)


def _lstm(dtype: torch.dtype, B: int = 64, J: int = 6) -> Case:
    """Include the projection of the inputs, as PyTorch's LSTM does, with enough rows for native products."""
    D = UNITS
    x, W, b, U = (_random(*shape).requires_grad_() for shape in ((B, J, D), (4 * D, D), (4 * D,), (4 * D, D)))
    mask = lengths_mask(torch.full((B,), J), J)
    start = torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = StepBuilder(linear.linear(x[n:], W, b))
        h = step.state(start[n:])
        c = step.state(start[n:])
        sums = step.sums(4 * D)
        step.input(0, sums)
        step.product(U, step.read((h.previous, None)), sums)
        step.lstm(h, c, sums, h.previous, c.previous)
        step.outputs = [h]
        return tuple(recurrence.run(step, mask[n:])[0])

    def in_pytorch(n: int) -> tuple[Tensor, ...]:
        return torch_recurrences.lstm_sequence(x[n:], mask[n:], W, b, U)[:1]

    operations = 3 * 2.0 * B * J * 8 * D * D
    candidates = _training_candidates(dtype, native, in_pytorch, (x, W, b, U))
    return Case(autotune.LSTM, DTYPE_NAMES[dtype], f"{B} rows, {J} positions, {D} units", operations, 1, candidates)


def _rnnsearch(dtype: torch.dtype, B: int = 32, I: int = 6) -> Case:
    D = UNITS
    x, h, k = (_random(B, I, size, dtype=dtype).requires_grad_() for size in (3 * D, D, D))
    shapes = ((D, D), (D,), (3 * D, D), (2 * D, D), (D, D))
    weights = torch_recurrences.RNNsearchParameters(*(_random(*shape).requires_grad_() for shape in shapes))
    mask = lengths_mask(torch.full((B,), I), I)
    start = torch.zeros(B, D)

    def native(n: int) -> tuple[Tensor, ...]:
        step = StepBuilder(x[n:])
        s = step.state(start[n:])
        query = step.sums(D)
        sums = step.sums(3 * D)
        step.product(weights.W_a, step.read((s.previous, None)), query)
        context = step.attend(query, AttentionSource(k[n:], h[n:], mask[n:], weights.v_a))
        step.input(0, sums)
        step.product(weights.C, step.read((context, None)), sums)
        step.gru_with_reset_before(weights.U_gates, weights.U, sums, s.previous, s)
        step.outputs = [s.previous, context]
        return tuple(recurrence.run(step)[0])

    def in_pytorch(n: int) -> tuple[Tensor, ...]:
        return torch_recurrences.unroll_rnnsearch(x[n:], start[n:], h[n:], k[n:], mask[n:], weights)[:2]

    operations = 3 * 2.0 * B * I * (7 * D * D + 2 * I * D)
    sizes = f"{B} rows, {I} x {I} positions, {D} units"
    candidates = _training_candidates(dtype, native, in_pytorch, (x, h, k, *weights))
    return Case(autotune.RNNSEARCH, DTYPE_NAMES[dtype], sizes, operations, 1, candidates)


def _training_candidates(
    dtype: torch.dtype, native: Forward, in_pytorch: Forward, inputs: Sequence[Tensor]
) -> dict[str, Run]:
    """Return functions that run forward and backward."""
    candidates: dict[str, Run] = {}
    if native_function("recurrence_forward", dtype) is not None:
        candidates[NATIVE] = partial(_forward_and_backward, dtype, native, inputs)
    candidates[TORCH] = partial(_forward_and_backward, dtype, in_pytorch, inputs)
    return candidates


def _forward_and_backward(dtype: torch.dtype, forward: Forward, inputs: Sequence[Tensor], repetition: int) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = forward(repetition)
    # Outside of autocast, like the backward pass of training.
    torch.autograd.grad(outputs, list(inputs), [torch.ones_like(output) for output in outputs])


# Loss and search.


def _softmax_loss(dtype: torch.dtype, M: int = 256) -> Case:
    V = VOCABULARY
    logits = _random(M, V, dtype=dtype)
    bias = _random(V)
    target = torch.arange(M) % V
    d_bias = torch.zeros(V)
    candidates: dict[str, Run] = {}
    if native_function("softmax_loss", dtype) is not None:
        candidates[NATIVE] = lambda n: loss.native_softmax_loss(logits[n:], bias, target[n:], 0.1, d_bias)
    candidates[TORCH] = lambda n: loss.torch_softmax_loss(logits[n:], bias, target[n:], 0.1, d_bias)
    return Case(autotune.SOFTMAX, DTYPE_NAMES[dtype], f"{M} x {V}", 5.0 * M * V, 1, candidates)


def _packed_product(dtype: DType, rows: int) -> Case:
    N = 3 * UNITS
    K = UNITS
    x = _random(rows, K)
    weight = _random(N, K)
    candidates: dict[str, Run] = {}
    if (native := library()) is not None:
        packed = PackedWeight(native, weight, None, dtype)
        candidates[NATIVE] = lambda _: packed(x)
    candidates[TORCH] = lambda _: functional.linear(x, weight)  # in fp32: search without native code has nothing else
    calls = 20 if rows == 1 else 4
    return Case(autotune.PACKED, dtype.name.lower(), f"{rows} x {N} x {K}", 2.0 * rows * N * K, calls, candidates)
