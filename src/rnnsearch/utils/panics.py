"""Panics of libraries in Rust as ordinary exceptions.

Bugs in a library in Rust, as well as input that it does not expect, raise a `PanicException`, which derives from
BaseException and so passes every handler of exceptions. `text` calls the tokenizers library and `utils/weights.py`
the safetensors library within `panics_as_errors`. Tests: tests/text/test_tokenizer.py. This module must not import
torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LibraryPanicError(Exception):
    """A panic of a library in Rust, with the library's message."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise LibraryPanicError if a library in Rust panics inside the block."""
    try:
        yield
    except BaseException as error:
        # The class is not importable, and each library has its own.
        if type(error).__name__ != "PanicException":
            raise
        raise LibraryPanicError(" ".join(str(error).split())) from None
