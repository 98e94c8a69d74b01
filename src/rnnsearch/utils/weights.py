"""Parameters in files: safetensors, by name, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rnnsearch.errors import ModelError
from rnnsearch.utils.files import atomic_file

FORMAT = "rnnsearch-1"
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""What a parameter may be stored as. Of other kinds the library may pack several numbers into an element."""


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The model's parameters by name, a shared one once, under its first name; and its buffers, which are counted once
    and not learned."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Tensors by name, atomically. Errors: RnnsearchError (a full disk); the old file stays."""
    with atomic_file(path) as temporary:
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(contiguous, temporary, metadata={"format": FORMAT})
        except SafetensorError as error:  # what the library makes of a full disk
            raise OSError(str(error)) from error


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Errors: ModelError for a missing, truncated or foreign file."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in list(file.keys())}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors, of our own format. Errors: ModelError, as in `read_weights`."""
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            if (file.metadata() or {}).get("format") != FORMAT:
                raise ModelError(f"{path}: was not written by rnnsearch (its format is not {FORMAT})")
            yield file
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model folder must hold {path.name}") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: is truncated or damaged ({error}); copy or train the model again") from None


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill the model's parameters from a file. Errors: ModelError where names or shapes differ."""
    require_shapes(path, model)
    fill(model, read_weights(path))


def require_shapes(path: Path, model: nn.Module) -> None:
    """Errors: ModelError where a file's tensors have other names or shapes than the model's parameters; none of either
    are read."""
    own = weights(model)
    with _opened(path) as file:
        stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(own.get_shape()) for name, own in stored.items()}
        kinds = {name: own.get_dtype() for name, own in stored.items()}
    for name, kind in kinds.items():
        if kind not in FLOATS:
            raise ModelError(f"{path}: does not fit the model of its config: {name} is of {kind}, must be of floats")
    for name in sorted(own.keys() | shapes.keys()):
        here = tuple(own[name].shape) if name in own else "no such parameter"
        there = shapes.get(name, "no such tensor")
        if here != there:
            raise ModelError(f"{path}: does not fit the model of its config: {name} is {there}, must be {here}")


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors of the right names and shapes into the model's parameters."""
    with torch.no_grad():
        for name, parameter in weights(model).items():
            parameter.copy_(tensors[name])
