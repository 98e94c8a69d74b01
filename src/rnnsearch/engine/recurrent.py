"""Any recurrent model whose computation is written as a program (`program.py`), in native code, from arrays. Imports no
torch.

The decoder's products are of the kind asked for; the recurrences of the encoder's cells are in fp32, as where the whole
package searches. RNNsearch has an engine of its own, which shares more (`rnnsearch.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_int32, c_int64
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rnnsearch.engine.layout import Layout
from rnnsearch.engine.program import Affine, Checker, First, Machine, Program, SourceFeature, parsed
from rnnsearch.engine.rnnsearch import TABLES, CBeam, CChoice, CGreedy, CHypotheses, Output, RNNsearch, Weight
from rnnsearch.engine.structs import Array, CBatch, CDecoder, Kind, Laid, What, at, rounded_up

ALONE = c_int32(1)
"""The threads of a call: one."""


@dataclass(frozen=True)
class Computation:
    """A model: its program, and the arrays that it names."""

    program: Program
    weights: Mapping[str, Weight]
    """[outputs, inputs] each; the tables of embeddings and the output layer are TABLES and `output`."""
    rows: Mapping[str, Array]
    """fp32, of one axis."""
    system: ClassVar[str] = "recurrent"
    """What a file calls it."""

    @property
    def described(self) -> dict[str, Any]:
        """What a file says of it besides arrays."""
        return {"program": self.program}

    @staticmethod
    def of(header: Mapping[str, Any], weights: Mapping[str, Weight], rows: Mapping[str, Array]) -> Computation:
        """That of a file. Errors: KeyError, ValueError, TypeError where it is none."""
        return Computation(parsed(header["program"]), weights, rows)

    @property
    def attended(self) -> tuple[int, int]:
        """The sizes of the keys and values of one that attends."""
        attention, own = self.program.attention, self.program.encoder.layers[-1].cells
        assert attention is not None
        (asked,) = (part for part in self.program.step.parts if part.what in (What.ADDITIVE, What.DOT))
        size = sum(cell.states[0].size for cell in own)
        for layer in (attention.projection, attention.values):
            size = size if layer is None else layer.weight.rows
        return asked.size, size + (self.weights[TABLES[0]].values.shape[1] if attention.words else 0)

    def check(self) -> None:
        """Errors: ValueError, KeyError where arrays are not those of the program."""
        shapes = {name: one.values.shape for name, one in self.weights.items()}
        shapes |= {name: row.shape for name, row in self.rows.items()}
        for values, scale in self.weights.values():
            if values.ndim != 2 or values.dtype != (np.float32 if scale is None else np.int8):
                raise ValueError
            if scale is not None and (scale.shape != values.shape[:1] or scale.dtype != np.float32):
                raise ValueError
        if any(row.ndim != 1 or row.dtype != np.float32 for row in self.rows.values()):
            raise ValueError
        Checker(self.program, shapes).check()
        machines = [cell for layer in self.program.encoder.layers for cell in layer.cells]
        for machine in (*machines, self.program.step):  # whose inputs are laid out as one matrix
            if len({self.weights[layer.weight.array].scale is None for layer in machine.inputs}) != 1:
                raise ValueError


class Memory(NamedTuple):
    """keys: [B, J, A]; annotations: [B, J, H]; mask: [B, J], positions that are attended to; centres: [B, J] of a
    window that follows the target position, else [B, 0]; prepared: [B, J, P], what features have computed of the
    source; state: what these remember, the decoder's first states and t = 0, side by side [B, S]."""

    keys: Array
    annotations: Array
    mask: Array
    centres: Array
    prepared: Array
    state: Array


class _Cell(NamedTuple):
    """inputs: W and b of what it reads; step: as native code has it; sizes: of its states, the first its output."""

    inputs: Laid
    step: CDecoder
    sizes: list[int]


