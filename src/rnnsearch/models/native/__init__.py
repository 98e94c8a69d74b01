"""Native twins: the recurrences and the loss in C++, over the types that `library.function` serves.

The plain step is the definition, its twin in PyTorch (`models/fused/`, `models/outputs.py`) the fallback; a law test
holds all of them equal. What C++ saves: a thread takes its sentences through all positions without meeting the others,
products and element-wise work share what is in the cache, and no padding of the source is read.
"""
