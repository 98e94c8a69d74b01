"""The steps and layers of a program laid out for native code, each once. Imports no torch."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import addressof

import numpy as np

from rnnsearch.engine.program import Affine, Attention, Machine, Rows
from rnnsearch.engine.rnnsearch import Weight
from rnnsearch.engine.structs import Array, CDecoder, CFeatures, CPart, Kind, Laid, What


class Layout:
    """What is made of a model's arrays, which must not change. What native code reads by its address stays as long as
    this."""

    def __init__(self, native: ctypes.CDLL, weights: Mapping[str, Weight], rows: Mapping[str, Array]) -> None:
        self._native, self._weights, self._rows = native, weights, rows
        self._laid, self._held = dict[tuple[tuple[Affine, ...], Kind], Laid](), list[object]()

    def matrix(self, layers: tuple[Affine, ...], kind: Kind) -> Laid:
        """Layers that read the same numbers, one below the other."""
        if (layers, kind) not in self._laid:
            blocks = [self._block(layer.weight) for layer in layers]
            scales = [scale for _, scale in blocks if scale is not None]
            values, scale = np.concatenate([one for one, _ in blocks]), np.concatenate(scales) if scales else None
            if scale is not None and kind is not Kind.INT8:
                values, scale = values * scale[:, None], None
            self._laid[layers, kind] = Laid(self._native, values, self._biases(layers), kind, scale)
        return self._laid[layers, kind]

    def _block(self, block: Rows) -> Weight:
        values, scale = self._weights[block.array]
        rows, columns = slice(block.row, block.row + block.rows), slice(block.column, block.column + block.columns)
        return Weight(values[rows, columns], None if scale is None else scale[rows])

    def _biases(self, layers: tuple[Affine, ...]) -> Array:
        none = {layer: np.zeros(layer.weight.rows, np.float32) for layer in layers if layer.bias is None}
        return np.concatenate([none[one] if one.bias is None else self._rows[one.bias] for one in layers])

    def machine(self, machine: Machine, kind: Kind) -> CDecoder:
        """A step of a cell, or of a decoder that neither attends nor reads words yet."""
        parts = (CPart * len(machine.parts))()
        for to, part in zip(parts, machine.parts, strict=True):
            to.set(part.what, part.size, part.at, part.before)
            if part.weight is not None and part.what == What.PRODUCT:
                to.weight = addressof(self.matrix((Affine(part.weight, None),), kind).matrix)
            elif part.own is not None:
                to.weight = self.hold(self._rows[part.own])
        places = np.array(machine.states, np.int64)
        c = CDecoder(machine.x_size, machine.sums, machine.values, machine.reads)
        c.heads, c.scale, c.reach = 1, 1.0, -1
        c.parts, c.part, c.bias = len(parts), addressof(parts), self.hold(self._rows[machine.bias])
        c.states, c.state, c.state_size = len(places), places.ctypes.data, int(places[:, 1].sum()) + 1
        self._held += [parts, places]
        return c

    def attend(self, c: CDecoder, attention: Attention, sizes: tuple[int, int]) -> None:
        """A step's attention, to keys and values of these sizes."""
        c.key, c.annotation = sizes
        c.heads, c.scale, c.reach, c.spread = attention.heads, attention.scale, attention.reach, attention.spread
        c.vector = self.hold(np.zeros(1, np.float32) if attention.vector is None else self._rows[attention.vector])
        c.features, features = CFeatures.of([tuple(map(int, feature[:5])) for feature in attention.features])
        self._held.append(features)

    def read_words(self, c: CDecoder, machine: Machine, embeddings: Weight, kind: Kind) -> None:
        """The words that a decoder's step reads."""
        c.from_word = addressof(self.matrix(machine.inputs, kind).matrix)
        if embeddings.scale is None:
            c.embeddings = self.hold(embeddings.values)
        else:
            c.bytes, c.scales = self.hold(embeddings.values), self.hold(embeddings.scale)

    def readout(self, c: CDecoder, at: int) -> None:
        """Where what the output layer reads begins among a step's reads."""
        part = CPart(what=What.READ)
        part.at[0] = at
        c.readout = addressof(part)
        self._held.append(part)

    def hold(self, array: Array) -> int:
        """The address of an array's numbers."""
        array = np.ascontiguousarray(array)
        self._held.append(array)
        return int(array.ctypes.data)

    def finish(self) -> None:
        """All is laid out, and what it was made of can go."""
        self._weights, self._rows = {}, {}
