"""The special symbols that every vocabulary begins with, and the marker that shows a space."""

PAD = 0
"""Fills short sentences of a batch; never predicted."""
UNK = 1
"""Stands for every symbol that is not in the vocabulary."""
BOS = 2
"""What stands before the first target symbol (y_0); never in a sentence's ids."""
EOS = 3
"""Ends every source and every target sentence that a model sees."""

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""The special symbols' names, in the order of their ids. Raw text never yields them."""

UNKNOWN, POSITION = "<unk", "<at"
"""What the names of symbols begin with that stand for an unknown word, as <unk> does, or for a place and no text (see
`text.annotation`). Raw text yields none of them either."""

MARKER = "▁"
"""How a symbol's leading space is shown (U+2581). Inside the vocabulary it is a plain space, so that raw
text may hold this character too."""


def is_unknown(symbol: str) -> bool:
    """Whether a symbol stands for an unknown word."""
    return symbol.startswith(UNKNOWN)
