"""Translation from one engine file, without PyTorch: NumPy, tokenizers and native code alone.

from rnnsearch.runtime import load

translator = load("en-de.rnn")
print(translator.translate("A man sits on a bench.").text)

It is the whole of the wheel `rnnsearch-runtime`, where its name is `rnnsearch_runtime`.
"""

from rnnsearch.errors import RnnsearchError
from rnnsearch.runtime.translator import Translator, load
from rnnsearch.translator.translation import Translation

__all__ = ["RnnsearchError", "Translation", "Translator", "load"]
