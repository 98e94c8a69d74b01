"""Speed at the level of tensors: recurrences with a backward pass written by hand, products, losses, and their C++.

No class of `models` is known here; `accel/registry.py` says which of these stands in for which definition.
"""
