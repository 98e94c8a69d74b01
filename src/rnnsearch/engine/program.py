"""The computation of a recurrent model as data: encoder, initial decoder states and the decoder's step.

A `Program` contains the names of the arrays that it reads. `accel/program_writer.py` writes it for a model,
`engine/recurrent.py` runs it, and an engine file stores it as JSON. Since a file may come from anyone, `ProgramChecker`
verifies every offset and shape before native code runs it. This module must not import torch.

Field names are keys of that JSON, and the numbers of operations are those of `OpType`: both must stay the same.
`export/web/module/program.js` contains the same checks. Tests: tests/properties/test_written_models.py,
tests/runtime/test_other_families.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from rnnsearch.engine.structs import MAX_UNITS, OpType, round_up

Shapes = Mapping[str, tuple[int, ...]]

MAX_SIZE = 1 << 20  # of any layer or row
MAX_OPERATIONS = 4096  # of a step


class MatrixSlice(NamedTuple):
    """Some rows and columns of an array."""

    array: str
    row: int
    """First row."""
    rows: int
    column: int
    """First column."""
    columns: int


class Affine(NamedTuple):
    """The layer x W^T + b."""

    weight: MatrixSlice  # W [outputs, inputs]
    bias: str | None  # name of an array


class Operation(NamedTuple):
    """`Op` of recurrence.h."""

    type: int  # an `OpType`
    size: int  # elements per operand
    offsets: tuple[int, ...]  # of the operands
    previous: int  # bit k: operand k is a value of the previous position
    weight: MatrixSlice | None  # of a product
    parameters: str | None  # array with the parameters of other operations


class ValueRange(NamedTuple):
    """A range of the values of a position."""

    offset: int
    """Index of the first value."""
    size: int


class StepProgram(NamedTuple):
    """One position of a cell or a decoder."""

    inputs: tuple[Affine, ...]  # layers of the projected inputs x, stacked by rows
    sums: int  # sizes of the rows of a position, see recurrence.h
    values: int  # number of values per position
    reads: int  # number of inputs of products per position
    operations: tuple[Operation, ...]  # operations, in the order in which they run
    bias: str  # array that the sums are initialised with
    states: tuple[ValueRange, ...]  # values that are carried to the next position

    @property
    def x_size(self) -> int:
        """Size of the projected inputs."""
        return sum(layer.weight.rows for layer in self.inputs)


class LayerProgram(NamedTuple):
    """One layer of an encoder."""

    cells: tuple[StepProgram, ...]  # left to right and, if bidirectional, right to left
    residual: bool  # the layer's input is added to its output
    fp32_inputs: bool  # inputs are projected in fp32 in any precision, as in PyTorch's fused sequences


class EncoderProgram(NamedTuple):
    """The layers of an encoder, bottom first."""

    layers: tuple[LayerProgram, ...]  # layers, bottom first
    reads_end: bool  # the end token is read
    reverse: bool  # words are read from last to first, before the end token


class FeatureProgram(NamedTuple):
    """A feature of source positions that depends on earlier weights (source_features.h)."""

    units: int  # of a GRU over `layer` of the annotations; 0: a sum of weights
    neighbours: int  # positions on either side whose sums are read
    accumulates: int  # 1: all earlier weights count; 0: only those of the previous target position
    query_sums: int  # offset of a GRU's projected query in the sums; -1: none
    query_values: int  # offset of its copy in the values; -1: none
    layer: Affine | None  # of the annotations
    max_fertility: float  # of sums that are divided by the fertility from `layer`; otherwise 0


class AttentionProgram(NamedTuple):
    """Attention: keys, values, score and window."""

    projection: Affine | None  # of the annotations, before everything else
    keys: Affine | None  # of the annotations; None: `position_keys`, or the annotations themselves
    position_keys: str | None  # array with a key per source position
    values: Affine | None  # of the annotations, which contexts are sums of; None: the annotations themselves
    with_words: bool  # values are followed by the embedded source words
    heads: int  # of an additive score
    scale: float  # of a product score
    window_radius: int  # -1: global
    window_sigma: float  # of the Gaussian factor of the weights; 0: none
    follows_target: bool  # the window's centre is the target position; otherwise the step computes it
    score_vector: str | None  # v_a of an additive score
    position_layer: Affine | None  # of log(1 + j) and log(1 + J), added to the key of source position j of J
    features: tuple[FeatureProgram, ...]  # features that the score reads


class InitialState(NamedTuple):
    """One of the decoder's initial states: zeros, or outputs of the encoder through a layer and a function."""

    size: int
    # "zeros"; "summary", the top layer's last output; "mean" or "last" of the annotations; or "finals", last states
    source: str
    finals: tuple[tuple[int, int], ...]  # encoder layer from 0, and 0 for h or 1 for c
    layer: Affine | None  # layer that computes the state; None without one
    activation: str  # "", "tanh" or "relu"
    offset: int  # of the state in the result


