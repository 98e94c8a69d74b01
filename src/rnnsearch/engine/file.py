"""A model in one file, for the engine alone: a header in JSON, deflated, and arrays behind it. Imports no torch.

    8 bytes   RNNENGN and a line feed
    8 bytes   how long the header is, and 8 bytes: how long it is inflated (little-endian)
    header    what the model is, its tokenizers, and of each array: type, shape, and where it begins
    arrays    each at a multiple of 64 bytes behind the header

Whatever stands in a file, nothing is read but what lies in it, and nothing is made that is much larger.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rnnsearch.engine.packed import Array, Kind
from rnnsearch.engine.rnnsearch import MATRICES, TABLES, Arrays, Sizes, Weight
from rnnsearch.errors import ModelError
from rnnsearch.files import write_bytes

MAGIC = b"RNNENGN\n"
FORMAT = 1
ALIGNED = 64
MOST_HEADER = 64 << 20
"""Bytes of a header, inflated."""
TYPES = {"int8": np.int8, "bf16": np.uint16, "fp32": np.float32}
"""Of arrays, by the name that the header has for them."""
DIGEST = "sha256"


def write(path: Path, about: Mapping[str, Any], model: Arrays, kind: Kind) -> int:
    """Write a file, whole or not at all; how many bytes it has. `about`: what the header says besides the arrays."""
    arrays, entries, payload = stored(model, kind), dict[str, Any](), bytearray()
    begun = dict[tuple[str, bytes], int]()
    for name, (type, array) in arrays.items():
        raw = np.ascontiguousarray(array).tobytes()
        begin = begun.setdefault((type, raw), len(payload))  # an output that shares its embeddings stands there once
        if begin == len(payload):
            payload += raw + bytes(-len(raw) % ALIGNED)
        entries[name] = [type, list(array.shape), begin]
    header = {
        **about,
        "format": FORMAT,
        "system": "rnnsearch",
        "kind": kind.name.lower(),
        "sizes": vars(model.sizes),
        "arrays": entries,
        DIGEST: hashlib.sha256(payload).hexdigest(),
    }
    inflated = json.dumps(header, ensure_ascii=False).encode()
    deflated = zlib.compress(inflated, 9)
    head = MAGIC + len(deflated).to_bytes(8, "little") + len(inflated).to_bytes(8, "little") + deflated
    whole = head + bytes(-len(head) % ALIGNED) + payload
    write_bytes(path, whole)
    return len(whole)


def stored(model: Arrays, kind: Kind) -> dict[str, tuple[str, Array]]:
    """Each array as it stands in the file, with its type."""
    found = dict[str, tuple[str, Array]]()
    for name in (*MATRICES, *TABLES):
        values = model.weights[name].values
        if kind is Kind.INT8:
            scaled = in_bytes(values)
            scale = readable(scaled.scale) if name in TABLES else scaled.scale
            found |= {name: ("int8", scaled.values), f"{name}.scale": ("fp32", scale)}
        else:
            found[name] = ("bf16", to_bf16(values)) if kind is Kind.BF16 else ("fp32", values)
    found |= {f"{name}.bias": ("fp32", bias) for name, bias in model.biases.items()}
    return found | {"vector": ("fp32", model.vector)}


def in_bytes(weight: Array) -> Any:
    """A weight's rows as native code rounds them when it lays them out in int8 (`scale_of` in matrix.h)."""
    top = np.abs(weight).max(1, initial=0).astype(np.float32)
    scale = np.where(top > 0, top / np.float32(127), np.float32(1)).astype(np.float32)
    return Weight(np.rint(weight * (np.float32(1) / scale)[:, None]).astype(np.int8), scale)


def readable(scale: Array) -> Array:
    """Scales s' such that rows of bytes times s', rounded to bytes again, get the scale s: s' * 127 / 127 need not be
    s' in fp32, but that of a neighbour is s."""
    found = scale.copy()
    for _ in range(4):
        again = ((found * np.float32(127)).astype(np.float32) / np.float32(127)).astype(np.float32)
        found = np.where(again < scale, np.nextafter(found, np.float32(np.inf)), found)
        found = np.where(again > scale, np.nextafter(found, np.float32(0)), found)
    return found


