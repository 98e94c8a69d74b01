"""Training and decoding speed of rnnsearch beside its rivals' and the machine's limit: `python -m benchmarks.speed`.

What is measured, and how to read it: docs/speed.md.
"""
