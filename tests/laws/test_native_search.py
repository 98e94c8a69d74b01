"""Native twins of search equal the plain model: step by step, greedy, beam, and the choice of the best columns."""

from functools import partial
from itertools import chain

import pytest
import torch

from rnnsearch.config import resolve
from rnnsearch.errors import RnnsearchError
from rnnsearch.models.build import build
from rnnsearch.models.native import library, rows
from rnnsearch.models.native.decoding import NativeRNNsearch
from rnnsearch.models.native.packed import Packed, decoding
from rnnsearch.models.native.packed_model import packed
from rnnsearch.search.beam import beam
from rnnsearch.search.constraints import SearchOptions
from rnnsearch.search.decode import make_sources
from rnnsearch.search.forced import forced
from rnnsearch.search.greedy import greedy
from rnnsearch.search.native_scorer import LogitScorer, NativeScorer, fastest
from rnnsearch.search.scorer import ModelScorer
from rnnsearch.search.selection import best_of_blocks

pytestmark = pytest.mark.skipif(decoding() is None, reason="native code cannot be built here: there is no C++ compiler")

SYMBOLS = 70
SOURCES = [[5, 6, 7, 8, 30, 31], [9], [10, 4, 60], [7, 7, 7, 5, 6, 11, 12, 13, 14], [40, 41, 42]]
LIMITS = {"max_ratio": 1.0, "max_extra": 4}
READOUT = {"bahdanau": "maxout", "bahdanau-tanh": "readout"}
TOLERANCE = {False: 2e-5, True: 0.15}
"""Of log-probabilities, by whether products are of bf16 numbers."""


def rnnsearch(first="bos", decoder="bahdanau"):
    """RNNsearch of sizes that are no multiples of a vector's."""
    config = resolve(
        {
            "data": {"source": "en", "target": "de", "corpus": "x"},
            "model": {
                "embedding": 7,
                "encoder": {"type": "bidirectional", "cell": "gru", "size": 18},
                "attention": {"score": "additive", "window": "global", "normaliser": "softmax", "size": 20},
                "decoder": {"type": decoder, "cell": "gru", "size": 35, READOUT[decoder]: 9, "first": first},
            },
            "training": {"max_epochs": 1},
        }
    )
    model = build(config.model, SYMBOLS, SYMBOLS, seed=1).eval()
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


@pytest.fixture
def sources():
    return make_sources(SOURCES, torch.device("cpu"))


def native(model, bf16=False):
    twin = NativeRNNsearch.of(model, bf16)
    assert twin is not None
    return NativeScorer(twin)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("table", [1 << 20, 0], ids=["words' share made once", "at every step"])
@pytest.mark.parametrize("decoder", READOUT)
@pytest.mark.parametrize("first", ["bos", "zero"])
def test_native_steps_are_the_models(first, decoder, table, bf16, sources, monkeypatch):
    monkeypatch.setattr("rnnsearch.models.native.decoding.TABLE_BYTES", table)
    agree(rnnsearch(first, decoder), sources, bf16, TOLERANCE[bf16])


@pytest.mark.parametrize("side", ["query", "key"])
def test_a_tanh_that_cannot_be_factored_is_the_same(side, sources):
    model = rnnsearch()
    getattr(model.decoder.attention.score, side).weight.data.mul_(100.0)
    agree(model, sources, False, 1e-3)


def agree(model, sources, bf16, tolerance):
    targets = [[5, 60, 9, 11, 4], [], [69, 69, 4], [8, 9], [1]]
    plain, fast = (forced(scorer, sources, targets) for scorer in (ModelScorer(model), native(model, bf16)))
    for p, f in zip(plain, fast, strict=True):
        assert f.token_scores == pytest.approx(p.token_scores, abs=tolerance, rel=tolerance)
        assert f.attention["source"] == pytest.approx(p.attention["source"], abs=tolerance)


def same(found, expected, tolerance=2e-5):
    """The same hypotheses with the same scores."""
    assert [[h.ids for h in hs] for hs in found] == [[h.ids for h in hs] for hs in expected]
    for f, e in zip(chain(*found), chain(*expected), strict=True):
        assert f.finished == e.finished
        assert f.token_scores == pytest.approx(e.token_scores, abs=tolerance, rel=tolerance)
        assert f.attention.keys() == e.attention.keys()
        for name in f.attention:
            assert f.attention[name] == pytest.approx(e.attention[name], abs=tolerance)


