"""Corpora: reading, cleaning, splitting, downloading; prepared ids on disk; batches.

`cli`, `bulk`, `training` and `systems` use it. Only `batch`, `batches` and `characters` contain tensors; all other
modules work on NumPy arrays and text. See docs/data.md.
"""
