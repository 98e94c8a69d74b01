"""Word alignment and dictionaries learned from unaligned sentence pairs: a statistical aligner on CPUs.

`data` learns aligners while a corpus is prepared, `rnnsearch aligner` for an existing model. See docs/alignment.md.
"""
