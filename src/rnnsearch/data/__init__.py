"""Corpora: reading, cleaning, splitting, downloading; prepared ids on disk; batches.

`cli`, `bulk`, `training`, `systems`, `models`, `objectives`, `search`, `accel`, `export` and `evaluation` use it.
Only `batch`, `batches` and `characters` contain tensors; all other modules work on NumPy arrays and text. See
docs/data.md; the tests are in tests/data.
"""
