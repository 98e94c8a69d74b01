"""Model parameters in safetensors files, by name.

Model folders, checkpoints, aligners and candidate lists are stored with it. Names of parameters (`named_weights`) and
the metadata `FORMAT` are the file format. Files may come from anyone and are checked before they are read:
tests/models/test_checkpoint.py, tests/stress/bombs.py.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save, save_file
from torch import Tensor, nn

from rnnsearch.errors import ModelError, is_out_of_memory, reason
from rnnsearch.utils.files import atomic_file, require_folder_file, temporary_folder
from rnnsearch.utils.panics import LibraryPanicError, panics_as_errors

FORMAT = "rnnsearch-1"
"""Format name in the metadata of files that rnnsearch writes."""
FLOAT_TYPES = frozenset({"F16", "BF16", "F32", "F64"})
"""Allowed types of stored parameters. In other types the library may pack several values into one element."""


MAX_VALUE = torch.finfo(torch.float32).max
"""Maximum magnitude of stored values: larger ones of 64 bits would be infinite in a model."""


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by name.

    A shared parameter is included once, under its first name.
    """
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def save_weights(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors by name, atomically.

    Raises:
        RnnsearchError: The file cannot be written (for example because the disk is full); an old
            file is unchanged.
    """
    with atomic_file(path) as temporary:
        contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
        try:
            if _is_utf8(path):
                # The library writes to another temporary file, which is not recognised after a crash.
                with temporary_folder(temporary.parent) as folder:
                    save_file(contiguous, folder / path.name, metadata={"format": FORMAT})
                    (folder / path.name).replace(temporary)
            else:  # the library rejects the path; this takes more memory
                temporary.write_bytes(save(contiguous, metadata={"format": FORMAT}))
        except SafetensorError as error:  # the library's error for a full disk
            raise OSError(str(error)) from error


def save_model_weights(path: Path, model: nn.Module) -> None:
    """Write the parameters and buffers of a model (see `named_weights` and `save_weights`)."""
    save_weights(path, named_weights(model))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name.

    Raises:
        ModelError: The file is missing, truncated, was not written by rnnsearch, or has infinite values or NaN.
    """
    with _open(path) as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    require_finite(path, tensors)
    return tensors


def require_finite(path: Path | str, tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelError if a tensor of floats from a file has a value that is infinite in fp32, or NaN."""
    for name, tensor in tensors.items():
        # 8-bit floats have no `aminmax`; `require_shapes` rejects them.
        if not tensor.is_floating_point() or tensor.element_size() < 2 or not tensor.numel():
            continue
        # One pass without a temporary tensor; NaN is passed on and fails the comparison.
        low, high = map(float, torch.aminmax(tensor))
        if not (low >= -MAX_VALUE and high <= MAX_VALUE):
            raise ModelError(f"{path}: must contain finite numbers; {name} has infinite values or NaN")


def _is_utf8(path: Path) -> bool:
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _utf8_path(path: Path) -> Iterator[Path]:
    """Yield a path for the library, which accepts only UTF-8: of other files, the path of a descriptor."""
    if _is_utf8(path):
        yield path
        return
    with path.open("rb") as file:
        yield Path(f"/dev/fd/{file.fileno()}")


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file of tensors that rnnsearch wrote; raises ModelError as `read_weights`."""
    try:
        require_folder_file(path)
        with (
            panics_as_errors(),
            _utf8_path(path) as name,
            safe_open(name, framework="pt") as file,  # type: ignore[no-untyped-call]
        ):
            if (file.metadata() or {}).get("format") != FORMAT:
                raise ModelError(f"{path}: was not written by rnnsearch (its format is not {FORMAT})")
            yield file
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model folder must hold {path.name}") from None
    except (SafetensorError, LibraryPanicError, OSError) as error:
        # A file that is too large for the memory is not damaged, so the message must not say so.
        if is_out_of_memory(error) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            raise MemoryError(f"{path}: {reason(error)}") from None
        raise ModelError(f"{path}: is truncated or damaged ({reason(error)}); copy or train the model again") from None


def load_weights(path: Path, model: nn.Module) -> None:
    """Load the parameters of a model from a file.

    Raises:
        ModelError: The file cannot be read, names or shapes differ, or a tensor is not of finite floats.
    """
    require_shapes(path, model)
    copy_weights(model, read_weights(path))


def require_shapes(path: Path, model: nn.Module) -> None:
    """Raise ModelError if a file's tensors and a model's parameters differ in names or shapes, or one is not of floats.

    No tensor is read.
    """
    parameters = named_weights(model)
    with _open(path) as file:
        stored = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: tuple(tensor.get_shape()) for name, tensor in stored.items()}
        types = {name: tensor.get_dtype() for name, tensor in stored.items()}
    for name, dtype in types.items():
        if dtype not in FLOAT_TYPES:
            raise ModelError(f"{path}: does not fit the model of its config: {name} is of {dtype}, must be of floats")
    for name in sorted(parameters.keys() | shapes.keys()):
        expected = tuple(parameters[name].shape) if name in parameters else "no such parameter"
        actual = shapes.get(name, "no such tensor")
        if actual != expected:
            raise ModelError(f"{path}: does not fit the model of its config: {name} is {actual}, must be {expected}")


def copy_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors of the same names and shapes into the model's parameters."""
    with torch.no_grad():
        for name, parameter in named_weights(model).items():
            parameter.copy_(tensors[name])
