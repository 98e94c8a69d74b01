"""Evaluation of models: test-set scores, the report page, tuning of search, and scoring of sentence pairs."""
