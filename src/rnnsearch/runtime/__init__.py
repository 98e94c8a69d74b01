"""Translation from one engine file without PyTorch: only NumPy, tokenizers and native code.

    from rnnsearch.runtime import load

    translator = load("en-de.rnn")
    print(translator.translate("A man sits on a bench.").text)

The wheel `rnnsearch-runtime` contains this package and the modules that it imports as `rnnsearch_runtime`
(`scripts/runtime_wheel.py`).

Nothing that is imported from here may import torch or a package that the wheel does not require; the wheel's script
follows the imports. Engine files are written by `rnnsearch export` (`export/engine_file.py`). Tests: `tests/runtime`,
`benchmarks/shipping.py`. See docs/shipping.md.
"""

from rnnsearch.errors import RnnsearchError
from rnnsearch.runtime.translator import Translator, load
from rnnsearch.translator.translation import Translation

__all__ = ["RnnsearchError", "Translation", "Translator", "load"]
