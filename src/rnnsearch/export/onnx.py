"""Export of a model folder as two ONNX graphs, traced from the model's own definition.

| graph   | inputs                            | outputs                                      |
|---------|-----------------------------------|----------------------------------------------|
| encoder | source [B, J]                     | memory.* [B, ...], state.* [B, ...]          |
| step    | y [N], sentence [N], memory.*,    | log_probs [N, V], attention [N, J] (if any), |
|         | state.* [N, ...]                  | next.* [N, ...]                              |

- source: ids, with EOS after each sentence and PAD after that
- y: the previous tokens, at first BOS
- sentence: index of the sentence of each row
- state.*: the next.* of the previous step, in any order of rows, so a search can reorder hypotheses

`export` writes them to a folder with the tokenizers. The beam search is up to the application (`examples/onnx`).

`cli/models.py` calls `export`. Names of tensors and the keys of `model.json` are a format that applications read; a
change of them needs a new `VERSION` and a change of `examples/onnx`. Tests: tests/onnx/test_graphs.py,
tests/onnx/test_folder.py.

Axes: B sentences, J source positions, N hypotheses, V tokens.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rnnsearch.data.batch import Stream
from rnnsearch.errors import ModelError
from rnnsearch.export.engine_file import model_header, unsupported_settings
from rnnsearch.export.onnx_cells import OPERATORS, as_operators
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import LocalFertility, Markov, RecurrentFeature
from rnnsearch.models.attention.normalisers import LinearChain
from rnnsearch.models.attention.scores import ConvolutionalScore, Location
from rnnsearch.models.cells import Cell
from rnnsearch.models.class_outputs import AdaptiveOutput
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import ArrayProjection, Embedding
from rnnsearch.models.memory import Memory
from rnnsearch.models.multi_source import MultiSourceModel
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.scorer import SOURCE
from rnnsearch.systems.folder import load_system
from rnnsearch.text.tokenizer import RARE_KEY, Tokenizer
from rnnsearch.text.vocabulary import BOS, EOS, PAD, UNK
from rnnsearch.utils.files import JSON_ERRORS, atomic_folder, write_bytes, write_json, write_text
from rnnsearch.utils.tensors import leaves, select, with_leaves

OPSET = 17  # version of ONNX's operators, of 2022, so that most runtimes support it
FORMAT = "rnnsearch-onnx"
VERSION = 1
ENCODER_FILE = "encoder.onnx"
STEP_FILE = "step.onnx"
MODEL_FILE = "model.json"
SPECIAL_IDS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
MAX_FILE_BYTES = 2**31  # of the protobuf format

# Numbers of sentences, source positions and hypotheses of two traces. If their graphs differ, a graph contains a size
# of its batch. All numbers differ, because they become names of axes.
TRACE_SIZES = (3, 5, 7)
OTHER_TRACE_SIZES = (4, 8, 10)

# Parts of attention that read ranges of positions, for which graphs over sources of any length have no operator.
UNSUPPORTED_ATTENTION = (Location, ConvolutionalScore, LinearChain, Markov, LocalFertility, RecurrentFeature)

Proto = Any
"""An `onnx.ModelProto`; the package has no usable types."""
Axes = Mapping[str, Mapping[int, str]]
"""Names by tensor of its axes that have no fixed size."""


def export(folder: Path, path: Path) -> int:
    """Write a model folder as a folder of two graphs, their tokenizers and `model.json`; return its size in bytes.

    Raises:
        ModelError: The folder is not a model, the model cannot be exported, another folder is at the path, or the
            package onnx is not installed.
    """
    if find_spec("onnx") is None:
        raise ModelError('format "onnx" needs the package onnx, which is not installed: pip install onnx')
    if path.exists() and not _is_export(path):
        raise ModelError(f"{path}: exists and is not an export to ONNX; choose another folder")
    system = load_system(folder)
    if reason := unsupported_reason(system.model) or unsupported_settings(system.config):
        raise ModelError(f"{folder}: cannot be exported to ONNX: {reason}")
    try:
        graphs = trace_graphs(system.model)
    except ModelError as error:
        raise ModelError(f"{folder}: cannot be exported to ONNX: {error}") from None
    split_tokens = _split_tokens(system.source)
    description = {"symbols": SPECIAL_IDS, **model_header(folder, system), "apart": split_tokens}
    with atomic_folder(path) as temporary:
        write_bytes(temporary / ENCODER_FILE, graphs.encoder.SerializeToString())
        write_bytes(temporary / STEP_FILE, graphs.step.SerializeToString())
        write_text(temporary / "source.json", _library_json(system.source))
        write_text(temporary / "target.json", _library_json(system.target))
        write_json(temporary / MODEL_FILE, {"format": FORMAT, "version": VERSION, **description})
    return sum(file.stat().st_size for file in path.iterdir())


def _is_export(path: Path) -> bool:
    """Return True if a folder is an export to ONNX, which may be overwritten."""
    try:
        contents: Any = json.loads((path / MODEL_FILE).read_text(encoding="utf-8"))
    except JSON_ERRORS:
        return False
    return isinstance(contents, dict) and contents.get("format") == FORMAT


def _library_json(tokenizer: Tokenizer) -> str:
    """Return a tokenizer in the format of the library `tokenizers`."""
    contents = json.loads(tokenizer.json)
    return json.dumps({name: value for name, value in contents.items() if name != RARE_KEY}, ensure_ascii=False)


def _split_tokens(tokenizer: Tokenizer) -> dict[int, list[int]]:
    """Return the rare tokens that are split again into others, which the library does not support."""
    split_tokens = {}
    for id in range(len(tokenizer)):
        parts = tokenizer.split_rare([id])
        if parts != [id]:
            split_tokens[id] = parts
    return split_tokens


# Unsupported models.


def unsupported_reason(model: object) -> str:
    """Return why a model cannot be exported, or "" if it can."""
    if not isinstance(model, TranslationModel) or isinstance(model, MultiSourceModel):
        return "it must be a translation model with one source"
    parts = list(dict.fromkeys(_unsupported_parts(model)))
    return f"graphs do not support {' and '.join(parts)}" if parts else ""


def _unsupported_parts(model: TranslationModel) -> Iterator[str]:
    """Yield each component of a model that cannot be exported, as a phrase."""
    decoder = model.decoder
    if model.encoder.merges_positions:
        yield f"its encoder ({model.encoder.component.name()})"
    yield from _unsupported_cells(model.encoder)
    for module in decoder.modules():
        if isinstance(module, Attention):
            yield from _unsupported_attention(module)
    if model.target_words is not None or model.switch is not None:
        mechanism = "pointer" if model.switch is not None else decoder.component.name()
        yield f"copying source words ({mechanism})"
    elif not isinstance(model.output, Output | AdaptiveOutput):
        yield f"its output ({model.config.output.type})"
    if isinstance(model.source_embedding, ArrayProjection):
        yield "a source that is an array"
    elif type(model.source_embedding) is not Embedding or model.speller is not None:
        yield "words made of characters"
    if model.language_model is not None:
        yield "the language model inside it"
    if model.actor is not None:
        yield "the actor that changes its decoder's states"
    if sum(parameter.numel() for parameter in model.parameters()) * 4 >= MAX_FILE_BYTES:
        yield "2 GB of weights"


def _unsupported_cells(encoder: Encoder) -> Iterator[str]:
    for cell in encoder.modules():
        if isinstance(cell, Cell) and type(cell) not in OPERATORS:
            supported = ", ".join(supported_cell.component.name() for supported_cell in OPERATORS)
            yield f"its encoder's cell ({cell.component.name()}; ONNX has {supported})"


def _unsupported_attention(attention: Attention) -> Iterator[str]:
    for component in (attention.score, attention.normaliser, *attention.features):
        if isinstance(component, UNSUPPORTED_ATTENTION):
            yield f"a part of its attention ({component.component.name()})"


# Tracing.


class Graphs(NamedTuple):
    """The two graphs of a model."""

    encoder: Proto
    step: Proto
    """Graph of one decoder step."""


def trace_graphs(model: TranslationModel) -> Graphs:
    """Return the graphs of a model for which `unsupported_reason` has no reason. Needs the package `onnx`.

    Raises:
        ModelError: A graph would be valid only for batches of one size.
    """
    model.eval()
    with torch.no_grad(), as_operators(model):
        axes = _dynamic_axes(model)
        step = _trace_twice(lambda sizes: _trace_step(model, axes, *sizes))
        # The encoder's graph has only the outputs that the step reads.
        outputs = [value.name for value in step.graph.input if "." in value.name]
        encoder = _trace_twice(lambda sizes: _trace_encoder(model, axes, outputs, *sizes))
    return Graphs(encoder, step)


def _trace_twice(trace: Callable[[tuple[int, int, int]], Proto]) -> Proto:
    """Return the graph of a trace after comparing it with that of other sizes."""
    first = trace(TRACE_SIZES)
    second = trace(OTHER_TRACE_SIZES)
    if list(_computation(first)) != list(_computation(second)):
        raise ModelError("its graphs are valid only for batches of one size")
    return first


def _computation(model: Proto) -> Iterator[tuple[object, ...]]:
    """Yield what a graph computes, independently of the names of its nodes and values."""
    names = {name: name for name in ("", *(value.name for value in model.graph.input))}
    for tensor in model.graph.initializer:
        content = tensor.raw_data + bytes(str((tensor.dims, tensor.data_type)), "ascii")
        names[tensor.name] = sha256(content).hexdigest()
    for number, node in enumerate(model.graph.node):
        attributes = [attribute.SerializeToString(deterministic=True) for attribute in node.attribute]
        yield node.op_type, attributes, [names[name] for name in node.input]
        names |= {name: f"{number}:{position}" for position, name in enumerate(node.output)}
    for value in model.graph.output:
        yield value.name, names[value.name], value.type.SerializeToString(deterministic=True)


class _EncoderModule(nn.Module):
    """The computation of the encoder's graph: source -> some tensors of memory and state."""

    def __init__(self, model: TranslationModel, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memory, state = _start(self.model, source)
        tensors = _named_tensors("memory", memory) | _named_tensors("state", state)
        return tuple(tensors[name] for name in self.outputs)


class _StepModule(nn.Module):
    """The computation of the step's graph; the tensors of memory and state are arguments as lists."""

    def __init__(self, model: TranslationModel, memory: Memory, state: Any) -> None:
        super().__init__()
        self.model = model
        self.memory = memory
        self.state = state

    def forward(self, y: Tensor, sentence: Tensor, memory: list[Tensor], state: list[Tensor]) -> tuple[Tensor, ...]:
        memory_of_rows = select(with_leaves(self.memory, memory), sentence)  # [N, ...]
        state_of_rows = with_leaves(self.state, state)
        readout, next_state, attention = self.model.step(y, state_of_rows, {SOURCE: memory_of_rows})
        return self.model.log_probs(readout), *attention.values(), *leaves(next_state)


def _trace_encoder(
    model: TranslationModel, axes: Axes, outputs: list[str], sentences: int, width: int, _rows: int
) -> Proto:
    arguments = (_example_sources(sentences, width),)
    dynamic_axes = {"source": {0: "B", 1: "J"}} | {name: axes[name] for name in outputs}
    return _trace(_EncoderModule(model, outputs), arguments, ["source"], outputs, dynamic_axes)


def _trace_step(model: TranslationModel, axes: Axes, sentences: int, width: int, rows: int) -> Proto:
    memory, state = _start(model, _example_sources(sentences, width))
    sentence = torch.arange(rows) * sentences // rows
    memory_names = list(_named_tensors("memory", memory))
    state_names = list(_named_tensors("state", state))
    next_names = [name.replace("state", "next", 1) for name in state_names]
    dynamic_axes: dict[str, Mapping[int, str]] = {name: {0: "N"} for name in ("y", "sentence", "log_probs")}
    dynamic_axes["attention"] = {0: "N", 1: "J"}
    for name in memory_names:
        dynamic_axes[name] = axes[name]
    for state_name, next_name in zip(state_names, next_names, strict=True):
        dynamic_axes[state_name] = dynamic_axes[next_name] = {**axes[state_name], 0: "N"}
    y = torch.full_like(sentence, BOS)
    arguments = (y, sentence, leaves(memory), leaves(select(state, sentence)))
    inputs = ["y", "sentence", *memory_names, *state_names]
    attention_names = ["attention"] if model.decoder.attends else []
    outputs = ["log_probs", *attention_names, *next_names]
    graph = _trace(_StepModule(model, memory, state), arguments, inputs, outputs, dynamic_axes)
    # A state that no step reads needs no output.
    used_inputs = {value.name for value in graph.graph.input}
    unused = [name for name in next_names if name.replace("next", "state", 1) not in used_inputs]
    return _prune(graph, unused)


def _example_sources(sentences: int, width: int) -> Tensor:
    """Return source sentences of different lengths, [sentences, width]."""
    lengths = width - torch.arange(sentences)[:, None] % (width - 1)
    positions = torch.arange(width)[None]
    return torch.where(positions < lengths - 1, UNK, torch.where(positions == lengths - 1, EOS, PAD))


def _start(model: TranslationModel, source: Tensor) -> tuple[Memory, Any]:
    """Return a batch's memory and the state before its first words."""
    mask = source != PAD
    memories = model.encode({SOURCE: Stream(source, mask, source.new_zeros(0))})
    return memories[SOURCE], model.start(memories)


def _named_tensors(prefix: str, tree: Any) -> dict[str, Tensor]:
    """Return the tensors of a tree by their paths in it, in the order of `leaves`."""
    return dict(_walk(prefix, tree))


def _walk(path: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, child in zip(names, tree, strict=True):
            yield from _walk(f"{path}.{name}", child)


def _dynamic_axes(model: TranslationModel) -> Axes:
    """Return the axes of memory and state that depend on the batch: the first, and those that grow with the source."""
    sentences = TRACE_SIZES[0]
    tensors_by_width = []
    for width in (TRACE_SIZES[1], OTHER_TRACE_SIZES[1]):
        memory, state = _start(model, _example_sources(sentences, width))
        tensors_by_width.append(_named_tensors("memory", memory) | _named_tensors("state", state))
    short, long = tensors_by_width
    axes = {}
    for name, tensor in short.items():
        axes[name] = {0: "B"}
        for axis, size in enumerate(tensor.shape):
            if size != long[name].shape[axis]:
                axes[name][axis] = "J"
    return axes


def _trace(module: nn.Module, arguments: Any, inputs: list[str], outputs: list[str], axes: Axes) -> Proto:
    """Return a module as a graph, by PyTorch's older exporter, which traces.

    The newer one takes half a minute per graph and needs more packages. The older one warns that a trace may be valid
    for one size only; `_trace_twice` checks that.
    """
    import onnx

    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module,
                arguments,
                file,
                input_names=inputs,
                output_names=outputs,
                dynamic_axes={name: dict(axes[name]) for name in axes if name in {*inputs, *outputs}},
                opset_version=OPSET,
                dynamo=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ModelError(f"there is no operator for a part of it: {str(error).splitlines()[0]}") from None
    return _constants_as_initializers(onnx.load_from_string(file.getvalue()))


def _constants_as_initializers(model: Proto) -> Proto:
    """Return a graph whose weights are all initializers, where tools expect them, also those of recurrent operators."""
    graph = model.graph
    nodes = []
    for node in graph.node:
        value = node.attribute[0].t if node.op_type == "Constant" else None
        if value is not None and len(value.dims) > 1:
            value.name = node.output[0]
            graph.initializer.append(value)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _prune(model: Proto, outputs: Sequence[str]) -> Proto:
    """Return a step's graph without some outputs and the nodes that only they need.

    It keeps the input `sentence`, even if nothing of the memory is read, so that all steps are called alike.
    """
    from onnx import TensorProto, helper
    from onnx.utils import Extractor

    inputs = [value.name for value in model.graph.input]
    if outputs:
        remaining = [value.name for value in model.graph.output if value.name not in outputs]
        model = Extractor(model).extract_model(inputs, remaining)
    if "sentence" not in inputs:
        model.graph.input.append(helper.make_tensor_value_info("sentence", TensorProto.INT64, ["N"]))
    return model
