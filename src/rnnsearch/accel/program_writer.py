"""Models written as programs that the engine runs without PyTorch (`engine/program.py`): the decoders whose steps are
written in `steps.py`, under encoders of recurrent layers; and their arrays put back.

A law holds each equal to its definition in `models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from rnnsearch.accel.cell_steps import cell_step, given, states
from rnnsearch.accel.decoder_steps import STEPS
from rnnsearch.accel.decoder_steps import lacks as step_lacks
from rnnsearch.accel.readout_steps import deep_part
from rnnsearch.accel.rnnsearch_search import in_fp32
from rnnsearch.accel.search import NOTHING, before_output, search_lacks, with_words
from rnnsearch.engine.program import (
    Affine,
    EncoderLayer,
    First,
    Instruction,
    Machine,
    Place,
    Program,
    Rows,
    SourceFeature,
)
from rnnsearch.engine.program import Attention as Attended
from rnnsearch.engine.program import Encoder as Read
from rnnsearch.engine.recurrent import Computation
from rnnsearch.engine.rnnsearch import TABLES, Weight
from rnnsearch.engine.structs import Array, What
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import LinguisticCoverage, NeuralCoverage, Position
from rnnsearch.models.attention.scores import Concat, Location, MultiHeadAdditive
from rnnsearch.models.bridges import Bridge, Copy, Learned, Rectified, Zero
from rnnsearch.models.cells import LSTM, Cell, TorchGRU
from rnnsearch.models.decoders.bahdanau import Bahdanau
from rnnsearch.models.decoders.bi_scale import BiScale
from rnnsearch.models.decoders.conditional import BiDeep, ConditionalGRU
from rnnsearch.models.decoders.decoder import Decoder
from rnnsearch.models.decoders.stack_decoders import RNMTPlus, StackDecoder
from rnnsearch.models.encoders import Bidirectional, Encoder, Stacked, Unidirectional
from rnnsearch.models.layers import Embedding
from rnnsearch.models.memory import StateShape
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.ops.step import Feature, Step
from rnnsearch.text.vocabulary import BOS

ENCODERS = (Unidirectional, Bidirectional, Stacked)
CAN = (
    f"the decoders {', '.join(sorted(cls.component.name() for cls in STEPS))} over encoders of recurrent layers, with attention by "
    "a softmax, local or global, and a plain output"
)
"""What `lacks` has nothing against, in words."""


def lacks(model: TranslationModel) -> str | None:
    """Why a model cannot be written so; None where it can."""
    if (why := search_lacks(model)) is not None:
        return why
    if type(model.source_embedding) is not Embedding:
        return "its source words are made of characters"
    if any(type(part) not in ENCODERS for part in model.encoder.modules() if isinstance(part, Encoder)):
        return f"its encoder is {type(model.encoder).__name__}"
    if (why := step_lacks(model.encoder)) is not None:
        return f"its encoder: {why}"
    return None


class _Arrays:
    """The arrays of a model, by the names that a program calls them."""

    def __init__(self, model: TranslationModel) -> None:
        self.weights = dict[str, Tensor]()
        self.rows = dict[str, Tensor]()
        self._known = dict[int, str]()
        """By the address of their numbers."""
        for name, tensor in parameters(model).items():
            (self.weights if tensor.dim() == 2 else self.rows)[name] = tensor
            self._known.setdefault(tensor.data_ptr(), name)
        self._storages = {tensor.untyped_storage().data_ptr(): name for name, tensor in self.weights.items()}

    def block(self, weight: Tensor, row: int = 0, rows: int | None = None) -> Rows:
        """Some rows of a weight, which may be some columns of a parameter."""
        name = self._storages.get(weight.untyped_storage().data_ptr())
        if name is None:  # a constant of the model's
            name = self._constant()
            self.weights[name] = weight
            self._storages[weight.untyped_storage().data_ptr()] = name
        first, column = divmod(int(weight.storage_offset()), self.weights[name].shape[1])
        return Rows(name, first + row, len(weight) - row if rows is None else rows, column, weight.shape[1])

    def row(self, numbers: Tensor) -> str:
        """A parameter of one axis, or numbers of the model's."""
        known = self._known.get(numbers.data_ptr())
        if known is not None and self.rows.get(known) is not None and self.rows[known].shape == numbers.shape:
            return known
        name = self._constant()
        self.rows[name] = numbers.detach().flatten().float().clone()
        return name

    def _constant(self) -> str:
        """A name of its own."""
        return f"constant.{len(self.weights) + len(self.rows)}"

    def affine(self, layer: nn.Linear | None) -> Affine | None:
        """A layer."""
        if layer is None:
            return None
        return Affine(self.block(layer.weight), None if layer.bias is None else self.row(layer.bias))


