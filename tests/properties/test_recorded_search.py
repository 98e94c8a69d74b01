"""Searches from recordings equal searches without, and their steps do not synchronise with the device.

Without a GPU, a recording is the Python code that launches the kernels (tests/objectives/test_recorded.py), and results
are read as late as possible.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rnnsearch.accel.cuda_graphs import SWITCH
from rnnsearch.ops.device import TF32_PRODUCTS
from rnnsearch.search import recorded
from rnnsearch.search.beam import beam_search, greedy_search
from rnnsearch.search.candidates import Columns
from rnnsearch.search.decode import decode_all, make_sources
from rnnsearch.search.ensemble import (
    EnsembleMember,
    EnsembleScorer,
    WeightedPartialScorer,
    WeightedScorer,
    WeightedSumScorer,
)
from rnnsearch.search.expansion import BeamExpansion
from rnnsearch.search.hypothesis import SearchCancelled, SentenceError
from rnnsearch.search.model_scorer import TORCH_PRODUCTS, TORCH_TF32_PRODUCTS, ModelScorer, fastest_scorer
from rnnsearch.search.options import SearchOptions
from rnnsearch.search.recorded import SearchRecorder
from rnnsearch.search.sampling import Sampling
from rnnsearch.search.scorer import combined_weights
from rnnsearch.text.vocabulary import EOS
from tests.objectives.passes import again
from tests.properties.conftest import SYMBOLS

CPU = torch.device("cpu")
SENTENCES = [[5 + (n * k) % (SYMBOLS - 5) for k in range(1 + n % 4)] for n in range(11)]
OPTIONS = SearchOptions(beam=3, n_best=2, max_ratio=1.0, max_extra=2)
GREEDY = replace(OPTIONS, beam=1, n_best=1)


@pytest.fixture
def recorder(monkeypatch):
    """Search from recordings, as on a GPU; return the recorder."""
    recorder = SearchRecorder(lambda: again)
    monkeypatch.setattr("rnnsearch.search.beam.find_recorder", lambda _: recorder)
    monkeypatch.setattr("rnnsearch.search.decode.graphs_are_enabled", lambda _: True)
    monkeypatch.setattr(recorded, "MIN_USES_TO_RECORD_FEWER_ROWS", 1)
    return recorder


@pytest.fixture
def without_recorder(monkeypatch):
    """Return a function that runs a search without recordings."""

    def run(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr("rnnsearch.search.beam.find_recorder", lambda _: None)
            return function(*arguments, **options)

    return run


def assert_same(results, expected):
    """Raise AssertionError if two searches have different n best hypotheses."""
    assert [len(hypotheses) for hypotheses in results] == [len(hypotheses) for hypotheses in expected]
    for hypotheses, others in zip(results, expected, strict=True):
        for one, other in zip(hypotheses, others, strict=True):
            assert (one.ids, one.finished) == (other.ids, other.finished)
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)
            assert one.attention.keys() == other.attention.keys()
            for name, weights in one.attention.items():
                np.testing.assert_allclose(weights, other.attention[name], atol=1e-4)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_recorded_search_equals_the_search(system, make, recorder, without_recorder):
    # Greedy search differs in the choice of tokens only, which other tests compare for one system.
    options = OPTIONS
    scorer = ModelScorer(make(system))
    # The second batch replays the recorded encoder for other sentences.
    for sentences in (SENTENCES, [ids[::-1] for ids in SENTENCES[1:]]):
        expected = without_recorder(decode_all, scorer, sentences, options)
        assert_same(decode_all(scorer, sentences, options), expected)
    assert any(recording.start is not None for recording in recorder._shapes.values())


class _NoCopies(TorchDispatchMode):
    """Raises AssertionError if an operation reads tensors of two devices, for which it waits on a GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        devices = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        assert len(devices) < 2, f"{function} reads tensors on {sorted(devices)}"
        return function(*args, **(kwargs or {}))


