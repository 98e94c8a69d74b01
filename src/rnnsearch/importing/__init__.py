"""Models of other toolkits as model folders."""

from __future__ import annotations

from rnnsearch.importing.folder import import_opennmt_py

__all__ = ["import_opennmt_py"]
