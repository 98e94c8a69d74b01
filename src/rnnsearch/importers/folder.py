"""Weights and symbols of another toolkit, taken by their names there."""

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
from rnnsearch.errors import ConfigError, ModelError
from rnnsearch.systems.folder import WEIGHTS, save_system
from rnnsearch.systems.translation import TranslationSystem
from rnnsearch.text.words import given_words
from rnnsearch.utils.files import atomic_folder, sha256_of, write_text
from rnnsearch.utils.tables import as_markdown
from rnnsearch.utils.weights import fill
from rnnsearch.utils.weights import weights as parameters

# Options of another toolkit, whatever its files say of them.


def no_counterpart(where: str, name: str, value: Any, known: Iterable[Any]) -> ModelError:
    """The refusal of an option's value, which may be any of the known ones."""
    fits = ", ".join(shown(one) for one in known if one is not None)
    return ModelError(f"{where}: {name} = {shown(value)} has no counterpart here; it may be {fits}")


def shown(value: Any) -> str:
    """A value in few characters, whatever it is: of lists that hold one another, their text has no end."""
    if isinstance(value, str):
        return f'"{value:.50}"'
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list) and len(value) < 5 and not any(isinstance(one, list | dict) for one in value):
        return f"[{', '.join(map(shown, value))}]"
    return str(value) if isinstance(value, int | float) and abs(value) < MAX_INTEGER else f"a {type(value).__name__}"


def optimiser(name: Any, rate: Any) -> dict[str, Any]:
    """`[training.optimiser]`: theirs, where it is one of ours in the same words."""
    if name in ("adam", "sgd") and isinstance(rate, float) and 0 < rate < 1e6:
        return {"type": name, "learning_rate": rate}
    return {"type": "adam", "learning_rate": 0.001}


# Files of PyTorch's as plain data: read without running anything that is in them.


def _require_stored(path: Path, toolkit: str) -> None:
    """Errors: ModelError for what is no archive as PyTorch writes them: nothing in it is compressed, so that no more is
    in it than the file is long."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such checkpoint") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path}: must be a whole checkpoint of {toolkit}: {_why(error)}") from None
    if any(part.compress_type for part in parts) or sum(part.file_size for part in parts) > path.stat().st_size:
        raise ModelError(f"{path}: must be a checkpoint as PyTorch writes it, which compresses nothing")


def is_whole(tensor: Any) -> bool:
    """Whether it is a matrix or vector of floats that holds all the numbers that it has."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() not in (1, 2):
        return False
    return tensor.layout == torch.strided and tensor.nbytes <= tensor.untyped_storage().nbytes()


def plain(path: Path, toolkit: str) -> dict[str, Any]:
    """What is in the file. PyTorch's reader of weights alone refuses every other class, whatever the file asks for.
    Errors: ModelError for a file that holds anything else than tensors, plain values and an `argparse.Namespace`."""
    _require_stored(path, toolkit)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is read is looked at below
            whole = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path}: holds more than weights, options and words, and is not read: {_why(error)}"
        ) from None
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{path}: must be a whole checkpoint of {toolkit}: {_why(error)}") from None
    if not mapping_of(whole):
        raise ModelError(f"{path}: must be a checkpoint of {toolkit}; got another file of PyTorch's")
    return dict(whole)


def _why(error: Exception) -> str:
    """The library's own words where they name what was asked for, in one line; else the kind of the error."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line:
            return line.strip().removeprefix("WeightsUnpickler error: ").split(" was not")[0]
    return "it is damaged" if zipfile.BadZipFile is type(error) else type(error).__name__


def mapping_of(value: Any, fits: Callable[[Any], bool] = lambda _: True) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has values that fit by their names."""
    return isinstance(value, Mapping) and all(isinstance(name, str) and fits(own) for name, own in value.items())


DIRECTIONS = {"forward": "", "backward": "_reverse"}


class Taken:
    """Tensors, each taken by its name; what nobody has taken is told."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where = where
        self._left = dict(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, *names: str) -> Tensor:
        """The tensor of the first of these names that is there, in fp32. Errors: ModelError where none is."""
        for name in names:
            if name in self._left:
                found, axes = self._left.pop(name).float(), 1 if "bias" in name else 2
                if found.dim() == axes:
                    return found
                raise ModelError(f"{self.where}: {name} must have {axes} axes; got {found.dim()}")
        raise ModelError(f"{self.where}: must have the weights of its options; it lacks {names[0]}")

    def require_empty(self) -> None:
        """Errors: ModelError where something is left."""
        for name in sorted(self._left):
            raise ModelError(f"{self.where}: {name} has no counterpart here")


def distinct(where: str, side: str, symbols: list[str]) -> list[str]:
    """A side's symbols. Errors: ModelError where one stands there twice, or has a space in it."""
    seen: set[str] = set()
    for symbol in symbols:
        if symbol in seen or " " in symbol:
            fault = "has a space in it" if " " in symbol else "stands there twice"
            raise ModelError(f"{where}: its vocabulary {side!r} must have different symbols; {symbol!r} {fault}")
        seen.add(symbol)
    return symbols


