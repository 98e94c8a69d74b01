"""A model in one file, for the engine alone: a header in JSON, deflated, and arrays behind it. Imports no torch.

    8 bytes   RNNENGN and a line feed
    8 bytes   how long the header is, and 8 bytes: how long it is inflated (little-endian)
    header    what the model is, its tokenizers, and of each array: type, shape, where it begins, and whether it is
              dense or sparse (`engine/stored.py`)
    arrays    each at a multiple of 64 bytes behind the header

Whatever stands in a file, nothing is read but what lies in it, and nothing is made that is much larger.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rnnsearch.engine import stored
from rnnsearch.engine.recurrent import Computation
from rnnsearch.engine.rnnsearch import TABLES, Arrays, Weight
from rnnsearch.engine.stored import ALIGNED
from rnnsearch.engine.structs import Array, Kind
from rnnsearch.errors import ModelError
from rnnsearch.utils.files import write_bytes

MAGIC = b"RNNENGN\n"
FORMAT = 2
MOST_HEADER = 64 << 20
"""Bytes of a header, inflated."""
EXPANDED = 64
"""Times as large as a file its arrays may become: a bit of one without zeros can stand for 4 bytes, and two may be the
same."""
BLOCK = 1 << 20
"""Bytes at a time, of which the digest is taken."""
CANDIDATES = ("candidates.translations", "candidates.frequent")
"""Lists of target symbols: [source vocabulary, K], 0 where there is none, and [F]."""
HALVED = ("output", *TABLES)
"""What may stand in 4 bits: what a word more makes larger."""
DIGEST = "sha256"
Model = Arrays | Computation
SYSTEMS: dict[str, type[Arrays] | type[Computation]] = {one.system: one for one in (Arrays, Computation)}
SCALE = ".scale"
"""Behind a weight's name: the scales of its rows."""


class Contents(NamedTuple):
    """What a file holds: `candidates` by CANDIDATES, or none."""

    header: dict[str, Any]
    model: Model
    kind: Kind
    candidates: tuple[Array, Array] | None = None


def write(path: Path, contents: Contents, halved: bool = False) -> int:
    """Write a file, whole or not at all; how many bytes it has. The header given is what it says besides the arrays;
    `halved`: of bytes, those of embeddings and output stand in 4 bits."""
    about, model, kind, candidates = contents
    entries, payload = dict[str, Any](), bytearray()
    begun = dict[tuple[str, bytes], int]()
    arrays = arrays_in_file(model, kind, halved)
    few = "uint16" if len(model.weights["output"].values) <= 1 << 16 else "int32"
    for name, ids in zip(CANDIDATES, candidates or (), strict=False):
        arrays[name] = few, ids.astype(stored.TYPES[few])
    for name, (type, array) in arrays.items():
        form, raw = stored.written(type, array)
        begin = begun.setdefault((type, raw), len(payload))  # an output that shares its embeddings stands there once
        if begin == len(payload):
            payload += raw + bytes(-len(raw) % ALIGNED)
        entries[name] = [type, list((model.weights[name].values if type == "int4" else array).shape), begin, form]
    header = {
        **about,
        "format": FORMAT,
        "system": model.system,
        "kind": kind.name.lower(),
        **model.described,
        "arrays": entries,
        DIGEST: hashlib.sha256(payload).hexdigest(),
    }
    inflated = json.dumps(header, ensure_ascii=False).encode()
    deflated = zlib.compress(inflated, 9)
    head = MAGIC + len(deflated).to_bytes(8, "little") + len(inflated).to_bytes(8, "little") + deflated
    whole = head + bytes(-len(head) % ALIGNED) + payload
    write_bytes(path, whole)
    return len(whole)


def arrays_in_file(model: Model, kind: Kind, halved: bool) -> dict[str, tuple[str, Array]]:
    """Each array as it stands in the file, with its type."""
    found = dict[str, tuple[str, Array]]()
    for name, (values, _) in model.weights.items():
        if kind is Kind.INT8:
            numbers, scale = stored.in_bytes(values)
            found[f"{name}{SCALE}"] = ("fp32", stored.readable(scale) if name in TABLES else scale)
            found[name] = ("int8", numbers)
            if halved and name in HALVED:  # or without zeros, where that is less
                found[name] = min(found[name], ("int4", stored.in_halves(numbers)), key=in_file)
        else:
            found[name] = ("bf16", stored.to_bf16(values)) if kind is Kind.BF16 else ("fp32", values)
    return found | {name: ("fp32", row) for name, row in model.rows.items()}


def in_file(array: tuple[str, Array]) -> int:
    """Bytes that an array of a type takes."""
    return len(stored.written(*array)[1])


