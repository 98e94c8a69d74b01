"""`NativeBeamRequest`: the parameters of a beam search that runs entirely in native code, in the layout of C structs.

`BeamSearch`'s fast path (`beam.py`) and the torch-free runtime (`runtime/search.py`) create one, and
`model_scorer.py` searches with it, so this module must not import torch.

Before changing it: the order of arguments is the layout of `CBeamOptions` (`engine/rnnsearch.py`), which must equal the
struct in `ops/native/beam_search.h`. Arrays are passed by address and must stay alive. Tests:
tests/properties/test_native_search.py, tests/properties/test_engine.py.

Axes: B sentences, J source positions, P prefix positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from rnnsearch.engine.rnnsearch import CBeamOptions
from rnnsearch.engine.structs import Array
from rnnsearch.search.ranking import Ranking
from rnnsearch.text.prefixes import ByteContinuations


class NativeBeamRequest:
    """Parameters of the beam search of B sentences."""

    def __init__(
        self,
        width: int,
        n_best: int,
        ranking: Ranking,
        *,
        covered: Array | None = None,
        forced: Array | None = None,
        allowed_tokens: Sequence[ByteContinuations] = (),
        token_bytes: Array | None = None,
    ) -> None:
        """Lay out the parameters for native code.

        Args:
            width: Beam width.
            n_best: Number of hypotheses to return per sentence.
            ranking: Score of hypotheses.
            covered: [B, J] bool, source tokens to cover; required if `ranking` uses coverage.
            forced: [B, P] int64, score columns that translations begin with, padded with -1.
            allowed_tokens: Per sentence and byte that must follow the prefix, the tokens that may start there.
            token_bytes: [V] int64, bytes of each token; required with `allowed_tokens`.
        """
        # Two levels of offsets: sentence -> its bytes -> the tokens allowed at each byte.
        lists = [ids for allowed in allowed_tokens for ids in allowed]
        sentence_offsets = np.array([0, *accumulate(map(len, allowed_tokens))], np.int64)
        byte_offsets = np.array([0, *accumulate(map(len, lists))], np.int64)
        tokens = np.array([id for ids in lists for id in ids] or [0], np.int64)
        # Native code reads these arrays by address: they must live as long as the request.
        self._arrays = (covered, forced, sentence_offsets, byte_offsets, tokens, token_bytes)
        self.c_struct = CBeamOptions(
            width,
            n_best,
            int(ranking.length_norm == "gnmt"),
            ranking.length_penalty,
            ranking.coverage_penalty,
            None if covered is None else covered.ctypes.data,
            None if forced is None else forced.ctypes.data,
            0 if forced is None else forced.shape[1],
            None if token_bytes is None else sentence_offsets.ctypes.data,
            byte_offsets.ctypes.data,
            tokens.ctypes.data,
            None if token_bytes is None else token_bytes.ctypes.data,
        )
