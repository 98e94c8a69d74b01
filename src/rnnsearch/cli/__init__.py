"""The `rnnsearch` command: one typed function per command, thin over the Python API.

Results go to standard output, progress and messages to standard error. Exit codes: 0 success, 1 user error (one
sentence), 2 wrong usage, 130 interrupted with the state saved.

`pyproject.toml` installs `main` as the command `rnnsearch`. To add a command, write a function and add it to
`PANELS` in `cli/app.py`; docs/commands.md is generated (`scripts/commands_page.py`). The tests in `tests/commands`
run the commands.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import warnings
from collections.abc import Iterable
from io import TextIOWrapper

ONEDNN_CACHE_PRIMITIVES = "64"
"""Capacity of oneDNN's caches. Every shape of a batch adds primitives; without a limit they fill the memory."""
GC_THRESHOLDS = (10_000, 10, 10)
"""Most objects live until the end, so frequent collections (by default after 700 new objects) only cost time."""


def main() -> None:
    """Run the `rnnsearch` command."""
    from rnnsearch.cli.app import app
    from rnnsearch.errors import Interrupted, RnnsearchError, is_out_of_memory
    from rnnsearch.utils.stdio import exit_on_io_error, replace_closed_streams

    for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(variable, ONEDNN_CACHE_PRIMITIVES)  # must be set before torch is imported
    # The weights of LSTMs are padded on purpose, so on a GPU cuDNN has to copy them at every call.
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk of memory")
    gc.set_threshold(*GC_THRESHOLDS)
    replace_closed_streams()
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may be unable to show some letters
        try:
            app(expand_set_options(sys.argv[1:]), prog_name="rnnsearch")
        finally:
            # Flushed here, so that a failing write is reported like other I/O errors.
            sys.stdout.flush()
    except Interrupted as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(130)
    except RnnsearchError as error:
        sys.stderr.write("".join(f"rnnsearch: {line}\n" for line in str(error).splitlines()))
        sys.exit(1)
    except OSError as error:
        exit_on_io_error("rnnsearch", error)
    except (MemoryError, RuntimeError) as error:
        # `Path.resolve` raises it before Python 3.13.
        if str(error).startswith("Symlink loop from"):
            sys.stderr.write(f"rnnsearch: a path must not be a loop of symbolic links; got a {str(error).lower()}\n")
            sys.exit(1)
        if not is_out_of_memory(error):
            raise
        sys.stderr.write(
            "rnnsearch: not enough memory; use smaller batches (`--batch`, search.batch_sentences; in training, "
            f"training.batch): {str(error).strip().partition(chr(10))[0] or type(error).__name__}\n"
        )
        sys.exit(1)


_SETTING = re.compile(r"[a-z_]+(\.\w+)*=.*", re.DOTALL)
"""A setting of a run file, `path.of.option=value`; arguments of this form may follow `--set`."""


def expand_set_options(arguments: Iterable[str]) -> list[str]:
    """Repeat `--set` before each of several settings: `--set a=1 b=2` becomes `--set a=1 --set b=2`.

    An option of typer takes a single value.
    """
    expanded: list[str] = []
    for argument in arguments:
        follows_setting = expanded[-2:-1] == ["--set"]
        if follows_setting and _SETTING.fullmatch(argument):
            expanded.append("--set")
        expanded.append(argument)
    return expanded