class Program(NamedTuple):
    """A whole model, except for embeddings and output layer."""

    encoder: EncoderProgram
    attention: AttentionProgram | None  # attention; None without one
    initial_states: tuple[InitialState, ...]  # in the order of `step.states`
    step: StepProgram  # the step of the decoder
    readout_offset: int  # of the output layer's inputs among the reads of the step

    @property
    def layers(self) -> tuple[Affine, ...]:
        """All layers outside the cells and the decoder's step."""
        layers = [state.layer for state in self.initial_states]
        if (attention := self.attention) is not None:
            layers += [attention.projection, attention.keys, attention.values, attention.position_layer]
            layers += [feature.layer for feature in attention.features]
        return tuple(layer for layer in layers if layer is not None)


def parse_program(data: Any) -> Program:
    """Return the program in the data of a JSON file.

    Raises:
        ValueError: The data do not have the structure of a program.
    """
    program = _convert(Program, data)
    assert isinstance(program, Program)
    return program


def _convert(type_hint: Any, data: Any) -> Any:
    """Convert data to the type of a field; named tuples are lists in JSON."""
    options = get_args(type_hint)
    if isinstance(type_hint, UnionType):  # T | None
        (inner,) = (option for option in options if option is not NoneType)
        return None if data is None else _convert(inner, data)
    if get_origin(type_hint) is tuple:
        is_uniform = isinstance(data, list) and options[-1] is ...
        item_types = [options[0]] * len(data) if is_uniform else list(options)
        if not isinstance(data, list) or len(data) != len(item_types):
            raise ValueError(type_hint)
        return tuple(map(_convert, item_types, data))
    if issubclass(type_hint, tuple):
        fields = get_type_hints(type_hint)
        if not isinstance(data, list) or len(data) != len(fields):
            raise ValueError(type_hint)
        return type_hint(*map(_convert, fields.values(), data))
    # JavaScript, for example, writes 1.0 as 1.
    if type_hint is float and type(data) is int:
        data = float(data)
    # Not isinstance: True would be accepted as an int.
    if type(data) is not type_hint:
        raise ValueError(type_hint)
    return data


