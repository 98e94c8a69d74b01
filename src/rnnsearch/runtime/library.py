"""The native library without PyTorch: that of this processor, from among those that were built. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from functools import cache

from rnnsearch.errors import RnnsearchError
from rnnsearch.kernels.native import building
from rnnsearch.kernels.native.building import SWITCH, VARIANTS, Variant, told
from rnnsearch.kernels.native.places import best_first, built, shipped

FLAGS = {
    "avx2": "avx2",
    "fma3": "fma",
    "f16c": "f16c",
    "bmi2": "bmi2",
    "avx_vnni": "avx_vnni",
    **{f"avx512_{part}": f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl")},
    "dot": "asimddp",
    **{name: name for name in ("avx512_bf16", "avx512_vnni", "bf16", "i8mm")},
}
"""What Linux calls the things that `Variant.needs` names."""


def flags() -> frozenset[str]:
    """What the processor has, as far as can be seen (/proc/cpuinfo)."""
    return frozenset((told("flags") or told("Features")).split())


def variant() -> Variant:
    """The best that runs here, AMX aside, or the one that RNNSEARCH_NATIVE names. Errors: RnnsearchError for none."""
    has, wanted = flags(), os.environ.get(SWITCH, "1")
    able = [v for v in VARIANTS.get(building.processor(), ()) if not v.tiles and _runs(v, has)]
    chosen = [v for v in able if wanted in ("", "1", v.name)]
    if not chosen:
        among = f" among {', '.join(v.name for v in able)}" if able else ""
        raise RnnsearchError(f"there is no native code for this processor{among}, and the engine needs it")
    return best_first(chosen)[0]


def _runs(variant: Variant, has: frozenset[str]) -> bool:
    if not has and platform.system() != "Linux":  # what every machine of today has
        return variant.name in ("x86-64-v3", "armv8-a")
    return all(FLAGS.get(need) in has for need in variant.needs)


@cache
def library() -> ctypes.CDLL:
    """Errors: RnnsearchError where there is none and none can be built."""
    own = variant()
    path, command = shipped(own), building.compiler()
    if not path.is_file() and command is None:
        raise RnnsearchError("the engine's native code is not in this package, and no C++ compiler was found")
    try:
        return ctypes.CDLL(str(path if path.is_file() else built(own, command or ())))
    except (subprocess.SubprocessError, OSError) as error:
        raise RnnsearchError(f"the engine's native code: {building.what_went_wrong(error)}") from None
