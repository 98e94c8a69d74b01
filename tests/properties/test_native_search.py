"""Native search equals the model in PyTorch: steps, greedy search, beam search, and operations on scores."""

from functools import partial
from itertools import chain

import pytest
import torch

from rnnsearch.accel.decoder_steps import DECODER_STEPS, unsupported_reason
from rnnsearch.accel.readout_steps import lexical_unsupported_reason
from rnnsearch.accel.rnnsearch_search import NativeRNNsearch
from rnnsearch.accel.search import NativeDecoder, packed_model
from rnnsearch.config import ModelConfig
from rnnsearch.errors import RnnsearchError
from rnnsearch.ops import rows
from rnnsearch.ops.linear import DType, PackedWeight
from rnnsearch.ops.native import library
from rnnsearch.search.beam import BeamSearch, beam_search, greedy_search
from rnnsearch.search.decode import make_sources
from rnnsearch.search.forced import force_decode
from rnnsearch.search.hypothesis import BLOCKED, SentenceError
from rnnsearch.search.model_scorer import ModelScorer, NativeScorer, NativeStepScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.prefixes import ForcedBytes
from rnnsearch.search.topk import best_continuations_in_blocks
from rnnsearch.systems.translation import build
from tests.properties.rounding import rounded, to_bf16, to_bytes

pytestmark = pytest.mark.skipif(
    library.library() is None, reason="native code cannot be built here: there is no C++ compiler"
)

SYMBOLS = 70
SOURCES = [[5, 6, 7, 8, 30, 31], [9], [10, 4, 60], [7, 7, 7, 5, 6, 11, 12, 13, 14], [40, 41, 42]]
LIMITS = {"max_ratio": 1.0, "max_extra": 4}
READOUT = {"bahdanau": "maxout", "bahdanau-tanh": "readout"}
ROUNDING = {DType.FP32: lambda x: x, DType.BF16: to_bf16, DType.INT8: to_bytes}
"""Rounding of the operands of native products; their sums are in fp32 or exact."""
TOLERANCE = {DType.FP32: 2e-5, DType.BF16: 1e-3, DType.INT8: 1e-3}
"""Tolerance of log-probabilities and attention; another order of summation may change the rounding of some values."""


SPELLING = ForcedBytes(
    (((5, 7, 8), (9, 10)), (), ((12,), (40, 41), (5, 6)), ((30, 31),), ((50, 60), (61,))),
    torch.tensor([2 if id in (7, 40) else 1 for id in range(SYMBOLS)]),
)
"""Tokens that may write each part of the forced text; tokens 7 and 40 are two bytes long."""


def rnnsearch(first="bos", decoder="bahdanau"):
    """Return an RNNsearch model whose sizes are not multiples of the vector width."""
    model = build(rnnsearch_config(first, decoder), SYMBOLS, SYMBOLS, seed=1).eval()
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


def rnnsearch_config(first="bos", decoder="bahdanau"):
    return ModelConfig.model_validate(
        {
            "embedding": 7,
            "encoder": {"type": "bidirectional", "cell": "gru", "size": 18},
            "attention": {"score": "additive", "size": 20},
            "decoder": {"type": decoder, "cell": "gru", "size": 35, READOUT[decoder]: 9, "first": first},
        }
    )


@pytest.fixture
def sources():
    return make_sources(SOURCES, torch.device("cpu"))


def native(model, kind=DType.FP32):
    native_model = NativeRNNsearch.create(model, kind)
    assert native_model is not None
    return NativeScorer(native_model)


@pytest.mark.parametrize("kind", DType)
@pytest.mark.parametrize("table", [1 << 20, 0], ids=["words' share made once", "at every step"])
@pytest.mark.parametrize("decoder", READOUT)
@pytest.mark.parametrize("first", ["bos", "zero"])
def test_native_steps_equal_the_model(first, decoder, table, kind, sources, monkeypatch):
    monkeypatch.setattr("rnnsearch.accel.rnnsearch_search.WORD_TABLE_BYTES", table)
    agree(rnnsearch(first, decoder), sources, kind, TOLERANCE[kind])


@pytest.mark.parametrize("side", ["query", "key"])
def test_keys_too_large_for_exponentials_give_equal_scores(side, sources):
    model = rnnsearch()
    getattr(model.decoder.attention.score, side).weight.data.mul_(100.0)
    agree(model, sources, DType.FP32, 1e-3)