@pytest.mark.usefixtures("as_on_a_gpu", "without_autocast")
def test_recorded_steps_do_not_synchronise_with_the_device(system, make):
    """On tensors without values, it is an error to read a value (see `test_waiting.py`)."""
    model = make(system)
    options = replace(OPTIONS, coverage_penalty=0.2 if model.decoder.attends else 0.0)
    expansion = BeamExpansion(ModelScorer(model), np.array([5, 5]), Columns(None, SYMBOLS), options)
    (constraint,) = expansion.constraints
    model.to("meta")
    constraint._columns = constraint._columns.to("meta")
    ids = {"source": make_sources([[5, 6, 7], [9]], CPU)["source"].ids.to("meta")}
    with torch.inference_mode(), _NoCopies():
        live, _ = recorded._first_step(expansion, ids)
        recorded._step(expansion, live, recorded.AFTER_FIRST, ["source"])


@pytest.fixture
def scorer(plainest, make):
    """Return the scorer of a small RNNsearch model."""
    return ModelScorer(make(plainest("bahdanau", None)))


@pytest.fixture
def sources():
    """Return a batch that needs several steps."""
    return make_sources(SENTENCES, CPU)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("ahead", [0, 2, 50])
@pytest.mark.parametrize(
    "changes",
    [
        {"stop": "top"},
        {"coverage_penalty": 0.3},
        {"length_norm": "gnmt", "n_best": 3},
        {"length_penalty": 0.0, "banned": frozenset({6, 7})},
        {"max_ratio": 0.0, "max_extra": 0},
    ],
    ids=str,
)
def test_options_give_the_same_hypotheses(scorer, sources, recorder, without_recorder, changes, ahead, monkeypatch):
    monkeypatch.setattr(recorded, "MAX_STEPS_AHEAD", ahead)
    monkeypatch.setattr(recorded, "FIRST_STEPS", 1 + ahead)
    options = replace(OPTIONS, **changes)
    expected = without_recorder(beam_search, scorer, sources, options)
    for _ in range(2):
        assert_same(beam_search(scorer, sources, options), expected)
    assert len(recorder) > 0


@pytest.mark.usefixtures("as_on_a_gpu")
def test_other_options_and_other_weights_are_recorded_again(scorer, sources, recorder, without_recorder):
    for options in (OPTIONS, replace(OPTIONS, banned=frozenset({6})), OPTIONS, GREEDY):
        search = greedy_search if options.beam == 1 else beam_search
        assert_same(search(scorer, sources, options), without_recorder(search, scorer, sources, options))
    recordings = len(recorder)
    scorer._model.output.bias.data[EOS] += 1.0  # the same memory with other values
    assert_same(beam_search(scorer, sources, OPTIONS), without_recorder(beam_search, scorer, sources, OPTIONS))
    assert len(recorder) == recordings
    scorer._model.output.bias.data = scorer._model.output.bias.data - 1.0
    assert_same(beam_search(scorer, sources, OPTIONS), without_recorder(beam_search, scorer, sources, OPTIONS))
    assert len(recorder) > recordings


@pytest.mark.usefixtures("as_on_a_gpu")
def test_ensembles_are_recorded(scorer, make, plainest, recorder, without_recorder):
    other = ModelScorer(make(plainest("luong", None), seed=2))
    names = {"source": "source"}
    members = [EnsembleMember(scorer, 1.0, names), EnsembleMember(other, 2.0, names)]
    for combined in (
        EnsembleScorer(members),
        EnsembleScorer(members, "arithmetic"),
        WeightedSumScorer([WeightedScorer(scorer), WeightedScorer(other, 0.3)]),
    ):
        recordings = len(recorder)
        expected = without_recorder(decode_all, combined, SENTENCES, OPTIONS)
        for _ in range(2):
            assert_same(decode_all(combined, SENTENCES, OPTIONS), expected)
        assert len(recorder) > recordings
        recorder._free()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_unsupported_searches_run_without_recordings(scorer, sources, recorder, without_recorder):
    phrases = tuple(((6,),) for _ in SENTENCES)
    prefix = tuple((6,) for _ in SENTENCES)
    for changes in ({"phrases": phrases}, {"prefix": prefix}, {"min_length": 2}, {"no_repeat_ngram": 2}):
        options = replace(OPTIONS, **changes)
        assert beam_search(scorer, sources, options) == without_recorder(beam_search, scorer, sources, options)
    wide = replace(OPTIONS, beam=SYMBOLS)
    assert beam_search(scorer, sources, wide) == without_recorder(beam_search, scorer, sources, wide)
    sampled = replace(OPTIONS, variant=Sampling())
    assert decode_all(scorer, SENTENCES, sampled) == without_recorder(decode_all, scorer, SENTENCES, sampled)
    candidates = decode_all(scorer, SENTENCES, OPTIONS, candidates=lambda _: torch.arange(SYMBOLS))
    assert_same(candidates, without_recorder(decode_all, scorer, SENTENCES, OPTIONS))
    assert len(recorder) == 0


