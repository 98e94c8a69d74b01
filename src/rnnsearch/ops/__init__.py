"""Fast operations on tensors: products, losses and recurrences with manual backward passes, and their C++ code.

This package knows no class of `models`; `accel` uses it to implement methods of models.

Each operation has a definition in PyTorch that it is compared with (tests/models/test_native.py, tests/properties). The
C++ interface is described in `native/`.
"""
