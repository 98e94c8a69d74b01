"""Special tokens that every vocabulary starts with, and the marker that displays a space.

Used everywhere. The ids are stored in every tokenizer and prepared corpus, and C++ and JavaScript
(`export/web/module/vocabulary.js`) contain them, too: do not change them.
"""

PAD = 0
"""Padding of short sentences in a batch; never predicted."""
UNK = 1
"""Any token that is not in the vocabulary."""
BOS = 2
"""Token before the first target token (y_0); never among a sentence's ids (but see `CONTEXT_END`)."""
EOS = 3
"""End of every source and target sentence that a model reads or writes."""

SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
"""Names of the special tokens in the order of their ids. Raw text never produces them."""

CONTEXT_END = BOS
"""End of each previous sentence that a model reads before a source sentence (`data.context`).

BOS is in every vocabulary, and no other source sentence contains it.
"""

# Annotation tokens (`text.annotation`) start with one of these; raw text never produces them either.
UNKNOWN_PREFIX = "<unk"
"""Start of the names of `<unk>` and of annotation tokens that represent an unknown word."""
POSITION_PREFIX = "<at"
"""Start of the names of annotation tokens that represent a position and no text."""

SPACE_MARKER = "▁"
"""Display form of a token's leading space (U+2581).

Inside the vocabulary it is an ordinary space, so raw text may contain this character too.
"""

SUBSTITUTE_NAMES = (
    "Tom", "Maria", "Boston", "Berlin", "Paris", "Anna", "John", "London", "Peter", "Robert", "Linda", "Madrid",
)  # fmt: skip
"""Names that a model reads in place of placeholders (see `text.markup.substitutes`).

`letter_case.py` treats them as names; `export/web/module/letter-case.js` has a copy, which must be equal.
"""


def is_unknown(token: str) -> bool:
    """Return True if a token represents an unknown word."""
    return token.startswith(UNKNOWN_PREFIX)
