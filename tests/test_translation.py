"""What stands around a translation: what translating imports, and the words that nothing was read for."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from rnnsearch.search.hypothesis import Hypothesis
from rnnsearch.text.tokenizer import Segmented
from rnnsearch.translation import in_words

MODEL = Path(__file__).parent / "old_models" / "words"
TRANSLATE = f"""
import sys
import rnnsearch
translator = rnnsearch.load({str(MODEL)!r})
assert translator.translate("the dog sees a cat").text
translator.score(["the dog"], ["der Hund"])
apart = ("rnnsearch.training", "rnnsearch.evaluate", "rnnsearch.cli", "rnnsearch.serve", "matplotlib")
sys.exit(", ".join(name for name in sys.modules if name.startswith(apart)) or None)
"""


def test_translating_imports_no_training():
    done = subprocess.run([sys.executable, "-c", TRANSLATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_without_a_symbol_has_a_row_and_a_column_of_zeros():
    source = Segmented("a b \u200b", [4, 5], ["a", "b"], [(0, 1), (2, 3)])
    target = Segmented("x \u200b", [6], ["x"], [(0, 1)])
    attention = {"source": np.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]], dtype=np.float32)}
    t = in_words(source, target, Hypothesis((6,), -1.0, -1.0, (-0.5, -0.5), attention, True), read=False)
    np.testing.assert_allclose(t.word_attention, [[0.7, 0.2, 0.0], [0.0, 0.0, 0.0]])
    assert t.alignment == ((0, 0),)
