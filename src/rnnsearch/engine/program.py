"""What a recurrent model computes, as data: its encoder, its decoder's first states and its step, with the names of the
arrays that they read. Imports no torch.

`accel/program_writer.py` writes it of a model; `engine/recurrent.py` runs it. It may stand in a file of anybody's, so
nothing is run before `check` has seen that every range lies in its row and every array has its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rnnsearch.engine.structs import MOST_UNITS, What, rounded_up

Shapes = Mapping[str, tuple[int, ...]]

MOST = 1 << 20
"""Of any size."""
MOST_PARTS = 4096


class Rows(NamedTuple):
    """Some rows and columns of an array."""

    array: str
    row: int
    rows: int
    column: int
    columns: int


class Affine(NamedTuple):
    """x W^T + b. bias: an array; None without."""

    weight: Rows
    bias: str | None


class Instruction(NamedTuple):
    """`Op` of recurrence.h. weight: of a product; own: the array of another part's own weights."""

    what: int
    size: int
    at: tuple[int, ...]
    before: int
    weight: Rows | None
    own: str | None


class Place(NamedTuple):
    """A range of values."""

    at: int
    size: int


class Machine(NamedTuple):
    """A step. inputs: the layers, one below the other, that make the inputs' share of what is read; sums, values,
    reads: how many numbers a position's rows have; bias: the array that its sums begin with; states: what a position
    hands to the next."""

    inputs: tuple[Affine, ...]
    sums: int
    values: int
    reads: int
    parts: tuple[Instruction, ...]
    bias: str
    states: tuple[Place, ...]

    @property
    def x_size(self) -> int:
        """Of the inputs' share."""
        return sum(layer.weight.rows for layer in self.inputs)


class EncoderLayer(NamedTuple):
    """One cell, left to right, or a second one beside it, right to left, whose output stands behind the first's.
    adds: whether what the layer reads is added to what it gives. wide: whether its cells read in fp32, whatever the
    precision, as PyTorch's own sequences do."""

    cells: tuple[Machine, ...]
    adds: bool
    wide: bool


class Encoder(NamedTuple):
    """Layers, one on top of the other. reads_end: whether the end symbol is read; reverse: whether words are read from
    the last to the first, the end symbol last all the same."""

    layers: tuple[EncoderLayer, ...]
    reads_end: bool
    reverse: bool


class SourceFeature(NamedTuple):
    """A feature of source positions that remembers their weights (`source_features.h`): a GRU of some units, which
    reads a `layer` of the annotations, or sums of weights. fertility: of sums that a position's own `layer` divides,
    the greatest; 0 of others."""

    units: int
    neighbours: int
    keeps: int
    fixed: int
    kept: int
    layer: Affine | None
    fertility: float


class Attention(NamedTuple):
    """projection: of the annotations, before all else. keys: of them; without, `positions` is an array of a key for
    each source position, and without either they are the annotations themselves. values: what contexts are sums of, or
    the annotations; words: with the embedded words behind them. reach: of a window, or -1, which `follows` the target
    position or has a centre of its own. vector: v_a, of an additive score. place: of two numbers, log(1 + j) and
    log(1 + J) of source position j of J, into the keys."""

    projection: Affine | None
    keys: Affine | None
    positions: str | None
    values: Affine | None
    words: bool
    heads: int
    scale: float
    reach: int
    spread: float
    follows: bool
    vector: str | None
    place: Affine | None
    features: tuple[SourceFeature, ...]


class First(NamedTuple):
    """A state before the first position: zeros; or numbers of the encoder's, through a layer and a function where they
    are given. of: "zeros", "summary" (the top layer's own last output), "mean" (of the annotations) or "finals" (last
    states by encoder layer, from 0, and part: h, c). function: "", "tanh" or "relu". begin: of the numbers that are
    found, the first."""

    size: int
    of: str
    finals: tuple[tuple[int, int], ...]
    layer: Affine | None
    function: str
    begin: int