class Recurrent:
    """A model's weights, laid out, and what is done with them."""

    def __init__(self, native: ctypes.CDLL, model: Computation, kind: Kind, selects: bool = False) -> None:
        """`selects`: whether some of the output's rows will be asked for."""
        program = self._program = model.program
        self._native, self._kind = native, kind
        # The largest first: room that it was read into is there for the others.
        self._output = Output(native, model.weights["output"], model.rows["output.bias"], kind, selects)
        self.output = self._output.whole
        """The output layer, over the whole vocabulary."""
        self.rows = self._output.over
        """It over some symbols alone."""
        self.sources, self.targets = (model.weights[name] for name in TABLES)
        layout = self._layout = Layout(native, model.weights, model.rows)
        self._cells = [[self._cell(cell, layer.wide) for cell in layer.cells] for layer in program.encoder.layers]
        self._decoder = layout.machine(program.step, kind)
        layout.read_words(self._decoder, program.step, self.targets, kind)
        layout.readout(self._decoder, program.readout)
        if program.attention is not None:
            layout.attend(self._decoder, program.attention, model.attended)
        self._laid = {layer: layout.matrix((layer,), kind) for layer in program.layers}
        positions = program.attention and program.attention.positions
        self._positions = None if positions is None else model.weights[positions].all
        layout.finish()

    @property
    def attends(self) -> bool:
        """Whether there are weights of source positions."""
        return self._program.attention is not None

    def embed(self, ids: Array) -> Array:
        """Source words [B, J, E] of ids [B, J]."""
        return self.sources.rows(ids)

    def encode(self, words: Array, lengths: Array) -> Memory:
        """The memory of B sentences of embedded words [B, J, E], of which the first `lengths` [B] are real."""
        program, order = self._program, np.argsort(-lengths, kind="stable")
        words, lengths = np.ascontiguousarray(words[order], np.float32), np.asarray(lengths[order], np.int64)
        if not program.encoder.reads_end:
            lengths = np.maximum(lengths - 1, 1)
        annotations, summary, finals = self._encoded(words, lengths)
        annotations = self._affine(program.attention and program.attention.projection, annotations)
        (B, J), real = words.shape[:2], np.arange(words.shape[1]) < lengths[:, None]
        total = (annotations * real[:, :, None]).sum(1, dtype=np.float32)
        found = {"summary": summary, "mean": total / lengths[:, None].astype(np.float32)}
        states = [self._first(first, found, finals, B) for first in program.first]
        remembered = np.zeros((B, J * int(self._decoder.features.memory)), np.float32)
        state = np.concatenate([remembered, *states, np.zeros((B, 1), np.float32)], 1)
        if self._positions is not None:
            real = real & (np.arange(J) < len(self._positions))
        keys, values, centres, prepared = self._attended(annotations, words, lengths)
        back = np.argsort(order, kind="stable")
        return Memory(*(np.ascontiguousarray(part[back]) for part in (keys, values, real, centres, prepared, state)))

    def _attended(self, annotations: Array, words: Array, lengths: Array) -> tuple[Array, Array, Array, Array]:
        """Keys, values, centres and what features prepare, of [B, J, H]; empty of a decoder without attention."""
        (B, J, _), attention = annotations.shape, self._program.attention
        nothing = np.empty((B, J, 0), np.float32)
        if attention is None:
            return nothing, nothing, nothing[:, 0], nothing
        keys, values = self._affine(attention.keys, annotations), self._affine(attention.values, annotations)
        values = np.concatenate([values, words], 2) if attention.words else values
        if self._positions is not None:
            keys = np.zeros((B, J, self._positions.shape[1]), np.float32)
            known = min(J, len(self._positions))
            keys[:, :known] = self._positions[:known]
        if attention.place is not None:
            places = np.broadcast_arrays(np.arange(1, J + 1)[None], lengths[:, None])
            keys = keys + self._affine(attention.place, np.log1p(np.stack(places, 2).astype(np.float32)))
        centres = nothing[:, 0]
        if attention.follows:
            centres = np.minimum(np.arange(J), lengths[:, None] - 1).astype(np.float32)
        prepared = [self._prepared(feature, annotations) for feature in attention.features]
        return keys, values, centres, np.concatenate([nothing, *prepared], 2)

    def _prepared(self, feature: SourceFeature, annotations: Array) -> Array:
        """What a feature computes once a sentence [B, J, 1 or 3 units in whole vectors]."""
        if feature.layer is None:
            return np.ones((*annotations.shape[:2], 1), np.float32)
        made = self._affine(feature.layer, annotations)
        if not feature.units:
            with np.errstate(over="ignore"):
                return (1 + np.exp(-made)) / np.float32(feature.fertility)
        gates = made.reshape(*made.shape[:2], 3, feature.units)
        rest = rounded_up(feature.units) - feature.units
        return np.pad(gates, ((0, 0), (0, 0), (0, 0), (0, rest))).reshape(*made.shape[:2], -1)

    def _encoded(self, x: Array, lengths: Array) -> tuple[Array, Array, list[list[Array]]]:
        """Annotations [B, J, H], the summary [B, S], and the last states of each layer."""
        encoder, finals = self._program.encoder, list[list[Array]]()
        read, summary = _turned(x, lengths) if encoder.reverse else x, x[:, 0]
        for layer, cells in zip(encoder.layers, self._cells, strict=True):
            both = [self._sequence(cell, read, lengths, backward=bool(n)) for n, cell in enumerate(cells)]
            outputs = np.concatenate([outputs for outputs, _ in both], 2)
            finals.append([np.concatenate(parts, 1) for parts in zip(*(last for _, last in both), strict=True)])
            summary = both[-1][1][0]
            read = outputs + read if layer.adds else outputs
        return _turned(read, lengths) if encoder.reverse else read, summary, finals

    def _cell(self, machine: Machine, wide: bool) -> _Cell:
        """A cell of the encoder, laid out."""
        inputs = self._layout.matrix(machine.inputs, Kind.FP32 if wide else self._kind)
        return _Cell(inputs, self._layout.machine(machine, Kind.FP32), [place.size for place in machine.states])

    def _sequence(self, cell: _Cell, x: Array, lengths: Array, backward: bool) -> tuple[Array, list[Array]]:
        """A cell's outputs [B, J, D], 0 on padding, and its last states."""
        (B, J), share = x.shape[:2], cell.inputs.times(x)
        state, outputs = np.zeros((B, cell.step.state_size), np.float32), np.zeros((B, J, cell.sizes[0]), np.float32)
        sizes = (at(np.ascontiguousarray(lengths)), c_int64(B), c_int64(J), c_int64(backward))
        made = (at(state), at(outputs), ALONE)
        self._native.cell_sequence(byref(cell.step), *sizes, at(share), *made)
        ends = np.cumsum(cell.sizes)
        return outputs, np.split(state[:, : ends[-1]], ends[:-1], 1)

    def _first(self, first: First, found: Mapping[str, Array], finals: list[list[Array]], B: int) -> Array:
        if first.of == "zeros":
            return np.zeros((B, first.size), np.float32)
        if first.of == "finals":
            read = np.concatenate([finals[layer][part] for layer, part in first.finals], 1)
        else:
            read = found[first.of]
        made = self._affine(first.layer, read)
        if first.function:
            made = np.tanh(made) if first.function == "tanh" else np.maximum(made, 0)
        return made[:, first.begin : first.begin + first.size]

    def step(self, memory: Memory, state: Array, y: Array, output: Laid) -> tuple[Array, Array, Array, Array]:
        """Logits [N, C], the logarithm of their exponentials' sum [N], the next state [N, S] and alpha [N, J]."""
        N, B, J = len(y), len(memory.mask), memory.mask.shape[1]
        y, state = np.ascontiguousarray(y, np.int64), np.ascontiguousarray(state)
        logits, norm, alpha = (
            np.zeros(shape, np.float32) for shape in ((N, output.matrix.outputs), N, (N, J if self.attends else 0))
        )
        after = np.empty_like(state)
        made = (at(state), at(after), at(alpha), at(logits), at(norm))
        sizes = (at(y), None, c_int64(N), c_int64(N // B))
        self._native.decoder_step(*self._weights(memory, output), *sizes, *made, ALONE)
        return logits, norm, after, alpha

    def greedy(self, memory: Memory, output: Laid, choice: CChoice, made: CGreedy) -> int:
        """Greedy search; the steps taken."""
        self._native.decoder_greedy.restype = c_int64
        state, weights = memory.state.copy(), self._weights(memory, output)
        sizes = (c_int64(len(state)), at(state))
        return int(self._native.decoder_greedy(*weights, byref(choice), *sizes, byref(made), ALONE))

    def beam(self, memory: Memory, output: Laid, choice: CChoice, beam: CBeam, made: CHypotheses) -> bool:
        """Beam search; whether all scores were numbers."""
        self._native.decoder_beam.restype = c_int64
        sizes = (c_int64(len(memory.state)), at(memory.state))
        asked = (byref(choice), byref(beam))
        weights = self._weights(memory, output)
        return bool(self._native.decoder_beam(*weights, *asked, *sizes, byref(made), ALONE))

    def _weights(self, memory: Memory, output: Laid) -> tuple[Any, ...]:
        parts = (memory.keys, memory.annotations, memory.mask, memory.centres, memory.prepared)
        width = memory.mask.shape[1] if self.attends else 0
        batch = CBatch(*(part.ctypes.data for part in parts), width, memory.centres.shape[1])
        return byref(self._decoder), byref(output.matrix), byref(batch)

    def _affine(self, layer: Affine | None, x: Array) -> Array:
        """A layer of the program; x where there is none."""
        return x if layer is None else self._laid[layer].times(x)


Engine = RNNsearch | Recurrent
"""What search runs."""


def _turned(x: Array, lengths: Array) -> Array:
    """Each sentence's words from last to first, its end symbol last (Sutskever et al. 2014, section 3.3)."""
    last, places = lengths[:, None] - 1, np.arange(x.shape[1])[None]
    order = np.where(places < last, last - 1 - places, places)
    return np.ascontiguousarray(np.take_along_axis(x, order[:, :, None], 1))
