"""Engine files: a whole model in one file, which `runtime` and the web page read without PyTorch.

    8 bytes   RNNENGN and a line feed
    8 bytes   size of the compressed header, little-endian
    8 bytes   size of the uncompressed header, little-endian
    header    JSON, compressed with zlib: the model's description, its tokenizers, and the type, shape, offset and form
              (dense or sparse, see `stored.py`) of each array
    arrays    each at a multiple of 64 bytes after the header

Files may come from anyone: nothing outside of the file is read, and memory is limited relative to its size. This module
must not import torch.

`export/engine_file.py` writes files, `runtime/translator.py` and `systems/engine_file.py` read them, and so does
`export/web/module/engine-file.js`. A change of the layout needs a new `FORMAT` and all readers; files of
`READABLE_FORMATS` must stay readable. Tests: tests/runtime, tests/page/test_module.py, and damaged files in
tests/stress/engine_files.py.
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
from rnnsearch.engine.recurrent import RecurrentModel
from rnnsearch.engine.rnnsearch import TABLES, RNNsearchModel, Weight
from rnnsearch.engine.stored import ALIGNMENT
from rnnsearch.engine.structs import Array, DType
from rnnsearch.errors import ModelError
from rnnsearch.utils.files import require_regular_file, write_bytes

MAGIC = b"RNNENGN\n"
"""First bytes of every engine file."""
FORMAT = 2
"""Format that is written."""
READABLE_FORMATS = (1, FORMAT)  # format 1 has dense arrays only
MAX_HEADER_BYTES = 64 << 20  # uncompressed
# Maximum size of the arrays relative to the file: one bit of a sparse array represents 4 bytes, and arrays may share
# their bytes.
MAX_EXPANSION = 64
DIGEST = "sha256"
"""Key of the hash of the arrays in the header."""
DIGEST_BLOCK_BYTES = 1 << 20
"""Bytes that are hashed at a time."""
CANDIDATES = ("candidates.translations", "candidates.frequent")
"""Names of the candidate lists: [source vocabulary, K] target tokens, 0 where there are fewer, and [F]."""
INT4_ARRAYS = ("output", *TABLES)
"""Arrays that can be stored as int4: those that grow with the vocabulary."""
SCALE = ".scale"
"""Suffix of the array with the scales of a weight's rows."""
MAX_SCALE = float(np.finfo(np.float32).max) / 128
"""Above it, products with values of int8 would be infinite."""

EngineModel = RNNsearchModel | RecurrentModel
SYSTEMS: dict[str, type[RNNsearchModel] | type[RecurrentModel]] = {
    RNNsearchModel.system: RNNsearchModel,
    RecurrentModel.system: RecurrentModel,
}
"""Class by name of the system; names are stored in engine files."""


class Contents(NamedTuple):
    """The contents of an engine file."""

    header: dict[str, Any]  # the JSON header
    model: EngineModel  # arrays and program
    dtype: DType  # data type of the products
    candidates: tuple[Array, Array] | None = None  # the arrays of CANDIDATES


def write(path: Path, contents: Contents, int4: bool = False) -> int:
    """Write an engine file atomically and return its size in bytes.

    Args:
        contents: The model; its header has everything except for the arrays.
        int4: Store embeddings and output layer as int4, if the type is int8.
    """
    header, model, dtype, candidates = contents
    arrays = stored_arrays(model, dtype, int4)
    # Half the size; the reader accepts both types.
    id_type = "uint16" if len(model.weights["output"].values) <= 1 << 16 else "int32"
    for name, ids in zip(CANDIDATES, candidates or (), strict=False):
        arrays[name] = id_type, ids.astype(stored.TYPES[id_type])
    entries: dict[str, Any] = {}
    payload = bytearray()
    offsets: dict[tuple[str, bytes], int] = {}  # equal arrays, such as tied embeddings, are stored once
    for name, (type, array) in arrays.items():
        form, raw = stored.encode(type, array)
        # By content, not by identity: tied tables are separate arrays here.
        offset = offsets.setdefault((type, raw), len(payload))
        if offset == len(payload):
            payload += raw + bytes(-len(raw) % ALIGNMENT)
        shape = model.weights[name].values.shape if type == "int4" else array.shape
        entries[name] = [type, list(shape), offset, form]
    header = {
        **header,
        "format": FORMAT,
        "system": model.system,
        "kind": dtype.name.lower(),
        **model.header_fields,
        "arrays": entries,
        # Of the arrays only, because the header contains the digest.
        DIGEST: hashlib.sha256(payload).hexdigest(),
    }
    text = json.dumps(header, ensure_ascii=False).encode()
    compressed = zlib.compress(text, 9)
    head = MAGIC + len(compressed).to_bytes(8, "little") + len(text).to_bytes(8, "little") + compressed
    data = head + bytes(-len(head) % ALIGNMENT) + payload
    write_bytes(path, data)
    return len(data)


