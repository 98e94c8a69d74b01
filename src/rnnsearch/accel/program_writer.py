"""Conversion of models to programs that the engine runs without PyTorch (`engine/program.py`), and of weights back.

It supports the decoders of `decoder_steps.py` over recurrent encoders. `export/engine_file.py` writes the programs to
engine files, and `systems/engine_file.py` loads weights from them. Property tests compare programs with the definitions
in `models`.

Before changing it: names of arrays and the dataclasses of `engine/program.py` are stored in engine files, so files of
earlier versions must still load (`load_arrays`), in Python and in the JavaScript module
(`export/web/module/program.js`). Tests: tests/properties/test_written_models.py, tests/runtime/test_other_families.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from rnnsearch.accel import decoder_steps
from rnnsearch.accel.cell_steps import add_cell, allocate_state, sums_of_inputs
from rnnsearch.accel.decoder_steps import DECODER_STEPS
from rnnsearch.accel.readout_steps import deep_output_of
from rnnsearch.accel.rnnsearch_search import to_array
from rnnsearch.accel.search import EMPTY_SOURCE, add_output_inputs, search_unsupported_reason, with_words
from rnnsearch.engine.program import (
    Affine,
    AttentionProgram,
    EncoderProgram,
    FeatureProgram,
    InitialState,
    LayerProgram,
    MatrixSlice,
    Operation,
    Program,
    StepProgram,
    ValueRange,
)
from rnnsearch.engine.recurrent import RecurrentModel
from rnnsearch.engine.rnnsearch import TABLES, TARGET_TABLE, Weight
from rnnsearch.engine.structs import Array, OpType
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import LinguisticCoverage, NeuralCoverage, Position
from rnnsearch.models.attention.scores import Concat, Location, MultiHeadAdditive
from rnnsearch.models.bridges import Bridge, Copy, LastAnnotation, Learned, Rectified, Zero
from rnnsearch.models.cells import LSTM, Cell, TorchGRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.bi_scale import BiScale
from rnnsearch.models.decoders.conditional import BiDeep, ConditionalGRU
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.stack_decoders import RNMTPlus, StackDecoder
from rnnsearch.models.encoders import Bidirectional, Encoder, Stacked, Unidirectional
from rnnsearch.models.layers import ArrayProjection, Embedding
from rnnsearch.models.memory import StateShape
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.step import StepBuilder, StepFeature
from rnnsearch.text.vocabulary import BOS

ENCODERS = (Unidirectional, Bidirectional, Stacked)
"""Encoders that a program can contain, by exact class."""
_DECODER_NAMES = ", ".join(sorted(decoder.component.name() for decoder in DECODER_STEPS))
SUPPORTED = (
    f"the decoders {_DECODER_NAMES} over encoders of recurrent layers, with attention by a softmax, local or global, "
    "and a plain output"
)
"""Description of the models that can be written, for error messages."""


def unsupported_reason(model: TranslationModel) -> str | None:
    """Return why a model cannot be written as a program, or None if it can."""
    if isinstance(model, MultiSourceModel):
        return "it has several sources"
    if (reason := search_unsupported_reason(model)) is not None:
        return reason
    if type(model.source_embedding) is not Embedding:
        is_array = isinstance(model.source_embedding, ArrayProjection)
        return "its source is an array" if is_array else "its source words are made of characters"
    if any(type(part) not in ENCODERS for part in model.encoder.modules() if isinstance(part, Encoder)):
        return f"its encoder is {type(model.encoder).__name__}"
    if (reason := decoder_steps.unsupported_reason(model.encoder)) is not None:
        return f"its encoder: {reason}"
    return None


@torch.no_grad()
def write_program(model: TranslationModel) -> RecurrentModel:
    """Return the program and the arrays of a model that `unsupported_reason` has no objection to."""
    arrays = _ArrayTable(model)
    decoder = model.decoder
    encoder = _encoder(arrays, model.encoder)
    # Any sentence would do: a step depends only on sizes.
    (memory,) = model.encode({"source": EMPTY_SOURCE}).values()
    memory = with_words(model, memory)
    step = StepBuilder(torch.empty(1, 1, 0), normalises_inputs=True)
    word_layers = [_word_layer(decoder)]
    word_offset = len(word_layers[0].weight)
    inputs = DECODER_STEPS[type(decoder)](step, decoder, decoder.start(memory), memory)
    output_reads = add_output_inputs(step, model, inputs, word_offset)
    if (deep_output := deep_output_of(decoder)) is not None:
        word_layers.append(deep_output.word)
    step_program = _step_program(arrays, step, word_layers)
    initial_states = tuple(_initial_states(arrays, decoder, model.encoder))
    attention = _attention(arrays, model, step)
    program = Program(encoder, attention, initial_states, step_program, output_reads.offset)
    weights = {name: Weight(to_array(weight)) for name, weight in arrays.weights.items()}
    if model.target_embedding.zero_bos:
        # The engine looks up BOS like any other token.
        weights[TARGET_TABLE].values[BOS] = 0
    return RecurrentModel(program, weights, {name: to_array(vector) for name, vector in arrays.vectors.items()})


@torch.no_grad()
def load_arrays(model: TranslationModel, weights: Mapping[str, Array], stored: RecurrentModel) -> None:
    """Copy the arrays of a program into the parameters of a model.

    Args:
        weights: The weights of `stored` in fp32.

    Raises:
        ValueError, KeyError: The arrays are not those of such a model.
    """
    assert isinstance(model.output, Output)
    arrays = dict(weights) | dict(stored.vectors)
    if model.output.lexical is not None:
        sizes = [model.output.weight.shape[1], model.output.lexical.shape[1]]
        # The engine has W_o and W_l side by side in one matrix.
        arrays["output"], lexical = torch.tensor(arrays["output"]).split(sizes, dim=1)
        model.output.lexical.copy_(lexical)
    parameters: dict[str, Tensor] = named_arrays(model) | {"output": model.output.weight}
    for name, parameter in parameters.items():
        values = torch.as_tensor(arrays[name])
        if values.shape != parameter.shape:
            raise ValueError(name)
        parameter.copy_(values)


def named_arrays(model: TranslationModel) -> dict[str, Tensor]:
    """Return a model's parameters by name, where embeddings and output layer have the engine's names.

    Parameters that only training reads are left out.
    """
    assert isinstance(model.output, Output) and isinstance(model.source_embedding, Embedding)
    tables = (model.source_embedding.weight, model.target_embedding.weight)
    weight: Tensor = model.output.weight
    if model.output.lexical is not None:
        weight = torch.cat([weight, model.output.lexical], dim=1)
    arrays: dict[str, Tensor] = dict(zip(TABLES, tables, strict=True))
    arrays |= {"output": weight, "output.bias": model.output.bias}
    others = [*tables, *model.output.parameters()]
    if model.auxiliary is not None:
        others += model.auxiliary.parameters()
    excluded = {id(parameter) for parameter in others}
    arrays |= {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in excluded}
    return {name: array.detach() for name, array in arrays.items()}


class _ArrayTable:
    """The arrays of a model by the names that its program uses; constants of the step get new names."""

    def __init__(self, model: TranslationModel) -> None:
        self.weights: dict[str, Tensor] = {}  # with two axes
        self.vectors: dict[str, Tensor] = {}  # with one axis
        self._names: dict[int, str] = {}  # by address of the values
        for name, tensor in named_arrays(model).items():
            (self.weights if tensor.dim() == 2 else self.vectors)[name] = tensor
            # The first name of a shared parameter is used.
            self._names.setdefault(tensor.data_ptr(), name)
        # By storage, because a slice of a weight starts at another address.
        self._storages = {tensor.untyped_storage().data_ptr(): name for name, tensor in self.weights.items()}

    def slice(self, weight: Tensor, row: int = 0, rows: int | None = None) -> MatrixSlice:
        """Return some rows of a weight, which itself may be some columns of a parameter."""
        name = self._storages.get(weight.untyped_storage().data_ptr())
        if name is None:
            name = self._new_name()
            # Kept alive, so that no later tensor can get the same storage address.
            self.weights[name] = weight
            self._storages[weight.untyped_storage().data_ptr()] = name
        # Parameters are contiguous, so the offset of a slice gives its first row and column.
        first_row, column = divmod(int(weight.storage_offset()), self.weights[name].shape[1])
        num_rows = len(weight) - row if rows is None else rows
        return MatrixSlice(name, first_row + row, num_rows, column, weight.shape[1])

    def vector(self, tensor: Tensor) -> str:
        """Return the name of a parameter with one axis, or of a constant."""
        name = self._names.get(tensor.data_ptr())
        # The first row of a matrix, or the start of a vector, has the same address: the shape decides.
        if name is not None and name in self.vectors and self.vectors[name].shape == tensor.shape:
            return name
        name = self._new_name()
        self.vectors[name] = tensor.detach().flatten().float().clone()
        return name

    def affine(self, layer: nn.Module | None) -> Affine | None:
        """Return a linear layer as named arrays, or None if there is none."""
        if layer is None:
            return None
        assert isinstance(layer, nn.Linear)
        return Affine(self.slice(layer.weight), None if layer.bias is None else self.vector(layer.bias))

    def _new_name(self) -> str:
        return f"constant.{len(self.weights) + len(self.vectors)}"


def _step_program(arrays: _ArrayTable, step: StepBuilder, input_layers: list[nn.Linear]) -> StepProgram:
    """Return a step as a program, whose weights and parameters are named arrays.

    Args:
        arrays: The model's arrays; constants of the step are added.
        step: The step.
        input_layers: Layers that compute `step.x` from embedded words, in the order of its columns.
    """
    operations = []
    for op in step.ops:
        weight = None
        parameters = None
        if op.tensor_index is not None and op.type is OpType.PRODUCT:
            weight = arrays.slice(step.weights[op.tensor_index], op.first_row, op.size)
        elif op.tensor_index is not None:
            parameters = arrays.vector(step.parameters[op.tensor_index])
        operations.append(Operation(int(op.type), op.size, op.offsets, op.previous, weight, parameters))
    inputs = [arrays.affine(layer) for layer in input_layers]
    return StepProgram(
        inputs=tuple(layer for layer in inputs if layer is not None),
        sums=step.sums_size,
        values=step.values_size,
        reads=step.reads_size,
        operations=tuple(operations),
        bias=arrays.vector(step.initial_sums()),
        states=tuple(ValueRange(value.offset, value.size) for value, _ in step.states),
    )


# Encoder.


def _encoder(arrays: _ArrayTable, encoder: Encoder) -> EncoderProgram:
    """Return the programs of an encoder's layers, bottom first, with the forward cell of each layer first."""
    layers: list[nn.Module] = [encoder]
    first_residual = 2
    if isinstance(encoder, Stacked):
        layers = list(encoder.layers)
        first_residual = encoder.first_residual
    programs = []
    for number, layer in enumerate(layers, start=1):
        assert isinstance(layer, Unidirectional | Bidirectional)
        cells = [layer.forward_cell]
        if isinstance(layer, Bidirectional):
            cells.append(layer.backward_cell)
        # PyTorch runs these as fused sequences in fp32, even if other products are in another type.
        fp32_inputs = type(layer.forward_cell) in (LSTM, TorchGRU)
        cell_programs = tuple(_cell(arrays, cell) for cell in cells)
        programs.append(LayerProgram(cell_programs, number >= first_residual, fp32_inputs))
    reverse = isinstance(encoder, Unidirectional | Stacked) and encoder.reverse
    return EncoderProgram(tuple(programs), encoder.reads_end, reverse)


