"""rnnsearch: train, align, translate with and explain attention-based recurrent translation models.

import rnnsearch
translator = rnnsearch.load("runs/en-de")
print(translator.translate("A man sits on a bench.").text)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rnnsearch.moved import install as install_moved_modules

if TYPE_CHECKING:
    from rnnsearch.errors import RnnsearchError
    from rnnsearch.translator.language_model import TextModel, load_text_model
    from rnnsearch.translator.loading import load
    from rnnsearch.translator.translation import Translation
    from rnnsearch.translator.translator import Translator

# PyTorch's threads give way after microseconds of waiting. Its OpenMP reads this when it is loaded, and spins for
# milliseconds otherwise: beside other programs, for a thread that is not running. A setting of the user's stands.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

install_moved_modules()

__version__ = "0.1.0"
__all__ = ["RnnsearchError", "TextModel", "Translation", "Translator", "__version__", "load", "load_text_model"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used: `rnnsearch --help` needs no torch."""
    if name == "RnnsearchError":
        from rnnsearch.errors import RnnsearchError

        return RnnsearchError
    if name in ("Translation", "Translator"):
        from rnnsearch.translator import translator

        return getattr(translator, name)
    if name == "load":
        from rnnsearch.translator.loading import load

        return load
    if name in ("TextModel", "load_text_model"):
        from rnnsearch.translator import language_model

        return getattr(language_model, name)
    raise AttributeError(f"module 'rnnsearch' has no attribute {name!r}")
