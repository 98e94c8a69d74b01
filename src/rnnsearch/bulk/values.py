"""Values of a pass over a corpus as bytes in a store: pickles of which nothing but data is believed."""

from __future__ import annotations

import io
import pickle
from dataclasses import is_dataclass
from typing import Any

from rnnsearch.errors import RnnsearchError

_OTHERS = {
    "builtins": {"list", "set"},
    "collections": {"Counter", "defaultdict"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath"},
    "tokenizers": {"Tokenizer"},
    "tokenizers.models": {"Model"},
}
"""What values are made of, besides our own."""
_OUR_MODULES = ("rnnsearch.align.", "rnnsearch.config.", "rnnsearch.data.", "rnnsearch.text.")


def to_bytes(value: object) -> bytes:
    """A value made of plain data."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def from_bytes(content: bytes, where: str) -> Any:
    """The value again. Errors: RnnsearchError, which names the place, for bytes that are damaged or make anything else:
    who can write to a store must not be able to run code."""
    try:
        return _Reader(io.BytesIO(content)).load()
    except Exception as error:  # of damaged bytes comes what may
        raise RnnsearchError(f"{where}: must be a piece of a run that rnnsearch has kept; got: {error}") from None


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Only what holds data, found by its own name."""
        if name in _OTHERS.get(module.replace("numpy.core", "numpy._core"), ()):
            return super().find_class(module, name)
        if module.startswith(_OUR_MODULES) and name.isidentifier():
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module and _holds_data(found):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


def _holds_data(kind: type) -> bool:
    from rnnsearch.config.table import Table
    from rnnsearch.data.cleaning import Tally
    from rnnsearch.text.tokenizer import Tokenizer

    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or is_dataclass(kind) or issubclass(kind, Table) or kind in (Tally, Tokenizer)
