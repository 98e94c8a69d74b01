"""Where the libraries of this folder are: in a wheel, or made by the machine's compiler at first use. No torch here."""

from __future__ import annotations

from pathlib import Path

from rnnsearch.files import atomic_file, default_cache
from rnnsearch.kernels.native.building import Command, Variant, build, file_name

BUILT = Path(__file__).parent / "built"
"""Where a wheel has its libraries."""


def shipped(variant: Variant) -> Path:
    """Where the library of a variant is, if the wheel has it."""
    return BUILT / file_name(variant)


def built(variant: Variant, command: Command, flags: tuple[str, ...] = ()) -> Path:
    """The library of a variant, made by a compiler where it is not yet there; `flags`: more of them.

    Errors: SubprocessError, OSError.
    """
    path = default_cache() / "native" / file_name(variant, (*command, *flags))
    if not path.is_file():
        with atomic_file(path) as temporary:
            build(variant, command, temporary, flags)
    return path
