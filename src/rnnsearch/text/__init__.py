"""Raw text to tokens and back: vocabularies, tokenizers, word alignments, terminology, markup and documents.

All layers above use it. No module may import torch, since `runtime` uses several of them; import-linter checks this.
The tests are in tests/text.
"""
