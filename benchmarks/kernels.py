"""GFLOP/s of every native kernel, in every variant that this processor can run and under compilers' tunings.

Run it as `python benchmarks/kernels.py`; `--output docs/results/kernels.md` also writes the page. The cases are those
that choose between native code and the library (`rnnsearch inspect --machine`). Beside each stands what the library
does, and the share of the machine's own limit, the best product of the same type that was measured by whatever way.
Each variant is built as it is shipped, with a generic tuning, and under each of `--tunings` that the compiler knows: no
kernel should lose more than a fifth to another tuning.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CDLL
from functools import partial
from unittest.mock import patch

from harness import machine_line, parsed, parser, publish, say, section, table

from rnnsearch.kernels.native import choice, library, places
from rnnsearch.kernels.native.building import Variant, compiler
from rnnsearch.kernels.native.cases import cases
from rnnsearch.kernels.native.choice import NATIVE, Case, Run, Timed

SHIPPED = "generic"
LOSS = 0.2
"""That a kernel may lose to another tuning."""
Place = tuple[str, str, str]
"""Kernel, type, sizes."""
Speeds = dict[Place, float]


def place(case: Timed) -> Place:
    """Of a case."""
    return case.kernel, case.kind, case.sizes


@contextmanager
def serving(variant: Variant, found: CDLL) -> Iterator[None]:
    """Native code is this library."""
    with patch.dict(os.environ, {library.SWITCH: variant.name}), patch.object(library, "_library", lambda _: found):
        yield


def tuned(variant: Variant, tuning: str) -> CDLL | None:
    """The library under a tuning; None where the compiler does not know it."""
    command = compiler()
    assert command is not None
    try:
        return library.load(places.built(variant, command, () if tuning == SHIPPED else (f"-mtune={tuning}",)))
    except subprocess.CalledProcessError:
        return None


def cases_of(variant: Variant, found: CDLL) -> Iterator[Case]:
    """Every case, made where native code is this library."""
    left = cases()
    while True:
        with serving(variant, found):
            case = next(left, None)
        if case is None:
            return
        yield case


def timed(variant: Variant, tunings: dict[str, CDLL], seconds: float) -> Iterator[Timed]:
    """Every case by native code under each tuning, which take turns, and by the library."""
    for each in zip(*(cases_of(variant, found) for found in tunings.values()), strict=True):
        first = each[0]
        ways = {way: run for way, run in first.ways.items() if way != NATIVE}
        for (tuning, found), case in zip(tunings.items(), each, strict=True):
            run = case.ways.get(NATIVE)
            if run is None:
                break
            # a packed product holds its library, and is too short for anything more to be timed with it
            ways[tuning] = run if case.kernel == choice.PACKED else partial(under, variant, found, run)
        else:
            yield choice.times(first._replace(ways=ways), seconds)


def under(variant: Variant, found: CDLL, run: Run, repetition: int) -> None:
    """A repetition where native code is this library."""
    with serving(variant, found):
        run(repetition)


def losses(tunings: dict[str, Speeds]) -> list[str]:
    """What is lost to the best tuning, where it is more than a fifth."""
    found = []
    for at in tunings[SHIPPED]:
        best = max(tunings, key=lambda tuning: tunings[tuning][at])
        for tuning, speeds in tunings.items():
            if speeds[at] < (1 - LOSS) * tunings[best][at]:
                share = 1 - speeds[at] / tunings[best][at]
                found.append(f"- {', '.join(at)}: under {tuning} {share:.0%} slower than under {best}")
    return found


def page(variants: dict[str, dict[str, Speeds]], library_speeds: Speeds, limits: dict[str, float]) -> Iterator[str]:
    """A section a variant."""
    for name, tunings in variants.items():
        names = [*tunings]
        rows = (
            [
                *at,
                *(tunings[tuning][at] for tuning in names),
                library_speeds.get(at),
                None if at[0] == choice.SOFTMAX else tunings[SHIPPED][at] / limits[at[1]],
            ]
            for at in tunings[SHIPPED]
        )
        columns = [f"{tuning} {{:,.1f}}" for tuning in names]
        head = " | ".join(["kernel", "type", "sizes", *columns, "library {:,.1f}", "of the limit {:.0%}"])
        lost = losses(tunings)
        said = ["More than a fifth is lost to another tuning:", "", *lost, ""] if lost else []
        none = ["No kernel loses more than a fifth to another tuning.", ""] if len(names) > 1 and not lost else []
        yield from section(name, table(head, rows), said, none)


def main() -> None:
    """Measure and print."""
    made = parser(__doc__)
    made.add_argument("--variants", nargs="+", default=[variant.name for variant in library.runnable()])
    made.add_argument("--tunings", nargs="*", default=["znver4", "icelake-server", "sapphirerapids"])
    made.add_argument("--note", default="", help="Printed under the title.")
    made.add_argument("--seconds", type=float, default=0.5, help="For each case.")
    given = parsed(made)
    choice.time_at_first_use(cases)
    found: dict[str, dict[str, Speeds]] = {}
    best: Speeds = {}
    everything, unknown = [], []
    for variant in library.runnable():
        if variant.name not in given.variants:
            continue
        built = {tuning: tuned(variant, tuning) for tuning in dict.fromkeys((SHIPPED, *given.tunings))}
        unknown += [tuning for tuning, loaded in built.items() if loaded is None]
        loaded = {tuning: each for tuning, each in built.items() if each is not None}
        say(variant.name)
        times = list(timed(variant, loaded, given.seconds))
        everything.append(choice.Table({}, times))
        found[variant.name] = {tuning: {place(case): case.speed(tuning) for case in times} for tuning in loaded}
        for case in times:
            by_library = max(case.speed(way) for way in case.seconds if way not in loaded)
            best[place(case)] = max(by_library, best.get(place(case), 0.0))
    limits = {kind: max(each.limit(kind) for each in everything) for kind in ("fp32", "bf16", "int8")}
    said = ", ".join(f"{kind} {limit:,.0f}" for kind, limit in limits.items() if limit)
    left = [f"The compiler does not know {', '.join(dict.fromkeys(unknown))}.", ""] if unknown else []
    about = f"GFLOP/s. The limit, the best product measured: {said}. {machine_line()} {given.note}".rstrip()
    head = ["# Kernels", "", about, "", *left]
    publish([*head, *page(found, best, limits)], given.output)


if __name__ == "__main__":
    main()
