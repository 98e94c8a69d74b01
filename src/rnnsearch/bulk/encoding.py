"""Values as bytes and back, by their declared types: JSON, with arrays and bytes as tensors of a safetensors file.

Files of a store may come from anyone, so they name no classes: the reader knows the type of each value from the
annotations of the function that takes or returns it, and only these types are created. Nothing is unpickled.

Types may be str, bytes, int, float, bool, Path, `X | None`, lists, tuples, sets, dicts and counters with keys of text,
NumPy arrays of fixed type, named tuples, data classes, tables of a run file, and `Tokenizer`.

A new class in a task or result of a pass needs only annotated fields; the encoding is a format that a newer version may
find, see `prepare.FORMAT`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from jaxtyping import AbstractArray
from numpy.typing import NDArray
from pydantic import BaseModel
from safetensors.numpy import load, save

from rnnsearch.errors import RnnsearchError, library_errors
from rnnsearch.text.tokenizer import Tokenizer

_JSON_TENSOR = "json"
"""Name of the tensor with the JSON; other tensors are named by the numbers that represent them in the JSON."""
_CONTAINERS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    Sequence: list,
    Collection: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}
"""Constructors of containers whose elements have one type."""

_TORCH_TYPES = {"Aligner": "rnnsearch.align.aligner"}
"""Modules of types that other modules import only for type checkers, because they need torch."""

Arrays = list[NDArray[Any]]


def to_json(value: object) -> bytes:
    """Return a JSON value as bytes."""
    # Names of files and invalid lines may contain lone surrogates.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def from_json(content: bytes, annotation: Any, location: str) -> Any:
    """Return the value of some JSON, of the type that an annotation declares.

    Raises:
        RnnsearchError: The content is damaged or of another type.
    """
    with _stored_errors(location):
        return _codec(annotation).decode(_parse_json(content), [])


def to_bytes(value: object, annotation: Any) -> bytes:
    """Return a value of the type that an annotation declares as bytes."""
    arrays: Arrays = []
    text = to_json(_codec(annotation).encode(value, arrays))
    tensors = {str(index): np.ascontiguousarray(array) for index, array in enumerate(arrays)}
    return save({_JSON_TENSOR: np.frombuffer(text, np.uint8), **tensors})


def from_bytes(content: bytes, annotation: Any, location: str) -> Any:
    """Return the value that `to_bytes` wrote with the same annotation.

    Args:
        content: Bytes in a store, which may come from anyone.
        annotation: Type of the value.
        location: File that the bytes were read from, for the message.

    Raises:
        RnnsearchError: The content is damaged or of another type.
    """
    with _stored_errors(location):
        tensors = load(content)
        text = tensors.pop(_JSON_TENSOR).tobytes()
        arrays = [tensors[str(index)] for index in range(len(tensors))]
        return _codec(annotation).decode(_parse_json(text), arrays)


def _stored_errors(location: str) -> AbstractContextManager[None]:
    """Raise RnnsearchError, naming the file, for any exception: damaged bytes can raise many."""
    return library_errors(
        f"{location}: must be as rnnsearch stored it (delete the store to start again)", RnnsearchError
    )


def _parse_json(content: bytes) -> Any:
    return json.loads(content.decode("utf-8", "surrogatepass"))


class _Codec(NamedTuple):
    """Functions between values of a type and JSON values, in which numbers represent arrays of a list."""

    encode: Callable[[Any, Arrays], Any]
    """Returns the JSON value and appends its arrays to the list."""
    decode: Callable[[Any, Arrays], Any]
    """Returns the value, or raises an exception if the JSON value or an array is of another type."""


@cache
def _codec(annotation: Any) -> _Codec:
    """Return the codec of a type.

    Raises:
        TypeError: The type is not one of those in the module docstring.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if annotation in (str, int, float, bool):
        return _scalar_codec(annotation)
    if annotation is bytes:
        return _bytes_codec()
    if annotation is Path:
        return _Codec(lambda path, _: str(path), lambda plain, _: Path(_require(plain, str)))
    if annotation is Tokenizer:
        return _tokenizer_codec()
    if origin in (Union, UnionType) and len(arguments) == 2 and arguments[1] is NoneType:
        return _optional_codec(_codec(arguments[0]))
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return _record_codec(lambda *values: values, list(map(_codec, arguments)), lambda value: value)
    if origin in _CONTAINERS:
        return _container_codec(_CONTAINERS[origin], _codec(arguments[0]))
    if origin is Counter:
        return _mapping_codec(Counter, _codec(int))
    if origin is dict and arguments[0] is str:
        return _mapping_codec(dict, _codec(arguments[1]))
    if origin is np.ndarray:
        (scalar_type,) = get_args(arguments[1])
        if isinstance(scalar_type, type) and issubclass(scalar_type, np.number):
            return _array_codec(lambda array: bool(array.dtype == np.dtype(scalar_type)))
    if isinstance(annotation, type):
        return _class_codec(annotation)
    raise TypeError(f"values of type {annotation} cannot be stored")


