"""Text in, translations out: the `Translator`, loading, constraints, postprocessing, confidence and reranking.

The torch-free runtime imports `confidence.py`, `copies.py`, `protection.py`, `texts.py` and `translation.py`, so these
and the modules that they import must not import torch. See docs/python.md for the public interface.
"""
