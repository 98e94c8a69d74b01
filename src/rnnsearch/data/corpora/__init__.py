"""Public corpora: the catalogue, downloads and the Bible.

`rnnsearch data get` and `data/prepare.py` use the catalogue; see docs/data.md.
"""