def agree(model, sources, kind, tolerance):
    targets = [[5, 60, 9, 11, 4], [], [69, 69, 4], [8, 9], [1]]
    plain = force_decode(ModelScorer(rounded(model, ROUNDING[kind])), sources, targets)
    fast = force_decode(native(model, kind), sources, targets)
    for p, f in zip(plain, fast, strict=True):
        assert f.token_scores == pytest.approx(p.token_scores, abs=tolerance, rel=tolerance)
        assert f.attention["source"] == pytest.approx(p.attention["source"], abs=tolerance)


def same(found, expected, tolerance=2e-5):
    """Assert that the hypotheses and their scores are equal."""
    assert [[h.ids for h in hs] for hs in found] == [[h.ids for h in hs] for hs in expected]
    for f, e in zip(chain(*found), chain(*expected), strict=True):
        assert f.finished == e.finished
        assert f.token_scores == pytest.approx(e.token_scores, abs=tolerance, rel=tolerance)
        assert f.attention.keys() == e.attention.keys()
        for name in f.attention:
            assert f.attention[name] == pytest.approx(e.attention[name], abs=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=5, n_best=3, **LIMITS),
        SearchOptions(beam=3, coverage_penalty=0.3, length_norm="gnmt", **LIMITS),
        SearchOptions(beam=2, min_length=2, prefix=((5, 6), (), (7,), (), (9,)), **LIMITS),
        SearchOptions(beam=1, **LIMITS),
        SearchOptions(beam=1, banned=frozenset({1, 5, 40, 41}), **LIMITS),
        SearchOptions(beam=1, min_length=2, prefix=((5, 6), (), (7,), (), (9,)), **LIMITS),
    ],
)
def test_native_search_equals_pytorch_search(options, sources):
    model = rnnsearch()
    search = greedy_search if options.beam == 1 else beam_search
    found = search(native(model), sources, options)
    same(found, search(ModelScorer(model), sources, options))
    assert not options.banned & {y for hypotheses in found for h in hypotheses for y in h.ids}
    assert len({len(first.ids) for first, *_ in found}) > 1


def assert_one_call_is_the_steps(native_model, sources, options, columns=None):
    """Assert that one native call equals native steps bit for bit, and return the hypotheses."""
    found = beam_search(NativeScorer(native_model), sources, options, columns)
    assert found == beam_search(NativeStepScorer(native_model), sources, options, columns)
    same(found, beam_search(NativeStepScorer(native_model), sources, options, columns), 0.0)
    return found


@pytest.mark.parametrize("kind", DType)
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=5, n_best=3, **LIMITS),
        SearchOptions(beam=4, n_best=4, length_penalty=0.0),
        SearchOptions(beam=3, n_best=2, length_norm="gnmt", banned=frozenset({5, 7, 40}), **LIMITS),
        SearchOptions(beam=1, **LIMITS),
        SearchOptions(beam=90, n_best=90, max_ratio=0.0, max_extra=1),
        SearchOptions(beam=3, n_best=2, prefix=((5, 6), (), (7,), (), (9, 1, 5)), banned=frozenset({6}), **LIMITS),
        SearchOptions(beam=1, prefix=((5, 6), (), (7,), (), (9,)), **LIMITS),
        SearchOptions(beam=3, n_best=2, prefix=((5, 6), (), (7,), (), ()), forced_bytes=SPELLING, **LIMITS),
        SearchOptions(beam=1, forced_bytes=SPELLING, **LIMITS),
    ],
)
def test_beam_in_one_call_equals_beam_step_by_step(options, kind, sources):
    native_model = NativeRNNsearch.create(rnnsearch(), kind)
    found = assert_one_call_is_the_steps(native_model, sources, options)
    begins = options.prefix or ((),) * len(SOURCES)
    for hypotheses, begin in zip(found, begins, strict=True):
        assert all(h.ids[: len(begin)] == begin and not options.banned & {*h.ids[len(begin) :]} for h in hypotheses)
    some = torch.tensor([3, 5, 7, 11, 40, 41, 60])
    for hypothesis in chain(*assert_one_call_is_the_steps(native_model, sources, options, lambda _: some)):
        assert options.forced_bytes or set(hypothesis.ids) <= {*some.tolist(), *chain(*begins)}


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam=3, min_length=2),
        SearchOptions(beam=3, stop="top"),
        SearchOptions(beam=3, coverage_penalty=0.2),
        SearchOptions(beam=3, length_norm="power-with-bos"),
        SearchOptions(beam=3, no_repeat_ngram=2),
        SearchOptions(beam=3, max_ratio=1000.0, max_extra=1 << 20),
    ],
)
def test_unsupported_options_search_step_by_step(options, sources, monkeypatch):
    """A search with an unbounded length must not allocate memory for the limit either."""
    monkeypatch.setattr(NativeScorer, "beam", lambda *_: pytest.fail("it was asked"))
    scorer = native(rnnsearch())
    if options.max_ratio < 1000.0:
        assert len(beam_search(scorer, sources, options)) == len(SOURCES)
    else:
        monkeypatch.setattr(BeamSearch, "steps", lambda _: [])
        monkeypatch.setattr(BeamSearch, "hypotheses", lambda _: [[BLOCKED]])
        assert beam_search(scorer, sources, options) == [[BLOCKED]]


