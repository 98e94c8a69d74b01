"""Plots of attention, scores by length and frequency, and learning curves.

`evaluation` writes them into reports, and the command line shows heat maps. All modules but `terminal.py` need
matplotlib, which is an extra and slow to import: call `require_matplotlib` and import them where they are needed.
"""

from importlib.util import find_spec

from rnnsearch.errors import RnnsearchError

MISSING = 'plots and reports need matplotlib: pip install "rnnsearch[plots]"'


def has_matplotlib() -> bool:
    """Return True if matplotlib is installed."""
    return find_spec("matplotlib") is not None


def require_matplotlib() -> None:
    """Raise RnnsearchError if matplotlib is not installed."""
    if not has_matplotlib():
        raise RnnsearchError(MISSING)