class Program(NamedTuple):
    """attention: None of a decoder without. first: of each of the step's states. readout: where what the output layer
    reads begins among the reads."""

    encoder: Encoder
    attention: Attention | None
    first: tuple[First, ...]
    step: Machine
    readout: int

    @property
    def layers(self) -> tuple[Affine, ...]:
        """All layers outside cells and the decoder's step."""
        found = [first.layer for first in self.first]
        if (attention := self.attention) is not None:
            found += [attention.projection, attention.keys, attention.values, attention.place]
            found += [feature.layer for feature in attention.features]
        return tuple(layer for layer in found if layer is not None)


def parsed(data: Any) -> Program:
    """What `json` made of a program. Errors: ValueError."""
    found = _typed(Program, data)
    assert isinstance(found, Program)
    return found


def _typed(kind: Any, data: Any) -> Any:
    """Data as the type that a field has."""
    options = get_args(kind)
    if isinstance(kind, UnionType):
        (one,) = (option for option in options if option is not NoneType)
        return None if data is None else _typed(one, data)
    if get_origin(kind) is tuple:
        each = [options[0]] * len(data) if isinstance(data, list) and options[-1] is ... else list(options)
        if not isinstance(data, list) or len(data) != len(each):
            raise ValueError(kind)
        return tuple(map(_typed, each, data))
    if issubclass(kind, tuple):
        fields = get_type_hints(kind)
        if not isinstance(data, list) or len(data) != len(fields):
            raise ValueError(kind)
        return kind(*map(_typed, fields.values(), data))
    if kind is float and type(data) is int:
        data = float(data)
    if type(data) is not kind:
        raise ValueError(kind)
    return data


SUMS, VALUES, READS, INPUTS = "sums", "values", "reads", "inputs"
RANGES: dict[What, tuple[tuple[int, str, float], ...]] = {
    What.INPUT: ((0, SUMS, 1), (1, INPUTS, 1)),
    What.READ: ((0, READS, 1), (1, VALUES, 1), (2, VALUES, 1)),
    What.PRODUCT: ((0, SUMS, 1),),
    What.SIGMOID: ((0, VALUES, 1), (1, SUMS, 1), (2, VALUES, 1)),
    What.TANH: ((0, VALUES, 1), (1, SUMS, 1), (2, VALUES, 1)),
    What.GRU: ((0, VALUES, 1), (1, VALUES, 1), (2, SUMS, 1), (3, VALUES, 1), (4, VALUES, 1), (5, VALUES, 1)),
    What.LSTM: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 4), (3, SUMS, 4), (4, VALUES, 1), (5, VALUES, 1)),
    What.ADDITIVE: ((1, SUMS, 1), (2, VALUES, 1)),
    What.DOT: ((1, VALUES, 1),),
    What.ADD: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 1)),
    What.NORM: ((0, SUMS, 1), (1, SUMS, 1), (2, VALUES, 1)),
    What.CENTRE: ((1, VALUES, 1),),
    What.LOG_POSITION: ((0, SUMS, 1),),
    What.MAXOUT: ((0, VALUES, 1), (1, SUMS, 2)),
    What.TANH_VALUES: ((0, VALUES, 1), (1, VALUES, 1)),
    What.SSRU: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 1), (3, SUMS, 2), (4, VALUES, 1), (5, VALUES, 1)),
}
"""Which `at` of a part begins a range of which row, and how many times its size (`ops.h`)."""
OPTIONAL = {What.READ: (2,), What.SIGMOID: (2,), What.TANH: (2,), What.GRU: (5,)}
"""Those that may be -1."""
PLACES = {
    **{what: 1 + max(n for n, _, _ in ranges) for what, ranges in RANGES.items()},
    What.PRODUCT: 3,
    What.GRU: 8,
    What.LSTM: 7,
    What.ADDITIVE: 4,
    What.DOT: 4,
    What.NORM: 4,
    What.LOG_POSITION: 2,
}
"""How many `at` a part has."""


