"""Search: a `Scorer` and source sentences in, hypotheses with scores and attention out.

No model's class is known here but to the one adapter, `scorer.ModelScorer`.
"""