def _cell(arrays: _ArrayTable, cell: Cell) -> StepProgram:
    """Return the step of an encoder's cell as a program; its inputs are not normalised yet."""
    step = StepBuilder(torch.empty(1, 1, 0), normalises_inputs=True)
    state = allocate_state(step, cell.start(torch.zeros(1, cell.size)))
    add_cell(step, cell, sums_of_inputs(step, cell), state.previous, state, None)
    assert isinstance(cell.input, nn.Linear)
    return _step_program(arrays, step, [cell.input])


# Attention.


def _attention(arrays: _ArrayTable, model: TranslationModel, step: StepBuilder) -> AttentionProgram | None:
    """Return the attention of a decoder, given its step; None if it has none."""
    source = step.source
    if source is None:
        return None
    (attention,) = (module for module in model.decoder.modules() if isinstance(module, Attention))
    score = attention.score
    keys = arrays.affine(getattr(score, "key", None))
    if isinstance(score, Concat):
        keys = Affine(arrays.slice(score.weight[:, score.query_size :]), None)
    position_layer = None
    recurrent_features = []  # those that depend on earlier weights
    for feature, layer in zip(attention.features, attention.feature_weights, strict=True):
        if not isinstance(feature, Position):
            recurrent_features.append(feature)
        elif position_layer is None:
            assert isinstance(layer, nn.Linear)
            position_layer = Affine(arrays.slice(layer.weight[:, 1:]), None)
    features = []
    (step_attention,) = step.attentions
    triples = zip(recurrent_features, source.features, step_attention.query_values, strict=True)
    for feature, step_feature, query_values in triples:
        features.append(_feature(arrays, feature, step_feature, query_values))
    return AttentionProgram(
        projection=arrays.affine(model.decoder.projection if isinstance(model.decoder, RNMTPlus) else None),
        keys=keys,
        position_keys=arrays.slice(score.weight).array if isinstance(score, Location) else None,
        values=arrays.affine(score.value) if isinstance(score, MultiHeadAdditive) else None,
        with_words=model.lexical is not None,
        heads=source.heads,
        scale=source.scale,
        window_radius=source.window_radius,
        window_sigma=source.window_sigma,
        follows_target=source.window_centres is not None,
        score_vector=None if source.score_vector is None else arrays.vector(source.score_vector),
        position_layer=position_layer,
        features=tuple(features),
    )