def test_beam_in_one_call_reports_the_position_of_nan(sources):
    model = rnnsearch()
    model.source_embedding.weight.data[60] = torch.nan
    with pytest.raises(SentenceError, match=r"the scores of sentence 2 .* got NaN at target position 1"):
        beam_search(native(model), sources, SearchOptions(beam=3))


@pytest.mark.parametrize("kind", DType)
def test_batching_does_not_change_native_scores(kind):
    scorer = native(rnnsearch(), kind)
    for search in (
        partial(greedy_search, options=SearchOptions(beam=1, **LIMITS)),
        partial(beam_search, options=SearchOptions()),
    ):
        together = search(scorer, make_sources(SOURCES * 5, torch.device("cpu")))
        for source, hypotheses in zip(SOURCES * 5, together, strict=True):
            [alone] = search(scorer, make_sources([source], torch.device("cpu")))
            assert alone == hypotheses


def test_packed_model_equals_model(system, make, pairs):
    model = make(system).eval()
    native_model = packed_model(model, DType.FP32)
    sources = make_sources([source for source, _ in pairs], torch.device("cpu"))
    for search, options in (
        (greedy_search, SearchOptions(beam=1, **LIMITS)),
        (beam_search, SearchOptions(beam=3, **LIMITS)),
    ):
        same(search(ModelScorer(native_model), sources, options), search(ModelScorer(model), sources, options), 1e-3)


def test_fastest_scorer_is_native_if_supported():
    model = rnnsearch()
    assert isinstance(fastest_scorer(model, "fp32").scorer, NativeScorer)
    assert fastest_scorer(model, "fp32").description == "native search, fp32"
    assert fastest_scorer(model, "bf16").description == "native search, bf16"
    assert fastest_scorer(model, "int8").description == "native search, int8"
    model.decoder.attention.features = torch.nn.ModuleList([torch.nn.Identity()])
    why = "its attention has a feature without a native step"
    assert fastest_scorer(model, "fp32").description == f"native products, fp32 (no native search: {why})"