def stored_arrays(model: EngineModel, dtype: DType, int4: bool) -> dict[str, tuple[str, Array]]:
    """Return the type and the stored values of each array."""
    arrays: dict[str, tuple[str, Array]] = {}
    for name, (values, _) in model.weights.items():
        if dtype is DType.INT8:
            quantised, scale = stored.quantise_int8(values)
            # Tables are read as fp32 and may be quantised again, which must give the same scales.
            arrays[f"{name}{SCALE}"] = ("fp32", stored.reproducible_scales(scale) if name in TABLES else scale)
            arrays[name] = ("int8", quantised)
            if int4 and name in INT4_ARRAYS:  # a sparse int8 array may be smaller
                arrays[name] = min(arrays[name], ("int4", stored.pack_int4(quantised)), key=stored_bytes)
        elif dtype is DType.BF16:
            arrays[name] = ("bf16", stored.to_bf16(values))
        else:
            arrays[name] = ("fp32", values)
    return arrays | {name: ("fp32", vector) for name, vector in model.vectors.items()}


def stored_bytes(array: tuple[str, Array]) -> int:
    """Return the stored size of an array, given its type and values."""
    return len(stored.encode(*array)[1])


@contextmanager
def open_file(path: Path) -> Iterator[Contents]:
    """Open an engine file, whose weights are read each time they are accessed inside the block.

    A model that packs its weights one by one therefore has only one of them in memory twice.

    Raises:
        ModelError: The file is missing, truncated, modified, of a later version, or not an engine file.
    """
    with _open(path) as file:
        header, begin = _read_header(path, file)
        yield _read_contents(path, file, header, begin)


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of an engine file.

    Raises:
        ModelError: As in `open_file`, as far as the header shows it.
    """
    with _open(path) as file:
        return _read_header(path, file)[0]


def _open(path: Path) -> BufferedReader:
    try:
        require_regular_file(path)
        return path.open("rb")
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such engine file") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


def _read_header(path: Path, file: BufferedReader) -> tuple[dict[str, Any], int]:
    """Return the header and the position of the arrays."""
    start = file.read(len(MAGIC) + 16)
    if len(start) < len(MAGIC) + 16 or not start.startswith(MAGIC):
        raise ModelError(f"{path}: is not an engine file, as `rnnsearch export` writes it")
    compressed_size = int.from_bytes(start[8:16], "little")
    size = int.from_bytes(start[16:24], "little")
    # Checked before anything is read: a false size must not allocate memory.
    if max(compressed_size, size) > MAX_HEADER_BYTES:
        raise damaged_error(path)
    decompressor = zlib.decompressobj()
    try:
        # At most one byte more than declared is decompressed, so that a small file cannot expand without limit.
        text = decompressor.decompress(file.read(compressed_size), size + 1)
        header = json.loads(text) if len(text) == size else None
    except (zlib.error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise damaged_error(path)
    if (format := header.get("format")) not in READABLE_FORMATS:
        raise ModelError(f"{path}: must be of format {FORMAT} or 1, which this version reads; got {format}")
    head_size = len(start) + compressed_size
    # The writer pads the header so that the arrays start at a multiple of ALIGNMENT.
    return header, head_size + -head_size % ALIGNMENT


def _read_contents(path: Path, file: BufferedReader, header: dict[str, Any], begin: int) -> Contents:
    file.seek(begin)
    digest = hashlib.sha256()
    size = 0
    # In blocks: the whole payload need not fit into memory.
    while block := file.read(DIGEST_BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    if digest.hexdigest() != header.get(DIGEST):
        raise ModelError(f"{path}: is truncated or was modified: the checksum of its arrays is wrong")
    try:
        if (system := str(header["system"])) not in SYSTEMS:
            known = ", ".join(SYSTEMS)
            raise ModelError(f"{path}: must contain a system that this version knows ({known}); got {system}")
        dtype = DType[str(header["kind"]).upper()]
        entries = {str(name): entry for name, entry in header["arrays"].items()}
        # Sparse and shared arrays can be much larger in memory than in the file.
        if sum(stored.max_bytes(entry[1]) for entry in entries.values()) > MAX_EXPANSION * size:
            raise damaged_error(path)
        weights = StoredWeights(path, stored.Payload(file, begin, size), entries)
        # Shapes are checked before any weight is read.
        model = SYSTEMS[system].from_header(header, weights.shapes_only, weights.vectors)
        model.check()
        has_scales = {weight.scale is not None for weight in model.weights.values()}
        # All weights must be of the file's type, and none may be left over.
        if has_scales != {dtype is DType.INT8} or {*weights} != {*model.weights}:
            raise damaged_error(path)
        return Contents(header, replace(model, weights=weights), dtype, _read_candidates(weights))
    except ModelError:
        raise
    # The header is JSON of unknown origin, in which any value may have any type.
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise damaged_error(path) from None


def damaged_error(path: Path) -> ModelError:
    """Return the error for an invalid header."""
    return ModelError(f"{path}: its header is damaged: export the model again")


class StoredWeights(Mapping[str, Weight]):
    """The weights of an open file; each is read from the file whenever it is accessed."""

    def __init__(self, path: Path, payload: stored.Payload, entries: Mapping[str, Any]) -> None:
        """Check the header's entries of all arrays.

        Raises:
            ValueError, KeyError, TypeError: An entry is invalid.
        """
        self._path = path
        self._payload = payload
        self.entries = entries
        for entry in entries.values():
            stored.check_entry(payload, *entry)
        self._names = [name for name, entry in entries.items() if len(entry[1]) == 2 and name not in CANDIDATES]

    def __getitem__(self, name: str) -> Weight:
        return self._weight(name, self.array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def shapes_only(self) -> dict[str, Weight]:
        """All weights with their types and shapes, but without memory for the values."""
        return {name: self._weight(name, self._empty) for name in self}

    @property
    def vectors(self) -> dict[str, Array]:
        """The arrays with one axis, except for scales and candidate lists."""
        vectors = {}
        for name, (_, shape, *_) in self.entries.items():
            if len(shape) == 1 and name not in CANDIDATES and not name.endswith(SCALE):
                vectors[name] = self.array(name)
        return vectors

    def array(self, name: str) -> Array:
        """Read any array of the file.

        Raises:
            ModelError: It has infinite values or NaN, or is a scale that makes weights infinite.
        """
        values = stored.read_array(self._payload, *self.entries[name])
        if values.dtype.kind == "f":
            limit = MAX_SCALE if name.endswith(SCALE) else np.inf
            # Two passes without a temporary array; NaN is passed on and fails the comparison.
            if not (values.min() > -limit and values.max() < limit):
                problem = "values that are too large" if np.isfinite(values).all() else "infinite values or NaN"
                raise ModelError(f"{self._path}: must contain finite numbers; {name} has {problem}")
        return values

    def _empty(self, name: str) -> Array:
        type, shape, *_ = self.entries[name]
        # One value with strides of 0: shapes are checked without memory for the weights.
        return np.broadcast_to(np.zeros((), stored.decoded_dtype(type)), shape)

    def _weight(self, name: str, get_array: Callable[[str], Array]) -> Weight:
        scale = f"{name}{SCALE}"
        return Weight(get_array(name), get_array(scale) if scale in self.entries else None)


def _read_candidates(weights: StoredWeights) -> tuple[Array, Array] | None:
    """Return the candidate lists of a file, if it has any.

    Raises:
        KeyError, ValueError: The lists do not match the vocabularies.
    """
    if CANDIDATES[0] not in weights.entries:
        return None
    translations, frequent = (weights.array(name) for name in CANDIDATES)
    source_vocabulary, vocabulary = (weights.entries[name][1][0] for name in ("source_embedding", "output"))
    for ids in (translations, frequent):
        # Native code uses the ids as indices without any check.
        if ids.dtype.kind not in "ui" or ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError
    if translations.ndim != 2 or frequent.ndim != 1 or len(translations) != source_vocabulary:
        raise ValueError
    return translations, frequent