def parameters(model: TranslationModel) -> dict[str, Tensor]:
    """A model's parameters by name; tables of embeddings and the output layer are called as the engine calls them."""
    assert isinstance(model.output, Output)
    tables = (model.source_embedding.weight, model.target_embedding.weight)
    own = {id(parameter) for parameter in (*tables, *model.output.parameters())}
    weight, lexical_weight = model.output.weight, model.output.lexical
    output = weight if lexical_weight is None else torch.cat([weight, lexical_weight], dim=1)
    found = dict(zip(TABLES, tables, strict=True)) | {"output": output, "output.bias": model.output.bias}
    found |= {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in own}
    return {name: tensor.detach() for name, tensor in found.items()}


@torch.no_grad()
def written(model: TranslationModel) -> Computation:
    """The computation of a model that `lacks` has nothing against."""
    arrays, decoder, deep = _Arrays(model), model.decoder, deep_part(model.decoder)
    encoder = _encoder(arrays, model.encoder)
    (memory,) = model.encode({"source": NOTHING}).values()
    memory = with_words(model, memory, model.source_embedding(NOTHING.symbols))
    step, words = Step(torch.empty(1, 1, 0), normalises=True), _word_layer(decoder)
    read = STEPS[type(decoder)](step, decoder, decoder.start(memory), memory)
    last = before_output(step, model, read, len(words.weight))
    machine = _machine(arrays, step, [words] if deep is None else [words, deep.word])
    first = tuple(_first(arrays, decoder, model.encoder))
    program = Program(encoder, _attention(arrays, model, step), first, machine, last.at)
    weights = {name: Weight(in_fp32(weight)) for name, weight in arrays.weights.items()}
    if model.target_embedding.zero_bos:
        weights[TABLES[1]].values[BOS] = 0
    return Computation(program, weights, {name: in_fp32(row) for name, row in arrays.rows.items()})


@torch.no_grad()
def fill(model: TranslationModel, weights: Mapping[str, Array], computation: Computation) -> None:
    """Put a computation's arrays back into the parameters that they are of; `weights`: its own in fp32.

    Errors: ValueError, KeyError where they are not of such a model.
    """
    assert isinstance(model.output, Output)
    found = dict(weights) | dict(computation.rows)
    if model.output.lexical is not None:
        found["output"], lexical_weight = torch.tensor(found["output"]).split(
            [model.output.weight.shape[1], model.output.lexical.shape[1]], dim=1
        )
        model.output.lexical.copy_(lexical_weight)
    targets: dict[str, Tensor] = parameters(model) | {"output": model.output.weight}
    for name, parameter in targets.items():
        values = torch.as_tensor(found[name])
        if values.shape != parameter.shape:
            raise ValueError(name)
        parameter.copy_(values)


def _machine(arrays: _Arrays, step: Step, inputs: list[nn.Linear]) -> Machine:
    parts = []
    for part in step.parts:
        weight, own = None, None
        if part.tensor is not None and part.what is What.PRODUCT:
            weight = arrays.block(step.weights[part.tensor], part.rows, part.size)
        elif part.tensor is not None:
            own = arrays.row(step.own[part.tensor])
        parts.append(Instruction(int(part.what), part.size, part.at, part.before, weight, own))
    layers = [arrays.affine(layer) for layer in inputs]
    return Machine(
        tuple(layer for layer in layers if layer is not None),
        *(step.sums_size, step.values_size, step.reads_size),
        tuple(parts),
        arrays.row(step.bias_row()),
        tuple(Place(value.at, value.size) for value, _ in step.states),
    )


def _encoder(arrays: _Arrays, encoder: Encoder) -> Read:
    layers, adds = list[nn.Module]([encoder]), 2
    if isinstance(encoder, Stacked):
        layers, adds = list(encoder.layers), encoder.first_residual
    found = []
    for number, layer in enumerate(layers, start=1):
        assert isinstance(layer, Unidirectional | Bidirectional)
        cells = [layer.forward_cell, *([layer.backward_cell] if isinstance(layer, Bidirectional) else [])]
        wide = type(layer.forward_cell) in (LSTM, TorchGRU)
        found.append(EncoderLayer(tuple(_cell(arrays, cell) for cell in cells), number >= adds, wide))
    turned = isinstance(encoder, Unidirectional | Stacked) and encoder.reverse
    return Read(tuple(found), encoder.reads_end, turned)


def _cell(arrays: _Arrays, cell: Cell) -> Machine:
    step = Step(torch.empty(1, 1, 0), normalises=True)
    own = states(step, cell.start(torch.zeros(1, cell.size)))
    cell_step(step, cell, given(step, cell), own.last, own, None)
    assert isinstance(cell.input, nn.Linear)
    return _machine(arrays, step, [cell.input])


