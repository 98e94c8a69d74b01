"""rnnsearch: train, align, translate with and explain attention-based recurrent translation models.

    import rnnsearch

    translator = rnnsearch.load("runs/en-de")
    print(translator.translate("A man sits on a bench.").text)

The names in `__all__` are the public API (docs/python.md), and are imported on first use, so that importing the package
does not import torch. Tests: tests/test_docs.py, tests/test_translate.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rnnsearch.moved import install as install_moved_modules

if TYPE_CHECKING:
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.translator.language_model import TextModel, load_text_model
    from rnnsearch.translator.loading import load
    from rnnsearch.translator.pivot import PivotTranslator, pivot
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

# By default, OpenMP's threads spin for milliseconds before they sleep, which wastes time if other programs use the
# cores. With this limit they sleep after microseconds. OpenMP reads it when PyTorch is loaded; a value set by the
# user has priority.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

install_moved_modules()

__version__ = "0.1.0"
__all__ = [
    "PivotTranslator",
    "RnnsearchError",
    "TextModel",
    "Translation",
    "Translator",
    "__version__",
    "load",
    "load_text_model",
    "pivot",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `rnnsearch --help` needs no torch."""
    if name == "RnnsearchError":
        from rnnsearch.errors import RnnsearchError

        return RnnsearchError
    if name in ("Translation", "Translator"):
        from rnnsearch.translator import translator

        return getattr(translator, name)
    if name == "load":
        from rnnsearch.translator.loading import load

        return load
    if name in ("PivotTranslator", "pivot"):
        from rnnsearch.translator import pivot

        return getattr(pivot, name)
    if name in ("TextModel", "load_text_model"):
        from rnnsearch.translator import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module 'rnnsearch' has no attribute {name!r}")
