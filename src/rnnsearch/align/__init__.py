"""Word alignment and dictionaries learned from unaligned sentence pairs: a statistical aligner on CPUs.

`data` learns and applies aligners, the translator applies them, and `rnnsearch dictionary` builds dictionaries. See
docs/alignment.md.
"""
