"""What a whole beam search in native code is asked. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from rnnsearch.engine.rnnsearch import CBeam
from rnnsearch.engine.structs import Array
from rnnsearch.search.ranking import Ranking
from rnnsearch.text.prefixes import Rest


class Asked:
    """A beam of B sentences: its width, how many of each are wanted, and what they are compared by.

    covered: [B, J] bool, the source symbols to cover, where `ranking` covers. forced: [B, P] int64, the columns that
    translations begin with, -1 behind the last. rests: what each must then spell, by symbols of as many bytes as
    `sizes` [V] int64 says.
    """

    def __init__(
        self,
        width: int,
        n_best: int,
        ranking: Ranking,
        *,
        covered: Array | None = None,
        forced: Array | None = None,
        rests: Sequence[Rest] = (),
        sizes: Array | None = None,
    ) -> None:
        every = [ids for rest in rests for ids in rest]
        places = np.array([0, *accumulate(map(len, rests))], np.int64)
        ways = np.array([0, *accumulate(map(len, every))], np.int64)
        way = np.array([id for ids in every for id in ids] or [0], np.int64)
        self._kept = (covered, forced, places, ways, way, sizes)  # as long as native code may read them
        self.c = CBeam(
            *(width, n_best, int(ranking.length_norm == "gnmt"), ranking.length_penalty, ranking.coverage_penalty),
            None if covered is None else covered.ctypes.data,
            *((None, 0) if forced is None else (forced.ctypes.data, forced.shape[1])),
            None if sizes is None else places.ctypes.data,
            *(ways.ctypes.data, way.ctypes.data, None if sizes is None else sizes.ctypes.data),
        )
        """As native code reads it."""
