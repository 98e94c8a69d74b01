"""Public corpora: the catalogue, downloads and the Bible.

`rnnsearch data` lists and downloads them, `[data] corpus` names one; see docs/data.md.
"""
