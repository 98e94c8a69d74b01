"""Native twins: C++ built by the machine's own compiler at first use, and kept; the plain path where there is none.

Training: the GRU's sequence, RNNsearch's recurrence and the loss; the plain step is their definition and the twin in
PyTorch (`kernels/`, `models/outputs.py`) what runs without them. A thread takes its sentences through all
positions without meeting the others. Search: `decoding`, and every family's products.
"""