@pytest.mark.parametrize("banned", [frozenset(), frozenset({1, 5, 40, 41})])
def test_native_greedy_is_greedy(sources, banned):
    model = rnnsearch()
    options = SearchOptions(beam=1, banned=banned, **LIMITS)
    found = greedy(native(model), sources, options)
    same(found, greedy(ModelScorer(model), sources, options))
    assert not banned & {y for [h] in found for y in h.ids}
    assert len({len(h.ids) for [h] in found}) > 1


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=5, n_best=3, **LIMITS),
        SearchOptions(beam=3, coverage_penalty=0.3, length_norm="gnmt", **LIMITS),
        SearchOptions(beam=2, min_length=2, prefix=((5, 6), (), (7,), (), (9,)), **LIMITS),
        SearchOptions(beam=1, min_length=2, prefix=((5, 6), (), (7,), (), (9,)), **LIMITS),
    ],
)
def test_native_beams_are_beams(options, sources):
    model = rnnsearch()
    search = greedy if options.beam == 1 else beam
    same(search(native(model), sources, options), search(ModelScorer(model), sources, options))


@pytest.mark.parametrize("bf16", [False, True])
def test_a_batch_never_changes_a_native_score(bf16):
    scorer = native(rnnsearch(), bf16)
    for search in (partial(greedy, options=SearchOptions(beam=1, **LIMITS)), partial(beam, options=SearchOptions())):
        together = search(scorer, make_sources(SOURCES * 5, torch.device("cpu")))
        for source, hypotheses in zip(SOURCES * 5, together, strict=True):
            [alone] = search(scorer, make_sources([source], torch.device("cpu")))
            assert alone == hypotheses


def test_packed_models_are_models(system, make, pairs):
    model = make(system).eval()
    twin = packed(model, bf16=False)
    sources = make_sources([source for source, _ in pairs], torch.device("cpu"))
    for search, options in ((greedy, SearchOptions(beam=1, **LIMITS)), (beam, SearchOptions(beam=3, **LIMITS))):
        same(search(LogitScorer(twin), sources, options), search(ModelScorer(model), sources, options), 1e-3)


def test_the_fastest_is_native_where_the_model_has_a_twin():
    model = rnnsearch()
    assert isinstance(fastest(model, "fp32").scorer, NativeScorer)
    assert fastest(model, "fp32").what == "native search, fp32"
    assert fastest(model, "bf16").what == "native search, bf16"
    model.decoder.attention.features = torch.nn.ModuleList([torch.nn.Identity()])
    assert isinstance(fastest(model, "fp32").scorer, LogitScorer)


def test_without_native_code_the_plain_model_searches(monkeypatch):
    monkeypatch.setenv(library.OFF, "0")
    library.library.cache_clear()
    try:
        scorer, _, what = fastest(rnnsearch())
        assert type(scorer) is ModelScorer
        assert what == "the library's products, fp32"
        with pytest.raises(RnnsearchError, match="must be fp32 or auto without native code for the CPU; got bf16"):
            fastest(rnnsearch(), "bf16")
    finally:
        library.library.cache_clear()


@pytest.mark.parametrize("count", [1, 2, 10, 700])
@pytest.mark.parametrize(("A", "K", "C"), [(1, 1, 1), (3, 5, 333), (2, 1, 4096), (4, 2, 60)])
def test_the_best_columns_are_those_of_the_definition(A, K, C, count):
    generator = torch.Generator().manual_seed(A * C)
    scores = (torch.randn(A, K, C, generator=generator) * 3).round()  # many equal ones
    scores[0, 0, C // 2 :: 7] = -torch.inf
    ahead = torch.randn(A, K, generator=generator).round()
    ahead[:, K - 1] = -torch.inf if K > 1 else 0.0
    found, expected = rows.best(scores, ahead, count), best_of_blocks(scores, ahead, count)
    finite = (scores + ahead[:, :, None]).flatten(1).gather(1, expected) > -torch.inf
    assert torch.equal(found[finite], expected[finite])
    assert [len(set(row)) for row in found.tolist()] == [min(count, K * C)] * A
    scores[-1, 0, C // 3] = torch.nan
    assert torch.equal(rows.best(scores, ahead, 1), best_of_blocks(scores, ahead, 1))


def test_norms_are_logarithms_of_sums_of_exponentials():
    scores = torch.randn(7, 333, generator=torch.Generator().manual_seed(0)) * 30
    scores[1, :40] = -torch.inf
    scores[2] = -torch.inf
    torch.testing.assert_close(rows.norms(scores), scores.logsumexp(1))
    scores[3, 5] = torch.nan
    assert rows.norms(scores)[3].isnan()


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 12, 31])
def test_packed_products_are_products(count, bf16):
    generator = torch.Generator().manual_seed(count)
    x, w, b = (torch.randn(*shape, generator=generator) for shape in ((count, 37), (75, 37), (75,)))
    given = (x.bfloat16().float(), w.bfloat16().float()) if bf16 else (x, w)
    expected = torch.nn.functional.linear(*(v.double() for v in (*given, b))).float()
    torch.testing.assert_close(Packed(decoding(), w, b, bf16)(x), expected, atol=1e-4, rtol=1e-5)