def to_bf16(values: Array) -> Array:
    """The upper halves of fp32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(halves: Array) -> Array:
    """Those numbers in fp32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


def read(path: Path) -> tuple[dict[str, Any], Arrays, Kind]:
    """The header, the arrays and their kind.

    Errors: ModelError, one sentence, for a file that is missing, cut, changed, of a later version, or no such file.
    """
    try:
        with path.open("rb") as file:
            header, begin = _header(path, file)
            return header, *_arrays(path, file, header, begin)
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such engine file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _header(path: Path, file: BinaryIO) -> tuple[dict[str, Any], int]:
    first = file.read(len(MAGIC) + 16)
    if len(first) < len(MAGIC) + 16 or not first.startswith(MAGIC):
        raise ModelError(f"{path}: is not an engine file, as `rnnsearch export` writes it")
    length, inflated = (int.from_bytes(first[begin : begin + 8], "little") for begin in (8, 16))
    if max(length, inflated) > MOST_HEADER:
        raise damaged(path)
    unpacked = zlib.decompressobj()
    try:
        text = unpacked.decompress(file.read(length), inflated + 1)
        header = json.loads(text) if len(text) == inflated else None
    except (zlib.error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise damaged(path)
    if header.get("format") != FORMAT:
        told = header.get("format")
        raise ModelError(f"{path}: must be of format {FORMAT}, which this version reads; got {told}")
    head = len(first) + length
    return header, head + -head % ALIGNED


def _arrays(path: Path, file: BinaryIO, header: dict[str, Any], begin: int) -> tuple[Arrays, Kind]:
    file.seek(begin)
    payload = file.read()
    if hashlib.sha256(payload).hexdigest() != header.get(DIGEST):
        raise ModelError(f"{path}: is cut or was changed: its arrays are not those that were written")
    try:
        if header["system"] != "rnnsearch":
            raise ModelError(f"{path}: must hold a system that this version knows (rnnsearch); got {header['system']}")
        kind = Kind[str(header["kind"]).upper()]
        found = {str(name): _array(payload, *entry) for name, entry in header["arrays"].items()}
        return _model(found, Sizes(**{name: int(size) for name, size in header["sizes"].items()})), kind
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise damaged(path) from None


def damaged(path: Path) -> ModelError:
    """What is said of a header that says what cannot be."""
    return ModelError(f"{path}: its header is damaged: export the model again")


def _array(payload: bytes, type: str, shape: list[int], begin: int) -> Array:
    """One array. Errors: ValueError where it does not lie in the file."""
    kind = np.dtype(TYPES[type])
    if not 1 <= len(shape) <= 2 or not all(isinstance(n, int) and n >= 1 for n in [*shape, begin + 1]):
        raise ValueError
    count = math.prod(shape)
    if begin % ALIGNED or begin + count * kind.itemsize > len(payload):
        raise ValueError
    found = np.frombuffer(payload, kind, count, begin).reshape(shape)
    return from_bf16(found) if type == "bf16" else found


def _model(found: Mapping[str, Array], sizes: Sizes) -> Arrays:
    """The arrays, whose shapes must fit each other. Errors: KeyError, ValueError."""
    # Matrices are laid out and forgotten; what stays is copied, so that the file's own bytes are given back.
    stay = {name for table in TABLES for name in (table, f"{table}.scale")} | {"vector"}
    found = {name: array.copy() if name in stay else array for name, array in found.items()}
    weights = {name: Weight(found[name], found.get(f"{name}.scale")) for name in (*MATRICES, *TABLES)}
    biases = {name: found[f"{name}.bias"] for name in MATRICES if f"{name}.bias" in found}
    model = Arrays(weights, biases, found["vector"], sizes)
    model.check()
    return model