def _class_codec(cls: Any) -> _Codec:
    if issubclass(cls, AbstractArray):  # of jaxtyping
        return _array_codec(lambda array: isinstance(array, cls))
    if issubclass(cls, BaseModel):
        return _Codec(lambda table, _: table.model_dump(mode="json"), lambda plain, _: cls.model_validate(plain))
    if is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        hints = _type_hints(cls)
        names = list(getattr(cls, "_fields", None) or cls.__dataclass_fields__)
        codecs = [_codec(hints[name]) for name in names]
        return _record_codec(cls, codecs, lambda value: [getattr(value, name) for name in names])
    raise TypeError(f"values of class {cls.__qualname__} cannot be stored")


def _type_hints(cls: Any) -> dict[str, Any]:
    """Return the types of a class's fields."""
    try:
        return get_type_hints(cls)
    except NameError as error:
        if error.name not in _TORCH_TYPES:
            raise
        return get_type_hints(cls, localns={error.name: getattr(import_module(_TORCH_TYPES[error.name]), error.name)})


def _require(plain: Any, *types: type) -> Any:
    """Return a JSON value, or raise TypeError if it is not of one of these types."""
    if type(plain) not in types:
        raise TypeError(f"{type(plain).__name__} where there must be {types[0].__name__}")
    return plain


def _scalar_codec(cls: type) -> _Codec:
    types = (float, int) if cls is float else (cls,)
    return _Codec(lambda value, _: value, lambda plain, _: _require(plain, *types))


def _array_codec(is_valid: Callable[[NDArray[Any]], bool]) -> _Codec:
    def encode(array: NDArray[Any], arrays: Arrays) -> int:
        arrays.append(array)
        return len(arrays) - 1

    def decode(plain: Any, arrays: Arrays) -> NDArray[Any]:
        array: NDArray[Any] = arrays[_require(plain, int)]
        if not is_valid(array):
            raise TypeError(f"an array {list(array.shape)} of {array.dtype} where there must be another")
        return array

    return _Codec(encode, decode)


def _bytes_codec() -> _Codec:
    codec = _array_codec(lambda array: bool(array.dtype == np.uint8))
    return _Codec(
        lambda value, arrays: codec.encode(np.frombuffer(value, np.uint8), arrays),
        lambda plain, arrays: codec.decode(plain, arrays).tobytes(),
    )


def _tokenizer_codec() -> _Codec:
    codec = _bytes_codec()
    return _Codec(
        lambda tokenizer, arrays: codec.encode(tokenizer.json.encode(), arrays),
        lambda plain, arrays: Tokenizer.from_json(codec.decode(plain, arrays).decode(), Path("tokenizer")),
    )


def _optional_codec(codec: _Codec) -> _Codec:
    return _Codec(
        lambda value, arrays: None if value is None else codec.encode(value, arrays),
        lambda plain, arrays: None if plain is None else codec.decode(plain, arrays),
    )


def _container_codec(construct: Callable[[list[Any]], Any], codec: _Codec) -> _Codec:
    return _Codec(
        lambda value, arrays: [codec.encode(element, arrays) for element in value],
        lambda plain, arrays: construct([codec.decode(element, arrays) for element in _require(plain, list)]),
    )


def _mapping_codec(construct: Callable[[dict[str, Any]], Any], codec: _Codec) -> _Codec:
    return _Codec(
        lambda value, arrays: {key: codec.encode(element, arrays) for key, element in value.items()},
        lambda plain, arrays: construct(
            {key: codec.decode(element, arrays) for key, element in _require(plain, dict).items()}
        ),
    )


def _record_codec(
    construct: Callable[..., Any], codecs: list[_Codec], fields: Callable[[Any], Sequence[Any]]
) -> _Codec:
    """Return the codec of values with a fixed number of fields, each of its type.

    Args:
        construct: Makes a value from its fields.
        codecs: Codec of each field.
        fields: Returns the fields of a value.
    """

    def encode(value: Any, arrays: Arrays) -> list[Any]:
        return [codec.encode(field, arrays) for codec, field in zip(codecs, fields(value), strict=True)]

    def decode(plain: Any, arrays: Arrays) -> Any:
        pairs = zip(codecs, _require(plain, list), strict=True)
        return construct(*[codec.decode(field, arrays) for codec, field in pairs])

    return _Codec(encode, decode)