def order(where: str, symbols: Sequence[str], specials: Sequence[str]) -> list[int]:
    """The ids of a vocabulary in the order that they have here: the special ones first, which are named in our order.
    Errors: ModelError for one without these."""
    places = {symbol: id for id, symbol in enumerate(symbols)}
    for special in specials:
        if special not in places:
            raise ModelError(f"{where}: its vocabularies must have {', '.join(specials)}; one lacks {special}")
    return [*(places[name] for name in specials), *(id for name, id in places.items() if name not in specials)]


def tables(taken: Taken, names: Mapping[str, str], orders: Sequence[list[int]], options: str) -> dict[str, Tensor]:
    """The two tables of embeddings, by side. options: that say their sizes. Errors: ModelError where they have other
    rows than the vocabularies or are not of one size."""
    found = {}
    for (side, name), rows in zip(names.items(), orders, strict=True):
        found[f"{side}_embedding.weight"] = in_order(taken, taken.take(name), rows, f"embeddings of {side} symbols")
    sizes = [table.shape[1] for table in found.values()]
    if sizes[0] != sizes[1]:
        fault = f"{options.format(*sizes)} have no counterpart here"
        raise ModelError(f"{taken.where}: {fault}; both must be one")
    return found


def in_order(taken: Taken, weights: Tensor, rows: list[int], what: str) -> Tensor:
    """A row for each symbol, in our order. Errors: ModelError where there are others."""
    if len(weights) != len(rows):
        raise ModelError(f"{taken.where}: must have {len(rows)} {what}; got {len(weights)}")
    return weights[rows]


def encoder(taken: Taken, kind: str, both_ways: bool) -> Iterator[tuple[str, Tensor]]:
    """The layers of a PyTorch module by the name of `encoder.rnn`, as many as there are."""
    for name, ending in list(DIRECTIONS.items())[: 1 + both_ways]:
        yield from stack(taken, "encoder.rnn.{0}_l{1}" + ending, kind, f"encoder.layers.{{}}.{name}_cell")


def decoder(taken: Taken, form: str, kind: str, embedding: int, feeds: bool) -> Iterator[tuple[str, Tensor]]:
    """The decoder's stack. form: as in `stack`; feeds: whether its bottom reads h~ beside the word's embedding."""
    for name, weight in stack(taken, form, kind, "decoder.stack.cells.{}"):
        if feeds and name == "decoder.stack.cells.0.input.weight":
            yield "decoder.feeding.weight", weight[:, embedding:]
            yield name, weight[:, :embedding]
        else:
            yield name, weight