def test_scorers_with_partial_members_are_not_recorded(scorer):
    partial = WeightedSumScorer([WeightedScorer(scorer)], [WeightedPartialScorer(scorer)])
    assert partial.recorded_weights() is None and combined_weights([scorer, partial]) is None


@pytest.mark.usefixtures("as_on_a_gpu", "recorder")
def test_nan_names_its_sentence_and_position(scorer, sources, without_recorder):
    scorer._model.output.weight.data[6] = torch.nan
    with pytest.raises(SentenceError) as expected:
        without_recorder(beam_search, scorer, sources, OPTIONS)
    with pytest.raises(SentenceError) as error:
        beam_search(scorer, sources, OPTIONS)
    assert str(error.value) == str(expected.value)
    with pytest.raises(SentenceError, match="sentence 3 "):
        decode_all(scorer, SENTENCES, OPTIONS, 3)  # the first batch has the longest sentences


@pytest.mark.usefixtures("as_on_a_gpu")
def test_search_can_be_cancelled(scorer, sources, recorder):
    calls = []

    def is_cancelled():
        calls.append(1)
        return len(calls) > 2

    with pytest.raises(SearchCancelled):
        beam_search(scorer, sources, replace(OPTIONS, is_cancelled=is_cancelled))
    assert not recorder._lock.locked()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_finished_sentences_leave_the_batch(scorer, recorder, without_recorder):
    sentences = make_sources([[5] * (30 if n == 4 else 1) for n in range(17)], CPU)
    options = replace(OPTIONS, stop="bound", max_extra=0)
    assert_same(beam_search(scorer, sentences, options), without_recorder(beam_search, scorer, sentences, options))
    assert sorted(key[0] for key in recorder._shapes) == [8, 24]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [OPTIONS, GREEDY], ids=["beam", "greedy"])
def test_searches_of_several_batches_overlap(scorer, recorder, without_recorder, options):
    expected = without_recorder(decode_all, scorer, SENTENCES, options, 3)
    for _ in range(2):
        assert_same(decode_all(scorer, SENTENCES, options, 3), expected)
    prefixed = replace(options, prefix=tuple((6,) for _ in SENTENCES))  # not recorded
    assert_same(
        decode_all(scorer, SENTENCES, prefixed, 3), without_recorder(decode_all, scorer, SENTENCES, prefixed, 3)
    )
    assert not recorder._lock.locked()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_search_that_ends_early_frees_the_recordings(scorer, recorder):
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all(scorer, SENTENCES, OPTIONS, 3, progress=stop)
    assert not recorder._lock.locked()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_rarely_used_recordings_are_dropped(scorer, recorder, monkeypatch):
    monkeypatch.setattr(recorded, "MAX_SHAPES", 2)
    for count in (1, 9, 17, 1):
        beam_search(scorer, make_sources(SENTENCES[:1] * count, CPU), OPTIONS)
    assert len(recorder) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("error", [RuntimeError("operation not permitted when stream is capturing"), None])
