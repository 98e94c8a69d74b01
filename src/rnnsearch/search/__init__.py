"""Search: a `Scorer` and source sentences in, hypotheses with scores and attention out.

Searches know no model's class. Who knows one makes a Scorer of it (`model_scorer.py`, `language_scorer.py`), or asks it
again about what a search has found (`copied.py`, `posterior.py`, `spell.py`).
"""
