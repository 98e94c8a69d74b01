"""A recurrence in C++, onward and back, from the list of what one step does (`step.py`, `native/recurrence.cpp`)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from rnnsearch.engine.structs import CFeatures, CPart, What
from rnnsearch.ops.linear import weight_gradient
from rnnsearch.ops.native.library import function
from rnnsearch.ops.step import Source, Step
from rnnsearch.utils.tensors import product_type


def run(step: Step, real: Tensor | None = None, backward: bool = False) -> tuple[list[Tensor], Tensor]:
    """The `outputs` of all positions [N, I, size] each, and the attention weights [N, I, J] (of heads, their mean),
    J = 0 without attention. real: [N, I], where the state changes. backward: from the last position to the first.
    """
    nothing = step.x.new_empty(step.x.shape[0], 0, 0)
    source = step.source or Source(nothing, nothing, nothing.flatten(1).bool())
    vector = source.keys.new_zeros(source.keys.shape[2]) if source.vector is None else source.vector
    tensors = (
        *(first for _, first in step.states),
        *step.weights,
        *(bias for _, bias in step.biases),
        *step.own,
    )
    apply: Callable[..., tuple[Tensor, ...]] = _Recurrence.apply
    of_source = source.keys, source.annotations, vector, prepared_of(source)
    alphas, *outputs = apply(step, real, backward, source, step.x, *of_source, *tensors)
    return outputs, alphas


def can_run(x: Tensor, sizes: tuple[int, ...] = ()) -> bool:
    """Whether the compiled functions are there for such inputs; in bf16 all `sizes` that products sum over must be
    even."""
    kind = product_type(x)
    if x.device.type != "cpu" or (kind == torch.bfloat16 and any(size % 2 for size in sizes)):
        return False
    return function("recurrence_forward", kind) is not None


def laid_out(step: Step, matrix: Callable[[Tensor, int, int], int]) -> ctypes.Array[CPart]:
    """The parts for `search.cpp`, where a product has the address of a matrix that is laid out, made by `matrix` of
    a weight, its first row and how many. The step must be kept as long as they are used."""
    step.own = [weight.float().contiguous() for weight in step.own]
    parts = (CPart * len(step.parts))()
    for to, part in zip(parts, step.parts, strict=True):
        to.set(part.what, part.size, part.at, part.before)
        if part.what is What.PRODUCT and part.tensor is not None:
            to.weight = matrix(step.weights[part.tensor], part.rows, part.size)
        elif part.tensor is not None:
            to.weight = step.own[part.tensor].data_ptr()
    return parts


def features_of(step: Step) -> tuple[CFeatures, object]:
    """The features of a step, and what must be kept as long as they are used."""
    features = step.source.features if step.source else ()
    return CFeatures.of([part.described(kept) for part, kept in zip(features, step.kept, strict=True)])


def prepared_of(source: Source) -> Tensor:
    """What the features have computed once a sentence, side by side [N, J, P]."""
    nothing = torch.empty(*source.mask.shape, 0)
    return torch.cat([nothing, *(part.whole(part.prepared, 2).float() for part in source.features)], dim=2)


class _COutside(Structure):
    _fields_ = (("d", c_void_p), ("at", c_int64), ("size", c_int64), ("before", c_int64))


class _CRecurrence(Structure):
    _fields_ = (
        *(
            (name, c_int64)
            for name in ("rows", "positions", "backward", "x_size", "sums_size", "values_size", "reads_size")
        ),
        *((name, c_int64) for name in ("source", "key", "annotation", "heads", "parts")),
        *((name, c_void_p) for name in ("part", "bias", "x", "real", "keys", "annotations", "mask", "vector")),
        ("scale", c_float),
        ("reach", c_int64),
        ("spread", c_float),
        ("centres", c_void_p),
        ("features", CFeatures),
        *((name, c_void_p) for name in ("prepared", "memory", "values", "reads", "alphas", "outside")),
        ("outsides", c_int64),
        *((name, c_void_p) for name in ("d_alphas", "d_sums", "d_contexts", "d_annotations", "d_keys", "d_vector")),
        *((name, c_void_p) for name in ("d_first", "d_prepared")),
    )


class _Call:
    """The arguments of one call; it holds the tensors whose addresses they are."""

    def __init__(self, step: Step, real: Tensor | None, backward: bool, source: Source, kind: torch.dtype) -> None:
        self.step, self.kind, self.source = step, kind, source
        self.held: list[Tensor] = []
        N, I, X = step.x.shape
        J, A = source.keys.shape[1:]
        self.c = _CRecurrence(N, I, int(backward), X, step.sums_size, step.values_size, step.reads_size)
        self.c.source, self.c.key, self.c.annotation = J, A, source.annotations.shape[2]
        self.c.heads, self.c.scale = source.heads, source.scale
        self.c.reach, self.c.spread = source.reach, source.spread
        self.c.centres = None if source.centres is None else self.at(source.centres.float())
        self.c.mask = self.at(source.mask)
        self.c.features, self.features = features_of(step)
        self.c.real = None if real is None else self.at(real)

    def at(self, tensor: Tensor) -> int:
        """The address of a tensor's numbers, contiguous."""
        self.held.append(tensor.contiguous())
        return self.held[-1].data_ptr()

    def set_parts(self, weights: list[Tensor], own: list[Tensor], gradients: list[Tensor]) -> None:
        """Every part with the addresses of its tensors."""
        parts = (CPart * len(self.step.parts))()
        where = [self.at(weight) for weight in weights]
        masks = [mask.float().contiguous() for mask in self.step.masks]
        for to, part in zip(parts, self.step.parts, strict=True):
            to.set(part.what, part.size, part.at, part.before)
            if part.tensor is None:
                continue
            if part.what is What.PRODUCT:
                to.weight = where[part.tensor] + part.rows * part.at[2] * weights[part.tensor].element_size()
            elif part.what in (What.NORM, What.CENTRE, What.LOG_POSITION, What.ADDITIVE):
                to.weight = self.at(own[part.tensor])
                to.gradient = gradients[part.tensor].data_ptr() if gradients else None
            else:
                mask = masks[part.tensor]
                to.mask, to.mask_row = self.at(mask), mask.stride(0)
                to.mask_position = mask.stride(1) if mask.dim() == 3 else 0
        self.parts = parts
        self.c.parts, self.c.part = len(parts), ctypes.addressof(parts)

    def run(self, name: str) -> None:
        entry = function(name, self.kind)
        assert entry is not None
        entry(self.c)


