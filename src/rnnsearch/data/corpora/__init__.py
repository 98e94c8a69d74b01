"""Public corpora: the catalogue, downloads and the Bible.

`cli`, `data/prepare.py` and `systems/validation.py` use the catalogue, `bulk/prepare.py` the types of downloads; see
docs/data.md.
"""
