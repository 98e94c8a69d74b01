"""Names of the types of word alignments: their unit, their source and how two directions are combined.

Separate from `alignments`, which needs NumPy, because the help of the command line lists these names.

Options of the command line and arguments of the Python interface accept these names. This module must import only the
standard library (tests/commands/test_usage.py).
"""

from typing import Literal, get_args

Unit = Literal["words", "symbols"]
"""Unit that alignments count; symbols are tokens."""
AlignedBy = Literal["aligner", "attention", "read", "posterior"]
"""Source of alignments.

aligner: the word aligner of the model folder. attention: attention weights. read: the attention weights of the
position after a word, which has read it. posterior: attention given the target word.
"""
ALIGNED_BY: tuple[AlignedBy, ...] = get_args(AlignedBy)
"""Values of `AlignedBy` and of the option `--by`."""
Symmetrisation = Literal["intersection", "union", "grow-diag", "grow-diag-final-and"]
"""Method that combines the links of two directions (`alignments.symmetrise`)."""
