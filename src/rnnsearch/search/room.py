"""How many sentences a batch of a search may have. Imports no torch."""

MOST_ROWS = 1024
"""Hypotheses of a batch: one whose beam is wide has fewer sentences than asked for."""


def sentences_at_once(most: int, beam: int, symbols: int, steps: float, attended: int) -> int:
    """Sentences of a batch whose longest has so many symbols, EOS among them, and may take so many steps: one at least,
    and no more than `most`, MOST_ROWS hypotheses and `attended` weights of attention."""
    return max(1, int(min(most, MOST_ROWS // beam, attended / (beam * symbols * steps))))
