"""Where the libraries of this folder are: in a wheel, or made by the machine's compiler at first use. No torch here."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rnnsearch.errors import RnnsearchError
from rnnsearch.files import atomic_file, default_cache
from rnnsearch.kernels.native import building
from rnnsearch.kernels.native.building import Command, Variant, build, file_name

BUILT = Path(__file__).parent / "built"
"""Where a wheel has its libraries."""


def shipped(variant: Variant) -> Path:
    """Where the library of a variant is, if the wheel has it."""
    return BUILT / file_name(variant)


def best_first(able: Iterable[Variant]) -> list[Variant]:
    """Variants that a processor can run, those that the wheel has first. Intel's vectors multiply pairs of bf16 at
    half the speed of fp32, AMD's at twice that, so that Intel's do it in fp32: 250 GFLOP/s, not 165, in products of
    1024 x 1536 x 512 (docs/results/kernels-amx.md)."""
    intel = "GenuineIntel" in (building.told("vendor_id") or platform.processor())
    return sorted(able, key=lambda variant: (not shipped(variant).is_file(), intel and variant.pairs))


def built(variant: Variant, command: Command, flags: tuple[str, ...] = ()) -> Path:
    """The library of a variant, made by a compiler where it is not yet there; `flags`: more of them.

    Errors: SubprocessError, OSError.
    """
    path = default_cache() / "native" / file_name(variant, (*command, *flags))
    if not path.is_file():
        with atomic_file(path) as temporary:
            build(variant, command, temporary, flags)
    return path


def web_engine() -> Path:
    """The engine for browsers: the wheel's, or made by Zig where it is not yet there.

    Errors: RnnsearchError where there is none and none can be built.
    """
    path = default_cache() / "native" / building.web_file_name()
    for found in (BUILT / path.name, path):
        if found.is_file():
            return found
    command = building.zig()
    if command is None:
        raise RnnsearchError("the engine for browsers is not in this package; to build it: pip install ziglang")
    try:
        with atomic_file(path) as temporary:
            building.build_web(command, temporary)
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine for browsers: {building.what_went_wrong(error)}") from None
    return path
