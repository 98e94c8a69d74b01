"""The loop of those who try many mutants: what each draws depends on its number and the seed alone."""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType


def options(
    doc: str | None, count: int, given: list[str] | None, flags: Mapping[str, str] = MappingProxyType({})
) -> argparse.Namespace:
    """`count`, by default so many, and `seed`; and flags with what they say."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    for flag, what in flags.items():
        parser.add_argument(flag, action="store_true", help=what)
    return parser.parse_args(given)


def run(chosen: argparse.Namespace, what: str, fits: Callable[[random.Random], bool]) -> int:
    """Try all; `fits` makes one of its random numbers and says whether it could be used, or raises what is wrong with
    our reading. Returns the exit status."""
    faults = used = 0
    for number in range(chosen.count):
        try:
            used += fits(random.Random(chosen.seed * 2**40 + number))
        except Exception:
            faults += 1
            sys.stdout.write(f"number {number} of seed {chosen.seed}:\n{traceback.format_exc()}\n")
    sys.stdout.write(f"{chosen.count:,} {what}, {used:,} of them fit for use, {faults:,} faults\n")
    return 1 if faults else 0
