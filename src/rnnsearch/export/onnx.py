"""The two graphs of a translation model, traced from its own definition.

| graph   | reads                             | gives                                        |
|---------|-----------------------------------|----------------------------------------------|
| encoder | source [B, J]                     | memory.* [B, ...], state.* [B, ...]          |
| step    | y [N], sentence [N], memory.*,    | log_probs [N, V], attention [N, J] (if any), |
|         | state.* [N, ...]                  | next.* [N, ...]                              |

source: ids, EOS at the end and PAD behind it; y: the words before, BOS at first; sentence: whose hypothesis a row is.
Each state.* is the next.* of the step before, in whatever order of rows a search wants them.
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

from rnnsearch.data.batch import Side
from rnnsearch.errors import ModelError
from rnnsearch.export.engine_file import described, unfollowed
from rnnsearch.export.onnx_cells import OPERATORS, as_operators
from rnnsearch.models.attention.attention import Attention
from rnnsearch.models.attention.features import LocalFertility, Markov, RecurrentFeature
from rnnsearch.models.attention.normalisers import LinearChain
from rnnsearch.models.attention.scores import ConvolutionalScore, Location
from rnnsearch.models.cells import Cell
from rnnsearch.models.class_outputs import AdaptiveOutput
from rnnsearch.models.encoders import Encoder
from rnnsearch.models.layers import Embedding
from rnnsearch.models.memory import Memory
from rnnsearch.models.outputs import Output
from rnnsearch.models.translation_model import TranslationModel
from rnnsearch.search.scorer import SOURCE
from rnnsearch.systems.folder import load_system
from rnnsearch.text.tokenizer import RARE, Tokenizer
from rnnsearch.text.vocabulary import BOS, EOS, PAD, UNK
from rnnsearch.utils.files import atomic_folder, write_bytes, write_json, write_text
from rnnsearch.utils.tensors import leaves, select, with_leaves

OPSET = 17
"""The version of ONNX's operators: of 2022, which runtimes have had time to learn."""
Proto = Any
"""An `onnx.ModelProto`; the package has no types that are ours to rely on."""
Axes = Mapping[str, Mapping[int, str]]
"""The names of those axes of tensors that have no size of their own."""
FIRST, SECOND = (3, 5, 7), (4, 8, 10)
"""How many sentences, source positions and hypotheses each of two traces is of: graphs that differ hold a size of the
batch. The numbers differ, for they become names of axes."""


class Graphs(NamedTuple):
    """Both graphs."""

    encoder: Proto
    step: Proto


class _EncoderModule(nn.Module):
    """What the encoder's graph computes."""

    def __init__(self, model: TranslationModel, wanted: Sequence[str]) -> None:
        super().__init__()
        self.model, self.wanted = model, wanted

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memory, state = _begin(self.model, source)
        found = _named("memory", memory) | _named("state", state)
        return tuple(found[name] for name in self.wanted)


class _StepModule(nn.Module):
    """What the step's graph computes; memory and state come as lists of their tensors."""

    def __init__(self, model: TranslationModel, memory: Memory, state: Any) -> None:
        super().__init__()
        self.model, self.memory, self.state = model, memory, state

    def forward(self, y: Tensor, sentence: Tensor, memory: list[Tensor], state: list[Tensor]) -> tuple[Tensor, ...]:
        own = select(with_leaves(self.memory, memory), sentence)
        readout, after, attention = self.model.step(y, with_leaves(self.state, state), {SOURCE: own})
        return self.model.log_probs(readout), *attention.values(), *leaves(after)


def graphs(model: TranslationModel) -> Graphs:
    """Both graphs of a model that `lacks` has nothing against. Needs the package `onnx`.

    Errors: ModelError where a graph would hold for batches of one size alone.
    """
    model.eval()
    with torch.no_grad(), as_operators(model):
        axes = _axes(model)
        step = _checked(lambda sizes: _step(model, axes, *sizes))
        given = [value.name for value in step.graph.input if "." in value.name]
        return Graphs(_checked(lambda sizes: _encoder(model, axes, given, *sizes)), step)


def _checked(trace: Callable[[tuple[int, int, int]], Proto]) -> Proto:
    """The graph of one trace, which must be that of another."""
    first, second = trace(FIRST), trace(SECOND)
    if list(_said(first)) != list(_said(second)):
        raise ModelError("its parts, traced together, hold for batches of one size alone")
    return first


