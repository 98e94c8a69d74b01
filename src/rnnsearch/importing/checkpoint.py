"""Checkpoints of OpenNMT-py 3 as plain data: read without running anything that is in them."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rnnsearch.errors import ModelError

PARTS = {
    "model": "the weights (save_format must be pytorch, and lora_layers none)",
    "generator": "the output layer",
    "vocab": "the vocabularies",
    "opt": "the options",
}
"""What a checkpoint must hold."""
PLAIN = (str, int, float, list, dict, type(None))
"""What an option that is looked at may be; what else it is is none of the model's."""


class Checkpoint(NamedTuple):
    """tensors: by their names in the file, those of the output layer under `generator.`; vocabularies: the source's and
    the target's symbols by id; options: those it was trained with; start: the symbol before the first; updates: of
    training, None where it does not say."""

    tensors: dict[str, Tensor]
    vocabularies: tuple[list[str], list[str]]
    options: Mapping[str, Any]
    start: str
    updates: int | None


def read(path: Path) -> Checkpoint:
    """A checkpoint. The file is a pickle of Python's, of which no more than tensors, plain values and an
    `argparse.Namespace` are made. Errors: ModelError for one that holds anything else, or is none of OpenNMT-py 3."""
    whole = _plain(path)
    for name, what in PARTS.items():
        if whole.get(name) is None:
            raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; it lacks {name!r}, {what}")
    options = vars(whole["opt"]) if isinstance(whole["opt"], argparse.Namespace) else whole["opt"]
    vocab = whole["vocab"]
    found: dict[str, Tensor] = {}
    for prefix, part in (("", whole["model"]), ("generator.", whole["generator"])):
        if not _mapping_of(part, _is_whole):
            raise ModelError(
                f"{path}: must be a checkpoint of OpenNMT-py 3; its weights are no matrices and vectors by name"
            )
        found |= {f"{prefix}{name}": tensor for name, tensor in part.items()}
    if not _mapping_of(options) or not _mapping_of(vocab):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; its options or vocabularies have another form")
    if vocab.get("src_feats"):
        raise ModelError(f"{path}: source features (n_src_feats) have no counterpart here")
    return Checkpoint(
        found,
        (_symbols(path, vocab, "src"), _symbols(path, vocab, "tgt")),
        {name: value for name, value in options.items() if isinstance(value, PLAIN)},
        str(vocab.get("decoder_start_token", "<s>")),
        _updates(whole.get("optim")),
    )


def _require_stored(path: Path) -> None:
    """Errors: ModelError for what is no archive as PyTorch writes them: nothing in it is compressed, so that no more is
    in it than the file is long."""
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such checkpoint") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path}: must be a whole checkpoint of OpenNMT-py 3: {_why(error)}") from None
    if any(part.compress_type for part in parts) or sum(part.file_size for part in parts) > path.stat().st_size:
        raise ModelError(f"{path}: must be a checkpoint as PyTorch writes it, which compresses nothing")


def _is_whole(tensor: Any) -> bool:
    """Whether it is a matrix or vector of floats that holds all the numbers that it has."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() not in (1, 2):
        return False
    return tensor.layout == torch.strided and tensor.nbytes <= tensor.untyped_storage().nbytes()


def _plain(path: Path) -> dict[str, Any]:
    """What is in the file. PyTorch's reader of weights alone refuses every other class, whatever the file asks for."""
    _require_stored(path)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is read is looked at below
            whole = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path}: holds more than weights, options and words, and is not read: {_why(error)}"
        ) from None
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelError(f"{path}: must be a whole checkpoint of OpenNMT-py 3: {_why(error)}") from None
    if not _mapping_of(whole):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; got another file of PyTorch's")
    return dict(whole)


def _why(error: Exception) -> str:
    """The library's own words where they name what was asked for, in one line; else the kind of the error."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line:
            return line.strip().removeprefix("WeightsUnpickler error: ").split(" was not")[0]
    return "it is damaged" if zipfile.BadZipFile is type(error) else type(error).__name__


def _mapping_of(value: Any, fits: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and fits(own) for name, own in value.items())


def _symbols(path: Path, vocab: Mapping[str, Any], side: str) -> list[str]:
    """A side's symbols. Errors: ModelError where they are none of version 3's, or one stands there twice."""
    symbols = vocab.get(side)
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise ModelError(f"{path}: must be a checkpoint of OpenNMT-py 3; its vocabulary {side!r} is no list of symbols")
    seen: set[str] = set()
    for symbol in symbols:
        if symbol in seen or " " in symbol:
            fault = "has a space in it" if " " in symbol else "stands there twice"
            raise ModelError(f"{path}: its vocabulary {side!r} must have different symbols; {symbol!r} {fault}")
        seen.add(symbol)
    return symbols


def _updates(optimiser: Any) -> int | None:
    """`training_step` counts from 1."""
    step = optimiser.get("training_step") if isinstance(optimiser, Mapping) else None
    return step - 1 if isinstance(step, int) else None
