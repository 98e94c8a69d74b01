"""Search: from a `Scorer` and source sentences to hypotheses with scores and attention.

`decode.py` has the entry points, `scorer.py` the protocol of scorers, `options.py` the options, and `beam.py` the
search itself. Searches do not know model classes: `model_scorer.py` wraps models as scorers, and `reattend.py` and
`char_decoding.py` use the model again after a search.

See docs/decisions/0010-search-over-scorers.md; the tests are in `tests/search` and `tests/properties`.
"""
