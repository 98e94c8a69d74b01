"""Exceptions for errors in a user's input or set-up, each with a message of one sentence.

The command line prints the message of any `RnnsearchError` on stderr and exits with status 1.

Every package uses it, also the torch-free runtime, so this module imports only the standard library. A new class must
derive from `RnnsearchError`; the server answers with its message, too (`serve/app.py`). Texts are written as in
docs/style.md, section Messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_REASON_CHARACTERS = 200


class RnnsearchError(Exception):
    """An error in the user's input or set-up; the message says what to change."""


class ConfigError(RnnsearchError):
    """One or more problems in a run file; each message starts with the option's dotted path."""

    def __init__(self, problems: list[str], valid_part: object = None, missing: list[str] | None = None) -> None:
        """Create an error for all problems.

        Args:
            problems: Messages of one line.
            valid_part: The config without the invalid options, if it can be built; it may have
                other problems.
            missing: Type and name of each component that is not available.
        """
        self.problems = problems
        self.valid_part = valid_part
        self.missing = missing or []
        super().__init__("\n".join(problems))


class DataError(RnnsearchError):
    """A malformed corpus, text file or prepared folder; the message names file and line."""


class ModelError(RnnsearchError):
    """A model folder that is missing, truncated, from another program, or has the wrong shapes."""


class TrainingError(RnnsearchError):
    """A training run that cannot continue (NaN loss, out of memory, a checkpoint of another run)."""


class Interrupted(RnnsearchError):
    """Ctrl-C or SIGTERM after the state was saved; the message says how to resume. Exit status 130."""


@contextmanager
def library_errors(problem: str, error_class: type[RnnsearchError] = DataError) -> Iterator[None]:
    """Raise an error of this package for any exception of a library in the block, such as those of damaged files.

    Libraries raise many classes, not all of which are documented. Errors of this package and exhausted memory, which
    is no damage, are passed on.

    Args:
        problem: The message without the reason, such as "FILE: must be a workbook".
        error_class: Class of the error.
    """
    try:
        yield
    except RnnsearchError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise error_class(f"{problem}; got: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return the start of an exception's message on one line, or the name of its class if it has no message."""
    text = " ".join(str(error)[: 2 * MAX_REASON_CHARACTERS].split())
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_REASON_CHARACTERS])
    return shown or type(error).__name__


# Of PyTorch's allocator (on Linux, on Windows), of the operating system (for mapped files), and of C++.
_OUT_OF_MEMORY = re.compile("can't allocate memory|not enough memory|cannot allocate memory|bad_alloc", re.IGNORECASE)


def is_out_of_memory(error: Exception) -> bool:
    """Return True if memory was exhausted; on a CPU, PyTorch reports that as a RuntimeError with one of these texts."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return _OUT_OF_MEMORY.search(str(error)) is not None


def must_be_one_of(known: Iterable[str], value: object) -> str:
    """Return the error text for an unknown name: "must be one of ...; got ...", with a suggestion."""
    known = list(known)
    if not isinstance(value, str):
        return f"must be one of {', '.join(known)}; got {value!r}"
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    return f'must be one of {", ".join(known)}; got "{shown}"{did_you_mean(value, known)}'


def did_you_mean(word: str, known: list[str]) -> str:
    """Return ` (did you mean "x"?)` if a known name is similar to the word, else an empty string."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""
