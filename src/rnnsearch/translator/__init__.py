"""Text in, translations out: the `Translator`, loading, constraints, postprocessing, confidence and reranking.

Callers: `rnnsearch.load`, `cli`, `serve` and `evaluation`; the package knows nothing of them. `translation.py` and
`confidence.py` are part of the torch-free runtime's wheel, so they must not import torch. See docs/python.md for the
public interface; the tests are `tests/test_translat*.py` and `tests/test_requests.py`.
"""
