"""Native recurrences with a backward pass, from the description of one step (`step.py`, `native/recurrence.cpp`).

`accel/recurrences.py` runs cells and decoders with it; native search (`accel/search.py`) packs the same steps
(`packed_ops`); `autotune_cases.py` times them.

Axes: N rows, I positions, J source positions, A key size, H annotation size, M heads, P values that features compute
once per sentence.

The structures mirror those of `native/recurrence.h`, with the same fields in the same order. Tests:
tests/properties/test_recurrences.py compares results and gradients of all combinations with the definitions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_float, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from rnnsearch.engine.structs import CFeatures, COp, OpType
from rnnsearch.ops.linear import weight_gradient
from rnnsearch.ops.native.library import native_function
from rnnsearch.ops.step import AttentionSource, StepBuilder
from rnnsearch.utils.tensors import matmul_dtype


def run(step: StepBuilder, active: Tensor | None = None, backward: bool = False) -> tuple[list[Tensor], Tensor]:
    """Run a step at all positions.

    Args:
        active: [N, I], False where the states stay unchanged (padding); None: True everywhere.
        backward: Run from the last position to the first.

    Returns:
        The outputs of the step [N, I, size] each, and the attention weights [N, I, J], averaged over heads; J is 0
        without attention.
    """
    # Native code always has a source; without attention, it has no positions.
    empty = step.x.new_empty(step.x.shape[0], 0, 0)
    source = step.source or AttentionSource(empty, empty, empty.flatten(1).bool())
    vector = source.score_vector
    if vector is None:
        vector = source.keys.new_zeros(source.keys.shape[2])
    # Passed as arguments of the autograd function, which would not see tensors inside `step`. `_split` has the same
    # order.
    tensors = (
        *(initial for _, initial in step.states),
        *step.weights,
        *(bias for _, bias in step.biases),
        *step.parameters,
    )
    source_tensors = (source.keys, source.annotations, vector, prepared_features(source))
    apply: Callable[..., tuple[Tensor, ...]] = _Recurrence.apply
    alphas, *outputs = apply(step, active, backward, source, step.x, *source_tensors, *tensors)
    return outputs, alphas


def can_run(x: Tensor, sizes: tuple[int, ...] = ()) -> bool:
    """Return True if native code supports these inputs; in bf16 all `sizes` that products sum over must be even."""
    dtype = matmul_dtype(x)
    if x.device.type != "cpu" or (dtype == torch.bfloat16 and any(size % 2 for size in sizes)):
        return False
    return native_function("recurrence_forward", dtype) is not None


def packed_ops(step: StepBuilder, matrix_address: Callable[[Tensor, int, int], int]) -> ctypes.Array[COp]:
    """Return the operations of a step for `search.cpp`, where products have packed matrices.

    They point to tensors of the step, which must live as long.

    Args:
        matrix_address: Returns the address of a packed matrix, given a weight, its first row and the number of rows.
    """
    step.parameters = [parameters.float().contiguous() for parameters in step.parameters]
    structs = (COp * len(step.ops))()
    for struct, op in zip(structs, step.ops, strict=True):
        struct.set_operands(op.type, op.size, op.offsets, op.previous)
        struct.source = op.source
        if op.tensor_index is None:
            continue
        if op.type is OpType.PRODUCT:
            struct.weight = matrix_address(step.weights[op.tensor_index], op.first_row, op.size)
        else:
            struct.weight = step.parameters[op.tensor_index].data_ptr()
    return structs


def prepared_features(source: AttentionSource) -> Tensor:
    """Return the concatenation of everything that features compute once per sentence [N, J, P]."""
    parts = [torch.empty(*source.mask.shape, 0)]
    parts += [feature.pad(feature.prepared, 2).float() for feature in source.features]
    return torch.cat(parts, dim=2)


class _COutputGradient(Structure):
    """`OutputGradient` of recurrence.h."""

    _fields_ = (("d", c_void_p), ("offset", c_int64), ("size", c_int64), ("previous", c_int64))


class _CRecurrence(Structure):
    """`Recurrence` of recurrence.h."""

    _fields_ = (
        # The fields, their types and their order are those of recurrence.h.
        *((name, c_int64) for name in ("rows", "positions", "reversed")),
        *((name, c_int64) for name in ("x_size", "sums_size", "values_size", "reads_size")),
        *((name, c_int64) for name in ("source_length", "key_size", "annotation_size", "heads", "num_ops")),
        *((name, c_void_p) for name in ("ops", "bias", "x", "active")),
        *((name, c_void_p) for name in ("keys", "annotations", "source_mask", "score_vector")),
        ("score_scale", c_float),
        ("window_radius", c_int64),
        ("window_sigma", c_float),
        ("window_centres", c_void_p),
        ("features", CFeatures),
        *((name, c_void_p) for name in ("prepared", "feature_states", "values", "reads", "alphas")),
        ("output_gradients", c_void_p),
        ("num_output_gradients", c_int64),
        *((name, c_void_p) for name in ("d_alphas", "d_sums", "d_contexts", "d_annotations")),
        *((name, c_void_p) for name in ("d_keys", "d_vector", "d_initial", "d_prepared")),
    )


class _Call:
    """The arguments of one call of native code, and the tensors that they point to."""

    def __init__(
        self, step: StepBuilder, active: Tensor | None, backward: bool, source: AttentionSource, dtype: torch.dtype
    ) -> None:
        self.step = step
        self.dtype = dtype
        self.source = source
        self.referenced: list[Tensor] = []
        N, I, X = step.x.shape
        J, A = source.keys.shape[1:]
        struct = self.struct = _CRecurrence(N, I, int(backward), X, step.sums_size, step.values_size, step.reads_size)
        struct.source_length = J
        struct.key_size = A
        struct.annotation_size = source.annotations.shape[2]
        struct.heads = source.heads
        struct.score_scale = source.scale
        struct.window_radius = source.window_radius
        struct.window_sigma = source.window_sigma
        centres = source.window_centres
        struct.window_centres = None if centres is None else self.address(centres.float())
        struct.source_mask = self.address(source.mask)
        descriptions = [description for attention in step.attentions for description in attention.feature_descriptions]
        struct.features, self.features = CFeatures.create(descriptions)
        struct.active = None if active is None else self.address(active)

    def address(self, tensor: Tensor) -> int:
        """Return the address of a tensor's values, contiguous, which live as long as this object."""
        self.referenced.append(tensor.contiguous())
        return self.referenced[-1].data_ptr()

    def set_saved(
        self,
        values: Tensor,
        reads: Tensor,
        alphas: Tensor,
        keys: Tensor,
        annotations: Tensor,
        vector: Tensor,
        prepared: Tensor,
        feature_states: Tensor,
    ) -> None:
        """Set the tensors that the forward pass writes or reads and the backward pass reads again."""
        struct = self.struct
        struct.values = self.address(values)
        struct.reads = self.address(reads)
        struct.alphas = self.address(alphas)
        struct.keys = self.address(keys)
        struct.annotations = self.address(annotations)
        struct.score_vector = self.address(vector)
        struct.prepared = self.address(prepared)
        struct.feature_states = self.address(feature_states)

    def set_ops(self, weights: list[Tensor], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Set the operations, with the addresses of their tensors.

        Args:
            gradients: Tensors for the gradients of `parameters`; empty for a forward pass.
        """
        structs = (COp * len(self.step.ops))()
        weight_addresses = [self.address(weight) for weight in weights]
        masks = [mask.float().contiguous() for mask in self.step.masks]
        for struct, op in zip(structs, self.step.ops, strict=True):
            struct.set_operands(op.type, op.size, op.offsets, op.previous)
            if op.tensor_index is None:
                continue
            # offsets[2] is the number of columns, and thus the length of a row of the weight.
            if op.type is OpType.PRODUCT:
                row_bytes = op.offsets[2] * weights[op.tensor_index].element_size()
                struct.weight = weight_addresses[op.tensor_index] + op.first_row * row_bytes
            elif op.type in (OpType.NORM, OpType.CENTRE, OpType.LOG_POSITION, OpType.ADDITIVE):
                struct.weight = self.address(parameters[op.tensor_index])
                struct.d_weight = gradients[op.tensor_index].data_ptr() if gradients else None
            else:
                mask = masks[op.tensor_index]
                struct.mask = self.address(mask)
                struct.mask_row_stride = mask.stride(0)
                # A mask [N, size] is the same at all positions.
                struct.mask_position_stride = mask.stride(1) if mask.dim() == 3 else 0
        self.ops = structs
        self.struct.num_ops = len(structs)
        self.struct.ops = ctypes.addressof(structs)

    def run(self, name: str) -> None:
        """Call a native function."""
        function = native_function(name, self.dtype)
        assert function is not None
        function(self.struct)


class _Recurrence(torch.autograd.Function):
    """The recurrence as a function of all tensors that have gradients.

    `tensors`: initial states, weights, biases and other parameters of the step, in its order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        step: StepBuilder,
        active: Tensor | None,
        backward: bool,
        source: AttentionSource,
        x: Tensor,
        keys: Tensor,
        annotations: Tensor,
        vector: Tensor,
        prepared: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        dtype = matmul_dtype(x)
        N, I = x.shape[:2]
        J = keys.shape[1]
        initial_states, weights, biases, parameters = _split(step, tensors)
        weights = [weight.float().contiguous() for weight in weights]
        keys = keys.to(dtype).contiguous()
        annotations = annotations.to(dtype).contiguous()
        vector = vector.float().contiguous()
        prepared = prepared.contiguous()
        # Gradients are rounded to the types that native code reads.
        ctx.dtypes = [tensor.dtype for tensor in (x, keys, annotations, vector, prepared, *tensors)]
        call = _Call(step, active, backward, source, dtype)
        # Position i reads its old state from index i and writes to i + 1, or the other way round if it runs backward.
        values = torch.empty(N, I + 1, step.values_size)  # of all positions, and the initial states
        for (value, _), initial in zip(step.states, initial_states, strict=True):
            values[:, I if backward else 0, value.offset : value.offset + value.size] = initial
        reads = torch.empty(N, I, step.reads_size, dtype=dtype)
        alphas = torch.empty(N, I, source.heads, J)
        # Features start from 0, unlike values, whose initial states are copied below.
        feature_states = torch.zeros(N, I + 1, J, call.struct.features.state_size)
        call.set_ops(weights, parameters, [])
        struct = call.struct
        struct.bias = call.address(step.initial_sums(biases))
        struct.x = call.address(x.to(dtype))
        saved = (values, reads, alphas, keys, annotations, vector, prepared, feature_states)
        call.set_saved(*saved)
        call.run("recurrence_forward")
        ctx.step, ctx.active, ctx.reversed, ctx.source, ctx.dtype = step, active, backward, source, dtype
        ctx.save_for_backward(*saved, *weights, *parameters)
        current, previous = (values[:, :-1], values[:, 1:]) if backward else (values[:, 1:], values[:, :-1])
        # Outputs are views of `values`, which the backward pass also reads.
        outputs = []
        for value in step.outputs:
            position_values = previous if value.from_previous else current
            outputs.append(position_values[..., value.offset : value.offset + value.size])
        return alphas.mean(2), *outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        step, source, dtype = ctx.step, ctx.source, ctx.dtype
        values, reads, alphas, keys, annotations, vector, prepared, feature_states, *rest = ctx.saved_tensors
        weights = rest[: len(step.weights)]
        parameters = rest[len(step.weights) :]
        N, I, M, J = alphas.shape
        call = _Call(step, ctx.active, ctx.reversed, source, dtype)
        d_parameters = [torch.empty_like(tensor) for tensor in parameters]
        call.set_ops(weights, parameters, d_parameters)
        output_gradients = (_COutputGradient * len(step.outputs))()
        for output_gradient, value, d in zip(output_gradients, step.outputs, grads[1:], strict=True):
            output_gradient.d = call.address(d.float())
            output_gradient.offset = value.offset
            output_gradient.size = value.size
            output_gradient.previous = int(value.from_previous)
        # The output is the mean over M heads.
        d_alphas = (grads[0].float() / M).unsqueeze(2).expand(N, I, M, J)
        # In the type of products, because weight gradients are products of d_sums with reads.
        d_sums = reads.new_empty(N, I, step.sums_size)
        d_contexts = reads.new_empty(N, I, annotations.shape[2])
        d_annotations = torch.empty_like(annotations)
        # In fp32 even for bf16 keys, because every target position adds to it.
        d_keys = torch.empty(keys.shape)
        d_vector = torch.empty_like(vector)
        d_initial = torch.empty(N, step.values_size)
        d_prepared = torch.empty_like(prepared)
        struct = call.struct
        call.set_saved(values, reads, alphas, keys, annotations, vector, prepared, feature_states)
        struct.output_gradients = ctypes.addressof(output_gradients)
        struct.num_output_gradients = len(output_gradients)
        struct.d_alphas = call.address(d_alphas)
        struct.d_sums = d_sums.data_ptr()
        struct.d_contexts = d_contexts.data_ptr()
        struct.d_annotations = d_annotations.data_ptr()
        struct.d_keys = d_keys.data_ptr()
        struct.d_vector = d_vector.data_ptr()
        struct.d_initial = d_initial.data_ptr()
        struct.d_prepared = d_prepared.data_ptr()
        call.run("recurrence_backward")
        d_states = [d_initial[:, value.offset : value.offset + value.size] for value, _ in step.states]
        d_biases = []
        for sums, _ in step.biases:
            d_biases.append(d_sums[..., sums.offset : sums.offset + sums.size].sum((0, 1), dtype=torch.float32))
        d_weights = _weight_gradients(step, d_sums, reads)
        d_source = (d_keys, d_annotations, d_vector, d_prepared)
        gradients = (_input_gradient(step, d_sums), *d_source, *d_states, *d_weights, *d_biases, *d_parameters)
        return None, None, None, None, *(d.to(dtype) for d, dtype in zip(gradients, ctx.dtypes, strict=True))


def _split(step: StepBuilder, tensors: tuple[Tensor, ...]) -> tuple[list[Tensor], ...]:
    """Return the initial states, weights, biases and other parameters."""
    remaining = list(tensors)
    counts = (len(step.states), len(step.weights), len(step.biases), len(step.parameters))
    return tuple([remaining.pop(0) for _ in range(count)] for count in counts)


def _input_gradient(step: StepBuilder, d_sums: Tensor) -> Tensor:
    """Return the gradient of x from that of the sums that its parts were added to."""
    # By offset in x, which the inputs of a step cover completely.
    inputs = sorted((op.offsets[1], op.offsets[0], op.size) for op in step.ops if op.type is OpType.INPUT)
    parts = [d_sums[..., offset : offset + size] for _, offset, size in inputs]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _weight_gradients(step: StepBuilder, d_sums: Tensor, reads: Tensor) -> list[Tensor]:
    """Return the gradient of each weight, summed over all rows and positions.

    A weight may be used in several products, each with some of its rows.
    """
    gradients = []
    for index, weight in enumerate(step.weights):
        products = [op for op in step.ops if op.type is OpType.PRODUCT and op.tensor_index == index]
        parts = []
        # In the order of the rows, so that the parts concatenate to the gradient of the whole weight.
        for op in sorted(products, key=lambda op: (op.first_row, op.offsets, op.size)):
            to, start, width = op.offsets
            d = d_sums[..., to : to + op.size]
            parts.append(weight_gradient(d, reads[..., start : start + width], reads.dtype))
        assert sum(len(part) for part in parts) == len(weight)
        gradients.append(parts[0] if len(parts) == 1 else torch.cat(parts))
    return gradients