def test_model_searches_in_pytorch_without_native_code(monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    library._library.cache_clear()
    try:
        scorer, what = fastest_scorer(rnnsearch())
        assert type(scorer) is ModelScorer
        assert what == "PyTorch, fp32"
        for kind in ("bf16", "int8"):
            with pytest.raises(
                RnnsearchError, match=f"must be fp32 or auto without native code for the CPU; got {kind}"
            ):
                fastest_scorer(rnnsearch(), kind)
    finally:
        library._library.cache_clear()


@pytest.mark.parametrize("count", [1, 2, 10, 700])
@pytest.mark.parametrize(("A", "K", "C"), [(1, 1, 1), (3, 5, 333), (2, 1, 4096), (4, 2, 60)])
def test_native_topk_equals_definition(A, K, C, count):
    generator = torch.Generator().manual_seed(A * C)
    scores = (torch.randn(A, K, C, generator=generator) * 3).round()  # rounded, so that many values are equal
    scores[0, 0, C // 2 :: 7] = -torch.inf
    ahead = torch.randn(A, K, generator=generator).round()
    ahead[:, K - 1] = -torch.inf if K > 1 else 0.0
    found, expected = rows.topk(scores, ahead, count), best_continuations_in_blocks(scores, ahead, count)
    finite = (scores + ahead[:, :, None]).flatten(1).gather(1, expected) > -torch.inf
    assert torch.equal(found[finite], expected[finite])
    assert [len(set(row)) for row in found.tolist()] == [min(count, K * C)] * A
    scores[-1, 0, C // 3] = torch.nan
    assert torch.equal(rows.topk(scores, ahead, 1), best_continuations_in_blocks(scores, ahead, 1))


def test_native_log_sum_exp_equals_definition():
    scores = torch.randn(7, 333, generator=torch.Generator().manual_seed(0)) * 30
    scores[1, :40] = -torch.inf
    scores[2] = -torch.inf
    torch.testing.assert_close(rows.log_sum_exp(scores), scores.logsumexp(1))
    scores[3, 5] = torch.nan
    assert rows.log_sum_exp(scores)[3].isnan()


@pytest.mark.parametrize("kind", DType)
@pytest.mark.parametrize("inputs", [1, 36, 37, 38, 39])
@pytest.mark.parametrize("count", [1, 2, 5, 12, 31])
def test_packed_products_equal_products(count, inputs, kind):
    generator = torch.Generator().manual_seed(count)
    x, w, b = (torch.randn(*shape, generator=generator) for shape in ((count, inputs), (75, inputs), (75,)))
    w[3], x[count // 2] = 0.0, x[count // 2] * 1e6
    if count > 1:
        x[0] = 0.0
    found = PackedWeight(library.library(), w, b, kind)(x)
    exact = torch.nn.functional.linear(*(ROUNDING[kind](part.double()) for part in (x, w)), b.double()).float()
    for row, got, expected in zip(x, found, exact, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6 * (1 + float(row.abs().sum())), rtol=1e-5)


def test_int8_products_are_near_fp32():
    generator = torch.Generator().manual_seed(1)
    x, w, b = (torch.randn(*shape, generator=generator) for shape in ((40, 512), (300, 512), (300,)))
    exact = torch.nn.functional.linear(x, w, b)
    assert (PackedWeight(library.library(), w, b, DType.INT8)(x) - exact).norm() < 0.015 * exact.norm()


@pytest.mark.parametrize("kind", DType)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_nan_and_infinity_propagate(kind, odd):
    x, w = torch.ones(3, 40), torch.ones(50, 40)
    x[1, 7] = odd
    found = PackedWeight(library.library(), w, None, kind)(x)
    assert found[[0, 2]].isfinite().all()
    assert not found[1].isfinite().any()
    w[9, 3] = odd
    assert not PackedWeight(library.library(), w, None, kind)(x[:1])[0, 9].isfinite()


def test_ssru_propagates_nan(sources):
    """max(0, c) of some vector instructions would return 0."""
    decoder = {"type": "luong", "cell": "ssru", "size": 8, "layers": 1, "bridge": "learned", "readout": 6}
    encoder = {"type": "bidirectional", "cell": "gru", "size": 6}
    attention = {"score": "additive", "size": 4}
    config = ModelConfig.model_validate(
        {"embedding": 5, "encoder": encoder, "attention": attention, "decoder": decoder}
    )
    model = build(config, SYMBOLS, SYMBOLS, seed=1).eval()
    model.decoder.stack.bottom.input.bias.data[11] = torch.nan
    for scorer in (ModelScorer(model), NativeScorer(NativeDecoder.create(model, DType.FP32))):
        with torch.inference_mode():
            memory, state = scorer.start(sources, None)
            assert scorer.step(memory, state, torch.tensor([2] * len(sources["source"].ids))).norm.isnan().all()


def defined(model, kind):
    """Return scorers of the definition in fp32 and with the products rounded like native search."""
    return ModelScorer(packed_model(model, DType.FP32)), ModelScorer(packed_model(model, kind))


def assert_rounded_alike(got, want, exact, near, about, times=2):
    """Assert that native results differ from a reference with rounded products by at most `times` the rounding error.

    In addition, each value may differ by `near`, the error of fp32. Sums in another order change some values
    slightly, and these may be rounded to the other neighbour. Cohn's state is also rounded, as a product with I.
    """
    off = ((got - want).abs() - near * (1 + want.abs())).clamp(min=0.0)
    assert off.norm() <= times * (want - exact).norm(), about


def test_native_steps_of_every_decoder_equal_the_model(whole, make):
    """bf16 and int8 are compared with a model whose products are rounded in the same way."""
    model = make(whole).eval()
    if NativeDecoder.create(model, DType.FP32) is None:
        assert (
            unsupported_reason(model.decoder) is not None
            or type(model.decoder) not in DECODER_STEPS
            or lexical_unsupported_reason(model) is not None
        )
        pytest.skip("its step is not written for native search")
    sources = make_sources([[min(id, 11) for id in ids] for ids in SOURCES], torch.device("cpu"))
    # Half of an SSRU's state is 0, so few values are rounded.
    times = 3 if whole.model.decoder.model_dump().get("cell") == "ssru" else 2
    with torch.inference_mode():
        for kind in DType:
            scorers = *defined(model, kind), NativeScorer(NativeDecoder.create(model, kind))
            states = [scorer.start(sources, None) for scorer in scorers]
            for y in ([2, 2, 2, 2, 2], [5, 6, 7, 8, 9], [11, 10, 9, 4, 5], [3, 4, 5, 6, 7]):
                steps = [s.step(m, state, torch.tensor(y)) for s, (m, state) in zip(scorers, states, strict=True)]
                exact, want, got = ({"": step.scores - step.norm[:, None], **step.attention} for step in steps)
                assert got.keys() == want.keys()
                for name in want:
                    assert_rounded_alike(got[name], want[name], exact[name], 2e-4, f"{kind} {name}", times)
                states = [(m, step.state) for (m, _), step in zip(states, steps, strict=True)]
            if kind is DType.FP32:
                options = SearchOptions(beam=1, **LIMITS)
                one, other = greedy_search(scorers[2], sources, options), beam_search(scorers[0], sources, options)
                assert [[h.ids for h in found] for found in one] == [[h.ids for h in found] for found in other]
                if scorers[2]._native.searches_in_one_call:
                    wide = SearchOptions(beam=4, n_best=3, **LIMITS)
                    assert_one_call_is_the_steps(scorers[2]._native, sources, wide)


MERGING = {
    "pyramid": {"type": "pyramid", "cell": "gru", "size": 6, "layers": 2, "reduce": 1},
    "convolutional": {"type": "convolutional", "cell": "gru", "size": 6, "filters": 2, "stride": 2},
}


@pytest.mark.parametrize("feature", ["coverage-linguistic", "coverage-neural", "markov", "fertility-local"])
@pytest.mark.parametrize("encoder", MERGING)
def test_features_work_with_merged_annotations(encoder, feature):
    """Features follow the merged annotations, of which there are fewer than source positions."""
    attention = {"score": "additive", "size": 4, "features": [feature]} | {
        "coverage-linguistic": {"fertility": 2.0},
        "coverage-neural": {"coverage_size": 3},
        "markov": {"neighbours": 1},
        "fertility-local": {"neighbours": 1},
    }[feature]
    decoder = {"type": "cgru", "cell": "gru", "size": 8, "readout": 6}
    config = ModelConfig.model_validate(
        {"embedding": 5, "encoder": MERGING[encoder], "attention": attention, "decoder": decoder}
    )
    model = build(config, SYMBOLS, SYMBOLS, seed=1).eval()
    for p in model.parameters():
        p.data.normal_(std=0.6, generator=torch.Generator().manual_seed(p.numel()))
    sources = make_sources(SOURCES, torch.device("cpu"))
    scorers = ModelScorer(model), NativeScorer(NativeDecoder.create(model, DType.FP32))
    with torch.inference_mode():
        scored = [force_decode(scorer, sources, [[5, 60], [], [69], [8, 9], [1]]) for scorer in scorers]
    for plain, native in zip(*scored, strict=True):
        torch.testing.assert_close(torch.tensor(native.token_scores), torch.tensor(plain.token_scores))


@pytest.mark.parametrize("kind", DType)
def test_lexical_model_is_searched_natively(kind, sources):
    """RNNsearch with a lexical model uses the general native search, not the specialised one."""
    config = rnnsearch_config()
    model = build(config.model_copy(update={"lexical": True}), SYMBOLS, SYMBOLS, seed=1).eval()
    assert (
        isinstance(fastest_scorer(model, "int8").scorer, NativeScorer) and NativeRNNsearch.create(model, kind) is None
    )
    native_model = NativeScorer(NativeDecoder.create(model, kind))
    scorers = *defined(model, kind), native_model
    scored = [force_decode(scorer, sources, [[5, 60], [], [69], [8, 9], [1]]) for scorer in scorers]
    for found in zip(*scored, strict=True):
        exact, want, got = (torch.tensor(one.token_scores) for one in found)
        assert_rounded_alike(got, want, exact, 2e-5, kind)