class _Recurrence(torch.autograd.Function):
    """Given: the first states, the weights, the biases and the parts' own weights of a step, in its order, one after
    the other."""

    @staticmethod
    def forward(
        ctx: Any,
        step: Step,
        real: Tensor | None,
        backward: bool,
        source: Source,
        x: Tensor,
        keys: Tensor,
        annotations: Tensor,
        vector: Tensor,
        prepared: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        kind = product_type(x)
        (N, I), J = x.shape[:2], keys.shape[1]
        states, weights, biases, own = _split(step, tensors)
        weights = [weight.float().contiguous() for weight in weights]
        keys, annotations = keys.to(kind).contiguous(), annotations.to(kind).contiguous()
        vector, prepared = vector.float().contiguous(), prepared.contiguous()
        call = _Call(step, real, backward, source, kind)
        values = torch.empty(N, I + 1, step.values_size)
        for (value, _), first in zip(step.states, states, strict=True):
            values[:, I if backward else 0, value.at : value.at + value.size] = first
        bias = step.bias_row(biases)
        reads, alphas = torch.empty(N, I, step.reads_size, dtype=kind), torch.empty(N, I, source.heads, J)
        call.set_parts(weights, own, [])
        call.c.bias, call.c.x, call.c.keys, call.c.annotations = map(call.at, (bias, x.to(kind), keys, annotations))
        call.c.vector, call.c.values, call.c.reads, call.c.alphas = map(call.at, (vector, values, reads, alphas))
        memory = torch.zeros(N, I + 1, J, call.c.features.memory)
        call.c.prepared, call.c.memory = call.at(prepared), call.at(memory)
        call.run("recurrence_forward")
        ctx.step, ctx.real, ctx.turned, ctx.source, ctx.kind = step, real, backward, source, kind
        ctx.types = [part.dtype for part in (x, keys, annotations, vector, prepared, *tensors)]
        ctx.save_for_backward(values, reads, alphas, keys, annotations, vector, prepared, memory, *weights, *own)
        now, before = (values[:, :-1], values[:, 1:]) if backward else (values[:, 1:], values[:, :-1])
        outputs = ((before if v.before else now)[..., v.at : v.at + v.size] for v in step.outputs)
        return alphas.mean(2), *outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        step, source, kind = ctx.step, ctx.source, ctx.kind
        values, reads, alphas, keys, annotations, vector, prepared, memory, *rest = ctx.saved_tensors
        weights, own = rest[: len(step.weights)], rest[len(step.weights) :]
        N, I, M, J = alphas.shape
        call = _Call(step, ctx.real, ctx.turned, source, kind)
        d_own = [torch.empty_like(weight) for weight in own]
        call.set_parts(weights, own, d_own)
        outside = (_COutside * len(step.outputs))()
        for to, value, d in zip(outside, step.outputs, grads[1:], strict=True):
            to.d, to.at, to.size, to.before = call.at(d.float()), value.at, value.size, int(value.before)
        d_sums, d_contexts = reads.new_empty(N, I, step.sums_size), reads.new_empty(N, I, annotations.shape[2])
        d_annotations, d_keys = torch.empty_like(annotations), torch.empty(keys.shape)
        d_vector, d_first = torch.empty_like(vector), torch.empty(N, step.values_size)
        d_alphas = (grads[0].float() / M).unsqueeze(2).expand(N, I, M, J)
        call.c.vector, call.c.values, call.c.reads, call.c.alphas = map(call.at, (vector, values, reads, alphas))
        call.c.keys, call.c.annotations, call.c.d_alphas = map(call.at, (keys, annotations, d_alphas))
        call.c.outside, call.c.outsides = ctypes.addressof(outside), len(outside)
        d_prepared = torch.empty_like(prepared)
        call.c.prepared, call.c.memory = call.at(prepared), call.at(memory)
        made = (d_sums, d_contexts, d_annotations, d_keys, d_vector, d_first, d_prepared)
        names = ("d_sums", "d_contexts", "d_annotations", "d_keys", "d_vector", "d_first", "d_prepared")
        for name, tensor in zip(names, made, strict=True):
            setattr(call.c, name, tensor.data_ptr())
        call.run("recurrence_backward")
        d_states = [d_first[:, value.at : value.at + value.size] for value, _ in step.states]
        d_biases = [
            d_sums[..., sums.at : sums.at + sums.size].sum((0, 1), dtype=torch.float32) for sums, _ in step.biases
        ]
        given = (_input_gradient(step, d_sums), d_keys, d_annotations, d_vector, d_prepared)
        found = (*given, *d_states, *_weight_gradients(step, d_sums, reads), *d_biases, *d_own)
        return None, None, None, None, *(d.to(kind) for d, kind in zip(found, ctx.types, strict=True))


def _split(step: Step, tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], ...]:
    """The tensors as states, weights, biases and the parts' own."""
    left = list(tensors)
    counts = (len(step.states), len(step.weights), len(step.biases), len(step.own))
    return tuple([left.pop(0) for _ in range(count)] for count in counts)


def _input_gradient(step: Step, d_sums: Tensor) -> Tensor:
    """d x, from the sums that its parts were added to."""
    inputs = sorted((part.at[1], part.at[0], part.size) for part in step.parts if part.what is What.INPUT)
    parts = [d_sums[..., at : at + size] for _, at, size in inputs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _weight_gradients(step: Step, d_sums: Tensor, reads: Tensor) -> list[Tensor]:
    """d W of every weight, over all rows and positions at once; of its products with parts of the rows, one below the
    other."""
    products = [part for part in step.parts if part.what is What.PRODUCT]
    found = []
    for index, weight in enumerate(step.weights):
        own = sorted((part.rows, part.at, part.size) for part in products if part.tensor == index)
        parts = [
            weight_gradient(d_sums[..., to : to + size], reads[..., at : at + width], reads.dtype)
            for _, (to, at, width), size in own
        ]
        assert sum(len(part) for part in parts) == len(weight)
        found.append(parts[0] if len(parts) == 1 else torch.cat(parts))
    return found
