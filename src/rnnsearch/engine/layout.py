"""Packing of the layers and steps of a program (`program.py`) for native code, used by `recurrent.py`.

This module must not import torch.

`export/web/module/layout.js` does the same for browsers; change both. Tests: tests/runtime/test_other_families.py,
tests/properties/test_written_models.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import addressof

import numpy as np

from rnnsearch.engine.program import Affine, AttentionProgram, MatrixSlice, StepProgram
from rnnsearch.engine.rnnsearch import Weight
from rnnsearch.engine.structs import Array, CAttention, CDecoder, CFeatures, COp, DType, OpType, PackedMatrix


class PackedLayout:
    """Packed matrices and structures of a model, each made once.

    It owns the memory that the structures point to, so it must live as long as they do.
    """

    def __init__(self, native: ctypes.CDLL, weights: Mapping[str, Weight], vectors: Mapping[str, Array]) -> None:
        self._native = native
        self._weights = weights
        self._vectors = vectors
        self._matrices: dict[tuple[tuple[Affine, ...], DType], PackedMatrix] = {}
        self._referenced: list[object] = []  # objects that structures point to

    def matrix(self, layers: tuple[Affine, ...], dtype: DType) -> PackedMatrix:
        """Return layers with the same input as one matrix, stacked by rows."""
        key = layers, dtype
        if key not in self._matrices:
            weights = [self._slice(layer.weight) for layer in layers]
            values = np.concatenate([weight.values for weight in weights])
            scales = [weight.scale for weight in weights if weight.scale is not None]
            scale = np.concatenate(scales) if scales else None
            if scale is not None and dtype is not DType.INT8:
                # Inputs of fused sequences are projected in fp32, also in an int8 file.
                values = values * scale[:, None]
                scale = None
            bias = np.concatenate([self._bias(layer) for layer in layers])
            self._matrices[key] = PackedMatrix(self._native, values, bias, dtype, scale)
        return self._matrices[key]

    def _slice(self, part: MatrixSlice) -> Weight:
        values, scale = self._weights[part.array]
        rows = slice(part.row, part.row + part.rows)
        columns = slice(part.column, part.column + part.columns)
        return Weight(values[rows, columns], None if scale is None else scale[rows])

    def _bias(self, layer: Affine) -> Array:
        return np.zeros(layer.weight.rows, np.float32) if layer.bias is None else self._vectors[layer.bias]

    def step(self, program: StepProgram, dtype: DType) -> CDecoder:
        """Return the structure of a cell's step, or of a decoder's step before `add_attention` and `add_words`."""
        ops = (COp * len(program.operations))()
        # `ProgramChecker` has checked all offsets; native code does not.
        for op, operation in zip(ops, program.operations, strict=True):
            op.set_operands(operation.type, operation.size, operation.offsets, operation.previous)
            if operation.weight is not None and operation.type == OpType.PRODUCT:
                op.weight = addressof(self.matrix((Affine(operation.weight, None),), dtype).struct)
            elif operation.parameters is not None:
                op.weight = self._address(self._vectors[operation.parameters])
        states = np.array(program.states, np.int64)  # [states, 2], offsets and sizes
        decoder = CDecoder(program.x_size, program.sums, program.values, program.reads)
        decoder.num_ops = len(ops)
        decoder.ops = addressof(ops)
        decoder.bias = self._address(self._vectors[program.bias])
        decoder.num_states = len(states)
        decoder.states = self._address(states)
        decoder.state_size = int(states[:, 1].sum()) + 1  # the position t is behind the states
        # The structure has only the address; Python must not free the array.
        self._referenced.append(ops)
        return decoder

    def add_attention(
        self, decoder: CDecoder, attention: AttentionProgram, key_size: int, value_size: int
    ) -> CAttention:
        """Set a decoder's attention to its only source, and return its structure."""
        struct = CAttention(key_size, value_size, attention.heads)
        vector = attention.score_vector
        # Never null: a score without a vector has one unused value.
        struct.score_vector = self._address(np.zeros(1, np.float32) if vector is None else self._vectors[vector])
        struct.score_scale = attention.scale
        struct.window_radius = attention.window_radius
        struct.window_sigma = attention.window_sigma
        descriptions = [tuple(map(int, feature[:5])) for feature in attention.features]
        struct.features, items = CFeatures.create(descriptions)
        decoder.num_attentions = 1
        decoder.attentions = addressof(struct)
        self._referenced += [struct, items]
        return struct

    def add_words(self, decoder: CDecoder, program: StepProgram, embeddings: Weight, dtype: DType) -> None:
        """Set the fields of the words that a decoder reads."""
        decoder.word_projection = addressof(self.matrix(program.inputs, dtype).struct)
        if embeddings.scale is None:
            decoder.embeddings = self._address(embeddings.values)
        else:
            decoder.int8_embeddings = self._address(embeddings.values)
            decoder.embedding_scales = self._address(embeddings.scale)

    def add_readout(self, decoder: CDecoder, offset: int) -> None:
        """Set the offset, among the reads of a step, of the output layer's inputs."""
        # Only the offset is read: the operation itself is among those of the step.
        op = COp(type=OpType.READ)
        op.offset[0] = offset
        decoder.readout = addressof(op)
        self._referenced.append(op)

    def release_weights(self) -> None:
        """Drop the unpacked arrays, except for those that structures point to."""
        self._weights = {}
        self._vectors = {}

    def _address(self, array: Array) -> int:
        """Return the address of an array's values, which live as long as this object."""
        array = np.ascontiguousarray(array)
        self._referenced.append(array)
        return int(array.ctypes.data)
