"""GFLOP/s of every native kernel, in every variant that this processor supports and with several compiler tunings.

Run it as `python benchmarks/kernels.py`; `--output docs/results/kernels.md` also writes the page. The cases are those
that decide between native code and the library (`rnnsearch inspect --machine`). Each is compared with the library and
with the limit of the machine, the fastest measured matrix product of the same type. Each variant is built with the
generic tuning, as it is shipped, and with each of `--tunings` that the compiler knows; no kernel should be more than
20% slower than with another tuning.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import partial
from unittest.mock import patch

from harness import argument_parser, log, machine_line, parse_arguments, publish, section, table

from rnnsearch.ops import autotune
from rnnsearch.ops.autotune import NATIVE, Case, Run, Timing
from rnnsearch.ops.autotune_cases import cases
from rnnsearch.ops.native import building, library
from rnnsearch.ops.native.building import NativeVariant, find_compiler

SHIPPED_TUNING = "generic"
MAX_LOSS = 0.2  # tolerated slowdown relative to the best tuning
Key = tuple[str, str, str]
"""Kernel, type and sizes of a case."""
Speeds = dict[Key, float]


def key_of(case: Timing) -> Key:
    """Return the key of a case."""
    return case.kernel, case.dtype, case.sizes


@contextmanager
def native_library(variant: NativeVariant, loaded: CDLL) -> Iterator[None]:
    """Use this library for native code."""
    with patch.dict(os.environ, {library.SWITCH: variant.name}), patch.object(library, "_library", lambda _: loaded):
        yield


def build(variant: NativeVariant, tuning: str) -> CDLL | None:
    """Build and load the library with a tuning; return None if the compiler does not know the tuning."""
    command = find_compiler()
    assert command is not None
    try:
        flags = () if tuning == SHIPPED_TUNING else (f"-mtune={tuning}",)
        return CDLL(str(building.build_if_missing(variant, command, flags)))
    except subprocess.CalledProcessError:
        return None


def cases_of(variant: NativeVariant, loaded: CDLL) -> Iterator[Case]:
    """Yield every case, created while this library is used for native code."""
    remaining = cases()
    while True:
        with native_library(variant, loaded):
            case = next(remaining, None)
        if case is None:
            return
        yield case


def time_cases(variant: NativeVariant, tunings: dict[str, CDLL], seconds: float) -> Iterator[Timing]:
    """Time every case in native code with each tuning, in turns, and in the library."""
    for same_cases in zip(*(cases_of(variant, loaded) for loaded in tunings.values()), strict=True):
        first = same_cases[0]
        candidates = {name: run for name, run in first.candidates.items() if name != NATIVE}
        for (tuning, loaded), case in zip(tunings.items(), same_cases, strict=True):
            run = case.candidates.get(NATIVE)
            if run is None:
                break
            # A packed product refers to its library already, and is too short to be timed with a context manager.
            candidates[tuning] = run if case.kernel == autotune.PACKED else partial(run_with, variant, loaded, run)
        else:
            yield autotune.time_case(first._replace(candidates=candidates), seconds)


def run_with(variant: NativeVariant, loaded: CDLL, run: Run, repetition: int) -> None:
    """Run a repetition with this library as native code."""
    with native_library(variant, loaded):
        run(repetition)


def losses(tunings: dict[str, Speeds]) -> list[str]:
    """List the cases and tunings that are slower than the best tuning by more than MAX_LOSS."""
    lines = []
    for key in tunings[SHIPPED_TUNING]:
        best = max(tunings, key=lambda tuning: tunings[tuning][key])
        for tuning, speeds in tunings.items():
            if speeds[key] < (1 - MAX_LOSS) * tunings[best][key]:
                loss = 1 - speeds[key] / tunings[best][key]
                lines.append(f"- {', '.join(key)}: {loss:.0%} slower with {tuning} than with {best}")
    return lines


def page(variants: dict[str, dict[str, Speeds]], library_speeds: Speeds, limits: dict[str, float]) -> Iterator[str]:
    """Yield a section per variant."""
    for name, tunings in variants.items():
        names = [*tunings]
        rows = []
        for key, speed in tunings[SHIPPED_TUNING].items():
            # The softmax is not a matrix product.
            fraction = None if key[0] == autotune.SOFTMAX else speed / limits[key[1]]
            rows.append([*key, *(tunings[tuning][key] for tuning in names), library_speeds.get(key), fraction])
        columns = [f"{tuning} {{:,.1f}}" for tuning in names]
        head = " | ".join(["kernel", "type", "sizes", *columns, "library {:,.1f}", "of the limit {:.0%}"])
        notes = []
        if lines := losses(tunings):
            notes = [f"More than {MAX_LOSS:.0%} slower than with another tuning:", "", *lines, ""]
        elif len(names) > 1:
            notes = [f"No kernel is more than {MAX_LOSS:.0%} slower than with another tuning.", ""]
        yield from section(name, table(head, rows), notes)


def main() -> None:
    """Measure and print."""
    parser = argument_parser(__doc__)
    parser.add_argument("--variants", nargs="+", default=[variant.name for variant in library.runnable_variants()])
    parser.add_argument("--tunings", nargs="*", default=["znver4", "icelake-server", "sapphirerapids"])
    parser.add_argument("--note", default="", help="text to print under the title")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per case")
    args = parse_arguments(parser)
    autotune.register_cases(cases)
    speeds: dict[str, dict[str, Speeds]] = {}
    library_speeds: Speeds = {}
    timings = []
    unknown_tunings: list[str] = []
    for variant in library.runnable_variants():
        if variant.name not in args.variants:
            continue
        tunings: dict[str, CDLL] = {}
        for tuning in dict.fromkeys((SHIPPED_TUNING, *args.tunings)):
            loaded = build(variant, tuning)
            if loaded is None:
                unknown_tunings.append(tuning)
            else:
                tunings[tuning] = loaded
        log(variant.name)
        timed_cases = list(time_cases(variant, tunings, args.seconds))
        timings.append(autotune.TimingTable({}, timed_cases))
        speeds[variant.name] = {
            tuning: {key_of(case): case.gflops(tuning) for case in timed_cases} for tuning in tunings
        }
        for case in timed_cases:
            library_speed = max(case.gflops(way) for way in case.seconds if way not in tunings)
            library_speeds[key_of(case)] = max(library_speed, library_speeds.get(key_of(case), 0.0))
    limits = {dtype: max(timing.limit(dtype) for timing in timings) for dtype in ("fp32", "bf16", "int8")}
    limit_text = ", ".join(f"{dtype} {limit:,.0f}" for dtype, limit in limits.items() if limit)
    about = f"GFLOP/s. The limit, the fastest matrix product measured: {limit_text}. {machine_line()} {args.note}"
    head = ["# Kernels", "", about.rstrip(), ""]
    if unknown_tunings:
        head += [f"The compiler does not know {', '.join(dict.fromkeys(unknown_tunings))}.", ""]
    publish([*head, *page(speeds, library_speeds, limits)], args.output)


if __name__ == "__main__":
    main()
