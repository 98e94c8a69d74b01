"""Native twins: C++ built by the machine's own compiler at first use, and kept; the plain path where there is none.

Training: products, recurrences that are written as lists of parts, and the loss; `models/` defines them, and PyTorch
does their work (`kernels/`) where they are not. A thread takes its sentences through all positions without meeting the
others. Search: RNNsearch (`rnnsearch.cpp`), lists of parts (`search.cpp`), and every family's products.
"""
