"""Text in, translations out: the `Translator`, loading, constraints, postprocessing, confidence and reranking.

`translation.py` and `confidence.py` are part of the torch-free runtime's wheel, so they must not import torch. See
docs/python.md for the public interface.
"""
