"""Candidate lists: target symbols that a batch's translations are made of, likely translations of its source symbols
and the most frequent symbols. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.text.vocabulary import PAD, SPECIALS

Ids = NDArray[Any]


class CandidateLists:
    """Lists of the `count` likeliest translations of each source symbol.

    translations: [source vocabulary, K], the likeliest first, -1 for none; frequent: the symbols of every list, beside
    the special ones and `marks`, which no text has; symbols: the target vocabulary's.
    """

    def __init__(self, translations: Ids, frequent: Ids, count: int, symbols: int, marks: Sequence[int] = ()) -> None:
        first = translations[:, :count]
        self.translations = np.where(first >= 0, first, PAD)  # which is in every list
        self.frequent = frequent
        self._always = np.zeros(symbols, bool)
        self._always[frequent] = True
        self._always[: len(SPECIALS)] = True
        self._always[list(marks)] = True

    def __call__(self, sources: Ids) -> NDArray[np.int64]:
        """The symbols for source symbols of any shape, in rising order; EOS is among them."""
        wanted = self._always.copy()
        wanted[self.translations[np.unique(sources)]] = True
        return wanted.nonzero()[0]
