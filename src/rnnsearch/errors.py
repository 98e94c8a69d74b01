"""What can be wrong with a user's input or set-up, each said in one clear sentence.

The command line turns every `RnnsearchError` into that sentence on stderr and exit status 1.
"""

from __future__ import annotations

from collections.abc import Iterable


class RnnsearchError(Exception):
    """The user's input or set-up is at fault; `str(error)` is one sentence that says what to change."""


class ConfigError(RnnsearchError):
    """A run file is at fault. Carries every fault found, each beginning with its dotted path."""

    def __init__(self, faults: list[str], rest: object = None) -> None:
        self.faults = faults
        self.rest = rest
        """The config without its faulty options, where that makes one: it may have other faults."""
        super().__init__("\n".join(faults))


class DataError(RnnsearchError):
    """A corpus, a text file or a prepared folder is at fault; the message names file and line."""


class ModelError(RnnsearchError):
    """A model folder is missing, truncated, foreign or of the wrong shape."""


class TrainingError(RnnsearchError):
    """Training cannot go on (NaN loss, no memory, a checkpoint of another run)."""


class Interrupted(RnnsearchError):
    """Ctrl-C or SIGTERM: the state was saved; the message says how to go on. Exit status 130."""


def must_be_one_of(known: Iterable[str], got: object) -> str:
    """What is said of a name that is none of those that are known."""
    known = list(known)
    if not isinstance(got, str):
        return f"must be one of {', '.join(known)}; got {got!r}"
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in got)
    return f'must be one of {", ".join(known)}; got "{shown}"{did_you_mean(got, known)}'


def did_you_mean(word: str, known: list[str]) -> str:
    """` (did you mean "x"?)` where a known name is close to `word`, else the empty string."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f' (did you mean "{close[0]}"?)' if close else ""