def _feature(arrays: _ArrayTable, feature: nn.Module, step_feature: StepFeature, query_values: int) -> FeatureProgram:
    """Return an attention feature, with the layer that prepares it once per sentence.

    Args:
        arrays: The model's arrays.
        feature: The feature's module.
        step_feature: The feature in the decoder's step.
        query_values: See `StepFeature.description`.
    """
    layer = None
    max_fertility = 0.0
    if isinstance(feature, NeuralCoverage):
        annotation_weight = feature.cell.input.weight[:, 1 : 1 + feature.annotation_size]
        layer = Affine(arrays.slice(annotation_weight), arrays.vector(feature.cell.input.bias))
    elif isinstance(feature, LinguisticCoverage):
        layer = arrays.affine(feature.fertility)
        max_fertility = float(feature.max_fertility)
    return FeatureProgram(*step_feature.description(query_values), layer, max_fertility)


# Decoder.


def _word_layer(decoder: Decoder) -> nn.Linear:
    """Return the layer that projects the previous word for the decoder's first cell."""
    if isinstance(decoder, BiScale):
        return decoder.word
    if isinstance(decoder, Bahdanau):
        cell = decoder.cell
    elif isinstance(decoder, StackDecoder):
        cell = decoder.stack.bottom
    else:
        assert isinstance(decoder, BiDeep | ConditionalGRU)
        cell = decoder.recurrence.word
    assert isinstance(cell.input, nn.Linear)
    return cell.input


