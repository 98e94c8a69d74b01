"""Word alignment and dictionaries learned from unaligned sentence pairs: a statistical aligner on CPUs.

`data` learns and applies aligners, `systems`, `training`, `serve` and `translator` load or apply them, and `cli`
learns them and builds dictionaries. See docs/alignment.md; the tests are in tests/align.
"""
