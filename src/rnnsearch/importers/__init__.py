"""Import of other toolkits' checkpoints as model folders.

`rnnsearch import` (`cli/models.py`) is the caller; the functions are public API (docs/importing.md). The tests
compare with the equations of each toolkit, and `benchmarks/importing.py` with the toolkits themselves.
"""

from __future__ import annotations

from rnnsearch.importers.joeynmt import import_joeynmt
from rnnsearch.importers.opennmt_py import import_opennmt_py

__all__ = ["import_joeynmt", "import_opennmt_py"]
