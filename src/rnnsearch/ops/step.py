"""The list of what one step of a recurrence does, for native code (`native/recurrence.h`).

A cell's or a decoder's equations are written into a `Step` once (`accel/cell_steps.py`, `accel/decoder_steps.py`), with the
tensors that they read; `recurrence.run` takes all rows through all positions, with gradients, and search one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rnnsearch.engine.structs import What, rounded_up


class Value(NamedTuple):
    """`size` numbers of a position's values from `at` on; `before`: of the position before."""

    at: int
    size: int
    before: bool = False

    @property
    def last(self) -> Value:
        """The same of the position before."""
        return self._replace(before=True)

    def part(self, begin: int, size: int) -> Value:
        """Some of the numbers."""
        return self._replace(at=self.at + begin, size=size)


class Sums(NamedTuple):
    """`size` sums of a position from `at` on."""

    at: int
    size: int

    def part(self, begin: int, size: int) -> Sums:
        """Some of them."""
        return Sums(self.at + begin, size)


class Reads(NamedTuple):
    """`size` numbers that products read, from `at` on."""

    at: int
    size: int


class Feature(NamedTuple):
    """A feature of source positions that remembers their weights, inside an additive score (`source_features.h`).
    weight: W_f [A, width]; prepared: what is computed once a sentence [N, J, 1 or 3 units]. Of a GRU: the weight of
    alpha [3 units], U_gates [2 units, units] and U [units, units], and the query's share in whole vectors. Of sums of
    weights: how many neighbours of a position are seen to each side, and whether earlier sums stay."""

    weight: Tensor
    prepared: Tensor
    neighbours: int = 0
    keeps: bool = True
    cell: tuple[Tensor, Tensor, Tensor] | None = None
    fixed: Sums | None = None

    @property
    def units(self) -> int:
        """Of a GRU; 0 of sums."""
        return 0 if self.cell is None else self.cell[2].shape[0]

    def described(self, kept: int) -> tuple[int, int, int, int, int]:
        """As native code reads it; kept: where in the values its share of the query is kept, -1 where it has none."""
        fixed = -1 if self.fixed is None else self.fixed.at
        return self.units, self.neighbours, int(self.keeps), fixed, kept

    def whole(self, numbers: Tensor, *axes: int) -> Tensor:
        """Numbers whose axes of units are in whole vectors."""
        return numbers if self.cell is None else padded(numbers, self.units, *axes)


class Source(NamedTuple):
    """What a step attends to. keys: [N, J, A]; annotations: [N, J, H]; mask: [N, J]; vector: v_a [A], None where
    e_j = scale q^T k_j. A window: the positions within `reach` of its centre, which `centres` [N, I] says or a value;
    the weights fall off with sigma `spread`, where it is not 0."""

    keys: Tensor
    annotations: Tensor
    mask: Tensor
    vector: Tensor | None = None
    heads: int = 1
    scale: float = 1.0
    reach: int = -1
    spread: float = 0.0
    centres: Tensor | None = None
    features: tuple[Feature, ...] = ()


class Part(NamedTuple):
    """`Op` of recurrence.h."""

    what: What
    size: int
    at: tuple[int, ...]
    before: int = 0
    tensor: int | None = None
    """Of the weights, the parts' own weights or the masks."""
    rows: int = 0
    """PRODUCT: the first of the weight's rows that it is of."""