def _said(model: Proto) -> Iterator[tuple[object, ...]]:
    """What a graph computes, whatever its nodes and values are called."""
    called = {name: name for name in ("", *(value.name for value in model.graph.input))}
    for tensor in model.graph.initializer:
        called[tensor.name] = sha256(tensor.raw_data + bytes(str((tensor.dims, tensor.data_type)), "ascii")).hexdigest()
    for number, node in enumerate(model.graph.node):
        options = [option.SerializeToString(deterministic=True) for option in node.attribute]
        yield node.op_type, options, [called[name] for name in node.input]
        called |= {name: f"{number}:{place}" for place, name in enumerate(node.output)}
    for value in model.graph.output:
        yield value.name, called[value.name], value.type.SerializeToString(deterministic=True)


def _encoder(model: TranslationModel, axes: Axes, given: list[str], sentences: int, width: int, _rows: int) -> Proto:
    arguments = (_example(sentences, width),)
    axes = {"source": {0: "B", 1: "J"}} | {name: axes[name] for name in given}
    return _traced(_EncoderModule(model, given), arguments, ["source"], given, axes)


def _step(model: TranslationModel, axes: Axes, sentences: int, width: int, rows: int) -> Proto:
    memory, state = _begin(model, _example(sentences, width))
    sentence = torch.arange(rows) * sentences // rows
    memories, states = _named("memory", memory), _named("state", state)
    after = [name.replace("state", "next", 1) for name in states]
    attends = ["attention"] if model.decoder.attends else []
    axes = {
        **{name: {0: "N"} for name in ("y", "sentence", "log_probs")},
        "attention": {0: "N", 1: "J"},
        **{name: axes[name] for name in memories},
        **{name: {**axes[own], 0: "N"} for own, new in zip(states, after, strict=True) for name in (own, new)},
    }
    arguments = (torch.full_like(sentence, BOS), sentence, leaves(memory), leaves(select(state, sentence)))
    inputs = ["y", "sentence", *memories, *states]
    whole = _traced(_StepModule(model, memory, state), arguments, inputs, ["log_probs", *attends, *after], axes)
    read = {value.name for value in whole.graph.input}
    return _pruned(whole, [name for name in after if name.replace("next", "state", 1) not in read])


def _example(sentences: int, width: int) -> Tensor:
    """Source sentences of different lengths."""
    lengths = width - torch.arange(sentences)[:, None] % (width - 1)
    places = torch.arange(width)[None]
    return torch.where(places < lengths - 1, UNK, torch.where(places == lengths - 1, EOS, PAD))


def _begin(model: TranslationModel, source: Tensor) -> tuple[Memory, Any]:
    """A batch's memory, and the state before its first words."""
    mask = source != PAD
    memories = model.encode({SOURCE: Side(source, mask, source.new_zeros(0))})
    return memories[SOURCE], model.start(memories)


def _named(prefix: str, tree: Any) -> dict[str, Tensor]:
    """The tensors of a tree by their places in it, in the order of `leaves`."""
    return dict(_walk(prefix, tree))


def _walk(prefix: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(tree, Tensor):
        yield prefix, tree
    elif isinstance(tree, tuple):
        for name, part in zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True):
            yield from _walk(f"{prefix}.{name}", part)


def _axes(model: TranslationModel) -> Axes:
    """The axes of memory and state whose sizes are a batch's: the first, and those that grow with the source."""
    (B, J, _), (_, longer, _) = FIRST, SECOND
    short, long = (
        _named("memory", memory) | _named("state", state)
        for memory, state in (_begin(model, _example(B, width)) for width in (J, longer))
    )
    return {
        name: {0: "B"} | {axis: "J" for axis, size in enumerate(tensor.shape) if size != long[name].shape[axis]}
        for name, tensor in short.items()
    }


def _traced(module: nn.Module, arguments: Any, inputs: list[str], outputs: list[str], axes: Axes) -> Proto:
    """A module as a graph, by PyTorch's exporter of traces: its newer one takes half a minute a graph and needs more
    packages. What it warns of, that a trace may hold for one size alone, `_checked` answers."""
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
                dynamic_axes={name: dict(own) for name, own in axes.items() if name in {*inputs, *outputs}},
                opset_version=OPSET,
                dynamo=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ModelError(f"there is no operator for a part of it: {str(error).splitlines()[0]}") from None
    return _lifted(onnx.load_from_string(file.getvalue()))


def _lifted(model: Proto) -> Proto:
    """A graph whose weights are all its initialisers, where tools look for them, those of recurrent operators, too."""
    graph, kept = model.graph, []
    for node in graph.node:
        value = node.attribute[0].t if node.op_type == "Constant" else None
        if value is not None and len(value.dims) > 1:
            value.name = node.output[0]
            graph.initializer.append(value)
        else:
            kept.append(node)
    del graph.node[:]
    graph.node.extend(kept)
    return model


def _pruned(model: Proto, outputs: Sequence[str]) -> Proto:
    """A step's graph without some outputs and all that only they need, but with `sentence` among its inputs even where
    nothing is read of the memory: all steps are called alike."""
    from onnx import TensorProto, helper
    from onnx.utils import Extractor

    inputs = [value.name for value in model.graph.input]
    if outputs:
        kept = [value.name for value in model.graph.output if value.name not in outputs]
        model = Extractor(model).extract_model(inputs, kept)
    if "sentence" not in inputs:
        model.graph.input.append(helper.make_tensor_value_info("sentence", TensorProto.INT64, ["N"]))
    return model


# Which models can be two ONNX graphs, and why others cannot.

MOST = 2**31
"""Bytes of one ONNX file, whose format cannot count further."""
UNHELD = (Location, ConvolutionalScore, LinearChain, Markov, LocalFertility, RecurrentFeature)
"""Parts of attention that read stretches of positions, which a graph for sources of any length has no operator for."""


def lacks(model: object) -> str:
    """Why a model cannot be two graphs; empty where it can."""
    if not isinstance(model, TranslationModel):
        return "it must be a translation model of one source"
    found = list(dict.fromkeys(_unheld(model)))
    return f"a graph cannot hold {' and '.join(found)}" if found else ""


def _unheld(model: TranslationModel) -> Iterator[str]:
    decoder = model.decoder
    if model.encoder.merges_positions:
        yield f"its encoder ({model.encoder.component.name()})"
    yield from _cells(model.encoder)
    for part in decoder.modules():
        if isinstance(part, Attention):
            yield from _attention(part)
    if model.target_words is not None or model.switch is not None:
        copier = "pointer" if model.switch is not None else decoder.component.name()
        yield f"the copying of source words ({copier})"
    elif not isinstance(model.output, Output | AdaptiveOutput):
        yield "its output (hierarchical)"
    if type(model.source_embedding) is not Embedding or model.speller is not None:
        yield "words made of characters"
    if model.language_model is not None:
        yield "the language model inside it"
    if sum(parameter.numel() for parameter in model.parameters()) * 4 >= MOST:
        yield "2 GB of weights"


def _cells(encoder: Encoder) -> Iterator[str]:
    for cell in encoder.modules():
        if isinstance(cell, Cell) and type(cell) not in OPERATORS:
            named = ", ".join(kind.component.name() for kind in OPERATORS)
            yield f"its encoder's cell ({cell.component.name()}; ONNX has {named})"


def _attention(attention: Attention) -> Iterator[str]:
    for part in (attention.score, attention.normaliser, *attention.features):
        if isinstance(part, UNHELD):
            yield f"a part of its attention ({part.component.name()})"


# Model folders as folders of ONNX graphs: what translates under any runtime of such graphs, beam outside.

FORMAT, VERSION = "rnnsearch-onnx", 1
ENCODER, STEP, MODEL = "encoder.onnx", "step.onnx", "model.json"
SYMBOLS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}


def export(folder: Path, path: Path) -> int:
    """Write a model folder as a folder of two graphs, their tokenizers and `model.json`; how many bytes it has.

    Errors: ModelError for a folder that is none, for a model that two graphs cannot hold, with the reason, for a place
    where something else is, and where the package onnx is not installed.
    """
    if find_spec("onnx") is None:
        raise ModelError('format "onnx" needs the package onnx, which is not installed: pip install onnx')
    if path.exists() and not _exported(path):
        raise ModelError(f"{path}: is there, and no export to ONNX: name another folder")
    system = load_system(folder)
    if why := lacks(system.model) or unfollowed(system.config):
        raise ModelError(f"{folder}: cannot be two ONNX graphs: {why}")
    try:
        made = graphs(system.model)
    except ModelError as error:
        raise ModelError(f"{folder}: cannot be two ONNX graphs: {error}") from None
    with atomic_folder(path) as inside:
        write_bytes(inside / ENCODER, made.encoder.SerializeToString())
        write_bytes(inside / STEP, made.step.SerializeToString())
        write_text(inside / "source.json", _library(system.source))
        write_text(inside / "target.json", _library(system.target))
        about = {"symbols": SYMBOLS, **described(folder, system), "apart": _apart(system.source)}
        write_json(inside / MODEL, {"format": FORMAT, "version": VERSION, **about})
    return sum(file.stat().st_size for file in path.iterdir())


def _exported(path: Path) -> bool:
    """Whether such a folder is there already, which is written over."""
    try:
        found: Any = json.loads((path / MODEL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def _library(tokenizer: Tokenizer) -> str:
    """A tokenizer as the library itself reads it."""
    whole = json.loads(tokenizer.dumped)
    return json.dumps({name: part for name, part in whole.items() if name != RARE}, ensure_ascii=False)


def _apart(tokenizer: Tokenizer) -> dict[int, list[int]]:
    """The symbols that are taken apart again where they stand, which the library does not know of."""
    return {id: parts for id in range(len(tokenizer)) if (parts := tokenizer.apart([id])) != [id]}
