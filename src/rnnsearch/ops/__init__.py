"""Fast operations on tensors: products, losses and recurrences with manual backward passes, and their C++ code.

This package knows no class of `models`; `accel` uses it to implement methods of models.
"""