@contextmanager
def opened(path: Path) -> Iterator[Contents]:
    """What a file holds; its weights are read whenever they are asked for, and can be within the block alone: a model
    that lays them out has one of them twice, not all.

    Errors: ModelError, one sentence, for a file that is missing, cut, changed, of a later version, or no such file.
    """
    with _open(path) as file:
        header, begin = _header(path, file)
        yield _contents(path, file, header, begin)


def header_of(path: Path) -> dict[str, Any]:
    """The header alone. Errors: ModelError, as in `opened`, as far as it can be seen."""
    with _open(path) as file:
        return _header(path, file)[0]


def _open(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such engine file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _header(path: Path, file: BufferedReader) -> tuple[dict[str, Any], int]:
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
    if (told := header.get("format")) not in (1, FORMAT):  # the first had dense arrays alone
        raise ModelError(f"{path}: must be of format {FORMAT} or 1, which this version reads; got {told}")
    head = len(first) + length
    return header, head + -head % ALIGNED


def _contents(path: Path, file: BufferedReader, header: dict[str, Any], begin: int) -> Contents:
    file.seek(begin)
    digest, size = hashlib.sha256(), 0
    while block := file.read(BLOCK):
        digest.update(block)
        size += len(block)
    if digest.hexdigest() != header.get(DIGEST):
        raise ModelError(f"{path}: is cut or was changed: its arrays are not those that were written")
    try:
        if (told := str(header["system"])) not in SYSTEMS:
            known = ", ".join(SYSTEMS)
            raise ModelError(f"{path}: must hold a system that this version knows ({known}); got {told}")
        kind = Kind[str(header["kind"]).upper()]
        entries = {str(name): entry for name, entry in header["arrays"].items()}
        if sum(stored.bytes_of(entry[1]) for entry in entries.values()) > EXPANDED * size:
            raise damaged(path)
        found = StoredWeights(stored.Payload(file, begin, size), entries)
        # Their shapes must fit each other, which is seen without reading them.
        model = SYSTEMS[told].of(header, found.outlines, found.rows)
        model.check()
        scaled = {weight.scale is not None for weight in model.weights.values()}
        if scaled != {kind is Kind.INT8} or {*found} != {*model.weights}:
            raise damaged(path)
        return Contents(header, replace(model, weights=found), kind, _candidates(found))
    except ModelError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise damaged(path) from None


def damaged(path: Path) -> ModelError:
    """What is said of a header that says what cannot be."""
    return ModelError(f"{path}: its header is damaged: export the model again")


class StoredWeights(Mapping[str, Weight]):
    """The weights of an open file, each read when it is asked for."""

    def __init__(self, payload: stored.Payload, entries: Mapping[str, Any]) -> None:
        """entries: what the header says of each array. Errors: ValueError, KeyError, TypeError where it cannot be."""
        self._payload, self.entries = payload, entries
        for entry in entries.values():
            stored.require(payload, *entry)
        self._names = [name for name, entry in entries.items() if len(entry[1]) == 2 and name not in CANDIDATES]

    def __getitem__(self, name: str) -> Weight:
        return self._weight(name, self.array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def outlines(self) -> dict[str, Weight]:
        """Their types and shapes, without memory."""
        return {name: self._weight(name, self._outline) for name in self}

    @property
    def rows(self) -> dict[str, Array]:
        """The file's arrays of one axis, without scales and lists."""
        names = (name for name, entry in self.entries.items() if len(entry[1]) == 1 and name not in CANDIDATES)
        return {name: self.array(name) for name in names if not name.endswith(SCALE)}

    def array(self, name: str) -> Array:
        """Any array of the file."""
        return stored.read(self._payload, *self.entries[name])

    def _outline(self, name: str) -> Array:
        type, shape, *_ = self.entries[name]
        return np.broadcast_to(np.zeros((), stored.type_of(type)), shape)

    def _weight(self, name: str, of: Callable[[str], Array]) -> Weight:
        scale = f"{name}{SCALE}"
        return Weight(of(name), of(scale) if scale in self.entries else None)


def _candidates(found: StoredWeights) -> tuple[Array, Array] | None:
    """Errors: KeyError, ValueError where they are of other vocabularies."""
    if CANDIDATES[0] not in found.entries:
        return None
    translations, frequent = (found.array(name) for name in CANDIDATES)
    sources, targets = (found.entries[name][1][0] for name in ("source_embedding", "output"))
    known = all(ids.dtype.kind in "ui" and ids.min() >= 0 and ids.max() < targets for ids in (translations, frequent))
    if not known or translations.ndim != 2 or frequent.ndim != 1 or len(translations) != sources:
        raise ValueError
    return translations, frequent
