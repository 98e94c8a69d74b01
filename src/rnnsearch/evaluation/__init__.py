"""Evaluation of models: test-set scores, the report page, tuning of search, and scoring of sentence pairs.

Commands: `rnnsearch evaluate`, `report`, `tune`, `filter`, `adapt` and `demo`. The metrics themselves are in the
package `metrics`.
"""