class Checker:
    """Whether a program fits its arrays, of these shapes; weights have two axes. Errors: ValueError, KeyError."""

    def __init__(self, program: Program, shapes: Shapes) -> None:
        self.program, self.shapes = program, shapes
        self.source, self.target = (shapes[f"{side}_embedding"][1] for side in ("source", "target"))

    def check(self) -> None:
        """All of it."""
        program, attention = self.program, self.program.attention
        _must(1 <= len(program.encoder.layers) <= MOST_PARTS)
        sizes, finals = self._encoder(program.encoder)
        summary, own = sizes
        if attention is not None:
            own, key, values = self._attention(attention, own)
        self.machine(program.step, self.target, None if attention is None else (attention, key, values))
        _must(len(program.first) == len(program.step.states))
        for first, place in zip(program.first, program.step.states, strict=True):
            _must(first.size == place.size)
            self._first(first, {"summary": summary, "mean": own}, finals)
        words, read = self.shapes["output"]
        _must(words == self.shapes["target_embedding"][0] and self.shapes["output.bias"] == (words,))
        _must(program.readout >= 0 and program.readout + read <= program.step.reads)

    def _encoder(self, encoder: Encoder) -> tuple[tuple[int, int], list[list[int]]]:
        """The sizes of summary and annotations, and of each layer's last states."""
        below, finals, summary = self.source, list[list[int]](), 0
        for layer in encoder.layers:
            _must(1 <= len(layer.cells) <= 2)
            for cell in layer.cells:
                _must(len(cell.inputs) == 1)
                self.machine(cell, below, None)
            states = {tuple(place.size for place in cell.states) for cell in layer.cells}
            _must(len(states) == 1)
            (own,) = states
            _must(1 <= len(own) <= 2)
            finals.append([size * len(layer.cells) for size in own])
            _must(not layer.adds or below == finals[-1][0])
            below, summary = finals[-1][0], own[0]
        return (summary, below), finals

    def _attention(self, attention: Attention, own: int) -> tuple[int, int, int]:
        """The sizes of annotations, keys and values."""
        own = self._affine(attention.projection, own)
        key = self._affine(attention.keys, own)
        if attention.positions is not None:
            _must(attention.keys is None)
            key = self._shape(attention.positions, 2)[1]
        values = self._affine(attention.values, own) + (self.source if attention.words else 0)
        heads = attention.heads
        _must(1 <= heads <= min(key, values) and key % heads == 0 and values % heads == 0)
        _must(-1 <= attention.reach <= MOST and 0 <= attention.spread <= MOST and abs(attention.scale) <= MOST)
        _must(attention.vector is None or self._shape(attention.vector, 1) == (key,))
        _must(attention.place is None or self._affine(attention.place, 2) == key)
        _must(not attention.features or (heads == 1 and attention.vector is not None))
        for feature in attention.features:
            self._feature(feature, own)
        return own, key, values

    def _feature(self, feature: SourceFeature, own: int) -> None:
        """Over annotations of so many numbers."""
        units, step = feature.units, self.program.step
        _must(0 <= units <= MOST_UNITS and 0 <= feature.neighbours <= MOST_PARTS and 0 <= feature.fertility <= MOST)
        made = self._affine(feature.layer, own)
        if units:
            share = 3 * rounded_up(units)
            _must(feature.layer is not None and made == 3 * units)
            _must(0 <= feature.fixed <= step.sums - share and 0 <= feature.kept <= step.values - share)
        else:
            _must(feature.layer is None or (made == 1 and feature.fertility > 0))

    def _first(self, first: First, sizes: Mapping[str, int], finals: list[list[int]]) -> None:
        if first.of == "zeros":
            _must(first.layer is None and 0 < first.size <= MOST)
            return
        if first.of == "finals":
            _must(bool(first.finals) and all(0 <= layer < len(finals) for layer, _ in first.finals))
            read = sum(finals[layer][min(max(part, 0), len(finals[layer]) - 1)] for layer, part in first.finals)
            _must(all(0 <= part < len(finals[layer]) for layer, part in first.finals))
        else:
            read = sizes.get(first.of, 0)
        _must(first.function in ("", "tanh", "relu"))
        found = self._affine(first.layer, read)
        _must(first.begin >= 0 and first.size > 0 and first.begin + first.size <= found)

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        shape = self.shapes[name]
        _must(len(shape) == axes and max(shape) <= MOST)
        return shape

    def _rows(self, block: Rows) -> None:
        rows, columns = self._shape(block.array, 2)
        _must(min(block.rows, block.columns) >= 1 and min(block.row, block.column) >= 0)
        _must(block.row + block.rows <= rows and block.column + block.columns <= columns)

    def _affine(self, layer: Affine | None, read: int) -> int:
        """The size of what it gives, of so many numbers."""
        if layer is None:
            return read
        self._rows(layer.weight)
        _must(layer.weight.columns == read)
        _must(layer.bias is None or self._shape(layer.bias, 1) == (layer.weight.rows,))
        return layer.weight.rows

    def machine(self, machine: Machine, read: int, attends: tuple[Attention, int, int] | None) -> None:
        """A step that reads so many numbers a position, and may attend: to keys and values of these sizes."""
        _must(read <= MOST_UNITS and len(machine.inputs) >= 1 and len(machine.parts) <= MOST_PARTS)
        for layer in machine.inputs:
            self._affine(layer, read)
        room = {SUMS: machine.sums, VALUES: machine.values, READS: machine.reads, INPUTS: machine.x_size}
        _must(all(0 <= size <= MOST for size in room.values()) and machine.x_size <= MOST)
        _must(self._shape(machine.bias, 1) == (machine.sums,) and len(machine.states) >= 1)
        for place in machine.states:
            _must(place.size >= 1 and 0 <= place.at <= machine.values - place.size)
        attending = [part for part in machine.parts if part.what in (What.ADDITIVE, What.DOT)]
        _must(len(attending) == (0 if attends is None else 1))
        for part in machine.parts:
            self._part(part, room, attends)

    def _part(self, part: Instruction, room: Mapping[str, int], attends: tuple[Attention, int, int] | None) -> None:
        what, size, at = What(part.what), part.size, part.at
        _must(what in RANGES and len(at) == PLACES[what] and 1 <= size <= MOST and 0 <= part.before < 256)
        for n, row, times in RANGES[what]:
            _must((at[n] == -1 and n in OPTIONAL.get(what, ())) or 0 <= at[n] <= room[row] - size * times)
        if what is What.PRODUCT:
            if part.weight is None:
                raise ValueError
            self._rows(part.weight)
            _must((part.weight.rows, part.weight.columns) == (size, at[2]) and 0 <= at[1] <= room[READS] - at[2])
        if what is What.GRU and at[5] >= 0:
            _must(at[1] <= room[VALUES] - 2 * size and 0 <= at[6] <= room[SUMS] - size)
        if what in (What.NORM, What.CENTRE, What.LOG_POSITION):
            if part.own is None:
                raise ValueError
            _must(self._shape(part.own, 1) == (2 * size if what is What.NORM else size,))
            one = {What.NORM: at[-1], What.CENTRE: at[0]}.get(what, 0)
            _must(0 <= one < room[VALUES])
        if what in (What.ADDITIVE, What.DOT):
            if attends is None:
                raise ValueError
            attention, key, values = attends
            _must(size == key and 0 <= at[0] <= room[VALUES] - values and -1 <= at[3] < room[VALUES])
            _must((attention.vector is not None) == (what is What.ADDITIVE))
            _must(attention.reach < 0 or attention.follows or at[3] >= 0)
            if attention.features:
                _must(part.own is not None and self._shape(part.own, 1) == (own_weights(attention.features, key),))


def own_weights(features: Sequence[SourceFeature], key: int) -> int:
    """How many numbers the features' own weights have: W_f, then of each GRU those of alpha and of its state."""
    each = [(rounded_up(one.units), one.neighbours) for one in features]
    return sum(key * (d or 2 * k + 1) + 3 * d * (d + 1) for d, k in each)


def _must(holds: bool) -> None:
    if not holds:
        raise ValueError
