"""Import of other toolkits' checkpoints as model folders."""

from __future__ import annotations

from rnnsearch.importers.joeynmt import import_joeynmt
from rnnsearch.importers.opennmt_py import import_opennmt_py

__all__ = ["import_joeynmt", "import_opennmt_py"]