SUMS, VALUES, READS, INPUTS = "sums", "values", "reads", "inputs"
# Operand of each operation that is a range: number of the operand, row, and size in multiples of the operation's size.
RANGES: dict[OpType, tuple[tuple[int, str, int], ...]] = {
    OpType.INPUT: ((0, SUMS, 1), (1, INPUTS, 1)),
    OpType.READ: ((0, READS, 1), (1, VALUES, 1), (2, VALUES, 1)),
    OpType.PRODUCT: ((0, SUMS, 1),),
    OpType.SIGMOID: ((0, VALUES, 1), (1, SUMS, 1), (2, VALUES, 1)),
    OpType.TANH: ((0, VALUES, 1), (1, SUMS, 1), (2, VALUES, 1)),
    OpType.GRU: ((0, VALUES, 1), (1, VALUES, 1), (2, SUMS, 1), (3, VALUES, 1), (4, VALUES, 1), (5, VALUES, 1)),
    OpType.LSTM: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 4), (3, SUMS, 4), (4, VALUES, 1), (5, VALUES, 1)),
    OpType.ADDITIVE: ((1, SUMS, 1), (2, VALUES, 1)),
    OpType.DOT: ((1, VALUES, 1),),
    OpType.ADD: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 1)),
    OpType.NORM: ((0, SUMS, 1), (1, SUMS, 1), (2, VALUES, 1)),
    OpType.CENTRE: ((1, VALUES, 1),),
    OpType.LOG_POSITION: ((0, SUMS, 1),),
    OpType.MAXOUT: ((0, VALUES, 1), (1, SUMS, 2)),
    OpType.TANH_VALUES: ((0, VALUES, 1), (1, VALUES, 1)),
    OpType.SSRU: ((0, VALUES, 1), (1, VALUES, 1), (2, VALUES, 1), (3, SUMS, 2), (4, VALUES, 1), (5, VALUES, 1)),
}
OPTIONAL = {OpType.READ: (2,), OpType.SIGMOID: (2,), OpType.TANH: (2,), OpType.GRU: (5,)}  # operands that may be -1
NUM_OFFSETS = {
    **{type: 1 + max(n for n, _, _ in ranges) for type, ranges in RANGES.items()},
    OpType.PRODUCT: 3,
    OpType.GRU: 8,
    OpType.LSTM: 7,
    OpType.ADDITIVE: 4,
    OpType.DOT: 4,
    OpType.NORM: 4,
    OpType.LOG_POSITION: 2,
}
"""Number of operands of each operation."""