class Step:
    """What one position does, part by part, with ranges of three rows of numbers: sums before their activations, values
    after them, and what products read. They begin where vectors do. x: the inputs' share [N, I, X]. normalises:
    whether a cell that normalises it does so in the step, and x is the product alone."""

    def __init__(self, x: Tensor, normalises: bool = False) -> None:
        self.x, self.normalises = x, normalises
        self.parts: list[Part] = []
        self.weights: list[Tensor] = []
        self.own: list[Tensor] = []
        self.masks: list[Tensor] = []
        self.biases: list[tuple[Sums, Tensor]] = []
        self.states: list[tuple[Value, Tensor]] = []
        self.hidden: list[int] = []
        """Which of the states are hidden vectors of cells."""
        self.outputs: list[Value] = []
        self.source: Source | None = None
        self.kept: list[int] = []
        """Values where each feature's share of the query is kept; -1: it has none."""
        self.sums_size = self.values_size = self.reads_size = 0

    def sums(self, size: int) -> Sums:
        """Room for sums, which begin with 0."""
        found = Sums(self.sums_size, size)
        self.sums_size += rounded_up(size)
        return found

    def value(self, size: int) -> Value:
        """Room for values."""
        found = Value(self.values_size, size)
        self.values_size += rounded_up(size)
        return found

    def state(self, first: Tensor, hidden: bool = False) -> Value:
        """Room for values that a position hands to the next; first: [N, size], what the first finds; hidden: whether
        they are a cell's h."""
        if hidden:
            self.hidden.append(len(self.states))
        found = self.value(first.shape[1])
        self.states.append((found, first))
        return found

    def bias(self, bias: Tensor, to: Sums) -> None:
        """sums += b."""
        self.biases.append((to, bias))

    def input(self, at: int, to: Sums) -> None:
        """sums += the inputs' share from `at` on."""
        self.parts.append(Part(What.INPUT, to.size, (to.at, at)))

    def read(self, *values: tuple[Value, Tensor | None], times: Value | None = None) -> Reads:
        """What products read: values side by side, each times its mask ([N, size] or [N, I, size]) where it has
        one; a single one also times others."""
        begin = self.reads_size
        for value, mask in values:
            index = self._masked(mask)
            at = (self.reads_size, value.at, -1 if times is None else times.at)
            before = value.before << 1 | (times is not None and times.before) << 2
            self.parts.append(Part(What.READ, value.size, at, before, index))
            self.reads_size += value.size
        found = Reads(begin, self.reads_size - begin)
        self.reads_size = rounded_up(self.reads_size)
        return found

    def product(self, weight: Tensor, reads: Reads, to: Sums, rows: int = 0) -> None:
        """sums += W reads, W the rows of a weight [., reads.size] from `rows` on, as many as there are sums."""
        assert weight.shape[1] == reads.size
        index = next((n for n, known in enumerate(self.weights) if known is weight), len(self.weights))
        if index == len(self.weights):
            self.weights.append(weight)
        self.parts.append(Part(What.PRODUCT, to.size, (to.at, reads.at, reads.size), 0, index, rows))

    def sigmoid(self, of: Sums, to: Value | None = None) -> Value:
        """sigma(sums)."""
        to = to or self.value(of.size)
        self.parts.append(Part(What.SIGMOID, of.size, (to.at, of.at, -1)))
        return to

    def tanh(self, of: Sums, to: Value, old: Value | None = None) -> None:
        """tanh(sums); `old`: what stays where the position is not real."""
        at = (to.at, of.at, -1 if old is None else old.at)
        self.parts.append(Part(What.TANH, of.size, at, (old is not None and old.before) << 2))

    def gru(
        self,
        to: Value,
        of: Sums,
        z: Value,
        old: Value,
        reset: tuple[Value, Sums] | None = None,
        carries: bool = False,
    ) -> None:
        """h' = (1 - z) h + z tanh(sums), or where z carries the old state, z h + (1 - z) tanh(sums). With `reset` r and
        some more sums, r times these are added to the others."""
        candidate = self.value(of.size * (1 if reset is None else 2))
        again = (-1, -1) if reset is None else (reset[0].at, reset[1].at)
        at = (to.at, candidate.at, of.at, z.at, old.at, *again, int(carries))
        self.parts.append(Part(What.GRU, of.size, at, old.before << 4))

    def reset_before(
        self,
        gates: Tensor,
        candidate: Tensor,
        sums: Sums,
        old: Value,
        new: Value,
        keep: Tensor | None = None,
        carries: bool = False,
    ) -> None:
        """The GRU whose reset gate is applied before the product (Cho et al. 2014; Bahdanau et al. 2015), from sums of
        z, r and the candidate. gates: U_z above U_r; candidate: U; keep: of dropout on the old state."""
        D = old.size
        zr_sums, candidate_sums = sums.part(0, 2 * D), sums.part(2 * D, D)
        self.product(gates, self.read((old, keep)), zr_sums)
        zr = self.sigmoid(zr_sums)
        self.product(candidate, self.read((old, keep), times=zr.part(D, D)), candidate_sums)
        self.gru(new, candidate_sums, zr.part(0, D), old, carries=carries)

    def lstm(self, h: Value, c: Value, of: Sums, old_h: Value, old_c: Value, plain: bool = False) -> None:
        """c' = sigma(f) c + sigma(i) tanh(candidate), h' = sigma(o) tanh(c'), of sums i, f, o, candidate; `plain`:
        h' = sigma(o) c'."""
        gates = self.value(of.size)
        at = (h.at, c.at, gates.at, of.at, old_c.at, old_h.at, int(plain))
        self.parts.append(Part(What.LSTM, h.size, at, old_c.before << 4 | old_h.before << 5))

    def ssru(self, h: Value, c: Value, of: Sums, old_h: Value, old_c: Value) -> None:
        """c' = f c + (1 - f) candidate, h' = max(0, c'), of sums of f, before its sigma, and the candidate."""
        at = (h.at, c.at, self.value(h.size).at, of.at, old_c.at, old_h.at)
        self.parts.append(Part(What.SSRU, h.size, at, old_c.before << 4 | old_h.before << 5))

    def attend(
        self, query: Value | Sums, source: Source, to: Value | None = None, centre: Value | None = None
    ) -> Value:
        """The context of a query: of sums W_a s (an additive score), or of a value (a product), in a window around a
        centre. Once a step."""
        assert self.source is None
        self.source = source
        context, around = to or self.value(source.annotations.shape[2]), -1 if centre is None else centre.at
        if isinstance(query, Sums):
            at = (context.at, query.at, self.value(query.size).at, around)
            self.kept = [self.value(part.fixed.size).at if part.fixed else -1 for part in source.features]
            if source.features:
                self.own.append(own_weights(source.features))
            own = len(self.own) - 1 if source.features else None
            self.parts.append(Part(What.ADDITIVE, query.size, at, 0, own))
        else:
            self.parts.append(Part(What.DOT, query.size, (context.at, query.at, -1, around), query.before << 1))
        return context

    def centre(self, of: Value, vector: Tensor) -> Value:
        """S sigma(v^T value), S the real source positions."""
        to = self.value(1)
        self.own.append(vector)
        self.parts.append(Part(What.CENTRE, of.size, (to.at, of.at), 0, len(self.own) - 1))
        return to

    def clock(self, weight: Tensor, to: Sums, start: int) -> None:
        """sums += log(2 + t) w at target position t, of which the first is `start`."""
        self.own.append(weight)
        self.parts.append(Part(What.LOG_POSITION, to.size, (to.at, start), 0, len(self.own) - 1))

    def add(self, a: Value, b: Value | None, mask: Tensor | None = None) -> Value:
        """a + b, a times its mask ([N, size] or [N, I, size]) where it has one; without b, that alone."""
        if b is None and mask is None:
            return a
        to, index = self.value(a.size), self._masked(mask)
        at, before = (-1, False) if b is None else (b.at, b.before)
        self.parts.append(Part(What.ADD, a.size, (to.at, a.at, at), a.before << 1 | before << 2, index))
        return to

    def _masked(self, mask: Tensor | None) -> int | None:
        """Where a mask is among the masks."""
        if mask is None:
            return None
        self.masks.append(mask)
        return len(self.masks) - 1

    def norm(self, of: Sums, to: Sums, gain: Tensor, bias: Tensor | None) -> None:
        """sums += LN(others)."""
        weight = torch.stack([gain, torch.zeros_like(gain) if bias is None else bias])
        self.own.append(weight)
        kept = self.value(of.size), self.value(1)
        at = (to.at, of.at, kept[0].at, kept[1].at)
        self.parts.append(Part(What.NORM, of.size, at, 0, len(self.own) - 1))

    def maxout(self, of: Sums) -> Value:
        """The greater of each two sums. Search's alone: it has no way back."""
        to = self.value(of.size // 2)
        self.parts.append(Part(What.MAXOUT, to.size, (to.at, of.at)))
        return to

    def bend(self, of: Value) -> Value:
        """tanh(values). Search's alone."""
        to = self.value(of.size)
        self.parts.append(Part(What.TANH_VALUES, of.size, (to.at, of.at), of.before << 1))
        return to

    def bias_row(self, biases: Sequence[Tensor] | None = None) -> Tensor:
        """What all sums of a position begin with."""
        row = torch.zeros(self.sums_size)
        for n, (sums, bias) in enumerate(self.biases):
            row[sums.at : sums.at + sums.size] += (bias if biases is None else biases[n]).detach()
        return row


def padded(weight: Tensor, units: int, *axes: int) -> Tensor:
    """A weight whose axes (as many blocks of units as there are) go on, with zeros, to whole vectors in each block."""
    for axis in axes:
        after = weight.dim() - axis - 1
        blocks = pad(weight.unflatten(axis, (-1, units)), [0, 0] * after + [0, rounded_up(units) - units])
        weight = blocks.flatten(axis, axis + 1)
    return weight


def own_weights(features: Sequence[Feature]) -> Tensor:
    """The features' own weights one behind the other, as `source_features.h` has them."""
    found = [part.whole(part.weight.t(), 0).flatten() for part in features]
    for part in features:
        if part.cell is not None:
            alpha, gates, candidate = part.cell
            found += [part.whole(alpha, 0), part.whole(torch.cat([gates, candidate]).t(), 0, 1).flatten()]
    return torch.cat(found)