def _initial_states(arrays: _ArrayTable, decoder: Decoder, encoder: Encoder) -> Iterator[InitialState]:
    """Yield the initial states in the order of the `step.state` calls of the decoder's function in `DECODER_STEPS`."""
    if isinstance(decoder, StackDecoder):
        if decoder.fed_size:
            yield _zeros(decoder.fed_size)
        yield from _bridge_states(arrays, decoder.bridge, encoder.shapes)
    elif isinstance(decoder, BiScale):
        hidden = _projected_mean(arrays, decoder.initial, 2 * decoder.size)
        yield from (hidden, _zeros(decoder.size), hidden)
    elif isinstance(decoder, BiDeep | ConditionalGRU):
        cell = decoder.recurrence.word
        for layer in range(len(decoder.initial.weight) // cell.size):
            h = _projected_mean(arrays, decoder.initial, cell.size, layer * cell.size)
            yield from _cell_states(cell, h)
    else:
        assert isinstance(decoder, Bahdanau)
        size = decoder.cell.size
        initial = arrays.affine(decoder.initial)
        h = _zeros(size)
        if initial is not None:
            h = InitialState(size, "summary", finals=(), layer=initial, activation="tanh", offset=0)
        yield from _cell_states(decoder.cell, h)


def _zeros(size: int) -> InitialState:
    return InitialState(size, "zeros", finals=(), layer=None, activation="", offset=0)


def _projected_mean(arrays: _ArrayTable, layer: nn.Module, size: int, offset: int = 0) -> InitialState:
    """Return a state tanh(W mean of the annotations), from the rows of W at `offset`."""
    affine = arrays.affine(layer)
    return InitialState(size, "mean", finals=(), layer=affine, activation="tanh", offset=offset)


def _cell_states(cell: Cell, h: InitialState) -> Iterator[InitialState]:
    """Yield the parts of `Cell.start`: h, and a memory that is zero (LSTM) or also h (SSRU)."""
    # Started from ones, the parts that stay 0 are those that do not depend on h.
    for part in cell.start(torch.ones(1, cell.size)):
        yield h if part.any() else _zeros(cell.size)


def _projected_finals(
    size: int, finals: tuple[tuple[int, int], ...], layer: Affine | None = None, activation: str = "", offset: int = 0
) -> InitialState:
    """Return a state that is a function of the encoder's last states."""
    return InitialState(size, "finals", finals=finals, layer=layer, activation=activation, offset=offset)


def _bridge_states(arrays: _ArrayTable, bridge: Bridge, encoder: Sequence[StateShape]) -> Iterator[InitialState]:
    """Yield the initial states of all layers of a stack, bottom first."""
    offset = 0
    for l, (state_type, size) in enumerate(bridge.decoder):
        for part in range(len(state_type._fields)):
            if isinstance(bridge, Zero) or (isinstance(bridge, LastAnnotation) and part > 0):
                yield _zeros(size)
            elif isinstance(bridge, LastAnnotation):
                yield InitialState(size, "last", finals=(), layer=None, activation="", offset=0)
            elif isinstance(bridge, Copy):
                yield _projected_finals(size, ((l, part),))
            elif isinstance(bridge, Learned):
                e = bridge.encoder_layers[l]
                finals = tuple((e, encoder_part) for encoder_part in range(len(encoder[e].state_type._fields)))
                yield _projected_finals(size, finals, arrays.affine(bridge.layers[l]), "tanh", part * size)
            else:
                assert isinstance(bridge, Rectified)
                # An encoder layer without a memory passes its h instead.
                finals = tuple((e, min(part, len(shape.state_type._fields) - 1)) for e, shape in enumerate(encoder))
                yield _projected_finals(size, finals, arrays.affine(bridge.layers[part]), "relu", offset)
        offset += size
