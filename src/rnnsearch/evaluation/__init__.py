"""Evaluation of models: test-set scores, the report page, tuning of search settings, and scoring of sentence
pairs.
"""
