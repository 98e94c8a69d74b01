"""`CandidateLists`: the target tokens that translations of a batch may consist of.

A list contains the most probable translations of each source token of the batch and the most frequent target tokens.
`candidates.py` learns and stores the tables. The torch-free runtime uses this module, so it must not import torch.

The arguments are the arrays that `candidates.py` stores in `candidates.safetensors` and `export/engine_file.py` in
engine files. Tests: tests/runtime/test_runtime.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnsearch.text.vocabulary import PAD, SPECIALS

Ids = NDArray[Any]


class CandidateLists:
    """Candidate lists with the `count` most probable translations of each source token."""

    def __init__(
        self,
        translations: Ids,
        frequent: Ids,
        count: int,
        vocabulary_size: int,
        always_included: Sequence[int] = (),
    ) -> None:
        """Store the tables.

        Args:
            translations: [source vocabulary, K] target tokens, most probable first, padded with -1.
            frequent: Tokens of every list.
            count: Number of translations per source token, at most K.
            vocabulary_size: Size of the target vocabulary.
            always_included: Tokens of every list that occur in no text, in addition to the special tokens.
        """
        translations = translations[:, :count]
        self.translations = np.where(translations >= 0, translations, PAD)  # PAD is in every list anyway
        self.frequent = frequent
        self._in_every_list = np.zeros(vocabulary_size, bool)
        self._in_every_list[frequent] = True
        self._in_every_list[: len(SPECIALS)] = True
        self._in_every_list[list(always_included)] = True

    def __call__(self, sources: Ids) -> NDArray[np.int64]:
        """Return the candidates of source tokens (of any shape) in ascending order, EOS among them."""
        included = self._in_every_list.copy()
        # An index [tokens, K] marks the translations of all tokens at once.
        included[self.translations[np.unique(sources)]] = True
        return included.nonzero()[0]
