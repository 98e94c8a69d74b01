"""The command line: one typed function a command, thin over the Python API.

Results go to stdout, progress and messages to stderr. Exit 0: done; 1: the user's input or set-up is at
fault, in one sentence; 2: wrong usage; 130: interrupted, state saved.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from collections.abc import Iterable
from io import TextIOWrapper

PRIMITIVES = "64"
"""Kernels of oneDNN kept ready. Each shape of a batch has some of its own, and without a limit they fill memory."""


def main() -> None:
    """The `rnnsearch` command."""
    from rnnsearch.cli.app import app
    from rnnsearch.errors import Interrupted, RnnsearchError
    from rnnsearch.utils.stdio import give_up, open_streams

    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, PRIMITIVES)  # read when torch is first used, so before it is imported
    # On a GPU cuDNN copies an LSTM's weights at every call, as is meant: they have been given columns for padding.
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")
    # Nearly all objects stay: the usual 700 new ones would have all looked through again and again.
    gc.set_threshold(10_000, 10, 10)
    open_streams()
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without some letter is no reason to stop
        try:
            app(with_each_set(sys.argv[1:]), prog_name="rnnsearch")
        finally:
            sys.stdout.flush()
    except Interrupted as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(130)
    except RnnsearchError as error:
        sys.stderr.write("".join(f"rnnsearch: {line}\n" for line in str(error).splitlines()))
        sys.exit(1)
    except OSError as error:
        give_up("rnnsearch", error)
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        sys.stderr.write(
            "rnnsearch: there is not enough memory; smaller batches take less (`--batch`, search.batch_sentences; in "
            f"training, training.batch): {str(error).strip().splitlines()[0]}\n"
        )
        sys.exit(1)


def is_of_memory(error: Exception) -> bool:
    """Whether there was too little of it: what torch says of a processor's is no class of its own."""
    said = "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or said


_SETTING = re.compile(r"[a-z_]+(\.\w+)*=.*", re.DOTALL)


def with_each_set(arguments: Iterable[str]) -> list[str]:
    """`--set a.b=1 c.d=2` as `--set a.b=1 --set c.d=2`: an option of the library takes one value."""
    found: list[str] = []
    for argument in arguments:
        another = found[-2:-1] == ["--set"] and _SETTING.fullmatch(argument)
        found += ["--set", argument] if another else [argument]
    return found
