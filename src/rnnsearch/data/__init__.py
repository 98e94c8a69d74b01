"""Corpora: reading, cleaning, splitting, downloading; prepared ids on disk; batches.

Only `batch`, `batches` and `characters` contain tensors; all other modules work on NumPy arrays and text. See
docs/data.md.
"""
