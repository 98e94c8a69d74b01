"""Description of one step of a recurrence as a list of operations, for native code (`native/recurrence.h`).

`accel/cell_steps.py` and `accel/decoder_steps.py` write the equations of cells and decoders into a `StepBuilder`,
together with the tensors that they read. Programs for the engine are written from the same steps
(`accel/program_writer.py`). `recurrence.run` then runs all positions with gradients, and native search runs single
positions.

Operations address three rows of values per position: sums (pre-activations), values (results), and reads (inputs of
products). Every range starts at a multiple of whole vectors.

Axes: N rows, I positions, J source positions, A key size, H annotation size, X projected inputs.

`OpType` and the order of operands are shared with `native/recurrence.h` and stored in engine files
(`engine/program.py`), so existing operations must keep their meaning. Tests: tests/properties/test_recurrences.py,
tests/properties/test_written_models.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rnnsearch.engine.structs import OpType, round_up


class Value(NamedTuple):
    """A range of the values of a position, or of the previous position."""

    offset: int
    """Index of the first value."""
    size: int
    from_previous: bool = False
    """True if the values are those of the previous position."""

    @property
    def previous(self) -> Value:
        """This range at the previous position."""
        return self._replace(from_previous=True)

    def slice(self, start: int, size: int) -> Value:
        """Return a part of the range."""
        return self._replace(offset=self.offset + start, size=size)


class Sums(NamedTuple):
    """A range of the sums of a position."""

    offset: int
    """Index of the first sum."""
    size: int

    def slice(self, start: int, size: int) -> Sums:
        """Return a part of the range."""
        return Sums(self.offset + start, size)


class Reads(NamedTuple):
    """A range of the inputs of products of a position."""

    offset: int
    """Index of the first input."""
    size: int
    """Number of inputs."""


class StepFeature(NamedTuple):
    """A feature of source positions inside an additive score that depends on earlier weights (source_features.h)."""

    weight: Tensor  # W_f [A, width]
    prepared: Tensor  # computed once per sentence [N, J, 1], or [N, J, 3 units] for a GRU
    # For a sum of earlier weights:
    neighbours: int = 0  # positions on either side whose sums are read
    accumulates: bool = True  # False: only the weights of the previous target position count
    # For a GRU: the weight of alpha [3 units], U_gates [2 units, units] and U [units, units]; and the projected query
    gru: tuple[Tensor, Tensor, Tensor] | None = None
    query_sums: Sums | None = None  # sums for a GRU of the projected query

    @property
    def units(self) -> int:
        """Number of units of a GRU; 0 for a sum."""
        return 0 if self.gru is None else self.gru[2].shape[0]

    def description(self, query_values: int) -> tuple[int, int, int, int, int]:
        """Return the fields of `Feature` in source_features.h.

        Args:
            query_values: Offset of the copy of the projected query in the values; -1 if there is none.
        """
        query_sums = -1 if self.query_sums is None else self.query_sums.offset
        return self.units, self.neighbours, int(self.accumulates), query_sums, query_values

    def pad(self, tensor: Tensor, *axes: int) -> Tensor:
        """Return a tensor whose axes of GRU units are padded to whole vectors."""
        return tensor if self.gru is None else pad_to_vectors(tensor, self.units, *axes)


class AttentionSource(NamedTuple):
    """The source positions that a step attends to."""

    keys: Tensor  # [N, J, A]
    annotations: Tensor  # [N, J, H]
    mask: Tensor  # [N, J]
    score_vector: Tensor | None = None  # v_a [A]; None: the score is scale q^T k_j
    heads: int = 1  # of an additive score, with A / heads units each
    scale: float = 1.0  # of a product score
    window_radius: int = -1  # -1: all positions
    window_sigma: float = 0.0  # of the Gaussian factor of the weights; 0: none
    window_centres: Tensor | None = None  # [N, I]; None: a value of the step
    features: tuple[StepFeature, ...] = ()  # features that the score reads


class StepAttention(NamedTuple):
    """The attention of a step to one source."""

    source: AttentionSource
    query_values: tuple[int, ...]  # offset of each feature's projected query in the values, or -1

    @property
    def feature_descriptions(self) -> list[tuple[int, ...]]:
        """The fields of `Feature` in source_features.h, for each feature."""
        pairs = zip(self.source.features, self.query_values, strict=True)
        return [feature.description(query_values) for feature, query_values in pairs]


class StepOp(NamedTuple):
    """`Op` of recurrence.h."""

    type: OpType  # type of the operation
    size: int  # elements per operand
    offsets: tuple[int, ...]  # of the operands, -1 for those that are absent; see ops.h
    previous: int = 0  # bit k: operand k is a value of the previous position
    tensor_index: int | None = None  # of the weights (PRODUCT), the masks (READ, ADD) or the other parameters
    first_row: int = 0  # of a product's weight
    source: int = 0  # index of the source that is attended to


class StepBuilder:
    """The operations of one step, in the order in which they run, and the tensors that they read."""

    def __init__(self, x: Tensor, normalises_inputs: bool = False) -> None:
        """Start a step without operations.

        Args:
            x: Projected inputs of all positions [N, I, X].
            normalises_inputs: True if x is not normalised yet, for cells that normalise their inputs.
        """
        self.x = x
        self.normalises_inputs = normalises_inputs
        self.ops: list[StepOp] = []
        self.weights: list[Tensor] = []  # of products
        self.parameters: list[Tensor] = []  # of other operations
        self.masks: list[Tensor] = []
        self.biases: list[tuple[Sums, Tensor]] = []
        self.states: list[tuple[Value, Tensor]] = []  # with their initial values
        self.hidden_states: list[int] = []  # indices of the states that are h of a cell
        self.outputs: list[Value] = []
        self.attentions: list[StepAttention] = []  # one per source that is attended to
        self.sums_size = 0
        self.values_size = 0
        self.reads_size = 0

    # Ranges.

    def sums(self, size: int) -> Sums:
        """Allocate sums, which are initially 0."""
        sums = Sums(self.sums_size, size)
        self.sums_size += round_up(size)
        return sums

    def value(self, size: int) -> Value:
        """Allocate values."""
        value = Value(self.values_size, size)
        self.values_size += round_up(size)
        return value

    def state(self, initial: Tensor, hidden: bool = False) -> Value:
        """Allocate values that are carried to the next position.

        Args:
            initial: Values before the first position [N, size].
            hidden: True if they are h of a cell.
        """
        if hidden:
            self.hidden_states.append(len(self.states))
        value = self.value(initial.shape[1])
        self.states.append((value, initial))
        return value

    # Sums.

    def bias(self, bias: Tensor, to: Sums) -> None:
        """Compute to += b."""
        self.biases.append((to, bias))

    def input(self, offset: int, to: Sums) -> None:
        """Compute to += x from `offset` on."""
        self.ops.append(StepOp(OpType.INPUT, to.size, (to.offset, offset)))

    def read(self, *values: tuple[Value, Tensor | None], times: Value | None = None) -> Reads:
        """Return the concatenation of values as input of products.

        Args:
            values: Each with a mask [N, size] or [N, I, size] that it is multiplied by, or None.
            times: Another value that a single value is multiplied by.
        """
        start = self.reads_size
        for value, mask in values:
            index = self._add_mask(mask)
            offsets = (self.reads_size, value.offset, -1 if times is None else times.offset)
            # Bit k is for operand k of `offsets`; operand 0 is the destination.
            previous = value.from_previous << 1 | (times is not None and times.from_previous) << 2
            self.ops.append(StepOp(OpType.READ, value.size, offsets, previous, index))
            self.reads_size += value.size
        reads = Reads(start, self.reads_size - start)
        # Values of one read are adjacent, as the columns of the weight are; only the whole is padded.
        self.reads_size = round_up(self.reads_size)
        return reads

    def product(self, weight: Tensor, reads: Reads, to: Sums, first_row: int = 0) -> None:
        """Compute to += W reads, where W has as many rows as `to`, from `first_row` of the weight on."""
        assert weight.shape[1] == reads.size
        # By identity: a weight that several products share has one gradient.
        index = next((n for n, known in enumerate(self.weights) if known is weight), len(self.weights))
        if index == len(self.weights):
            self.weights.append(weight)
        offsets = (to.offset, reads.offset, reads.size)
        self.ops.append(StepOp(OpType.PRODUCT, to.size, offsets, 0, index, first_row))

    def log_position(self, weight: Tensor, to: Sums, start: int) -> None:
        """Compute to += log(2 + t) w at target position t; the first one is `start`."""
        self.parameters.append(weight)
        self.ops.append(StepOp(OpType.LOG_POSITION, to.size, (to.offset, start), 0, len(self.parameters) - 1))

    def layer_norm(self, sums: Sums, to: Sums, gain: Tensor, bias: Tensor | None) -> None:
        """Compute to += LN(sums)."""
        self.parameters.append(torch.stack([gain, torch.zeros_like(gain) if bias is None else bias]))
        # Stored for the backward pass.
        normalised = self.value(sums.size)
        deviation = self.value(1)
        offsets = (to.offset, sums.offset, normalised.offset, deviation.offset)
        self.ops.append(StepOp(OpType.NORM, sums.size, offsets, 0, len(self.parameters) - 1))

    # Functions of sums and values.

    def sigmoid(self, sums: Sums, to: Value | None = None) -> Value:
        """Return sigma(sums)."""
        to = to or self.value(sums.size)
        self.ops.append(StepOp(OpType.SIGMOID, sums.size, (to.offset, sums.offset, -1)))
        return to

    def tanh(self, sums: Sums, to: Value, old: Value | None = None) -> None:
        """Append the op that sets `to` to the tanh of sums, or to `old` at padding."""
        offsets = (to.offset, sums.offset, -1 if old is None else old.offset)
        self.ops.append(StepOp(OpType.TANH, sums.size, offsets, (old is not None and old.from_previous) << 2))

    def add(self, a: Value, b: Value | None, mask: Tensor | None = None, to: Value | None = None) -> Value:
        """Return a + b, where a is multiplied by a mask [N, size] or [N, I, size] if given, and b may be missing.

        Args:
            to: Where the sum is written to, which may be `a`; None: it is allocated.
        """
        if b is None and mask is None:
            return a
        to = to or self.value(a.size)
        index = self._add_mask(mask)
        offset_b, previous_b = (-1, False) if b is None else (b.offset, b.from_previous)
        previous = a.from_previous << 1 | previous_b << 2
        self.ops.append(StepOp(OpType.ADD, a.size, (to.offset, a.offset, offset_b), previous, index))
        return to

    def maxout(self, sums: Sums) -> Value:
        """Return the maximum of each pair of sums. Only for search: it has no backward pass."""
        to = self.value(sums.size // 2)
        self.ops.append(StepOp(OpType.MAXOUT, to.size, (to.offset, sums.offset)))
        return to

    def tanh_values(self, value: Value) -> Value:
        """Return tanh(value). Only for search: it has no backward pass."""
        to = self.value(value.size)
        self.ops.append(StepOp(OpType.TANH_VALUES, value.size, (to.offset, value.offset), value.from_previous << 1))
        return to

    # Cells.

    def gru(
        self,
        to: Value,
        sums: Sums,
        z: Value,
        old: Value,
        reset: tuple[Value, Sums] | None = None,
        carries: bool = False,
    ) -> None:
        """Compute h' = (1 - z) h + z tanh(sums), or h' = z h + (1 - z) tanh(sums) if z `carries` the old state.

        Args:
            reset: r and further sums; r times these are added to `sums`.
        """
        # Stored for the backward pass; with a reset gate, also the sums that it multiplies.
        candidate = self.value(sums.size * (1 if reset is None else 2))
        reset_offsets = (-1, -1) if reset is None else (reset[0].offset, reset[1].offset)
        offsets = (to.offset, candidate.offset, sums.offset, z.offset, old.offset, *reset_offsets, int(carries))
        self.ops.append(StepOp(OpType.GRU, sums.size, offsets, old.from_previous << 4))

    def gru_with_reset_before(
        self,
        gates: Tensor,
        candidate: Tensor,
        sums: Sums,
        old: Value,
        new: Value,
        recurrent_mask: Tensor | None = None,
        carries: bool = False,
    ) -> None:
        """Compute a GRU that applies its reset gate before the product (Cho et al. 2014; Bahdanau et al. 2015).

        Args:
            gates: [U_z; U_r].
            candidate: U.
            sums: Gate inputs of z, r and the candidate.
            recurrent_mask: Dropout mask of the old state in products.
        """
        D = old.size
        gate_sums = sums.slice(0, 2 * D)
        candidate_sums = sums.slice(2 * D, D)
        self.product(gates, self.read((old, recurrent_mask)), gate_sums)
        zr = self.sigmoid(gate_sums)
        self.product(candidate, self.read((old, recurrent_mask), times=zr.slice(D, D)), candidate_sums)
        self.gru(new, candidate_sums, zr.slice(0, D), old, carries=carries)

    def lstm(self, h: Value, c: Value, sums: Sums, old_h: Value, old_c: Value, plain: bool = False) -> None:
        """Compute c' = sigma(f) c + sigma(i) tanh(candidate) and h' = sigma(o) tanh(c'), or sigma(o) c' if `plain`.

        Args:
            sums: i, f, o, candidate.
        """
        # The activations of i, f, o and the candidate, for the backward pass.
        gates = self.value(sums.size)
        offsets = (h.offset, c.offset, gates.offset, sums.offset, old_c.offset, old_h.offset, int(plain))
        self.ops.append(StepOp(OpType.LSTM, h.size, offsets, old_c.from_previous << 4 | old_h.from_previous << 5))

    def ssru(self, h: Value, c: Value, sums: Sums, old_h: Value, old_c: Value) -> None:
        """Compute c' = sigma(f) c + (1 - sigma(f)) candidate and h' = max(0, c'); sums: f, candidate."""
        gate = self.value(h.size)
        offsets = (h.offset, c.offset, gate.offset, sums.offset, old_c.offset, old_h.offset)
        self.ops.append(StepOp(OpType.SSRU, h.size, offsets, old_c.from_previous << 4 | old_h.from_previous << 5))

    # Attention.

    def attend(
        self, query: Value | Sums, source: AttentionSource, to: Value | None = None, centre: Value | None = None
    ) -> Value:
        """Return the context of a query. Only search supports more than one source per step.

        Args:
            query: The sums W_a s for an additive score, or a value for a score that is a product.
            to: Where the context is written to.
            centre: Centre of the window, if the step computes it.
        """
        context = to or self.value(source.annotations.shape[2])
        centre_offset = -1 if centre is None else centre.offset
        if isinstance(query, Value):
            offsets = (context.offset, query.offset, -1, centre_offset)
            self.ops.append(StepOp(OpType.DOT, query.size, offsets, query.from_previous << 1, source=self.source_index))
            self.attentions.append(StepAttention(source, ()))
            return context
        # Sums are discarded after the step, so the backward pass reads a copy of the query in the values.
        offsets = (context.offset, query.offset, self.value(query.size).offset, centre_offset)
        query_values = []
        for feature in source.features:
            query_sums = feature.query_sums
            query_values.append(-1 if query_sums is None else self.value(query_sums.size).offset)
        index = None
        if source.features:
            index = len(self.parameters)
            self.parameters.append(feature_parameters(source.features))
        self.ops.append(StepOp(OpType.ADDITIVE, query.size, offsets, 0, index, source=self.source_index))
        self.attentions.append(StepAttention(source, tuple(query_values)))
        return context

    def window_centre(self, value: Value, vector: Tensor) -> Value:
        """Return S sigma(v^T value), where S is the number of real positions of the next source that is attended to."""
        to = self.value(1)
        self.parameters.append(vector)
        offsets = (to.offset, value.offset)
        index = len(self.parameters) - 1
        self.ops.append(StepOp(OpType.CENTRE, value.size, offsets, 0, index, source=self.source_index))
        return to

    @property
    def source_index(self) -> int:
        """Index of the next source that is attended to."""
        return len(self.attentions)

    @property
    def source(self) -> AttentionSource | None:
        """The only source, or None without attention."""
        assert len(self.attentions) <= 1
        return self.attentions[0].source if self.attentions else None

    def initial_sums(self, biases: Sequence[Tensor] | None = None) -> Tensor:
        """Return the sums that every position starts with [sums_size]: the biases.

        Args:
            biases: Values in place of those in `self.biases`.
        """
        row = torch.zeros(self.sums_size)
        for n, (sums, bias) in enumerate(self.biases):
            # Added, because a range may have several biases.
            row[sums.offset : sums.offset + sums.size] += (bias if biases is None else biases[n]).detach()
        return row

    def _add_mask(self, mask: Tensor | None) -> int | None:
        """Add a mask and return its index."""
        if mask is None:
            return None
        self.masks.append(mask)
        return len(self.masks) - 1


def pad_to_vectors(tensor: Tensor, units: int, *axes: int) -> Tensor:
    """Return a tensor whose axes, each of one or more blocks of `units`, have every block padded to whole vectors."""
    for axis in axes:
        axes_after = tensor.dim() - axis - 1
        # `pad` takes pairs (before, after) from the last axis backward.
        blocks = pad(tensor.unflatten(axis, (-1, units)), [0, 0] * axes_after + [0, round_up(units) - units])
        tensor = blocks.flatten(axis, axis + 1)
    return tensor


def feature_parameters(features: Sequence[StepFeature]) -> Tensor:
    """Return the parameters of features in the order of source_features.h."""
    parameters = [feature.pad(feature.weight.t(), 0).flatten() for feature in features]  # [width, A] each
    for feature in features:
        if feature.gru is not None:
            alpha, gates, candidate = feature.gru
            recurrent = torch.cat([gates, candidate]).t()  # [units, 3 units]
            parameters += [feature.pad(alpha, 0), feature.pad(recurrent, 0, 1).flatten()]
    return torch.cat(parameters)
