"""Evaluation of models: test-set scores, the report page, tuning of search, and scoring of sentence pairs.

Callers: `rnnsearch evaluate`, `report`, `tune` and `filter` (`cli/evaluate.py`, `cli/corpora.py`) and `rnnsearch
demo`. The metrics themselves are in the package `metrics`. The tests are in `tests/evaluation`.
"""
