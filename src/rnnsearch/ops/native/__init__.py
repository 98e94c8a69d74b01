"""C++ code for CPUs, and its building and loading.

Training uses matrix products (`product.cpp`), recurrences (`recurrence.cpp`) and the softmax loss (`softmax_loss.cpp`).
Search, with or without PyTorch, uses packed matrices (`packed_matrix.cpp`), RNNsearch (`rnnsearch.cpp`) and any other
decoder whose step is written as a list of operations (`search.cpp`). Without a compiler, PyTorch computes everything.

Structures of the interface are mirrored in `engine/structs.py`, `engine/rnnsearch.py`, `ops/recurrence.py` and, for
browsers, in `export/web/module`; change them together. Tests: tests/native (C++ under sanitizers, building) and
tests/models/test_native.py.
"""