def stack(taken: Taken, form: str, kind: str, ours: str) -> Iterator[tuple[str, Tensor]]:
    """Layers, as many as there are. form: of their names, {0} the weight, {1} the layer; ours: of a cell's, {} the
    layer."""
    layer = 0
    while layer == 0 or form.format("weight_ih", layer) in taken:
        weights = [taken.take(form.format(w, layer)) for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        yield from cell(ours.format(layer), kind, *weights)
        layer += 1


def cell(name: str, kind: str, W: Tensor, U: Tensor, b: Tensor, b_U: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One of PyTorch's cells."""
    yield f"{name}.input.weight", gates(kind, W)
    yield f"{name}.recurrent.weight", gates(kind, U)
    if kind == "lstm":
        yield f"{name}.input.bias", gates(kind, b + b_U)
    else:
        yield f"{name}.input.bias", b
        yield f"{name}.recurrent.bias", b_U


def gates(kind: str, w: Tensor) -> Tensor:
    """Rows of a cell's weight or bias in our order of the gates."""
    if kind != "lstm":
        return w
    i, f, candidate, o = w.tensor_split(4)
    return torch.cat([i, f, o, candidate])


def depth(found: Mapping[str, Tensor], prefix: str) -> int:
    """How many layers' names begin so."""
    return len({name.removeprefix(prefix).partition(".")[0] for name in found if name.startswith(prefix)})


# What was found in another toolkit's checkpoint as a model folder.


class Found(NamedTuple):
    """toolkit: its name; weights: by our names; symbols: of both sides, without the special ones; model, training,
    search: these tables; train: files, as in `[data]`; updates: of training, None where it is not said."""

    toolkit: str
    weights: dict[str, Tensor]
    symbols: tuple[list[str], list[str]]
    model: dict[str, Any]
    training: dict[str, Any]
    search: dict[str, Any]
    train: list[str]
    updates: int | None


class Imported(NamedTuple):
    """What was made of a checkpoint. parameters: its numbers; vocabularies: source and target symbols."""

    parameters: int
    vocabularies: tuple[int, int]
    encoder: str
    decoder: str


def import_from(read: Callable[[Path], Found], checkpoint: Path, output: Path, source: str, target: str) -> Imported:
    """Write what `read` finds in a checkpoint as a model folder. source, target: the languages' codes.

    Errors: ModelError, as `read`'s, and where something stands at `output`; ConfigError for codes that are none.
    """
    if output.exists():
        raise ModelError(f"{output}: there is something already; name another folder")
    found = read(checkpoint)
    system = _system(str(checkpoint), found, source, target)
    with atomic_folder(output) as folder:
        save_system(folder, system)
        write_text(folder / "card.md", _card(checkpoint, found, system, sha256_of(folder / WEIGHTS)))
    model = system.config.translation
    sizes = len(system.source), len(system.target)
    return Imported(system.parameters, sizes, f"{model.encoder.type} {model.encoder.cell}", model.decoder.type)


def all_of(taken: Taken, renamed: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """All weights by our names. Errors: ModelError where one is missing, of other sizes than the rest, or left over."""
    try:
        found = dict(renamed)
    except RuntimeError as error:  # of two sizes that PyTorch was to add or join
        raise ModelError(f"{taken.where}: its weights do not fit together: {str(error).splitlines()[0]}") from None
    taken.require_empty()
    return found


def _system(where: str, found: Found, source: str, target: str) -> TranslationSystem:
    """The system that a checkpoint holds."""
    tables = {
        "data": {"source": source, "target": target, "train": found.train, "aligner": False},
        "text": {"type": "words"},
        "model": found.model,
        "training": found.training,
        "search": found.search,
    }
    config = resolve(tables)
    if faults := check_model(config):
        raise ConfigError(faults)
    tokenizers = {side: given_words(own) for side, own in zip((source, target), found.symbols, strict=True)}
    weights = {name: weight for name, weight in found.weights.items() if name != "output.weight" or not _tied(found)}
    with torch.device("meta"):  # without memory: a few numbers may say that there are many
        _require_shapes(where, TranslationSystem.make(config, tokenizers, seed=None).model, weights)
    system = TranslationSystem.make(config, tokenizers, seed=None)
    fill(system.model, weights)
    system.model.eval()
    return system


def _tied(found: Found) -> bool:
    """Whether the output layer's rows are the target's embeddings."""
    return found.model.get("tie") == "target"


def _require_shapes(where: str, model: nn.Module, found: Mapping[str, Tensor]) -> None:
    """Errors: ModelError where a weight has another shape than those beside it."""
    own = parameters(model)
    for name in sorted(own.keys() | found.keys()):
        shapes = [tuple(each[name].shape) if name in each else None for each in (own, found)]
        if shapes[0] != shapes[1]:
            raise ModelError(f"{where}: its weights do not fit together: {name} would be {shapes[1]}, not {shapes[0]}")


def _card(checkpoint: Path, found: Found, system: TranslationSystem, sha256: str) -> str:
    """The card: what it is, and where it is from."""
    sides, data = system.config.data.languages, system.config.data.train or []
    rows: Sequence[tuple[str, str]] = (
        ("Pair", " → ".join(sides)),
        ("Parameters", f"{system.parameters:,}"),
        ("Vocabulary", f"{len(system.source):,} source, {len(system.target):,} target symbols"),
        ("Weights' SHA-256", f"`{sha256}`"),
        ("Imported from", f"{found.toolkit}, {checkpoint.name}"),
        ("Its SHA-256", f"`{sha256_of(checkpoint)}`"),
        ("Updates", "not said" if found.updates is None else f"{found.updates:,}"),
        ("Trained on", ", ".join(data) or "not said"),
    )
    table = as_markdown([["", ""], *(list(row) for row in rows)], left=(0, 1))
    return f"# {' → '.join(sides)}, a recurrent translation model\n\n{table}"