def _attention(arrays: _Arrays, model: TranslationModel, step: Step) -> Attended | None:
    """What a decoder's step attends to, and how."""
    found, source = [module for module in model.decoder.modules() if isinstance(module, Attention)], step.source
    if source is None:
        return None
    (attention,) = found
    score, keys = attention.score, arrays.affine(getattr(attention.score, "key", None))
    if isinstance(score, Concat):
        keys = Affine(arrays.block(score.weight[:, score.query_size :]), None)
    pairs = list(zip(attention.features, attention.feature_weights, strict=True))
    places = [weight for part, weight in pairs if isinstance(part, Position) and isinstance(weight, nn.Linear)]
    kinds = [part for part, _ in pairs if not isinstance(part, Position)]
    features = [
        _feature(arrays, part, one, kept) for part, one, kept in zip(kinds, source.features, step.kept, strict=True)
    ]
    return Attended(
        projection=arrays.affine(model.decoder.projection if isinstance(model.decoder, RNMTPlus) else None),
        keys=keys,
        positions=arrays.block(score.weight).array if isinstance(score, Location) else None,
        values=arrays.affine(score.value) if isinstance(score, MultiHeadAdditive) else None,
        words=model.lexical is not None,
        heads=source.heads,
        scale=source.scale,
        reach=source.reach,
        spread=source.spread,
        follows=source.centres is not None,
        vector=None if source.vector is None else arrays.row(source.vector),
        place=Affine(arrays.block(places[0].weight[:, 1:]), None) if places else None,
        features=tuple(features),
    )


def _feature(arrays: _Arrays, part: nn.Module, written: Feature, kept: int) -> SourceFeature:
    """A feature that remembers weights."""
    layer, fertility = None, 0.0
    if isinstance(part, NeuralCoverage):
        weight = part.cell.input.weight[:, 1 : 1 + part.annotation_size]
        layer = Affine(arrays.block(weight), arrays.row(part.cell.input.bias))
    elif isinstance(part, LinguisticCoverage):
        layer, fertility = arrays.affine(part.fertility), float(part.max_fertility)
    return SourceFeature(*written.described(kept), layer, fertility)


def _word_layer(decoder: Decoder) -> nn.Linear:
    """What makes the words' share of a decoder's first cell."""
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


def _first(arrays: _Arrays, decoder: Decoder, encoder: Encoder) -> Iterator[First]:
    """Where a decoder's first states come from, in the order in which its step has them."""
    if isinstance(decoder, StackDecoder):
        if decoder.fed_size:
            yield _zeros(decoder.fed_size)
        yield from _bridged(arrays, decoder.bridge, encoder.shapes)
    elif isinstance(decoder, BiScale):
        both = First(2 * decoder.size, "mean", (), arrays.affine(decoder.initial), "tanh", 0)
        yield from (both, _zeros(decoder.size), both)
    elif isinstance(decoder, BiDeep | ConditionalGRU):
        cell = decoder.recurrence.word
        for layer in range(len(decoder.initial.weight) // cell.size):
            first = First(cell.size, "mean", (), arrays.affine(decoder.initial), "tanh", layer * cell.size)
            yield from _started(cell, first)
    else:
        assert isinstance(decoder, Bahdanau)
        size, initial = decoder.cell.size, arrays.affine(decoder.initial)
        first = _zeros(size) if initial is None else First(size, "summary", (), initial, "tanh", 0)
        yield from _started(decoder.cell, first)


def _zeros(size: int) -> First:
    return First(size, "zeros", (), None, "", 0)


def _started(cell: Cell, h: First) -> Iterator[First]:
    """`Cell.start`: h, and beside it a memory that is empty (an LSTM's) or h, too (SSRU's)."""
    for part in cell.start(torch.ones(1, cell.size)):
        yield h if part.any() else _zeros(cell.size)


def _bridged(arrays: _Arrays, bridge: Bridge, encoder: Sequence[StateShape]) -> Iterator[First]:
    """The first states of a stack's layers."""
    begin = 0
    for l, (kind, size) in enumerate(bridge.decoder):
        for part in range(len(kind._fields)):
            if isinstance(bridge, Zero):
                yield _zeros(size)
            elif isinstance(bridge, Copy):
                yield First(size, "finals", ((l, part),), None, "", 0)
            elif isinstance(bridge, Learned):
                e = bridge.encoder_layers[l]
                read = tuple((e, own) for own in range(len(encoder[e].state_type._fields)))
                yield First(size, "finals", read, _layer(arrays, bridge.layers[l]), "tanh", part * size)
            else:
                assert isinstance(bridge, Rectified)
                read = tuple((e, min(part, len(shape.state_type._fields) - 1)) for e, shape in enumerate(encoder))
                yield First(size, "finals", read, _layer(arrays, bridge.layers[part]), "relu", begin)
        begin += size


def _layer(arrays: _Arrays, layer: nn.Module) -> Affine | None:
    assert isinstance(layer, nn.Linear)
    return arrays.affine(layer)