def test_search_runs_without_recordings_if_recording_fails(
    scorer, sources, without_recorder, error, monkeypatch, caplog
):
    tries = []

    def fail(*_):
        tries.append(1)
        raise torch.OutOfMemoryError("out of memory") if error is None else error

    recorder = SearchRecorder(lambda: fail)
    monkeypatch.setattr("rnnsearch.search.beam.find_recorder", lambda _: recorder)
    for _ in range(2):
        assert_same(beam_search(scorer, sources, OPTIONS), without_recorder(beam_search, scorer, sources, OPTIONS))
    # If memory was short, recording is tried again; if recording is impossible, it is not.
    assert len(tries) == (2 if error is None else 1)
    assert [record.levelname for record in caplog.records] == ([] if error is None else ["WARNING"])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_concurrent_search_runs_without_recordings(scorer, sources, recorder, without_recorder):
    with recorder._lock:
        assert_same(beam_search(scorer, sources, OPTIONS), without_recorder(beam_search, scorer, sources, OPTIONS))
    assert len(recorder) == 0


def test_recordings_belong_to_the_model(scorer, monkeypatch):
    assert recorded.find_recorder(scorer) is None, "nothing is recorded on a CPU"
    monkeypatch.setattr(recorded, "graphs_are_enabled", lambda _: True)
    monkeypatch.setattr(recorded, "CudaGraphs", lambda _: again)
    recorder = recorded.find_recorder(scorer)
    assert recorder is not None and recorded.find_recorder(ModelScorer(scorer._model)) is recorder
    recorded.forget(scorer._model)
    assert recorded.find_recorder(scorer) is not recorder


@pytest.mark.usefixtures("as_on_a_gpu")
def test_recordings_are_freed_with_their_model(plainest, make, sources, monkeypatch):
    monkeypatch.setattr(recorded, "graphs_are_enabled", lambda _: True)
    # A CUDA graph keeps no reference to the Python function that launched its kernels.
    monkeypatch.setattr(recorded, "CudaGraphs", lambda _: lambda work, _: work() or (lambda: None))
    model = make(plainest("bahdanau", None))
    for _ in range(2):
        beam_search(ModelScorer(model), sources, OPTIONS)
    assert len(recorded._RECORDERS[model]) > 0
    left = weakref.ref(model)
    del model
    gc.collect()
    assert left() is None


def test_tf32_is_set_for_products_only():
    assert not torch.backends.cuda.matmul.allow_tf32
    with TF32_PRODUCTS:
        with TF32_PRODUCTS:
            assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.usefixtures("as_on_a_gpu")
def test_precisions_have_separate_recordings(scorer, sources, recorder):
    beam_search(scorer, sources, OPTIONS)
    recordings = len(recorder)
    beam_search(ModelScorer(scorer._model, tf32=True), sources, OPTIONS)
    assert len(recorder) == 2 * recordings


def test_rows_are_halved():
    assert [recorded._fewer_rows(64, active) for active in (64, 33, 32, 16, 9, 8, 1)] == [64, 64, 32, 16, 16, 8, 8]
    assert [recorded._fewer_rows(40, active) for active in (24, 16, 3)] == [24, 16, 8]
    assert recorded._fewer_rows(8, 1) == 8


@pytest.mark.cuda
def test_tf32_products_are_near_fp32(plainest, make):
    model = make(plainest("bahdanau", None)).cuda()
    fast = fastest_scorer(model)
    assert fast.description == TORCH_TF32_PRODUCTS
    assert fastest_scorer(model, "fp32").description == TORCH_PRODUCTS
    exact = decode_all(ModelScorer(model), SENTENCES, OPTIONS)
    for [one, *_], [other, *_] in zip(decode_all(fast.scorer, SENTENCES, OPTIONS), exact, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.05)
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.cuda
@pytest.mark.parametrize("options", [OPTIONS, GREEDY], ids=["beam", "greedy"])
def test_cuda_graphs_equal_the_search(system, make, options, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    monkeypatch.setattr(recorded, "MIN_USES_TO_RECORD_FEWER_ROWS", 1)
    scorer = ModelScorer(make(system).cuda())
    for sentences in (SENTENCES, [ids[::-1] for ids in SENTENCES[1:]], SENTENCES):
        monkeypatch.setenv(SWITCH, "0")
        expected = decode_all(scorer, sentences, options)
        monkeypatch.setenv(SWITCH, "1")
        assert_same(decode_all(scorer, sentences, options), expected)
    recorder = recorded.find_recorder(scorer)
    assert recorder._works and any(recording.start is not None for recording in recorder._shapes.values())
