"""Files of PyTorch's as plain data: read without running anything that is in them."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from rnnsearch.errors import ModelError


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
