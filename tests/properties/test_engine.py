"""The engine's beam search equals `search.beam` over the same native steps: hypotheses, scores and attention."""

from itertools import product

import numpy as np
import pytest
import torch

from rnnsearch.accel.rnnsearch_search import NativeRNNsearch, export_arrays
from rnnsearch.engine.rnnsearch import RNNsearchEngine
from rnnsearch.engine.structs import DType
from rnnsearch.ops.native.library import library
from rnnsearch.runtime.search import EngineSearchOptions, search_batch
from rnnsearch.search.decode import decode_all
from rnnsearch.search.model_scorer import NativeStepScorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.prefixes import ForcedBytes
from rnnsearch.text.prefixes import Prefix
from tests.properties.test_native_search import LIMITS, SOURCES, SYMBOLS, rnnsearch

pytestmark = pytest.mark.skipif(library() is None, reason="native code cannot be built here: there is no C++ compiler")

SIZES = np.random.default_rng(3).integers(1, 4, SYMBOLS)
RESTS = [
    ((7, 8, 9), (5, 6), (4, 30)),
    (),
    (tuple(range(4, 40)),),
    ((11,), (12, 13)),
    (),
]
PREFIXES = [(5, 6), (), (7,), (), (1, 9)]
NAMES = ("beam", "n_best", "length_penalty", "length_norm", "coverage_penalty")


@pytest.fixture(scope="module", params=["bahdanau", "bahdanau-tanh"])
def model(request):
    return rnnsearch(decoder=request.param)


@pytest.mark.parametrize("kind", list(DType))
@pytest.mark.parametrize(
    "options",
    [
        *((width, 1, *penalty) for width, penalty in product((1, 2, 5), [(1.0, "power", 0.0), (0.6, "gnmt", 0.4)])),
        (5, 4, 0.0, "power", 0.0),
        (5, 5, 1.3, "power", 0.2),
    ],
)
@pytest.mark.parametrize("begun", ["", "prefix", "prefix and spelling"])
def test_engine_beam_equals_beam_search(model, kind, options, begun):
    known = dict(zip(NAMES, options, strict=True))
    prefix = PREFIXES if begun else [()] * len(SOURCES)
    rests = RESTS if "spelling" in begun else [()] * len(SOURCES)
    spelled = ForcedBytes(tuple(rests), torch.from_numpy(SIZES)) if "spelling" in begun else None
    scorer = NativeStepScorer(NativeRNNsearch.create(model, kind))
    asked = SearchOptions(**known, **LIMITS, prefix=tuple(prefix) if begun else None, forced_bytes=spelled)
    expected = decode_all(scorer, SOURCES, asked)
    begins = [Prefix("", ids, rest, {}) for ids, rest in zip(prefix, rests, strict=True)]
    found = search_batch(
        RNNsearchEngine(library(), export_arrays(model), kind),
        SOURCES,
        EngineSearchOptions(**known, **LIMITS),
        begins,
        SIZES,
    )
    for b, hypotheses in enumerate(expected):
        assert int((found.length[b] > 0).sum()) == len(hypotheses)
        for n, one in enumerate(hypotheses):
            count = int(found.length[b, n])
            assert (count, bool(found.finished[b, n])) == (len(one.token_scores), one.finished)
            assert tuple(found.tokens[b, n, : len(one.ids)].tolist()) == one.ids
            assert found.scores[b, n, :count].tolist() == list(one.token_scores)
            np.testing.assert_array_equal(found.attention[b, n, :count, : len(SOURCES[b]) + 1], one.weights)
