"""Shared loop of the stress tests that try many mutants. Each mutant depends only on its number and the seed."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType


def parse_options(
    doc: str | None, count: int, arguments: list[str] | None, flags: Mapping[str, str] = MappingProxyType({})
) -> argparse.Namespace:
    """Parse `--count`, with this default, `--minutes`, `--seed` and the given flags, which map to their help texts."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count, help="number of mutants [default: %(default)s]")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time [default: no limit]")
    parser.add_argument("--seed", type=int, default=1, help="random seed [default: %(default)s]")
    for flag, text in flags.items():
        parser.add_argument(flag, action="store_true", help=text)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, plural: str, accepts: Callable[[random.Random], bool]) -> int:
    """Try all mutants, print the failures and the counts, and return the exit status.

    Args:
        options: `count`, `minutes` and `seed`.
        plural: What the mutants are called in the summary, such as "run files".
        accepts: Makes one mutant from a random number generator and returns True if the package accepts it. An
            exception is a failure.
    """
    tried = failures = accepted = 0
    deadline = time.monotonic() + 60 * options.minutes
    for number in range(options.count):
        if time.monotonic() > deadline:
            break
        tried += 1
        try:
            accepted += accepts(random.Random(options.seed * 2**40 + number))
        except Exception:
            failures += 1
            sys.stdout.write(f"number {number} of seed {options.seed}:\n{traceback.format_exc()}\n")
    sys.stdout.write(f"{tried:,} {plural}, {accepted:,} accepted, {failures:,} failures\n")
    return 1 if failures else 0