class ProgramChecker:
    """Check of a program against the shapes of its arrays; weights have two axes.

    `check` raises ValueError or KeyError if any part does not fit, so that native code never accesses memory outside of
    its arrays.
    """

    def __init__(self, program: Program, shapes: Shapes) -> None:
        self.program = program
        self.shapes = shapes
        self.source_size = shapes["source_embedding"][1]
        self.target_size = shapes["target_embedding"][1]

    def check(self) -> None:
        """Raise ValueError or KeyError if the program does not fit its arrays."""
        program = self.program
        _require(1 <= len(program.encoder.layers) <= MAX_OPERATIONS)
        summary_size, annotation_size, final_sizes = self._check_encoder(program.encoder)
        if program.attention is None:
            self._check_step(program.step, self.target_size, None)
        else:
            annotation_size, key_size, value_size = self._check_attention(program.attention, annotation_size)
            self._check_step(program.step, self.target_size, (program.attention, key_size, value_size))
        _require(len(program.initial_states) == len(program.step.states))
        source_sizes = {"summary": summary_size, "mean": annotation_size, "last": annotation_size}
        for state, values in zip(program.initial_states, program.step.states, strict=True):
            _require(state.size == values.size)
            self._check_initial_state(state, source_sizes, final_sizes)
        vocabulary, readout_size = self.shapes["output"]
        _require(vocabulary == self.shapes["target_embedding"][0] and self.shapes["output.bias"] == (vocabulary,))
        _require(program.readout_offset >= 0 and program.readout_offset + readout_size <= program.step.reads)

    def _check_encoder(self, encoder: EncoderProgram) -> tuple[int, int, list[list[int]]]:
        """Return the sizes of summary and annotations, and those of each layer's last states."""
        input_size = self.source_size
        summary_size = 0
        final_sizes: list[list[int]] = []
        for layer in encoder.layers:
            _require(1 <= len(layer.cells) <= 2)
            for cell in layer.cells:
                _require(len(cell.inputs) == 1)
                self._check_step(cell, input_size, None)
            state_sizes = {tuple(values.size for values in cell.states) for cell in layer.cells}
            _require(len(state_sizes) == 1)  # both directions are alike
            (sizes,) = state_sizes
            _require(1 <= len(sizes) <= 2)
            final_sizes.append([size * len(layer.cells) for size in sizes])
            _require(not layer.residual or input_size == final_sizes[-1][0])
            input_size = final_sizes[-1][0]
            summary_size = sizes[0]
        return summary_size, input_size, final_sizes

    def _check_attention(self, attention: AttentionProgram, annotation_size: int) -> tuple[int, int, int]:
        """Return the sizes of annotations, keys and values."""
        annotation_size = self._check_affine(attention.projection, annotation_size)
        key_size = self._check_affine(attention.keys, annotation_size)
        if attention.position_keys is not None:
            _require(attention.keys is None)
            key_size = self._shape(attention.position_keys, 2)[1]
        value_size = self._check_affine(attention.values, annotation_size)
        if attention.with_words:
            value_size += self.source_size
        heads = attention.heads
        # Native code splits keys and values into equal slices.
        _require(1 <= heads <= min(key_size, value_size) and key_size % heads == 0 and value_size % heads == 0)
        _require(-1 <= attention.window_radius <= MAX_SIZE and 0 <= attention.window_sigma <= MAX_SIZE)
        _require(abs(attention.scale) <= MAX_SIZE)
        vector = attention.score_vector
        _require(vector is None or self._shape(vector, 1) == (key_size,))
        position_layer = attention.position_layer
        _require(position_layer is None or self._check_affine(position_layer, 2) == key_size)
        _require(not attention.features or (heads == 1 and vector is not None))
        for feature in attention.features:
            self._check_feature(feature, annotation_size)
        return annotation_size, key_size, value_size

    def _check_feature(self, feature: FeatureProgram, annotation_size: int) -> None:
        units = feature.units
        step = self.program.step
        _require(0 <= units <= MAX_UNITS and 0 <= feature.neighbours <= MAX_OPERATIONS)
        _require(0 <= feature.max_fertility <= MAX_SIZE)
        layer_size = self._check_affine(feature.layer, annotation_size)
        if units:
            query_size = 3 * round_up(units)
            _require(feature.layer is not None and layer_size == 3 * units)
            _require(0 <= feature.query_sums <= step.sums - query_size)
            _require(0 <= feature.query_values <= step.values - query_size)
        else:
            _require(feature.layer is None or (layer_size == 1 and feature.max_fertility > 0))

    def _check_initial_state(
        self, state: InitialState, source_sizes: Mapping[str, int], final_sizes: list[list[int]]
    ) -> None:
        if state.source == "zeros":
            _require(state.layer is None and 0 < state.size <= MAX_SIZE)
            return
        if state.source == "finals":
            _require(bool(state.finals))
            for layer, part in state.finals:
                _require(0 <= layer < len(final_sizes) and 0 <= part < len(final_sizes[layer]))
            size = sum(final_sizes[layer][part] for layer, part in state.finals)
        else:
            size = source_sizes.get(state.source, 0)
        _require(state.activation in ("", "tanh", "relu"))
        result_size = self._check_affine(state.layer, size)
        _require(state.offset >= 0 and state.size > 0 and state.offset + state.size <= result_size)

    def _check_step(
        self, step: StepProgram, input_size: int, attention: tuple[AttentionProgram, int, int] | None
    ) -> None:
        """Check the step of a cell or decoder.

        Args:
            input_size: Size of the inputs that `step.inputs` project.
            attention: The attention of the step with the sizes of keys and values; None if it does not attend.
        """
        # Native code keeps one row of inputs on its stack.
        _require(input_size <= MAX_UNITS and len(step.inputs) >= 1 and len(step.operations) <= MAX_OPERATIONS)
        for layer in step.inputs:
            self._check_affine(layer, input_size)
        row_sizes = {SUMS: step.sums, VALUES: step.values, READS: step.reads, INPUTS: step.x_size}
        _require(all(0 <= size <= MAX_SIZE for size in row_sizes.values()))
        _require(self._shape(step.bias, 1) == (step.sums,) and len(step.states) >= 1)
        for values in step.states:
            _require(values.size >= 1 and 0 <= values.offset <= step.values - values.size)
        # Native code has memory for the weights of one attention per step.
        attending = [operation for operation in step.operations if operation.type in (OpType.ADDITIVE, OpType.DOT)]
        _require(len(attending) == (0 if attention is None else 1))
        for operation in step.operations:
            self._check_operation(operation, row_sizes, attention)

    def _check_operation(
        self,
        operation: Operation,
        row_sizes: Mapping[str, int],
        attention: tuple[AttentionProgram, int, int] | None,
    ) -> None:
        type = OpType(operation.type)
        size = operation.size
        offsets = operation.offsets
        _require(type in RANGES and len(offsets) == NUM_OFFSETS[type])
        _require(1 <= size <= MAX_SIZE and 0 <= operation.previous < 256)
        # `PackedLayout` reads them whatever the type.
        if operation.weight is not None:
            self._check_slice(operation.weight)
        if operation.parameters is not None:
            self._shape(operation.parameters, 1)
        # Every range must lie within its row: native code reads and writes it unchecked.
        for n, row, multiple in RANGES[type]:
            is_absent = offsets[n] == -1 and n in OPTIONAL.get(type, ())
            _require(is_absent or 0 <= offsets[n] <= row_sizes[row] - size * multiple)
        if type is OpType.PRODUCT:
            if operation.weight is None:
                raise ValueError
            self._check_slice(operation.weight)
            _require((operation.weight.rows, operation.weight.columns) == (size, offsets[2]))
            _require(0 <= offsets[1] <= row_sizes[READS] - offsets[2])
        # With a reset gate (operand 5), the candidate is twice as wide and operand 6 is a range of the sums.
        if type is OpType.GRU and offsets[5] >= 0:
            _require(offsets[1] <= row_sizes[VALUES] - 2 * size and 0 <= offsets[6] <= row_sizes[SUMS] - size)
        if type in (OpType.NORM, OpType.CENTRE, OpType.LOG_POSITION):
            if operation.parameters is None:
                raise ValueError
            _require(self._shape(operation.parameters, 1) == (2 * size if type is OpType.NORM else size,))
            single_value = {OpType.NORM: offsets[-1], OpType.CENTRE: offsets[0]}.get(type, 0)
            _require(0 <= single_value < row_sizes[VALUES])
        if type in (OpType.ADDITIVE, OpType.DOT):
            if attention is None:
                raise ValueError
            self._check_attending(operation, row_sizes[VALUES], *attention)

    def _check_attending(
        self, operation: Operation, values: int, attention: AttentionProgram, key_size: int, value_size: int
    ) -> None:
        offsets = operation.offsets
        _require(operation.size == key_size and 0 <= offsets[0] <= values - value_size and -1 <= offsets[3] < values)
        _require((attention.score_vector is not None) == (operation.type == OpType.ADDITIVE))
        # A local window needs a centre: the target position, or a value of the step (operand 3).
        _require(attention.window_radius < 0 or attention.follows_target or offsets[3] >= 0)
        if attention.features:
            count = num_feature_parameters(attention.features, key_size)
            _require(operation.parameters is not None and self._shape(operation.parameters, 1) == (count,))

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        shape = self.shapes[name]
        _require(len(shape) == axes and max(shape) <= MAX_SIZE)
        return shape

    def _check_slice(self, part: MatrixSlice) -> None:
        rows, columns = self._shape(part.array, 2)
        _require(min(part.rows, part.columns) >= 1 and min(part.row, part.column) >= 0)
        _require(part.row + part.rows <= rows and part.column + part.columns <= columns)

    def _check_affine(self, layer: Affine | None, input_size: int) -> int:
        """Return the output size of a layer for an input size; without a layer they are equal."""
        if layer is None:
            return input_size
        self._check_slice(layer.weight)
        _require(layer.weight.columns == input_size)
        _require(layer.bias is None or self._shape(layer.bias, 1) == (layer.weight.rows,))
        return layer.weight.rows


def num_feature_parameters(features: Sequence[FeatureProgram], key_size: int) -> int:
    """Return the number of parameters of features: W_f, then for each GRU the weights of alpha and of its state."""
    count = 0
    for feature in features:
        units = round_up(feature.units)
        # W_f [key size, width], and for a GRU alpha [3 units] and U [units, 3 units], in whole vectors.
        count += key_size * (units or 2 * feature.neighbours + 1) + 3 * units * (units + 1)
    return count


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError
