"""Common steps of the importers: from another toolkit's checkpoint to a model folder.

A module per toolkit (`joeynmt.py`, `opennmt_py.py`) reads a checkpoint with `load_checkpoint`, renames its weights
with the generators below, which take tensors from a `WeightReader` and yield them under the names that they have
here, and returns a `ConvertedModel`; `import_from` writes the folder. Checkpoints are untrusted: nothing in them is
executed, and tensors cannot be larger than the file.

Names of weights are those of the model's parameters (`models`), so a renamed parameter must be renamed here, too. Every
option that changes the equations must be converted or rejected.
"""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from rnnsearch.config import resolve
from rnnsearch.config.options import MAX_INTEGER
from rnnsearch.config.rules import check_model
from rnnsearch.errors import ConfigError, ModelError, is_out_of_memory
from rnnsearch.systems.folder import WEIGHTS, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.words import words_from_list
from rnnsearch.utils.files import atomic_folder, sha256_of, write_text
from rnnsearch.utils.tables import as_markdown
from rnnsearch.utils.weights import copy_weights, require_finite
from rnnsearch.utils.weights import named_weights as parameters


class ConvertedModel(NamedTuple):
    """A model from a checkpoint, in terms of rnnsearch."""

    toolkit: str
    weights: dict[str, Tensor]
    """Weights by their names here."""
    tokens: tuple[list[str], list[str]]
    """Source and target tokens in the order of their ids, without the special ones."""
    model: dict[str, Any]
    """Table `[model]` of the config; likewise `training` and `search`."""
    training: dict[str, Any]
    """Table `[training]` of the config."""
    search: dict[str, Any]
    """Table `[search]` of the config."""
    train: list[str]
    """Training files, as in `[data] train`."""
    updates: int | None
    """Number of training updates, or None if unknown."""


class Imported(NamedTuple):
    """Summary of an imported model."""

    parameters: int
    vocabularies: tuple[int, int]
    """Number of source and target tokens."""
    encoder: str
    """Description of the encoder."""
    decoder: str
    """Description of the decoder."""


def import_from(
    read: Callable[[Path], ConvertedModel], checkpoint: Path, output: Path, source: str, target: str
) -> Imported:
    """Write the model of a checkpoint as a model folder.

    Args:
        read: Reads and converts a checkpoint.
        checkpoint: File to read.
        output: Folder to create.
        source: Code of the source language.
        target: Code of the target language.

    Raises:
        ModelError: If `output` exists, or the checkpoint is damaged or has no counterpart here.
        ConfigError: If a language code is invalid.
    """
    if output.exists():
        raise ModelError(f"{output}: already exists; name another folder")
    converted = read(checkpoint)
    system = _make_system(str(checkpoint), converted, source, target)
    with atomic_folder(output) as folder:
        save_system(folder, system)
        write_text(folder / "card.md", _card(checkpoint, converted, system, sha256_of(folder / WEIGHTS)))
    model = system.config.translation
    vocabularies = (len(system.source), len(system.target))
    return Imported(
        system.num_parameters, vocabularies, f"{model.encoder.type} {model.encoder.cell}", model.decoder.type
    )


def _make_system(path: str, converted: ConvertedModel, source: str, target: str) -> TranslationSystem:
    """Return the system with the converted config, tokens and weights."""
    config = resolve(
        {
            "data": {"source": source, "target": target, "train": converted.train, "aligner": False},
            "text": {"type": "words"},
            "model": converted.model,
            "training": converted.training,
            "search": converted.search,
        }
    )
    if problems := check_model(config):
        raise ConfigError(problems)
    tokenizers = {
        language: words_from_list(tokens) for language, tokens in zip((source, target), converted.tokens, strict=True)
    }
    weights = dict(converted.weights)
    if converted.model.get("tie") == "target":
        del weights["output.weight"]  # it is the target's embedding table
    # On the meta device first, without memory: a small file may claim a large model.
    with torch.device("meta"):
        _require_shapes(path, TranslationSystem.make(config, tokenizers, seed=None).model, weights)
    require_finite(path, weights)
    system = TranslationSystem.make(config, tokenizers, seed=None)
    copy_weights(system.model, weights)
    system.model.eval()
    return system


def _require_shapes(path: str, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ModelError if the weights do not have the names and shapes of the model's parameters."""
    expected = parameters(model)
    for name in sorted(expected.keys() | weights.keys()):
        expected_shape = tuple(expected[name].shape) if name in expected else None
        shape = tuple(weights[name].shape) if name in weights else None
        if shape != expected_shape:
            raise ModelError(f"{path}: its weights do not fit together: {name} would be {shape}, not {expected_shape}")


def _card(checkpoint: Path, converted: ConvertedModel, system: TranslationSystem, sha256: str) -> str:
    """Return the text of the model card."""
    languages = " → ".join(system.config.data.languages)
    updates = "unknown" if converted.updates is None else f"{converted.updates:,}"
    rows = [
        ["", ""],
        ["Pair", languages],
        ["Parameters", f"{system.num_parameters:,}"],
        ["Vocabulary", f"{len(system.source):,} source, {len(system.target):,} target tokens"],
        ["Weights' SHA-256", f"`{sha256}`"],
        ["Imported from", f"{converted.toolkit}, {checkpoint.name}"],
        ["Its SHA-256", f"`{sha256_of(checkpoint)}`"],
        ["Updates", updates],
        ["Trained on", ", ".join(system.config.data.train or []) or "unknown"],
    ]
    return f"# {languages}, a recurrent translation model\n\n{as_markdown(rows, left=(0, 1))}"


# Options of other toolkits, whose values may have any type.


def no_counterpart(path: str, name: str, value: Any, supported: Iterable[Any]) -> ModelError:
    """Return the error for an option with an unsupported value."""
    alternatives = ", ".join(format_value(option) for option in supported if option is not None)
    return ModelError(f"{path}: {name} = {format_value(value)} has no counterpart here; it may be {alternatives}")


def format_value(value: Any) -> str:
    """Return a short text for a value of any type, even for a list that contains itself."""
    if isinstance(value, str):
        return f'"{value:.50}"'
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list) and len(value) < 5 and not any(isinstance(item, list | dict) for item in value):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, int | float) and abs(value) < MAX_INTEGER:
        return str(value)
    return f"a {type(value).__name__}"


def optimiser_table(name: Any, learning_rate: Any) -> dict[str, Any]:
    """Return `[training.optimiser]`: that of the checkpoint if its name means the same here, otherwise Adam."""
    if name in ("adam", "sgd") and isinstance(learning_rate, float) and 0 < learning_rate < 1e6:
        return {"type": name, "learning_rate": learning_rate}
    return {"type": "adam", "learning_rate": 0.001}


# Checkpoint files.


def load_checkpoint(path: Path, toolkit: str) -> dict[str, Any]:
    """Read a PyTorch file of tensors, built-in types and `argparse.Namespace`, without running code from it.

    Raises:
        ModelError: If the file has objects of other classes, is compressed, or is damaged.
    """
    _require_uncompressed(path, toolkit)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the importers check all that they use
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(f"{path}: contains more than weights, options and tokens: {_reason(error)}") from None
    except Exception as error:  # a damaged archive or pickle may raise any exception
        if is_out_of_memory(error):
            raise
        raise ModelError(f"{path}: must be a complete checkpoint of {toolkit}: {_reason(error)}") from None
    if not is_mapping(content):
        raise ModelError(f"{path}: must be a checkpoint of {toolkit}; got another file of PyTorch")
    return dict(content)


def _require_uncompressed(path: Path, toolkit: str) -> None:
    """Raise ModelError if a file is not an uncompressed archive, the contents of which cannot exceed its size."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such checkpoint") from None
    except Exception as error:  # the library raises NotImplementedError, struct.error and others
        if is_out_of_memory(error):
            raise
        raise ModelError(f"{path}: must be a complete checkpoint of {toolkit}: {_reason(error)}") from None
    if any(member.compress_type for member in members) or sum(m.file_size for m in members) > path.stat().st_size:
        raise ModelError(f"{path}: must be an uncompressed archive, as PyTorch writes checkpoints")


def _reason(error: Exception) -> str:
    """Return the line of an error that names a rejected object, or otherwise the error's class."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line:
            return line.strip().removeprefix("WeightsUnpickler error: ").split(" was not")[0]
    return "it is damaged" if type(error) is zipfile.BadZipFile else type(error).__name__


def is_mapping(value: Any, is_valid: Callable[[Any], bool] = lambda _: True) -> TypeGuard[Mapping[str, Any]]:
    """Return True for a mapping from strings to valid values."""
    return isinstance(value, Mapping) and all(isinstance(key, str) and is_valid(item) for key, item in value.items())


def is_weight(tensor: Any) -> bool:
    """Return True for a matrix or vector of floats with a stored value per element (not expanded from fewer)."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() not in (1, 2):
        return False
    return tensor.layout == torch.strided and tensor.nbytes <= tensor.untyped_storage().nbytes()


# Vocabularies.


def require_distinct(path: str, vocabulary: str, tokens: list[str]) -> list[str]:
    """Return the tokens of a vocabulary; raise ModelError if one is duplicated or contains a space."""
    seen: set[str] = set()
    for token in tokens:
        if token in seen or " " in token:
            problem = "contains a space" if " " in token else "is duplicated"
            raise ModelError(
                f"{path}: its vocabulary {vocabulary!r} must have different tokens without spaces; {token!r} {problem}"
            )
        seen.add(token)
    return tokens


def token_order(path: str, tokens: Sequence[str], specials: Sequence[str]) -> list[int]:
    """Return a vocabulary's ids in the order of rnnsearch: special tokens first.

    Args:
        path: File, for errors.
        tokens: The vocabulary.
        specials: Its names of the special tokens, in the order of rnnsearch.

    Raises:
        ModelError: If a special token is missing.
    """
    ids = {token: id for id, token in enumerate(tokens)}
    for special in specials:
        if special not in ids:
            raise ModelError(f"{path}: its vocabularies must have {', '.join(specials)}; one has no {special}")
    return [*(ids[special] for special in specials), *(id for token, id in ids.items() if token not in specials)]


# Weights. In names of weights, "{}" is replaced by the number of the layer.


class WeightReader:
    """The weights of a checkpoint; each is taken once, and weights that nothing has taken are an error."""

    def __init__(self, path: str, tensors: Mapping[str, Tensor]) -> None:
        self.path = path
        self._remaining = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._remaining

    def take(self, *names: str) -> Tensor:
        """Return the weight with the first of these names that exists, in fp32; raise ModelError if none does."""
        for name in names:
            if name in self._remaining:
                weight = self._remaining.pop(name).float()
                axes = 1 if "bias" in name else 2
                if weight.dim() == axes:
                    return weight
                raise ModelError(f"{self.path}: {name} must have {axes} axes; got {weight.dim()}")
        raise ModelError(f"{self.path}: must have the weights of its options; it has no {names[0]}")

    def require_empty(self) -> None:
        """Raise ModelError if a weight has not been taken."""
        for name in sorted(self._remaining):
            raise ModelError(f"{self.path}: {name} has no counterpart here")


def collect_weights(reader: WeightReader, renamed: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return all weights that a generator yields.

    Raises:
        ModelError: If a weight is missing, left over, or has a size that does not fit the others.
    """
    try:
        weights = dict(renamed)
    except RuntimeError as error:  # PyTorch cannot add or concatenate tensors of these sizes
        raise ModelError(f"{reader.path}: its weights do not fit together: {str(error).splitlines()[0]}") from None
    reader.require_empty()
    return weights


def embedding_tables(
    reader: WeightReader, names: Mapping[str, str], orders: Sequence[list[int]], sizes_text: str
) -> dict[str, Tensor]:
    """Return the source and target embeddings.

    Args:
        reader: Weights of the checkpoint.
        names: Names of the tables in the checkpoint, by "source" and "target".
        orders: Order of the rows of each (see `token_order`).
        sizes_text: Description of the two embedding sizes for the error, with two "{}".

    Raises:
        ModelError: If a table does not have a row per token, or the tables have different sizes.
    """
    tables = {}
    for (stream, name), order in zip(names.items(), orders, strict=True):
        tables[f"{stream}_embedding.weight"] = reorder_rows(
            reader, reader.take(name), order, f"embeddings of {stream} tokens"
        )
    source_size, target_size = (table.shape[1] for table in tables.values())
    if source_size != target_size:
        sizes = sizes_text.format(source_size, target_size)
        raise ModelError(f"{reader.path}: {sizes} have no counterpart here; they must be equal")
    return tables


def reorder_rows(reader: WeightReader, weight: Tensor, order: list[int], rows_text: str) -> Tensor:
    """Return the rows, one per token, in a new order; raise ModelError if there are more or fewer."""
    if len(weight) != len(order):
        raise ModelError(f"{reader.path}: must have {len(order)} {rows_text}; got {len(weight)}")
    return weight[order]


def encoder_weights(reader: WeightReader, cell: str, bidirectional: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all layers of the PyTorch module `encoder.rnn`."""
    yield from stack_weights(reader, "encoder.rnn.{weight}_l{layer}", cell, "encoder.layers.{}.forward_cell")
    if bidirectional:
        theirs = "encoder.rnn.{weight}_l{layer}_reverse"
        yield from stack_weights(reader, theirs, cell, "encoder.layers.{}.backward_cell")


def decoder_weights(
    reader: WeightReader, theirs: str, cell: str, embedding_size: int, input_feeding: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of all layers of the decoder.

    Args:
        reader: Weights of the checkpoint.
        theirs: Pattern of the names (see `stack_weights`).
        cell: Type of the cells.
        embedding_size: Size of the target embeddings.
        input_feeding: True if the bottom layer reads [word embedding; h~].
    """
    for name, weight in stack_weights(reader, theirs, cell, "decoder.stack.cells.{}"):
        if input_feeding and name == "decoder.stack.cells.0.input.weight":
            yield "decoder.feeding.weight", weight[:, embedding_size:]
            yield name, weight[:, :embedding_size]
        else:
            yield name, weight


def stack_weights(reader: WeightReader, theirs: str, cell: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of recurrent layers, as many as there are.

    Args:
        reader: Weights of the checkpoint.
        theirs: Pattern of their names, with {weight} and {layer}.
        cell: Type of the cells.
        ours: Pattern of the name of a cell here, with {} for the layer.
    """
    layer = 0
    while layer == 0 or theirs.format(weight="weight_ih", layer=layer) in reader:
        W, U, b_W, b_U = (
            reader.take(theirs.format(weight=weight, layer=layer))
            for weight in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        name = ours.format(layer)
        yield f"{name}.input.weight", reorder_gates(cell, W)
        yield f"{name}.recurrent.weight", reorder_gates(cell, U)
        if cell == "lstm":
            yield f"{name}.input.bias", reorder_gates(cell, b_W + b_U)
        else:
            yield f"{name}.input.bias", b_W
            yield f"{name}.recurrent.bias", b_U
        layer += 1


def reorder_gates(cell: str, rows: Tensor) -> Tensor:
    """Return the rows of an LSTM's weight or bias in the order of the gates here: i, f, o, candidate."""
    if cell != "lstm":
        return rows
    i, f, candidate, o = rows.tensor_split(4)
    return torch.cat([i, f, o, candidate])


def num_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    """Return the number of layers whose names start with a prefix."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in weights if name.startswith(prefix)})
